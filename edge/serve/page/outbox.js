// The outbox: what left this device, byte for byte, and what waits to leave. Knows the agent's records of it; sends nothing itself.

import { get } from "./api.js";
import { $, announce, copyButton, element, facts, freshId, refill } from "./elements.js";
import { bytes, counted, moment, percent, whole } from "./numbers.js";
import { Part } from "./view.js";
import { reasonWords } from "./words.js";

const AT_ONCE = 50;
const ASKED = "answering";
const TRAFFIC = { __proto__: null, learning: "learning", "step report": "a step report", evaluation: "an evaluation", registration: "signing on", inquiry: "an inquiry" };
const KINDS = { __proto__: null, [ASKED]: "a question", ...TRAFFIC };

// A person's questions first; what learning sends is folded, and read when it is opened.
export class Outbox {
  constructor() {
    this.questions = new SentList($("sent"), "sent", () => ASKED, (listing) => this.showRest(listing));
    this.traffic = new SentList($("traffic-sent"), "traffic", () => $("kind").value);
    $("kind").append(...Object.entries(TRAFFIC).map(([kind, words]) => element("option", { value: kind }, words)));
    $("kind").addEventListener("change", () => this.traffic.anew());
    $("traffic").addEventListener("toggle", () => $("traffic").open && this.traffic.part.refresh());
  }

  opened() { this.tick(); }

  tick() {
    this.questions.part.refresh();
    if ($("traffic").open) this.traffic.part.refresh();
  }

  showRest({ dropped, waiting_reports: waiting }) {
    $("dropped").hidden = !dropped.entries;
    $("dropped").textContent = dropped.entries ? `${counted(dropped.entries, "older request is", "older requests are")} no longer kept, the last of ${moment(dropped.until)}.` : "";
    const items = () => waiting.map((one) => element("li", { class: "card", dir: "auto" }, reportWords(one)));
    refill($("waiting"), waiting, () => waiting.length ? [element("ul", { class: "plain" }, ...items())] : [element("p", { class: "note" }, "Nothing waits.")]);
  }
}

// What left of one kind, newest first, a page at a time. `shown(listing)` is given each answer of the agent.
class SentList {
  constructor(place, name, kind, shown = () => {}) {
    this.kind = kind;
    this.rows = new Map();
    this.before = null;
    this.none = element("p", { id: `${name}-none`, class: "note", hidden: true });
    this.list = element("ul", { id: `${name}-list`, class: "plain" });
    this.more = element("button", { type: "button", id: `${name}-older`, hidden: true, "on:click": () => this.older() }, "Older");
    place.append(this.none, this.list, this.more);
    this.part = new Part(place, () => get(`/api/sent?${this.wanted()}`), (listing) => { this.show(listing); shown(listing); });
  }

  wanted() { return `limit=${AT_ONCE}&kind=${encodeURIComponent(this.kind())}`; }

  async anew() {
    await this.part.loading;
    this.clear();
    await this.part.refresh();
    announce(counted(this.rows.size, "request is shown", "requests are shown"));
  }

  clear() {
    this.rows.clear();
    this.list.replaceChildren();
  }

  show({ sent, next_before: before }) {
    // More came than one page holds: what is known does not join on any more.
    if (before !== null && !sent.some(({ id }) => this.rows.has(id))) this.clear();
    if (!this.rows.size) this.reach(before);
    this.add(sent);
    this.none.hidden = this.rows.size > 0;
    this.none.textContent = this.kind() === ASKED ? "Nothing that you asked has left this device." : "Nothing of this kind has left this device.";
  }

  // Where the list ends, and whether there is more.
  reach(before) {
    this.before = before;
    this.more.hidden = before === null;
  }

