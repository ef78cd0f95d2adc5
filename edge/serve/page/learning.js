// Learning: what it is doing, its curves, and what was gained and forgotten. Knows steps and reports; knows nothing of budgets.

import { get, post } from "./api.js";
import { Adapters } from "./adapters.js";
import { TaskCharts, smoothed } from "./charts.js";
import { $, announce, element, facts, refill, table } from "./elements.js";
import { counted, moment, money, percent, seconds, whole } from "./numbers.js";
import { Part } from "./view.js";
import { LEARNED_FROM, sourceName } from "./words.js";

const SINCE_S = 86400;
const REPORT_EVERY_TICKS = 12;
const STATES = {
  __proto__: null,
  idle: "not learning", learning: "learning", paused: "pauses while somebody is served", stopped: "not learning any more", finished: "all planned steps are done",
};

// What learning does, in a few words.
export function learningWords(status) {
  const doing = status.paused ? "learning is paused by you" : status.learning === "off" ? "learning is off for this model" : status.waiting ? `learning waits: ${status.waiting}` : STATES[status.learning] ?? status.learning;
  return `${doing}, step ${stepOf(status)}`;
}

const PARTS = {
  __proto__: null,
  rollout: "answering", given: "looking at given answers", update: "updating", imitation: "learning given answers", close: "reporting", gate: "examining the adapter",
};

// What a step under way is at, and how far it has come where that is known.
function progressWords({ step, part, done, of, tokens, left_s: left }) {
  const responses = of > 1 ? `${whole(done)} of ${counted(of, "response")}` : done ? counted(done, "response") : "";
  const count = part === "update" ? (done && of > 1 ? percent(done / of) : "") : part === "imitation" ? (of > 1 ? `update ${whole(done)} of at most ${whole(of)}` : "") : responses;
  const doing = [PARTS[part] ?? part, count].filter(Boolean).join(part === "rollout" || part === "update" ? " " : ", ");
  const atMost = part === "imitation" ? "at most " : "";
  return [`step ${whole(step)}: ${doing}`, tokens ? counted(tokens, "token") : "", left === null ? "" : `${atMost}${seconds(left)} left`].filter(Boolean).join(", ");
}

const stepOf = ({ steps_done: done, steps_planned: planned }) => `${whole(done)}${planned ? ` of ${whole(planned)}` : ""}`;

export class Learning {
  constructor(steps) {
    this.steps = steps;
    this.accuracy = new TaskCharts($("accuracy-place"), "Accuracy while learning", accuracyData);
    this.adapters = new Adapters();
    this.report = new Part($("report"), () => get(`/api/report?since=${Math.floor(Date.now() / 1000) - SINCE_S}`), (report) => this.showReport(report));
    this.paused = false;
    $("pause-learning").addEventListener("click", () => this.togglePause());
  }

  opened() {
    this.adapters.refresh();
    this.report.refresh();
  }

  // The report replays nothing but reads much: once a minute is often enough.
  tick() {
    this.ticks = (this.ticks ?? 0) + 1;
    if (this.ticks % REPORT_EVERY_TICKS === 0) this.report.refresh();
  }

  get shown() { return !$("view-learning").hidden; }

