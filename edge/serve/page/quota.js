// What may still be asked, per task: words, bars and figures. Knows the agent's quota; knows nothing of dials.

import { element, facts, refill } from "./elements.js";
import { counted, decimal, moment, money, usedOf } from "./numbers.js";
import { PERIODS, UNITS } from "./units.js";
import { reasonWords } from "./words.js";

// Without a prototype: the keys come from elsewhere.
const STATES = {
  __proto__: null,
  ok: ["within budget", "good"], low: ["little is left", "other"], used_up: ["used up", "bad"], paused: ["paused", "other"],
  switched_off: ["switched off", "other"], offline: ["offline", "bad"], unknown: ["not known yet", "other"],
};
// States that the bars show already need no line.
const PLAIN = ["ok", "low"];

// Fills `node` with what the tasks share (`device`, null: nothing) and the quotas of all tasks; `unsettled`: cloud calls whose end is not
// known yet.
export function showQuotas(node, device, quotas, unsettled) {
  const several = quotas.length > 1, shared = several ? device : null;
  refill(node, [shared, quotas, unsettled], () => [
    shared ? element("section", { class: "quota" }, element("h4", {}, "This device in all"), meters(shared, (used) => used in shared)) : "",
    ...quotas.map((quota) => quotaBlock(quota, several, shared ?? {})),
    unsettled ? element("p", { class: "note" }, `${counted(unsettled, "unconfirmed call")} to the cloud: whether they were answered is not known yet. They will be checked, and charged once at most.`) : "",
  ]);
}

function quotaBlock(quota, named, shared) {
  const [words, kind] = STATES[quota.state] ?? [quota.state, "other"];
  const line = PLAIN.includes(quota.state) ? "" : element("span", { dir: "auto" }, reasonWords(quota.line));
  const known = quota.as_of !== null;
  return element("section", { class: "quota" }, named ? element("h4", { dir: "auto" }, quota.task) : null,
    element("p", {}, element("span", { class: `badge gate-${kind}` }, words), " ", line),
    known ? meters(quota, (used) => !(used in shared)) : null,
    facts([
      ["Task", named ? "" : quota.task], ["Used by this task", quota.used ? ownUse(quota.used) : ""], ["Cost of asking, λ", decimal(quota.dual, 3)],
      ["As of", known ? moment(quota.as_of) : "the coordinator has not been heard yet"],
    ]));
}

const ownUse = ({ calls, tokens, spend_uusd: spend }) => `${counted(calls, "call")}, ${counted(tokens, "token")}, ${money(spend)}`;

function meters(totals, wanted) {
  return element("div", { class: "meters" }, ...UNITS.filter(({ name }) => wanted(name)).map(({ title, name, limit, period, show }) => meter(title, totals[name], totals[limit], show, periodNow(totals[period]))));
}

const periodNow = (period) => PERIODS.find(({ name }) => name === period)?.now ?? "";

// How much of a limit is used, in words and as a bar.
function meter(name, used, limit, show, period) {
  const limited = limit !== null;
  const words = limited ? `${usedOf(used, limit, show)} used${period}, ${show(Math.max(0, limit - used))} left` : `${show(used)} (unlimited)`;
  return element("div", { class: "meter" }, element("div", { class: "meter-words" }, element("strong", {}, name), element("span", {}, `${words}`)),
    limited ? element("progress", { max: Math.max(1, limit), value: Math.min(used, limit), "aria-label": `${name} used` }) : null);
}
