// The budget: what is used and left, the dial of each task, spend and λ. Knows the agent's budgets; knows nothing of answers.

import { get, post } from "./api.js";
import { Chart, TaskCharts, smoothed } from "./charts.js";
import { Dial } from "./dial.js";
import { $, announce, element, refill } from "./elements.js";
import { axisTime, decimal, money, percent } from "./numbers.js";
import { Limit } from "./limit.js";
import { showQuotas } from "./quota.js";
import { Part } from "./view.js";

// The next amount that is easy to read: 1, 2 or 5 with noughts.
const rounded = (uusd) => [1, 2, 5, 10].map((digit) => digit * 10 ** Math.floor(Math.log10(uusd))).find((amount) => amount >= uusd);
const SPEND_EVERY_TICKS = 6;

export class Budget {
  constructor(steps) {
    this.steps = steps;
    this.dials = [];
    this.quotas = [];
    this.device = null;
    this.limit = new Limit($("limit"), (budget) => this.part.give(budget));
    this.part = new Part($("dials"), () => get("/api/budget"), (budget) => this.show(budget));
    this.rate = new TaskCharts($("rate-place"), "Asking while learning, and λ", rateData);
    this.spend = new Chart("Spend over time");
    $("spend-place").append(this.spend.figure);
    this.spends = new Part(this.spend.figure, () => get("/api/report?since=0"), (report) => this.showSpend(report));
    $("pause-cloud").addEventListener("click", () => this.togglePause());
  }

  opened() {
    this.part.refresh();
    this.spends.refresh();
  }

  // The report reads much: once in a while is often enough.
  tick() {
    this.ticks = (this.ticks ?? 0) + 1;
    this.part.refresh();
    if (this.ticks % SPEND_EVERY_TICKS === 0) this.spends.refresh();
  }

  // The status knows the quota of the task that serving uses, and sooner.
  onStatus({ quota, unsettled_calls: unsettled = 0 }) {
    if (!quota) return;
    const known = this.quotas.some(({ task }) => task === quota.task);
    const quotas = known ? this.quotas.map((one) => one.task === quota.task ? { ...quota, used: one.used } : one) : [quota, ...this.quotas];
    const newer = this.device && quota.as_of > this.device.as_of;
    this.showQuotas(newer ? Object.fromEntries(Object.keys(this.device).map((name) => [name, quota[name]])) : this.device, quotas, unsettled);
  }

  show(budget) {
    this.showQuotas(budget.device ?? null, budget.tasks.map(({ dial, ...quota }) => quota), budget.unsettled_calls);
    this.paintSwitch(budget);
    this.limit.update(budget);
    const readings = budget.tasks.map(({ dial }) => dial);
    if (readings.length > 1) readings.push({ task: null, target_rate: budget.target_rate });
    const names = readings.map(({ task }) => task);
    if (refill($("dials"), names, () => this.newDials(names))) this.dials.forEach((dial) => dial.paint());
    readings.forEach((reading, place) => this.dials[place].update(reading));
  }

  newDials(names) {
    this.dials = names.map((task) => new Dial(task, (budget) => this.part.give(budget)));
    if (!names.length) return [element("p", { class: "note" }, "No task has a dial yet. It appears with the first question.")];
    return this.dials.map(({ card }) => card);
  }

  showQuotas(device, quotas, unsettled) {
    this.device = device;
    this.quotas = quotas;
    showQuotas($("quota"), device, quotas, unsettled);
  }

  // Hidden until the agent has reported whether it is on, and where the cloud is off for good.
  paintSwitch({ paused, switched_off: off }) {
    $("pause-cloud").hidden = Boolean(off) && !paused;
    $("pause-cloud").setAttribute("aria-checked", String(paused));
    $("switched-off").textContent = paused ? "The cloud is not asked; all answers come from this device." : off ? `The cloud is off as long as the agent runs: ${off}.` : "";
  }

  async togglePause() {
    const paused = $("pause-cloud").getAttribute("aria-checked") !== "true";
    try {
      this.part.give(await post("/api/budget/pause", { paused }));
    } catch (problem) {
      this.part.say(problem.message);
      return;
    }
    announce(paused ? "Asking is paused: all answers come from this device" : "Asking goes on");
  }

  onSteps() { this.rate.show(this.steps.byTask()); }

  // What was charged in stretches of time, summed up from the first one on.
  showSpend({ now, spend: { stretch_s: stretch, stretches } }) {
    if (!stretches.length) { this.spend.nothing("nothing was spent yet"); return; }
    const ends = [stretches[0].began, ...stretches.map(({ began }) => Math.min(began + stretch, now)), now];
    const summed = (name) => stretches.reduce((sums, one) => [...sums, sums.at(-1) + one[name]], [0]);
    const [serving, learning] = ["serving_uusd", "learning_uusd"].map((name) => summed(name)).map((sums) => [...sums, sums.at(-1)]);
    this.spend.show({
      xs: ends, xName: "Until", top: rounded(Math.max(1, ...serving, ...learning)), showX: (at) => axisTime(at, ends.at(-1) - ends[0]), showY: (uusd) => money(Math.round(uusd)),
      curves: [{ name: "answers", kind: "k-spend", values: serving }, { name: "learning", kind: "k-learning", values: learning }],
      summary: `${money(serving.at(-1))} spent on answers, ${money(learning.at(-1))} on learning, by ${axisTime(now, ends.at(-1) - ends[0])}.`,
    });
  }
}

// How often a task asked, its target, and λ.
function rateData(steps) {
  const column = (name) => steps.map((step) => step[name] ?? null);
  const duals = smoothed(column("dual_after")), mean = smoothed(column("assist_rate")), last = steps.at(-1);
  return {
    top: Math.max(1, ...duals), showY: (value) => decimal(value, 1),
    curves: [
      { name: "share that asked", kind: "k-rate", values: mean, show: percent }, { name: "target τ", kind: "k-target", values: column("target_rate"), show: percent },
      { name: "λ, the cost of asking", kind: "k-dual", values: duals, show: (value) => decimal(value, 3) },
    ],
    summary: `${percent(mean.at(-1))} asked at a target of ${percent(last.target_rate)}; λ ${decimal(last.dual_after, 3)}.`,
  };
}
