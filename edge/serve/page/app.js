"use strict";
// The page of the local agent: a conversation beside the agent's state. No libraries, nothing from elsewhere.

const $ = (id) => document.getElementById(id);
const EXAMPLES = ["Mia has 14 apples. She buys 23 more. How many apples does she have?", "There are 3 boxes with 12 pens in each. Tom takes 7 away. How many pens are left?", "Write a Python function tidy(xs) that takes a list of numbers xs. First keep only the even numbers. Then double every number."];
const SOURCES = { local: "answered here", cloud: "asked the cloud", "local-fallback": "here, without the help it asked for" };
const STATUS_EVERY_MS = 2000;

const conversation = [];
let running = null;
let steps = [];

// ---------------------------------------------------------------- elements

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value; else if (key in node) node[key] = value; else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function svgElement(name, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

function fillList(list, rows) {
  list.replaceChildren(...rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

const percent = (share) => share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`;
const dollars = (uusd) => `$${uusd >= 1e6 ? (uusd / 1e6).toFixed(2) : (uusd / 1e6).toFixed(6).replace(/(\.\d\d\d*?)0+$/, "$1")}`;
const usedOf = (used, limit, show = String) => `${show(used)}${limit === null || limit === undefined ? "" : ` of ${show(limit)}`}`;
const number = (value, digits = 2) => value === null || value === undefined ? null : Number(value).toFixed(digits);

// ---------------------------------------------------------------- conversation

function showQuestion(text) {
  $("empty")?.remove();
  $("log").append(element("div", { class: "asked" }, text));
}

function newAnswer() {
  const parts = {
    reasoning: "", content: "", id: "",
    thoughts: element("div"), text: element("div", { class: "text" }), foot: element("div", { class: "foot waiting" }, "thinking"),
  };
  parts.details = element("details", { class: "reasoning", open: true, hidden: true }, element("summary", {}, "Reasoning"), parts.thoughts);
  parts.card = element("article", { class: "answer" }, parts.details, parts.text, parts.foot);
  $("log").append(parts.card);
  return parts;
}

function paintAnswer(parts) {
  parts.details.hidden = !parts.reasoning.trim();
  parts.thoughts.textContent = parts.reasoning.trim();
  parts.text.replaceChildren(...formatted(parts.content.trim()));
  $("log").scrollTop = $("log").scrollHeight;
}

// Text with code blocks and boxed answers. Everything becomes text nodes: nothing a model writes is ever markup.
function formatted(text) {
  return text.split(/(```[\s\S]*?(?:```|$)|\\boxed\{[^{}]*\})/).filter(Boolean).map((part) => {
    if (part.startsWith("```")) return element("pre", {}, part.replace(/^```\w*\n?/, "").replace(/\n?```$/, ""));
    if (part.startsWith("\\boxed{")) return element("span", { class: "boxed" }, part.slice(7, -1));
    return document.createTextNode(part);
  });
}

function finishAnswer(parts, note) {
  parts.details.open = !parts.content.trim();
  const why = element("button", { type: "button", class: "quiet", ariaExpanded: "false" }, "Why?");
  why.addEventListener("click", () => toggleWhy(parts, why, note.id));
  const facts = [
    note.reason, note.latency_s ? `${note.latency_s.toFixed(1)} s` : "", note.cloud_tokens ? `${note.cloud_tokens} cloud tokens` : "",
    note.spend_uusd ? dollars(note.spend_uusd) : "", `adapter ${note.adapter_version}`,
  ].filter(Boolean).join(" · ");
  parts.foot.className = "foot";
  parts.foot.replaceChildren(element("span", { class: `badge ${note.source}` }, SOURCES[note.source] ?? note.source), element("span", { class: "facts" }, facts), why);
}

async function toggleWhy(parts, button, id) {
  const shown = parts.card.querySelector(".why");
  button.ariaExpanded = String(!shown);
  if (shown) { shown.remove(); return; }
  const list = element("dl");
  parts.card.append(element("div", { class: "why" }, list));
  const reply = await fetch(`/api/why/${encodeURIComponent(id)}`);
  const record = await reply.json();
  if (!reply.ok) { fillList(list, [["Problem", record.error.message]]); return; }
  fillList(list, [
    ["Decision", record.reason],
    ["Wish to ask", record.help_log_odds === null ? "no decision was reached" : `${number(record.help_log_odds)} (log-odds; above 0 is more likely than not)`],
    ["Price λ", number(record.dual, 3)], ["Calls left", record.calls_left], ["Charged", record.charged_uusd ? dollars(record.charged_uusd) : "nothing"],
    ["Model", record.model], ["Cloud model", record.cloud_model], ["Adapter", record.adapter_version],
    ["Own attempt", record.local_text], ["Cloud said", record.cloud_text], ["Number", id],
  ]);
}

function failAnswer(parts, message) {
  parts.foot.className = "foot problem";
  parts.foot.textContent = message;
}

async function* serverEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}

