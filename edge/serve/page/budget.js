// The budget: the dial of each task, what is used and left, spend and price. Knows the agent's budget values; knows nothing of answers.

import { get, post } from "./api.js";
import { Chart, drawGauge, gauge, smoothed } from "./charts.js";
import { $, announce, button, element, facts, freshId, refill } from "./elements.js";
import { axisTime, counted, decimal, dollars, moment, percent, seconds, usedOf, whole } from "./numbers.js";
import { Part } from "./view.js";

const WHATIF_AFTER_MS = 250;
const TOTALS = [["Calls", "calls", whole], ["Tokens", "tokens", whole], ["Spend", "spend_uusd", dollars]];
const nameOf = (task) => task ? task : "every task";

export class Budget {
  constructor(steps) {
    this.steps = steps;
    this.dials = new Map();
    this.part = new Part($("dials"), () => get("/api/budget"), (budget) => this.showBudget(budget));
    this.rate = new Chart("Assist rate and its price");
    this.spend = new Chart("Spend over time");
    $("rate-place").append(this.rate.figure);
    $("spend-place").append(this.spend.figure);
    $("pause-cloud").addEventListener("click", () => this.togglePause());
  }

  opened() { this.part.refresh(true); }
  tick() { this.part.refresh(); }

  // Hidden until the agent has said whether it is on.
  paintSwitch(paused) {
    $("pause-cloud").hidden = false;
    $("pause-cloud").setAttribute("aria-checked", String(paused));
  }

  onStatus(status) {
    const quota = status.quota ?? status.budget;
    this.showQuota(quota ? { task: status.task, ...quota } : null, status);
  }

  showBudget({ quota, dials = [], paused = false }) {
    if (quota) this.showQuota(quota, {});
    this.paintSwitch(paused);
    const names = dials.map(({ task }) => task);
    if (refill($("dials"), names, () => this.newDials(names))) this.dials.forEach((dial) => dial.paint());
    dials.forEach((dial) => this.dials.get(dial.task).update(dial));
  }

  newDials(names) {
    this.dials = new Map(names.map((task) => [task, new Dial(task, () => this.part.refresh(true))]));
    if (!names.length) return [element("p", { class: "note" }, "No task has a dial yet. It appears with the first question.")];
    return [...this.dials.values()].map(({ card }) => card);
  }

  async togglePause() {
    const paused = $("pause-cloud").getAttribute("aria-checked") !== "true";
    try {
      await post("/api/budget/pause", { paused });
    } catch (problem) {
      this.part.say(problem.missing ? "This agent cannot pause asking." : problem.message);
      return;
    }
    this.paintSwitch(paused);
    announce(paused ? "Asking is paused: nothing leaves this device" : "Asking goes on");
    this.part.refresh(true);
  }

  showQuota(quota, status) {
    refill($("quota"), [quota, status.dual, status.total_spend_uusd], () => quota ? quotaParts(quota) : [element("p", { class: "note" }, "The coordinator cannot be reached now, so what is left is not known. It counts on: nothing can be spent beyond the limits.")]);
  }

  onSteps() {
    const steps = this.steps, { marks, begins } = steps.phases();
    if (!steps.last) return;
    const rates = steps.column("assist_rate"), duals = steps.column("dual_after"), mean = smoothed(rates, begins);
    const top = Math.max(1, ...duals);
    this.rate.show({
      xs: steps.column("step"), xName: "Step", marks, top, showX: (step) => `step ${whole(step)}`, showY: (value) => decimal(value, 1),
      curves: [
        { name: "assist rate", kind: "k-rate", values: mean, raw: rates, show: percent }, { name: "target τ", kind: "k-target", values: steps.column("target_rate"), show: percent },
        { name: "price λ", kind: "k-dual", values: duals, show: (value) => decimal(value, 3) },
      ],
      summary: `Assist rate ${percent(mean.at(-1))} at a target of ${percent(steps.last.target_rate)}; λ ${decimal(duals.at(-1), 3)}.`,
    });
    this.showSpend();
  }

  showSpend() {
    const spends = this.steps.column("total_spend_uusd"), times = this.steps.column("at"), span = times.at(-1) - times[0];
    this.spend.show({
      xs: times, xName: "When", top: Math.max(1, ...spends) * 1.05, showX: (at) => axisTime(at, span), showY: dollars,
      curves: [{ name: "spent on learning, in all", kind: "k-spend", values: spends }],
      summary: `${dollars(spends.at(-1))} spent on learning by ${moment(times.at(-1))}.`,
    });
  }
}

function quotaParts(quota) {
  return [
    element("p", {}, quota.state ? element("span", { class: "badge" }, quota.state) : null, " ", element("span", { dir: "auto" }, quota.line ?? "")),
    element("div", { class: "meters" }, ...TOTALS.map(([name, key, show]) => meter(name, quota[key], quota[key.replace("_uusd", "") + "_limit" + (key.endsWith("_uusd") ? "_uusd" : "")], show))),
    facts([
      ["Task", quota.task], ["Target τ", quota.target_rate === null ? "the model decides" : percent(quota.target_rate)], ["Realised rate", quota.realised_rate === undefined ? "" : percent(quota.realised_rate)],
      ["Price λ", decimal(quota.dual, 3)], ["As of", quota.as_of ? moment(quota.as_of) : ""],
    ]),
  ];
}

