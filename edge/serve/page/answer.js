// One answer's card: where it came from, its text, and what can be done with it. Knows one turn; knows nothing of the conversation.

import { get, post } from "./api.js";
import { announce, button, copyButton, element, facts, freshId } from "./elements.js";
import { counted, decimal, moment, money, percent, practiceNote, seconds, whole } from "./numbers.js";
import { plain, showProse } from "./prose.js";
import { reasonWords, sentence } from "./words.js";

const SOURCES = { __proto__: null, local: "local", cloud: "cloud", "local-fallback": "local-fallback" };
const SOURCE_WORDS = { __proto__: null, local: "Answered on this device", cloud: "The cloud was asked", "local-fallback": "Answered here, without the help it asked for" };
const CALLS = { __proto__: null, completed: "answered", running: "still under way", in_doubt: "its end is not known", failed: "failed", unknown: "not in the ledger" };
const MOST_ANNOUNCED = 1500;

export class AnswerCard {
  // `again(turn)` asks the question anew; `changed()` is called when the turn changed.
  constructor(turn, again, changed) {
    this.turn = turn;
    this.changed = changed;
    this.again = () => again(turn);
    this.head = element("div", { class: "answer-head" });
    this.thoughts = element("div", { class: "thoughts", dir: "auto" });
    this.thinking = element("summary", {}, "Reasoning");
    this.reasoning = element("details", { class: "reasoning", hidden: true }, this.thinking, this.thoughts);
    this.text = element("div", { class: "text", dir: "auto" });
    this.foot = element("div", { class: "actions" });
    this.drawer = element("div", { class: "drawer" });
    this.card = element("article", { class: "answer", "aria-label": "Answer" }, this.head, this.reasoning, this.text, this.foot, this.drawer);
    this.card.addEventListener("keydown", (event) => this.onKey(event));
    this.asked = element("div", { class: "asked" }, element("span", { class: "hidden" }, "You asked: "), element("div", { dir: "auto" }, turn.question));
    this.paint();
    if (turn.state !== "running") this.finish();
    else this.head.replaceChildren(element("span", { class: "waiting" }, "thinking"));
  }

  // The text as far as it has come.
  paint() {
    const { reasoning, content } = this.turn;
    this.reasoning.hidden = !reasoning.trim();
    showProse(this.thoughts, reasoning.trim());
    showProse(this.text, content.trim());
  }

  finish() {
    const { turn } = this;
    this.paint();
    this.thinking.textContent = "Reasoning";
    if (!turn.content.trim() && turn.reasoning.trim()) this.reasoning.open = true;
    this.head.replaceChildren(...this.headParts());
    this.foot.replaceChildren(...this.actions());
    this.card.setAttribute("aria-label", turn.note ? `Answer, ${SOURCE_WORDS[turn.note.source] ?? turn.note.source}` : "Answer that was not finished");
  }

  headParts() {
    const { note, state, problem } = this.turn;
    if (state === "stopped") return [element("span", { class: "badge" }, "stopped"), element("span", {}, "You stopped this answer.")];
    if (state === "failed") return [element("span", { class: "badge problem" }, "no answer"), element("span", { class: "problem", dir: "auto" }, problem)];
    const source = SOURCES[note.source] ?? "other";
    return [
      element("span", { class: `badge ${source}`, title: SOURCE_WORDS[source] ?? "" }, note.source),
      element("span", { dir: "auto" }, reasonWords(note.reason) || SOURCE_WORDS[source] || ""),
      element("span", { class: "numbers" }, [
        note.latency_s ? seconds(note.latency_s) : "", note.cloud_tokens ? counted(note.cloud_tokens, "cloud token") : "",
        note.spend_uusd ? `${money(note.spend_uusd)}${practiceNote(note.cloud_model)}` : note.cached ? "from the coordinator's store, not charged" : "", `adapter ${note.adapter_version}`,
      ].filter(Boolean).join(" · ")),
    ];
  }

  actions() {
    const { turn } = this;
    const again = button(turn.state === "done" ? "Ask again" : "Try again", this.again, { class: "quiet" });
    if (turn.state !== "done") return turn.content || turn.reasoning ? [again, this.copy()] : [again];
    this.why = button("Why?", () => this.toggleWhy(), { class: "quiet", "aria-expanded": "false" });
    return [...this.thumbs(), this.why, this.copy(), again];
  }

  copy() { return copyButton(() => plain(this.turn.content.trim()) || this.turn.reasoning.trim()); }

  thumbs() {
    const make = (verdict, text) => button(text, () => this.judge(verdict), { class: "quiet thumb", "data-verdict": verdict });
    this.thumb = { good: make("good", "Good"), bad: make("bad", "Bad") };
    this.paintThumbs();
    return [element("span", { role: "group", "aria-label": "Was this answer good?" }, this.thumb.good, this.thumb.bad)];
  }

  paintThumbs() {
    for (const [verdict, thumb] of Object.entries(this.thumb)) thumb.setAttribute("aria-pressed", String(this.turn.verdict === verdict));
  }

  // One press after the other: what a press means depends on the rating before it.
  judge(pressed) {
    this.judged = (this.judged ?? Promise.resolve()).then(() => this.judgeNow(pressed));
  }

  async judgeNow(pressed) {
    const verdict = this.turn.verdict === pressed ? "none" : pressed;
    const kept = await this.sendVerdict(verdict, null);
    if (!kept) return;
    if (verdict === "bad") this.askCorrection();
    else { this.close("correction"); announce(verdict === "good" ? `Marked as good, ${kept.outlook}` : "Your feedback was taken back"); }
  }