async function streamInto(parts, signal) {
  const body = JSON.stringify({ model: $("model").value, messages: conversation, stream: true });
  const reply = await fetch("/v1/chat/completions", { method: "POST", headers: { "content-type": "application/json" }, body, signal });
  if (!reply.ok) throw new Error((await reply.json()).error.message);
  let note = null;
  for await (const event of serverEvents(reply.body)) {
    if (event.error) throw new Error(event.error.message);
    const delta = event.choices[0]?.delta ?? {};
    parts.reasoning += delta.reasoning_content ?? "";
    parts.content += delta.content ?? "";
    note = event.edge ?? note;
    paintAnswer(parts);
  }
  if (!note) throw new Error("the answer was cut off");
  finishAnswer(parts, note);
}

async function ask(text) {
  showQuestion(text);
  conversation.push({ role: "user", content: text });
  const parts = newAnswer();
  running = new AbortController();
  setBusy(true);
  try {
    await streamInto(parts, running.signal);
    conversation.push({ role: "assistant", content: parts.content.trim() || parts.reasoning.trim() });
  } catch (error) {
    conversation.pop();
    failAnswer(parts, error.name === "AbortError" ? "stopped" : error.message);
  } finally {
    running = null;
    setBusy(false);
    refresh();
  }
}

function setBusy(busy) {
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  if (!busy) $("question").focus();
}

function submit(event) {
  event?.preventDefault();
  const text = $("question").value.trim();
  if (!text || running) return;
  $("question").value = "";
  ask(text);
}

// ---------------------------------------------------------------- state

async function refresh() {
  try {
    const status = await (await fetch("/api/status")).json();
    showStatus(status);
    const after = steps.length ? steps.at(-1).step : 0;
    if (status.steps_done !== after) {
      const fresh = (await (await fetch(`/api/steps?after=${status.steps_done < after ? 0 : after}`)).json()).steps;
      steps = status.steps_done < after ? fresh : steps.concat(fresh);
      drawSteps();
    }
  } catch {
    $("headline").textContent = "the agent does not answer";
    $("headline").className = "alarm";
  }
}

function showStatus(status) {
  const step = `step ${status.steps_done}${status.steps_planned ? ` of ${status.steps_planned}` : ""}`;
  $("headline").className = status.online === false ? "alarm" : "";
  $("headline").textContent = status.online === false ? `offline: ${status.offline_reason}; answering and learning here` : `${status.learning ?? ""}, ${step}`;
  const budget = status.budget;
  fillList($("budget"), [
    ["Target τ", percent(budget?.target_rate ?? status.target_rate)], ["Price λ", number(budget?.dual ?? status.dual, 3)],
    ["Calls", budget ? usedOf(budget.calls, budget.calls_limit) : status.total_cloud_calls],
    ["Tokens", budget ? usedOf(budget.tokens, budget.tokens_limit) : status.total_cloud_tokens],
    ["Spend", budget ? usedOf(budget.spend_uusd, budget.spend_limit_uusd, dollars) : dollars(status.total_spend_uusd ?? 0)],
  ]);
  fillList($("agent"), [
    ["Model", status.model?.name], ["Adapter", status.adapter_version], ["Task", status.phases > 1 ? `${status.task} (phase ${Math.min(status.phase + 1, status.phases)} of ${status.phases})` : status.task], ["Mode", status.mode], ["Coordinator", status.coordinator],
    ["Answers", status.answers], ["Waiting reports", status.outbox || ""],
  ]);
}

// ---------------------------------------------------------------- curves

// Means over the last steps of the same phase.
function smoothed(values, width = 10) {
  const begins = phases().flatMap(({ from, to }) => Array(to - from + 1).fill(from));
  return values.map((_, end) => {
    const known = values.slice(Math.max(begins[end] ?? 0, end - width + 1), end + 1).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  });
}

function drawSteps() {
  const column = (name) => steps.map((step) => step[name] ?? null);
  const rates = column("assist_rate"), kept = column("kept_accuracy"), joint = column("joint_accuracy"), cover = column("coverage");
  const last = (values) => smoothed(values).at(-1) ?? null;
  const duals = column("dual_after");
  drawChart($("rate"), [["rate raw", rates], ["rate", smoothed(rates)], ["target", column("target_rate")], ["dual", duals]], Math.max(1, ...duals.map((dual) => dual ?? 0)),
    `Assist rate ${percent(last(rates))} at a target of ${percent(steps.at(-1)?.target_rate)}; λ ${number(duals.at(-1), 3)}`);
  drawChart($("accuracy"), [["kept raw", kept], ["joint raw", joint], ["kept", smoothed(kept)], ["joint", smoothed(joint)], ["cover", smoothed(cover)]], 1,
    `Right of the kept ${percent(last(kept))}, right with help ${percent(last(joint))}, kept ${percent(last(cover))}`);
  drawDial(last(rates), steps.at(-1)?.target_rate ?? null);
}