  // Newest first; rows that are there already stay, opened or not.
  add(sent) {
    for (const entry of sent) {
      const known = this.rows.get(entry.id);
      if (known) { known.update(entry); continue; }
      const row = new Row(entry);
      const after = [...this.rows.values()].filter((one) => one.entry.id < entry.id).sort((one, other) => other.entry.id - one.entry.id)[0];
      this.list.insertBefore(row.item, after?.item ?? null);
      this.rows.set(entry.id, row);
    }
  }

  async older() {
    try {
      const { sent, next_before: before } = await get(`/api/sent?${this.wanted()}&before=${this.before}`);
      this.add(sent);
      this.reach(before);
      this.rows.get(sent[0]?.id)?.opener.focus();
    } catch (problem) {
      this.part.say(problem.message);
    }
  }
}

const reportWords = ({ task, task_step: step, help_units: asked, total_units: units, target_rate: target, refused }) =>
  `Report of step ${whole(step + 1)} of task ${task}: ${whole(asked)} of ${counted(units, "response")} asked, at a target of ${percent(target)}.`
  + (refused ? ` The coordinator refuses it: ${refused}.` : "");

function replacedWords(replaced) {
  const kinds = Object.entries(replaced).filter(([, count]) => count);
  return kinds.length ? kinds.map(([kind, count]) => `${whole(count)} × ${kind}`).join(", ") : "";
}

// One thing that left. Its message is read when it is opened.
class Row {
  constructor(entry) {
    const place = freshId("payload");
    this.opener = element("button", { type: "button", class: "opener", "aria-expanded": "false", "aria-controls": place, "on:click": () => this.toggle() });
    this.place = element("div", { id: place, class: "payload", hidden: true });
    this.item = element("li", { class: "card", "on:keydown": (event) => this.onKey(event) }, this.opener, this.place);
    this.update(entry);
  }

  update(entry) {
    if (JSON.stringify(entry) === JSON.stringify(this.entry)) return;
    this.entry = entry;
    const replaced = replacedWords(entry.replaced);
    this.opener.replaceChildren(
      element("span", { class: "when" }, moment(entry.at)), element("span", { class: "badge" }, KINDS[entry.kind] ?? entry.kind), element("span", { class: "reason", dir: "auto" }, reasonWords(entry.why)),
      element("span", { class: "numbers" }, `${bytes(entry.bytes)}${entry.times > 1 ? `, ${whole(entry.times)} times` : ""}`),
      element("span", { class: "soft" }, [entry.ended, replaced ? `replaced: ${replaced}` : ""].filter(Boolean).join(" · ")), element("span", { class: "problem" }, entry.outcome ? `did not leave: ${entry.outcome}` : ""));
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
      const entry = await get(`/api/sent/${this.entry.id}`);
      this.read = true;
      this.place.replaceChildren(...messageParts(entry));
    } catch (problem) {
      this.place.replaceChildren(element("p", { class: "problem", role: "alert" }, problem.message));
    }
  }
}

function messageParts(entry) {
  const size = counted(entry.bytes, "byte");
  return [
    facts([
      ["Number", entry.id], ["Sent as", entry.method], ["Answer", entry.answer_id], ["Ledger's entry", entry.call_key],
      ["Replaced before it left", replacedWords(entry.replaced) || "nothing had to be"], ["Sent again", entry.times > 1 ? `${whole(entry.times)} times in all, the last on ${moment(entry.last_at)}` : ""],
    ]),
    entry.payload === null ? element("p", { class: "note" }, "This message can no longer be read as text; its bytes are below.") : block(`The message, ${size} when sent`, JSON.stringify(entry.payload, null, 2)),
    element("details", {}, element("summary", {}, `The ${size} themselves, as base64`), block("base64", entry.payload_base64)),
  ];
}

function block(title, text) {
  return element("div", { class: "code" }, element("div", { class: "code-head" }, element("span", {}, title), copyButton(() => text)),
    element("pre", { tabIndex: 0, role: "region", "aria-label": title, dir: "auto" }, element("code", {}, text)));
}
