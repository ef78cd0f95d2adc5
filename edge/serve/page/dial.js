// One task's dial, and what another rate would have meant. Knows readings of dials and replays; knows nothing of quotas.

import { post } from "./api.js";
import { drawGauge, gauge } from "./charts.js";
import { announce, button, element, facts, freshId } from "./elements.js";
import { counted, decimal, money, percent, seconds, whole } from "./numbers.js";
import { sentence } from "./words.js";

const WHATIF_AFTER_MS = 250;
const MOVE = "Move the dial to see what it would have cost.";
const ALONE = "Then the model asks whenever it wants to, as it has learned to; how often that is, is not known before.";

// What is chosen takes effect when it is set, so that its price is seen before.
export class Dial {
  // `task` null: every task. `changed(budget)` is given the agent's reply to a change.
  constructor(task, changed) {
    this.task = task;
    this.name = task ?? "every task";
    this.changed = changed;
    this.now = null;
    this.dirty = false;
    const [heading, slider, hint] = ["dial", "slider", "whatif"].map(freshId);
    this.gauge = gauge();
    this.words = element("div", { class: "dial-facts" });
    this.ranking = element("p", { class: "note ranking" });
    this.slider = element("input", { type: "range", id: slider, min: 0, max: 100, step: 1, "aria-describedby": hint, "on:input": () => this.moved(), "on:keydown": (event) => this.onKey(event) });
    this.output = element("output", { htmlFor: slider });
    this.free = element("input", { type: "checkbox", role: "switch", "on:change": () => this.moved() });
    this.whatif = element("p", { class: "whatif", id: hint });
    this.set = button("Set", () => this.apply());
    this.leave = button("Cancel", () => this.reset(), { class: "quiet" });
    this.text = element("input", { type: "text", class: "dial-text", placeholder: "30 %", autocomplete: "off", "aria-label": `Rate of ${this.name}, as 30 % or 0.3`, "on:keydown": (event) => this.onText(event) });
    this.problem = element("p", { class: "problem", role: "alert" });
    const reading = task === null ? [element("p", { class: "note" }, "Setting this replaces what is set for single tasks, and holds for new ones.")] : [element("div", { class: "dial-row" }, this.gauge, this.words), this.ranking];
    this.card = element("section", { class: "card dial", "aria-labelledby": heading },
      element("h4", { id: heading, dir: "auto" }, this.name), ...reading,
      element("div", { class: "meter-words" }, element("label", { htmlFor: slider }, "Questions that may go to the cloud"), this.output), this.slider,
      element("label", { class: "check" }, this.free, "the model decides alone"), this.whatif,
      element("div", { class: "row" }, this.set, this.leave, element("label", { class: "limit-field" }, "or type a rate", this.text)), this.problem);
  }

  // What the agent reports of it: a reading, or of every task the rate alone.
  update(reading) {
    if (JSON.stringify(reading) === JSON.stringify(this.now)) return;
    this.now = reading;
    if (this.task !== null) this.showReading();
    if (!this.dirty) this.reset();
  }

  showReading() {
    const { target_rate: target, realised_rate: realised, ranking } = this.now;
    this.ranking.textContent = `Help log-odds: ${ranking.words}.`;
    drawGauge(this.gauge, realised, target, `${this.name}: ${percent(realised)} asked, ${target === null ? "the model decides" : `target ${percent(target)}`}`);
    this.words.replaceChildren(facts([
      ["Target", target === null ? "the model decides" : percent(target)], ["Asked lately", realised === null ? "no question yet" : percent(realised)],
      ["Since it was set", this.now.questions ? `${whole(this.now.asked)} of ${whole(this.now.questions)} asked` : ""],
      ["Could not ask", this.now.without_decision ? percent(this.now.without_decision) : ""], ["Shift", this.now.bias ? `${decimal(this.now.bias)} log-odds` : ""],
    ]));
  }

  get chosen() { return this.free.checked ? null : Number(this.slider.value) / 100; }