  // What the agent keeps of it, or null.
  async sendVerdict(verdict, correction) {
    let kept;
    try {
      kept = await post("/api/feedback", { id: this.turn.note.id, verdict, correction });
    } catch (problem) {
      this.open("correction", element("p", { class: "problem", role: "alert" }, problem.message));
      return null;
    }
    Object.assign(this.turn, { verdict, correction: correction ?? "" });
    this.paintThumbs();
    this.changed();
    return kept;
  }

  askCorrection() {
    const id = freshId("correction");
    const area = element("textarea", { id, rows: 2, dir: "auto", value: this.turn.correction });
    const form = element("form", {},
      element("label", { htmlFor: id }, "What would have been right? (optional)"), area,
      element("div", { class: "row" }, element("button", { type: "submit" }, "Send correction"), button("Cancel", () => this.close("correction", this.thumb.bad), { class: "quiet" })));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.correct(area.value.trim()); });
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    this.open("correction", form);
    area.focus({ preventScroll: true });
    announce("Marked as bad. You may write what would have been right.");
  }

  async correct(correction) {
    const kept = await this.sendVerdict("bad", correction || null);
    if (!kept) return;
    this.close("correction", this.thumb.bad);
    if (!correction) return;
    const words = `The correction is kept on this device: ${kept.outlook}.`;
    this.open("correction", element("p", {}, words));
    announce(words);
  }

  async toggleWhy() {
    if (this.close("why", this.why)) return;
    const place = this.open("why", element("p", {}, "looking it up …"));
    this.why.setAttribute("aria-expanded", "true");
    try {
      place.replaceChildren(...whyParts(await get(`/api/why/${encodeURIComponent(this.turn.note.id)}`)));
    } catch (problem) {
      place.replaceChildren(element("p", { class: "problem", role: "alert" }, problem.message));
    }
  }

  open(kind, content) {
    this.close(kind);
    const place = element("div", { class: kind, "data-kind": kind }, content);
    this.drawer.append(place);
    place.scrollIntoView({ block: "nearest" });
    return place;
  }

  // Whether there was one; focus goes to the button that opened it.
  close(kind, opener = null) {
    const place = this.drawer.querySelector(`[data-kind=${kind}]`);
    place?.remove();
    if (kind === "why") this.why?.setAttribute("aria-expanded", "false");
    if (place && opener) opener.focus();
    return Boolean(place);
  }

  onKey(event) {
    if (event.key !== "Escape") return;
    if (this.close("correction", this.thumb?.bad) || this.close("why", this.why)) event.stopPropagation();
  }

  // What a screen reader reads out when the answer is there.
  spoken() {
    const { note, state, problem, content, reasoning } = this.turn;
    if (state !== "done") return problem || "Stopped.";
    return `${SOURCE_WORDS[note.source] ?? note.source}. ${(plain(content.trim()) || reasoning.trim()).slice(0, MOST_ANNOUNCED)}`;
  }
}

const shownText = (text) => text ? element("pre", { class: "wrapped", dir: "auto", tabIndex: 0, role: "region", "aria-label": "text" }, text) : "";
const part = (title, ...children) => [element("h3", {}, title), ...children];

function whyParts(record) {
  const odds = decimal(record.help_log_odds);
  const decision = facts([
    ["Wish to ask", odds === null ? "" : `${odds} log-odds (above 0: more likely than not)`], ["Wishes of its label", odds === null ? "" : record.ranking?.words ?? ""],
    ["Shift by the dial", record.help_bias ? `${decimal(record.help_bias)} log-odds` : ""],
    ["Dial", record.target_rate === null ? "" : `${percent(record.target_rate)} may ask`],
    ["Mode", record.mode], ["Task", record.task], ["Model", record.model], ["Adapter", record.adapter_version],
  ]);
  const budget = facts([["λ", decimal(record.dual, 3)], ["Calls left", left(record.calls_left)], ["Tokens left", left(record.tokens_left)], ["Spend left", left(record.spend_left_uusd, money)]]);
  return [
    ...part("Decision", element("p", { dir: "auto" }, sentence(reasonWords(record.decision))), decision), ...part("λ and budget at that time", budget),
    ...part("Own attempt", shownText(record.local_text) || element("p", {}, "The model here was not asked.")),
    ...(record.cloud_text ? part("The cloud's answer", shownText(record.cloud_text)) : []), ...part("Ledger", ...ledgerParts(record)),
  ];
}

function ledgerParts({ ledger, created_at: at, id }) {
  const entry = ledger === null ? [] : [
    ["Call", CALLS[ledger.state] ?? ledger.state], ["Charged", ledger.charged_uusd ? `${money(ledger.charged_uusd)}${practiceNote(ledger.model)}` : "nothing"], ["Cloud tokens", ledger.tokens ? whole(ledger.tokens) : ""],
    ["Cloud model", ledger.model], ["Reported by", ledger.reported_by === "coordinator" ? "the coordinator, just now" : "this device's own record"], ["Note", ledger.note], ["Entry", ledger.call_key],
  ];
  const none = ledger === null ? element("p", {}, "The cloud was not called, so there is nothing in the ledger.") : "";
  return [none, facts([...entry, ["When", moment(at)], ["Number", id]])];
}

const left = (value, show = whole) => value === null ? "no limit" : show(value);