function drawChart(svg, curves, top, description) {
  const [left, right, bottom, height] = [26, 312, 132, 118];
  const first = steps[0]?.step ?? 0, span = Math.max(1, (steps.at(-1)?.step ?? 1) - first);
  const x = (index) => left + (right - left) * (steps[index].step - first) / span;
  const y = (value) => bottom - height * value / top;
  svg.setAttribute("aria-label", description);
  svg.replaceChildren();
  for (const share of [0, 0.5, 1]) {
    svg.append(svgElement("line", { class: "axis", x1: left, x2: right, y1: y(share * top), y2: y(share * top) }));
    svg.append(svgElement("text", { x: left - 4, y: y(share * top) + 3, "text-anchor": "end" }, (share * top).toFixed(top > 2 ? 0 : 1)));
  }
  markPhases(svg, x, bottom, height);
  svg.append(svgElement("text", { x: left, y: 146 }, `step ${first}`), svgElement("text", { x: right, y: 146, "text-anchor": "end" }, `${first + span}`));
  for (const [name, values] of curves) {
    const points = values.map((value, index) => value === null ? "" : `${x(index).toFixed(1)},${y(value).toFixed(1)}`).filter(Boolean);
    svg.append(svgElement("polyline", { class: `curve ${name}`, points: points.join(" ") }));
  }
}

// The stretches of steps that belong to one phase, as indices into the steps.
function phases() {
  const found = [];
  steps.forEach((step, index) => {
    const open = found.at(-1);
    if (open && open.phase === step.phase && open.task === step.task) open.to = index;
    else found.push({ phase: step.phase, task: step.task, from: index, to: index });
  });
  return found;
}

// A line where one task was left for another, and the tasks' names where there is room for them.
function markPhases(svg, x, bottom, height) {
  const found = phases();
  if (found.length < 2) return;
  for (const { from } of found.slice(1)) {
    const at = (x(from - 1) + x(from)) / 2;
    svg.append(svgElement("line", { class: "switch", x1: at, x2: at, y1: bottom - height - 10, y2: bottom }));
  }
  for (const { from, to, task } of found) {
    if (x(to) - x(from) > 5.5 * task.length) svg.append(svgElement("text", { x: (x(from) + x(to)) / 2, y: bottom - height - 4, "text-anchor": "middle" }, task));
  }
}

function drawDial(rate, target) {
  const svg = $("dial");
  const at = (share, radius) => [60 - radius * Math.cos(Math.PI * share), 60 - radius * Math.sin(Math.PI * share)];
  const arc = (share) => { const [x, y] = at(share, 46); return `M 14 60 A 46 46 0 0 1 ${x.toFixed(2)} ${y.toFixed(2)}`; };
  svg.replaceChildren(svgElement("path", { class: "dial-back", d: arc(1), fill: "none", "stroke-width": 9 }));
  svg.setAttribute("aria-label", `Asks for help in ${percent(rate)} of responses, target ${percent(target)}`);
  if (rate === null) return;
  const over = target !== null && rate > target + 0.05;
  if (rate > 0) svg.append(svgElement("path", { class: over ? "dial-over" : "dial-value", d: arc(Math.min(rate, 0.999)), fill: "none", "stroke-width": 9 }));
  if (target !== null) {
    const [[x1, y1], [x2, y2]] = [at(target, 38), at(target, 54)];
    svg.append(svgElement("line", { class: "dial-mark", x1, y1, x2, y2, "stroke-width": 2 }));
  }
  svg.append(svgElement("text", { x: 60, y: 52, "text-anchor": "middle" }, percent(rate)), svgElement("text", { x: 60, y: 64, "text-anchor": "middle", class: "small" }, "of responses ask"));
}

// ---------------------------------------------------------------- start

$("form").addEventListener("submit", submit);
$("question").addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event); });
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => { running?.abort(); conversation.length = 0; $("log").replaceChildren(); $("question").focus(); });
for (const example of EXAMPLES) {
  const button = element("button", { type: "button" }, example);
  button.addEventListener("click", () => { if (!running) ask(example); });
  $("examples").append(button);
}
for (const id of ["rate", "accuracy"]) $(id).append(svgElement("text", { x: 160, y: 76, "text-anchor": "middle" }, "nothing learned yet"));
drawDial(null, null);
refresh();
setInterval(refresh, STATUS_EVERY_MS);
