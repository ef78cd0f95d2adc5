// The outbox: what left this device, byte for byte, and what waits to leave. Knows the agent's records of it; sends nothing itself.

import { get } from "./api.js";
import { $, copyButton, element, facts, freshId, refill } from "./elements.js";
import { bytes, counted, moment, whole } from "./numbers.js";
import { Part } from "./view.js";

const AT_ONCE = 50;
const NAMES = { id: "Number", at: "When", kind: "Kind", reason: "Why", bytes: "Size", answer_id: "Answer", task: "Task", task_step: "Step", total_units: "Responses", help_units: "Asked", target_rate: "Target τ" };

export class Outbox {
  constructor() {
    this.rows = new Map();
    this.sent = new Part($("sent"), () => get(`/api/sent?limit=${AT_ONCE}`), (value) => this.show(value));
    $("older").addEventListener("click", () => this.older());
  }

  opened() { this.sent.refresh(true); }
  tick() { this.sent.refresh(); }

  // An agent without the list of what waits still says how much it is.
  onStatus({ outbox = 0 }) {
    if (this.sent.missing) this.showWaiting([], outbox ? `${counted(outbox, "step report waits", "step reports wait")}.` : "Nothing waits.");
  }

  show({ sent, waiting = [] }) {
    this.add(sent);
    if (!this.paged) $("older").hidden = sent.length < AT_ONCE;
    $("sent-none").hidden = this.rows.size > 0;
    this.showWaiting(waiting, "Nothing waits.");
  }

  showWaiting(waiting, otherwise) {
    const items = () => waiting.map((one) => element("li", { class: "card" }, facts(named(one))));
    refill($("waiting"), [waiting, otherwise], () => waiting.length ? [element("ul", { class: "plain" }, ...items())] : [element("p", { class: "note" }, otherwise)]);
  }

  // Newest first; rows that are there already stay as they are, opened or not.
  add(sent) {
    for (const entry of sent) {
      if (this.rows.has(entry.id)) continue;
      const row = new Row(entry);
      const after = [...this.rows.values()].filter((one) => one.entry.id < entry.id).sort((one, other) => other.entry.id - one.entry.id)[0];
      $("sent-list").insertBefore(row.item, after?.item ?? null);
      this.rows.set(entry.id, row);
    }
  }

  async older() {
    const before = Math.min(...[...this.rows.keys()]);
    try {
      const { sent } = await get(`/api/sent?limit=${AT_ONCE}&before=${before}`);
      this.paged = true;
      this.add(sent);
      $("older").hidden = sent.length < AT_ONCE;
      this.rows.get(sent[0]?.id)?.opener.focus();
    } catch (problem) {
      this.sent.say(problem.message);
    }
  }
}

const named = (entry) => Object.entries(entry).map(([key, value]) => [NAMES[key] ?? key.replaceAll("_", " "), key === "at" ? moment(value) : key === "bytes" ? bytes(value) : typeof value === "object" && value !== null ? replacedWords(value) : value]);

function replacedWords(replaced) {
  const kinds = Object.entries(replaced ?? {}).filter(([, count]) => count);
  return kinds.length ? kinds.map(([kind, count]) => `${whole(count)} × ${kind}`).join(", ") : "nothing";
}

// One thing that left. Its bytes are read when it is opened.
class Row {
  constructor(entry) {
    this.entry = entry;
    const place = freshId("payload");
    this.opener = element("button", { type: "button", class: "opener", "aria-expanded": "false", "aria-controls": place, "on:click": () => this.toggle() },
      element("span", { class: "when" }, moment(entry.at)), element("span", { class: "badge" }, entry.kind), element("span", { class: "reason", dir: "auto" }, entry.reason ?? ""),
      element("span", { class: "numbers" }, bytes(entry.bytes)), element("span", { class: "soft" }, `replaced: ${replacedWords(entry.replaced)}`));
    this.place = element("div", { id: place, class: "payload", hidden: true });
    this.item = element("li", { class: "card", "on:keydown": (event) => this.onKey(event) }, this.opener, this.place);
  }

  toggle(open = this.place.hidden) {
    this.place.hidden = !open;
    this.opener.setAttribute("aria-expanded", String(open));
    if (open && !this.read) this.load();
  }

  onKey(event) {
    if (event.key !== "Escape" || this.place.hidden) return;
    this.toggle(false);
    this.opener.focus();
  }

  async load() {
    this.place.replaceChildren(element("p", { class: "note" }, "reading …"));
    try {
      const entry = await get(`/api/sent/${encodeURIComponent(this.entry.id)}`);
      this.read = true;
      this.place.replaceChildren(...payloadParts(entry));
    } catch (problem) {
      this.place.replaceChildren(element("p", { class: "problem", role: "alert" }, problem.message));
    }
  }
}

function payloadParts(entry) {
  const text = String(entry.payload ?? "");
  const size = new TextEncoder().encode(text).length;
  return [
    facts([["Answer", entry.answer_id], ["Replaced", replacedWords(entry.replaced)], ["Number", entry.id]]),
    element("div", { class: "code" }, element("div", { class: "code-head" }, element("span", {}, `Exactly what was sent, ${counted(size, "byte")}`), copyButton(() => text)),
      element("pre", { tabIndex: 0, role: "region", "aria-label": "Exactly what was sent", dir: "auto" }, element("code", {}, text))),
  ];
}
