// Learning: what it is doing, its curves, and what was gained and forgotten. Knows steps and reports; knows nothing of budgets.

import { get, post } from "./api.js";
import { Adapters } from "./adapters.js";
import { Chart, smoothed } from "./charts.js";
import { $, announce, element, facts, refill, table } from "./elements.js";
import { dollars, moment, percent, whole } from "./numbers.js";
import { Part } from "./view.js";

const SINCE_S = 86400;
const REPORT_EVERY_TICKS = 12;
const STATES = {
  idle: "not learning", learning: "learning", paused: "paused while somebody is served", stopped: "stopped", finished: "finished: everything planned is learned",
};

export class Learning {
  constructor(steps) {
    this.steps = steps;
    this.accuracy = new Chart("Accuracy while learning");
    $("accuracy-place").append(this.accuracy.figure);
    this.adapters = new Adapters();
    this.report = new Part($("report"), () => get(`/api/report?since=${SINCE_S}`), (report) => this.showReport(report));
    this.paused = false;
    this.known = false;
    $("pause-learning").addEventListener("click", () => this.togglePause());
  }

  opened() {
    this.adapters.refresh(true);
    this.report.refresh(true);
  }

  // The report replays nothing but reads much: once a minute is often enough.
  tick() {
    this.ticks = (this.ticks ?? 0) + 1;
    if (this.ticks % REPORT_EVERY_TICKS === 0) this.report.refresh();
  }

  get shown() { return !$("view-learning").hidden; }

  onStatus(status) {
    this.followVersions(`${status.adapter_version} ${status.trained_version} ${status.steps_done}`);
    if (typeof status.learning_paused === "boolean") this.paintPause(status.learning_paused);
    else if (!this.known) this.paintPause(false);
    const words = this.paused ? "paused by you" : status.waiting ? `waiting: ${status.waiting}` : STATES[status.learning] ?? status.learning ?? "not known";
    const shown = [words, status.steps_done, status.steps_planned, status.task, status.phase, status.adapter_version, status.trained_version, status.outbox, status.model?.name, status.mode, status.coordinator];
    refill($("learning-state"), shown, () => [
      element("p", { class: "state", dir: "auto" }, words[0].toUpperCase() + words.slice(1)),
      facts([
        ["Step", status.steps_done === undefined ? "" : `${whole(status.steps_done)}${status.steps_planned ? ` of ${whole(status.steps_planned)}` : ""}`],
        ["Task", status.phases > 1 ? `${status.task} (phase ${Math.min(status.phase + 1, status.phases)} of ${status.phases})` : status.task],
        ["Serving adapter", status.adapter_version], ["Trained adapter", status.trained_version], ["Model", status.model?.name], ["Mode", status.mode], ["Coordinator", status.coordinator],
      ]),
    ]);
  }

  // Listing the versions reads every adapter through, so it is asked for when something changed.
  followVersions(versions) {
    if (this.versions !== undefined && versions !== this.versions && this.shown) this.adapters.refresh();
    this.versions = versions;
  }

  paintPause(paused) {
    this.paused = paused;
    $("pause-learning").textContent = paused ? "Go on learning" : "Pause learning";
  }

  async togglePause() {
    const paused = !this.paused;
    try {
      await post("/api/learning", { paused });
    } catch (problem) {
      $("learning-problem").textContent = problem.missing ? "This agent cannot pause learning from here." : problem.message;
      return;
    }
    $("learning-problem").textContent = "";
    this.known = true;
    this.paintPause(paused);
    announce(paused ? "Learning pauses after the step under way" : "Learning goes on");
  }

  onSteps() {
    const steps = this.steps, { marks, begins } = steps.phases();
    if (!steps.last) return;
    const curve = (name, kind, key) => ({ name, kind, raw: steps.column(key), values: smoothed(steps.column(key), begins) });
    const curves = [curve("right of the kept", "k-kept", "kept_accuracy"), curve("right with help", "k-joint", "joint_accuracy"), curve("kept", "k-cover", "coverage")];
    this.accuracy.show({
      xs: steps.column("step"), xName: "Step", marks, top: 1, curves, showX: (step) => `step ${whole(step)}`, showY: percent,
      summary: curves.map(({ name, values }) => `${name} ${percent(values.at(-1))}`).join(", "),
    });
  }

  showReport(report) {
    refill($("report"), { ...report, until: null, since: null }, () => reportParts(report));
  }
}

function reportParts(report) {
  const { answers = {}, feedback = {}, spend = {}, tasks = [] } = report;
  const rows = tasks.map((task) => [task.task, whole(task.items), percent(share(task.right_then, task.items)), percent(share(task.right_now, task.items)), changed(task.gained, "+"), changed(task.lost, "−")]);
  return [
    tasks.length ? table("Held-out questions, by task", ["Task", "Questions", "Right then", "Right now", "Gained", "Forgotten"], rows) : element("p", { class: "note" }, "Nothing was examined since yesterday."),
    facts([
      ["Since", moment(report.since)], ["Steps", whole(report.steps ?? 0)],
      ["Adapters", `${whole(report.promoted ?? 0)} promoted, ${whole(report.refused ?? 0)} refused, ${whole(report.rolled_back ?? 0)} rolled back`],
      ["Answers", Object.entries(answers).map(([source, count]) => `${whole(count)} ${source}`).join(", ")],
      ["Your verdicts", `${whole(feedback.good ?? 0)} good, ${whole(feedback.bad ?? 0)} bad`],
      ["Spend", `${dollars(spend.serving_uusd ?? 0)} on answers, ${dollars(spend.learning_uusd ?? 0)} on learning`],
    ]),
  ];
}

// Counts of right answers, or shares already.
const share = (right, items) => typeof right !== "number" ? null : right > 1 || Number.isInteger(right) && items ? right / Math.max(1, items) : right;
const changed = (count, sign) => element("span", { class: count ? (sign === "+" ? "gained" : "lost") : "" }, count ? `${sign}${whole(count)}` : whole(count ?? 0));
