// Four numbers on every page: answered locally, right in the end, gained and spent. Knows one route of the agent.

import { get } from "./api.js";
import { $, element, refill } from "./elements.js";
import { counted, money, percent, points } from "./numbers.js";
import { LEARNED_FROM } from "./words.js";

const ABOUT = {
  answered: "Of this month's answers, the share that came from this device.",
  right: "An estimate from stored validation questions: alone, or with the cloud's help at the present rate.",
  gained: "How much more of them is right in the end than before anything was learned.",
  spent: "Answers and learning together.",
};

export class Headline {
  refresh() {
    this.loading ??= this.fill().finally(() => { this.loading = null; });
    return this.loading;
  }

  async fill() {
    let found;
    try { found = await get("/api/headline"); } catch (problem) { if (problem.status === undefined) throw problem; return; }
    refill($("numbers"), found, () => [
      figure("Answered locally", percent(found.answered_locally), ABOUT.answered),
      figure("Right in the end", percent(found.right_in_the_end), ABOUT.right, questions(found)),
      figure("Gained", points(found.gained), ABOUT.gained, practice(found.practice)),
      figure(found.cloud_name ? `Spent (${found.cloud_name})` : "Spent", `${money(found.spent_today_uusd)} today, ${money(found.spent_this_month_uusd)} this month`, ABOUT.spent),
    ]);
  }
}

const figure = (name, value, about, extra = "") => element("div", { title: about }, element("dt", {}, name),
  element("dd", {}, value, extra && element("span", { class: "soft" }, ` ${extra}`)));

// Whose validation questions they are, and how many are learned from.
function questions({ own, validation_questions: number, learned_from: learned }) {
  if (!number) return "";
  const which = !learned ? "" : learned === number ? ` (${LEARNED_FROM})` : ` (${learned} ${LEARNED_FROM})`;
  return `of ${own ? `${counted(number, "question")} of your own` : counted(number, "practice question")}${which}`;
}

const practice = (found) => found ? `(practice: ${percent(found.right_in_the_end)}, ${points(found.gained)})` : "";