// How much of a limit is used, in words and as a bar.
function meter(name, used, limit, show) {
  const limited = typeof limit === "number";
  const left = limited ? `${show(Math.max(0, limit - used))} left` : "no limit";
  return element("div", { class: "meter" }, element("div", { class: "meter-words" }, element("strong", {}, name), element("span", {}, `${usedOf(used, limit, show)} used, ${left}`)),
    limited ? element("progress", { max: Math.max(1, limit), value: Math.min(used, limit), "aria-label": `${name} used` }) : null);
}

// One task's dial. What is chosen takes effect when it is set, so that its price is seen before.
class Dial {
  constructor(task, changed) {
    this.task = task;
    this.changed = changed;
    this.now = null;
    this.dirty = false;
    const [heading, slider, hint] = ["dial", "slider", "whatif"].map(freshId);
    this.gauge = gauge();
    this.words = element("div", { class: "dial-facts" });
    this.slider = element("input", { type: "range", id: slider, min: 0, max: 100, step: 1, "aria-describedby": hint, "on:input": () => this.moved(), "on:keydown": (event) => this.onKey(event) });
    this.output = element("output", { htmlFor: slider });
    this.free = element("input", { type: "checkbox", role: "switch", "on:change": () => this.moved() });
    this.whatif = element("p", { class: "whatif", id: hint });
    this.set = button("Set", () => this.apply());
    this.leave = button("Leave as it is", () => this.reset(), { class: "quiet" });
    this.problem = element("p", { class: "problem", role: "alert" });
    this.card = element("section", { class: "card dial", "aria-labelledby": heading },
      element("h4", { id: heading, dir: "auto" }, nameOf(task)), element("div", { class: "dial-row" }, this.gauge, this.words),
      element("div", { class: "meter-words" }, element("label", { htmlFor: slider }, "Answers that may ask"), this.output), this.slider,
      element("label", { class: "check" }, this.free, "the model decides alone"), this.whatif,
      element("div", { class: "row" }, this.set, this.leave), this.problem);
  }

  // What the agent says of it.
  update(dial) {
    if (JSON.stringify(dial) === JSON.stringify(this.now)) return;
    this.now = dial;
    const { target_rate: target, realised_rate: realised } = dial;
    drawGauge(this.gauge, realised, target, `${nameOf(this.task)}: ${percent(realised)} asked, ${target === null ? "the model decides" : `target ${percent(target)}`}`);
    this.words.replaceChildren(facts([
      ["Target", target === null ? "the model decides" : percent(target)], ["Realised", percent(realised)],
      ["Answers", whole(dial.answers)], ["Shift", decimal(dial.bias)],
    ]));
    if (!this.dirty) this.reset();
  }

  get chosen() { return this.free.checked ? null : Number(this.slider.value) / 100; }

  reset() {
    const target = this.now.target_rate, focused = [this.set, this.leave].includes(document.activeElement);
    this.free.checked = target === null;
    this.slider.value = Math.round(100 * (target ?? this.now.realised_rate ?? 0.2));
    this.dirty = false;
    clearTimeout(this.timer);
    this.whatif.textContent = "Move the dial to see what it would cost.";
    this.paint();
    if (focused) (this.free.checked ? this.free : this.slider).focus();
  }

  moved() {
    this.dirty = this.chosen !== this.now.target_rate;
    if (!this.dirty) { this.reset(); return; }
    this.paint();
    this.whatif.textContent = "Looking what this would have cost …";
    clearTimeout(this.timer);
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
      words = whatifWords(await post("/api/whatif", { target_rate: rate, task: this.task || null }));
    } catch (problem) {
      words = problem.missing ? "This agent cannot say beforehand what this would cost." : problem.message;
    }
    if (!this.dirty || this.chosen !== rate) return;
    this.whatif.textContent = words;
    announce(words);
  }

  async apply() {
    const rate = this.chosen;
    try {
      await post("/api/budget", { task: this.task || null, target_rate: rate });
    } catch (problem) {
      this.problem.textContent = problem.message;
      return;
    }
    announce(`Set: ${nameOf(this.task)}, ${rate === null ? "the model decides" : percent(rate)}`);
    this.dirty = false;
    this.update({ ...this.now, target_rate: rate });
    this.changed();
  }
}

// The replay's result in words: its own line, or what is known of its numbers.
function whatifWords(result) {
  if (typeof result.line === "string" && result.line) return result.line;
  const parts = [
    typeof result.spend_uusd === "number" ? `would cost about ${dollars(result.spend_uusd)}` : "",
    typeof result.cloud_calls === "number" ? counted(result.cloud_calls, "call") : "",
    typeof result.accuracy === "number" ? `${percent(result.accuracy)} right` : "",
    typeof result.latency_s === "number" ? `${seconds(result.latency_s)} an answer` : "",
    typeof result.answers === "number" ? `for the last ${counted(result.answers, "answer")}` : "",
  ].filter(Boolean);
  return parts.length ? parts.join(", ") : "There is no traffic to tell from yet.";
}
