// The units and periods of budgets, as the agent's API names them (edge/core/units.py, edge/core/periods.py).

import { money, whole } from "./numbers.js";

// What is counted, its limit and the limit's period; what a field for the limit is labelled with.
export const UNITS = [
  { title: "Calls", name: "calls", limit: "calls_limit", period: "calls_period", show: whole, label: "calls" },
  { title: "Tokens", name: "tokens", limit: "tokens_limit", period: "tokens_period", show: whole, label: "tokens" },
  { title: "Spend", name: "spend_uusd", limit: "spend_limit_uusd", period: "spend_period", show: money, label: "USD" },
];

// Longest first, as words for a choice and for the period that it is now.
export const PERIODS = [
  { name: "month", words: "a month", now: " this month" }, { name: "week", words: "a week", now: " this week" },
  { name: "day", words: "a day", now: " today" }, { name: "hour", words: "an hour", now: " this hour" }, { name: "total", words: "in all", now: "" },
];