  onStatus(status) {
    this.followVersions(`${status.adapter_version} ${status.trained_version} ${status.steps_done}`);
    this.paintPause(status.paused);
    const words = status.paused ? "paused by you" : status.learning === "off" ? `off for this model: ${status.waiting}` : status.waiting ? `waiting: ${status.waiting}` : STATES[status.learning] ?? status.learning;
    const progress = status.progress && !status.waiting ? progressWords(status.progress) : "";
    const shown = [words, progress, status.steps_done, status.steps_planned, status.task, status.phase, status.adapter_version, status.trained_version, status.answers, status.model.name, status.mode, status.coordinator];
    refill($("learning-state"), shown, () => [
      element("p", { class: "state", dir: "auto" }, words[0].toUpperCase() + words.slice(1)),
      facts([
        ["Step", stepOf(status)], ["Under way", progress],
        ["Task", status.phases > 1 ? `${status.task} (phase ${Math.min(status.phase + 1, status.phases)} of ${status.phases})` : status.task],
        ["Active", versionName(status.adapter_version)], ["Latest version", versionName(status.trained_version)], ["Model", status.model.name], ["Mode", status.mode], ["Coordinator", status.coordinator], ["Answers since start", whole(status.answers)],
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
      ({ paused: this.paused } = await post("/api/learning", { paused }));
    } catch (problem) {
      $("learning-problem").textContent = problem.message;
      return;
    }
    $("learning-problem").textContent = "";
    this.paintPause(this.paused);
    announce(paused ? "Learning pauses after the step under way" : "Learning goes on");
  }

  onSteps() { this.accuracy.show(this.steps.byTask()); }

  showReport(report) {
    $("bands-card").hidden = !report.bands.length;
    refill($("bands"), report.bands, () => bandParts(report.bands));
    refill($("report"), { ...report, now: null, since: null, spend: null }, () => reportParts(report));
  }
}

const versionName = (version) => version ? `adapter ${version}` : "the bare model";

function accuracyData(steps) {
  const curve = (name, kind, key) => ({ name, kind, values: smoothed(steps.map((step) => step[key] ?? null)) });
  const curves = [curve("right in the end", "k-joint", "joint_accuracy"), curve("local accuracy", "k-kept", "kept_accuracy"), curve("answered locally", "k-cover", "coverage")];
  return { top: 1, curves, showY: percent, summary: curves.map(({ name, values }) => `${name} ${percent(values.at(-1))}`).join(", ") };
}

const COMPARED = ["Task", "Questions", "Right alone, before → after", "Right in the end, before → after", "Gained", "Lost", "New"];
const IN_THE_END = "Right in the end is an estimate: up to the same rate, and as far as it pays, the questions that want help most go to the cloud, which counts as right as often as it was while learning.";

function reportParts(report) {
  const { answers, cloud, learning, tasks } = report;
  return [
    ...(tasks.length ? comparedParts(tasks) : [element("p", { class: "note" }, "Nothing was examined yet.")]),
    ...forgottenParts(report.forgotten),
    facts([
      ["Since", moment(report.since)], ["Active", `${versionName(report.serving_version)}; before, ${versionName(report.serving_version_then)}`],
      ["Learned", `${counted(learning.steps, "step")}; ${counted(learning.promotions, "adapter")} promoted, ${whole(learning.refusals)} rejected`],
      ["Rejected because", learning.refused_because.join("; ")], ["Learned from", lines(learning.by_source.map(sourceWords))], ["Rolled back", lines(report.went_back.map(backWords))],
      ["Answers", answers.map(({ source, answers: count }) => `${whole(count)} ${source}`).join(", ") || "none"],
      ["Your feedback", feedbackWords(answers)], ["Asked the cloud", lines(report.rates.map(rateWords))],
      ["Spend", `${money(cloud.serving.spend_uusd)} on answers, ${money(cloud.learning.spend_uusd)} on learning`], ["Waited", lines(report.waits.map(waitWords))],
    ]),
  ];
}

// Each task's validation questions before and after, and a few that changed.
function comparedParts(tasks) {
  const rows = tasks.map((one) => [
    sourceName(one.source) + (one.learned_from ? ` (${LEARNED_FROM})` : ""), whole(one.items), fromTo(rightOf(one.right_then, one.items), rightOf(one.right_now, one.items)),
    one.in_the_end ? fromTo(percent(one.in_the_end.before), `${percent(one.in_the_end.after)} at a rate up to ${percent(one.in_the_end.rate)}`) : null,
    changed(one.gained, "+"), changed(one.lost, "−"), one.new ? `${whole(one.new_right)} of ${whole(one.new)} right` : null,
  ]);
  const ends = tasks.some((one) => one.in_the_end) ? [element("p", { class: "note" }, IN_THE_END)] : [];
  const examples = tasks.filter((one) => one.examples.length).map((one) => [element("h4", { dir: "auto" }, `Examples from ${sourceName(one.source)}`), element("ul", { class: "plain examples" }, ...one.examples.map(exampleItem))]).flat();
  return [table("The same validation questions, before and after", COMPARED, rows), ...ends, ...examples];
}

// What an earlier adapter had right and the active one has wrong; nothing where nothing was lost.
function forgottenParts({ by_source: lost, examples }) {
  if (!lost.length) return [];
  const counts = lost.map(({ source, questions, of }) => `${whole(questions)} of ${whole(of)} of ${sourceName(source)}`).join(", ");
  return [element("h4", { dir: "auto" }, `Forgotten: ${counts}`), element("p", { class: "note" }, "An earlier adapter had them right, the active one has them wrong."), element("ul", { class: "plain examples" }, ...examples.map(exampleItem))];
}

function exampleItem(example) {
  const { change, question } = example, good = change === "gained" || change === "asks now";
  const end = (name, asked) => asked ? "the cloud is asked" : `${example[name] || "answered alone"} (${example[`right_${name}`] ? "right" : "wrong"})`;
  return element("li", {}, element("span", { class: `badge gate-${good ? "good" : "bad"}` }, change), " ", element("span", { dir: "auto" }, question),
    element("span", { class: "soft", dir: "auto" }, example.adapter ? `${versionName(example.adapter)}: ` : "", fromTo(end("before", change === "asks no longer"), end("after", change === "asks now"))));
}

const ENDS = [["first", "first"], ["last", "last"]];
const SHARES = [["right", "right locally"], ["asked", "asked"], ["wrong", "wrong"]];

// Two bars for each band of each source, one above the other: the first steps and the last ones.
function bandParts(bands) {
  const rows = bands.flatMap(({ source, band, steps, ...ends }) => ENDS.map(([end, name]) => element("tr", {},
    element("th", { scope: "row" }, end === "first" ? `${sourceName(source)}: ${band}` : ""), element("td", { class: "soft when" }, `${name} ${counted(steps, "step")}`),
    element("td", { class: "wide" }, bandBar(ends[end])), ...SHARES.map(([key]) => element("td", { class: "number" }, percent(ends[end][key]))))));
  const head = element("tr", {}, ...["Questions", "When", "", ...SHARES.map(([, name]) => name)].map((name) => element("th", { scope: "col", class: name ? null : "wide", "aria-label": name ? null : "As a bar" }, name)));
  return [element("div", { class: "wide-table", tabIndex: 0, role: "region", "aria-label": "What became of practice questions" }, element("table", { class: "bands", "aria-label": "Shares of practice questions by band" }, element("thead", {}, head), element("tbody", {}, ...rows)))];
}

function bandBar(shares) {
  const parts = SHARES.map(([key]) => {
    const part = element("span", { class: `share-${key}` });
    part.style.width = `${100 * shares[key]}%`;
    return part;
  });
  return element("span", { class: "bar-of-shares", "aria-hidden": "true" }, ...parts);
}

const fromTo = (before, after) => `${before} → ${after}`;
const lines = (texts) => texts.join("\n");
const rightOf = (right, items) => items ? `${whole(right)} (${percent(right / items)})` : "–";
const sum = (values) => values.reduce((total, value) => total + value, 0);
const changed = (count, sign) => element("span", { class: count ? (sign === "+" ? "gained" : "lost") : "" }, count ? `${sign}${whole(count)}` : whole(count));
const sourceWords = ({ source, steps, assist_rate: rate, target_rate: target }) => `${sourceName(source)}: ${counted(steps, "step")}, ${percent(rate)} of the responses asked (target ${percent(target)})`;
const backWords = ({ at, from_version: from, to_version: to, by, reason }) => `${moment(at)}: from ${versionName(from)} to ${versionName(to)}, ${by === "person" ? "by you" : `by ${by}`}${reason ? ` (${reason})` : ""}`;
const rateWords = ({ task, answers, asked, rate, target_rate: target }) => `${task || "no task"}: ${whole(asked)} of ${counted(answers, "question")} (${percent(rate)}${target === null ? "" : `, target ${percent(target)}`})`;
const waitWords = ({ reason, times, seconds: waited }) => `${reason}: ${counted(times, "time")}, ${seconds(waited)} in all`;

function feedbackWords(answers) {
  const [good, bad, corrected] = ["good", "bad", "corrected"].map((name) => sum(answers.map((one) => one[name])));
  return `${whole(good)} good, ${whole(bad)} bad${corrected ? `, ${whole(corrected)} of them corrected` : ""}`;
}