  reset() {
    const target = this.now.target_rate, focused = [this.set, this.leave].includes(document.activeElement);
    this.free.checked = target === null;
    this.slider.value = Math.round(100 * (target ?? this.now.realised_rate ?? 0.2));
    this.dirty = false;
    clearTimeout(this.timer);
    this.whatif.textContent = MOVE;
    this.paint();
    if (focused) (this.free.checked ? this.free : this.slider).focus();
  }

  moved() {
    this.dirty = this.chosen !== this.now.target_rate;
    if (!this.dirty) { this.reset(); return; }
    this.paint();
    clearTimeout(this.timer);
    if (this.chosen === null) { this.showOutlook(ALONE); return; }
    this.whatif.textContent = "Computing what this would have cost …";
    this.timer = setTimeout(() => this.preview(this.chosen), WHATIF_AFTER_MS);
  }

  paint() {
    const shown = percent(Number(this.slider.value) / 100);
    this.output.textContent = this.free.checked ? "–" : shown;
    this.slider.setAttribute("aria-valuetext", shown);
    this.slider.disabled = this.free.checked;
    this.set.disabled = this.leave.disabled = !this.dirty;
    this.set.textContent = this.free.checked ? "Let the model decide" : `Set to ${shown}`;
    this.problem.textContent = "";
  }

  onKey(event) {
    if (event.key === "Enter" && this.dirty) { event.preventDefault(); this.apply(); }
    if (event.key === "Escape" && this.dirty) this.reset();
  }

  async preview(rate) {
    let words;
    try {
      words = outlookWords(await post("/api/whatif", { target_rate: rate, task: this.task }));
    } catch (problem) {
      words = problem.message;
    }
    if (this.dirty && this.chosen === rate) this.showOutlook(words);
  }

  showOutlook(words) {
    this.whatif.textContent = words;
    announce(words);
  }

  // What is typed is read by the agent, as everywhere else.
  onText(event) {
    if (event.key === "Enter" && this.text.value.trim()) { event.preventDefault(); this.apply(this.text.value); }
  }

  // What is chosen while the agent's reply is on its way stays chosen.
  async apply(rate = this.chosen) {
    const chosen = this.chosen;
    let budget;
    try {
      budget = await post("/api/budget", { task: this.task, target_rate: rate });
    } catch (problem) {
      this.problem.textContent = problem.message;
      return;
    }
    this.text.value = "";
    announce(`Set: ${this.name}, ${rate === null ? "the model decides" : typeof rate === "string" ? rate : percent(rate)}`);
    this.dirty = this.chosen !== chosen;
    this.changed(budget);
    if (!this.dirty) this.reset();
  }
}

// A replay in words: how many would have asked, at what cost, how fast and how good, compared with what really happened.
function outlookWords({ answers, present, outlooks: [outlook] }) {
  return [
    `Of the last ${counted(answers, "answer")}, ${whole(outlook.calls)} would have come from the cloud (really: ${whole(present.calls)}).`,
    outlook.spend_uusd === null ? "" : `They would have cost about ${money(Math.round(outlook.spend_uusd))}${between(outlook.spend_interval_uusd, (uusd) => money(Math.round(uusd)))} (really: ${money(present.spend_uusd)}).`,
    `Answers would have come within ${seconds(outlook.latency_p50_s)} (p50) and ${seconds(outlook.latency_p90_s)} (p90).`,
    outlook.good_share === null ? "" : `About ${percent(outlook.good_share)}${between(outlook.good_interval, percent)} would have been good.`,
    ...remarks(outlook.notes),
  ].filter(Boolean).join("\n");
}

// Remarks that begin alike are one sentence.
function remarks(notes) {
  const begun = new Map();
  for (const note of notes) {
    const [about, ...rest] = note.split(": ");
    begun.set(about, [...(begun.get(about) ?? []), ...(rest.length ? [rest.join(": ")] : [])]);
  }
  return [...begun].map(([about, rest]) => sentence(rest.length ? `${about}: ${rest.join("; ")}` : about));
}

const between = (interval, show) => interval && interval[0] !== interval[1] ? `, from ${show(interval[0])} to ${show(interval[1])}` : "";
