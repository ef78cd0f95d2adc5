"use strict";
// The console of a coordinator: what was spent, by whom, at which price. Reads only. No libraries, nothing from elsewhere.

const $ = (id) => document.getElementById(id);
const STATE_EVERY_MS = 2000, CURVES_EVERY_MS = 6000, MINUTE_MS = 60000, REFUSALS_SHOWN = 20;
const SCOPES = { fleet: "whole fleet", fleet_task: "task, whole fleet", device: "device", device_task: "task of a device", user: "person" };
const WINDOWS = { hour: "this hour", day: "today (UTC)", week: "this week", month: "this month" };
const BREAKERS = { closed: "taking calls", half_open: "being tried", open: "left alone" };
let token = sessionStorage.getItem("token") ?? "";
let shownAt = null, curvesAt = 0, drawn = null;

// ---------------------------------------------------------------- elements

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value; else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function svgElement(name, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

// A table whose cells know their column's name, for narrow screens; the roles stay when its rows are laid out as blocks.
function table(place, caption, columns, rows, empty) {
  if (!rows.length) { keep(place, [element("p", { class: "empty" }, empty)]); return; }
  const head = element("tr", { role: "row" }, ...columns.map((name) => element("th", { scope: "col", role: "columnheader" }, name)));
  const body = rows.map((cells) => element("tr", { role: "row" }, ...cells.map((cell, index) => index === 0
    ? element("th", { scope: "row", role: "rowheader" }, ...asNodes(cell))
    : element("td", { role: "cell", "data-label": columns[index] }, element("div", {}, ...asNodes(cell))))));
  const parts = [element("thead", { role: "rowgroup" }, head), element("tbody", { role: "rowgroup" }, ...body)];
  keep(place, [element("table", { role: "table", "aria-label": caption }, ...parts)]);
}

// Replace only what differs, so that a reader or a selection is not thrown back every two seconds.
function keep(place, nodes) {
  const fresh = nodes.map((node) => node.outerHTML).join("");
  if (place.dataset.shown === fresh) return;
  place.dataset.shown = fresh;
  place.replaceChildren(...nodes);
}

const asNodes = (cell) => (Array.isArray(cell) ? cell : [cell]).filter((part) => part !== null && part !== undefined && part !== "");
const soft = (text) => element("span", { class: "soft" }, text);
const line = (...parts) => element("div", {}, ...parts);
const percent = (share) => share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`;
const whole = (value) => value.toLocaleString("en-US");
// As in the terminal (edge/core/formatting.py): below 1 USD three digits that matter.
const digits = (usd) => usd >= 1 || usd === 0 ? 2 : Math.max(2, 2 - Math.floor(Math.log10(usd)));
const money = (uusd) => `${(uusd / 1e6).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: digits(uusd / 1e6) })} USD`;
const clock = (ms, seconds = true) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}) });
const many = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

function ago(nowMs, thenMs) {
  const seconds = Math.max(0, Math.round((nowMs - thenMs) / 1000));
  if (seconds < 60) return seconds < 5 ? "now" : `${5 * Math.floor(seconds / 5)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86400)} d ago`;
}

// ---------------------------------------------------------------- asking

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function ask(path) {
  const reply = await fetch(path, token ? { headers: { authorization: `Bearer ${token}` } } : {});
  if (reply.ok) return reply.json();
  const said = await reply.json().catch(() => ({}));
  throw new Refused(reply.status, said.error ?? `the coordinator answered ${reply.status}`);
}

async function refresh() {
  try {
    showState(await ask("/api/state"));
    if (Date.now() - curvesAt > CURVES_EVERY_MS) {
      const curves = await ask("/api/curves");
      showCurves(curves);
      curvesAt = curves.complete ? Date.now() : 0;
    }
  } catch (error) {
    showProblem(error);
  }
}

function showProblem(error) {
  const credential = error instanceof Refused && (error.status === 401 || error.status === 403);
  if (credential && $("token-form").hidden) { $("token-form").hidden = false; $("token").focus(); }
  const since = shownAt === null ? "" : `; this is how it was at ${clock(shownAt)}`;
  headline((error instanceof Refused ? error.message : "the coordinator does not answer") + since, true);
  $("main").classList.add("stale");
}

function headline(text, alarm) {
  if ($("headline").textContent !== text) $("headline").textContent = text;
  $("headline").className = alarm ? "alarm" : "";
}

// ---------------------------------------------------------------- state

function showState(state) {
  $("token-form").hidden = true;
  $("main").classList.remove("stale");
  shownAt = state.now_ms;
  const devices = `${many(state.devices.length, "device")}${state.more_devices ? " and more" : ""}`;
  headline(`${state.draining ? "stopping" : "serving"}, ${devices}, ${many(state.in_flight, "call")} under way`, state.draining);
  const endpoint = state.openai_url ? `OpenAI's clients at ${state.openai_url}, ` : "";
  $("updated").textContent = `${endpoint}version ${state.version}, ${clock(state.now_ms)}`;
  showBudgets(state);
  showDevices(state);
  showUpstreams(state);
  table($("refusals"), "Last refusals", ["When", "Who", "Call", "Reason", "Message"], counted(state.refusals).slice(0, REFUSALS_SHOWN).map(([row, times]) => [
    [line(clock(1000 * row.at)), times > 1 ? line(soft(`${times} times`)) : ""], row.who, row.method, row.reason || row.code, row.message,
  ]), "Nothing was refused since the start.");
  const spent = state.tasks.reduce((sum, task) => sum + task.charged.uusd, 0), calls = state.tasks.reduce((sum, task) => sum + task.charged.calls, 0);
  keep($("spend-facts"), [["Charged in all", money(spent)], ["Calls", whole(calls)]].flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// Equal refusals are one, with their number; newest first.
function counted(refusals) {
  const rows = new Map();
  for (const row of refusals) {
    const key = JSON.stringify([row.who, row.method, row.code, row.reason, row.message]);
    rows.set(key, [rows.get(key)?.[0] ?? row, (rows.get(key)?.[1] ?? 0) + 1]);
  }
  return [...rows.values()];
}

function showBudgets(state) {
  const windows = Object.fromEntries(state.scopes.map((scope) => [scope.scope, scope.window]));
  const rows = new Map();
  for (const each of state.budgets) {
    const key = `${each.scope}|${each.device}|${each.task}`;
    if (!rows.has(key)) rows.set(key, { scope: each.scope, owner: [each.device, each.task].filter(Boolean).join(", "), units: {} });
    rows.get(key).units[each.unit] = each;
  }
  const order = Object.keys(SCOPES);
  const limited = (row) => Object.values(row.units).some((unit) => unit.limit !== null);
  const shown = [...rows.values()].filter((row) => row.scope === "fleet" || limited(row))
    .sort((a, b) => order.indexOf(a.scope) - order.indexOf(b.scope) || a.owner.localeCompare(b.owner));
  const window = (scope) => WINDOWS[windows[scope]] ?? "in all";
  table($("budgets"), "Budgets", ["Budget", "Calls", "Tokens", "Spend"], shown.map((row) => [
    [line(row.owner || SCOPES[row.scope]), line(soft(`${row.owner ? `${SCOPES[row.scope] ?? row.scope}, ` : ""}${window(row.scope)}`))],
    used(row.units.calls, whole), used(row.units.tokens, whole), used(row.units.uusd, money),
  ]), "Nothing was spent and nothing is limited.");
}

function used(unit, show) {
  if (unit.limit === null) return [show(unit.used), soft(" no limit")];
  const share = unit.limit ? Math.min(1, unit.used / unit.limit) : 1;
  const bar = element("span", { class: `bar ${share >= 1 ? "full" : share >= 0.8 ? "near" : ""}`, "aria-hidden": "true" }, element("span"));
  bar.firstChild.style.width = `${(100 * share).toFixed(1)}%`;
  return [show(unit.used), soft(` of ${show(unit.limit)}`), bar];
}

function showDevices(state) {
  const known = new Map(state.devices.map((device) => [device.device, device]));
  const names = [...new Set([...known.keys(), ...state.tasks.map((task) => task.device)])].sort();
  table($("devices"), "Devices", ["Device", "Last seen", "Calls", "Spend", "Tasks"], names.map((name) => {
    const device = known.get(name), tasks = state.tasks.filter((task) => task.device === name);
    const sum = (unit) => tasks.reduce((total, task) => total + task.charged[unit], 0);
    const about = [device?.agent_version ? `agent ${device.agent_version}` : "", device?.disabled ? "disabled" : ""].filter(Boolean).join(", ");
    return [
      [line(name), about ? line(soft(about)) : ""], device ? ago(state.now_ms, device.last_seen_ms) : soft("not since the start"),
      whole(sum("calls")), money(sum("uusd")),
      tasks.map((task) => line(task.task, soft(` λ ${task.dual.toFixed(3)}, τ ${percent(task.target_rate)}, ${many(task.next_step, "step")}`))),
    ];
  }), "No device has called yet. Point one here: edge-agent run --coordinator ADDRESS");
}

function showUpstreams(state) {
  table($("upstreams"), "Upstreams", ["Name", "State", "Model", "Price in / out per million tokens", "Waiting"], state.upstreams.map((row) => [
    row.alias, element("span", { class: `badge ${row.breaker}` }, BREAKERS[row.breaker] ?? row.breaker),
    row.provider && row.provider !== row.alias ? [row.model, soft(` by ${row.provider}`)] : row.model,
    row.price ? `${money(row.price.in_uusd_per_mtok)} / ${money(row.price.out_uusd_per_mtok)}` : "none, so its calls are refused",
    whole(row.waiting),
  ]), "No upstream is configured.");
}

// ---------------------------------------------------------------- curves

function showCurves(curves) {
  drawn = curves;
  const cards = new Map([...$("tasks").children].map((card) => [card.dataset.task, card]));
  for (const task of Object.keys(curves.tasks)) if (!cards.has(task)) $("tasks").append(taskCard(task));
  for (const card of $("tasks").children) drawTask(card, curves.tasks[card.dataset.task]);
  const spend = curves.spend.map(([at, uusd]) => ({ at_ms: Math.min(at + MINUTE_MS, shownAt ?? Infinity), uusd }));
  if (spend.length) spend.unshift({ at_ms: spend[0].at_ms - MINUTE_MS, uusd: 0 });
  const total = spend.at(-1)?.uusd ?? 0;
  drawChart($("spend"), spend, [["spend", (point) => point.uusd]], Math.max(1, total), money, total ? `${money(total)} charged in the time shown` : "nothing was charged yet");
}

function taskCard(task) {
  const svg = svgElement("svg", { class: "chart", role: "img" });
  return element("section", { "aria-label": `Task ${task}`, "data-task": task }, element("h2", {}, task), svg, element("ul", { class: "legend" }));
}

function drawTask(card, points) {
  const task = card.dataset.task, last = points.at(-1), smooth = smoothed(points);
  const words = `${task}: assist rate ${percent(smooth.at(-1))} at a target of ${percent(last.target_rate)}, λ ${last.dual.toFixed(3)}`;
  const curves = [["rate raw", (point) => point.assist_rate], ["rate", (_, index) => smooth[index]], ["target", (point) => point.target_rate], ["dual", (point) => point.dual]];
  drawChart(card.querySelector("svg"), points, curves, Math.max(1, ...points.map((point) => point.dual)), null, words);
  const legend = [["rate", `assist rate ${percent(smooth.at(-1))}`], ["target", `target τ ${percent(last.target_rate)}`], ["dual", `λ ${last.dual.toFixed(3)}`]];
  keep(card.querySelector("ul"), legend.map(([name, text]) => element("li", { class: `c-${name}` }, text)));
}

// Means over the last points, weighted by the steps in them.
function smoothed(points, width = 10) {
  return points.map((_, end) => {
    const near = points.slice(Math.max(0, end - width + 1), end + 1).filter((point) => point.assist_rate !== null);
    const steps = near.reduce((sum, point) => sum + point.steps, 0);
    return steps ? near.reduce((sum, point) => sum + point.assist_rate * point.steps, 0) / steps : null;
  });
}

function drawChart(svg, points, curves, top, show, description) {
  const width = Math.max(240, svg.clientWidth), [right, bottom, height] = [width - 8, 138, 126];
  const label = show ?? ((value) => value.toFixed(top > 2 ? 0 : 1));
  const marks = [0, 0.5, 1].map((share) => share * top);
  const left = 10 + 6.2 * Math.max(...marks.map((value) => label(value).length)); // of 11 px letters
  const first = points[0]?.at_ms ?? 0, span = Math.max(1, (points.at(-1)?.at_ms ?? 1) - first);
  const x = (point) => left + (right - left) * (points.length > 1 ? (point.at_ms - first) / span : 0.5);
  const y = (value) => bottom - height * value / top;
  svg.setAttribute("aria-label", description);
  svg.setAttribute("viewBox", `0 0 ${width} 160`);
  svg.replaceChildren();
  if (!points.length) { svg.append(svgElement("text", { x: width / 2, y: 80, "text-anchor": "middle" }, description)); return; }
  for (const value of marks) {
    svg.append(svgElement("line", { class: "axis", x1: left, x2: right, y1: y(value), y2: y(value) }));
    svg.append(svgElement("text", { x: left - 4, y: y(value) + 3, "text-anchor": "end" }, label(value)));
  }
  svg.append(svgElement("text", { x: left, y: 154 }, when(first)));
  if (points.length > 1) svg.append(svgElement("text", { x: right, y: 154, "text-anchor": "end" }, when(first + span)));
  for (const [name, of] of curves) {
    const places = points.map((point, index) => [x(point), of(point, index)]).filter(([, value]) => value !== null);
    if (places.length === 1) svg.append(svgElement("circle", { class: `dot ${name}`, cx: places[0][0], cy: y(places[0][1]), r: 2.5 }));
    svg.append(svgElement("polyline", { class: `curve ${name}`, points: places.map(([at, value]) => `${at.toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
  }
}

function when(ms) {
  const today = new Date(ms).toDateString() === new Date(shownAt ?? ms).toDateString();
  return today ? clock(ms, false) : new Date(ms).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
}

// ---------------------------------------------------------------- start

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("token", token);
  $("token").value = "";
  curvesAt = 0;
  refresh();
});
addEventListener("resize", () => { if (drawn) showCurves(drawn); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
(async () => {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((resume) => setTimeout(resume, STATE_EVERY_MS));
  }
})();
