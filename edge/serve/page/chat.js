// The chat. Knows the conversation's turns and the form; knows nothing of budgets or learning.

import { streamed } from "./api.js";
import { AnswerCard } from "./answer.js";
import { loadConversation, messagesFor, newTurn, saveConversation } from "./conversation.js";
import { $, announce, button, element } from "./elements.js";

// Of a bundled model, which knows what it practises, and of any other.
const PRACTICE = [
  "Mia has 14 apples. She buys 23 more. How many apples does she have?",
  "There are 3 boxes with 12 pens in each. Tom takes 7 away. How many pens are left?",
  "Write a Python function tidy(xs) that takes a list of numbers xs. First keep only the even numbers. Then double every number.",
];
const GENERAL = ["What is the capital of France?", "Which season comes after winter?", "Name three animals that live in the sea."];
const NEAR_END_PX = 80;
const WHO = {
  edge: "The model here answers, or asks the cloud when it wants help and the budget allows it.",
  "edge-local": "As /local in the terminal: the model here answers, and nothing is sent to the cloud.",
  "edge-cloud": "As /cloud in the terminal: every question is sent to the cloud, within the limits.",
};

export class Chat {
  // `answered()` is called after each answer.
  constructor(answered) {
    this.answered = answered;
    this.kept = loadConversation();
    this.running = null;
    this.cards = new Map();
    $("question").value = this.kept.draft;
    $("model").value = this.kept.model;
    if (!$("model").value) $("model").value = "edge";
    $("reasoned").checked = this.kept.reasoned;
    this.paintTasks({});
    this.paintWho();
    this.listen();
    this.kept.turns.forEach((turn) => this.show(turn));
    this.paintEmpty();
  }

  listen() {
    $("form").addEventListener("submit", (event) => this.submit(event));
    $("question").addEventListener("keydown", (event) => this.onKey(event));
    $("question").addEventListener("input", () => { this.kept.draft = $("question").value; this.save(); });
    $("model").addEventListener("change", () => { this.kept.model = $("model").value; this.save(); this.paintWho(); });
    $("task").addEventListener("change", () => { this.kept.task = $("task").value; this.save(); });
    $("reasoned").addEventListener("change", () => { this.kept.reasoned = $("reasoned").checked; this.save(); });
    $("stop").addEventListener("click", () => this.stop());
    $("clear").addEventListener("click", () => this.clear());
    addEventListener("beforeunload", () => { this.leaving = true; });
    addEventListener("pagehide", () => this.save());
  }

  // Models that answer in their own reasoned form only leave no choice.
  onStatus(status) {
    const compact = (status.model?.prompt_form ?? "compact") === "compact";
    $("reasoned-choice").hidden = compact;
    if (!$("examples").childElementCount) $("examples").append(...(compact ? PRACTICE : GENERAL).map((example) => button(example, () => this.ask(example, ""))));
    this.paintTasks(status.text_tasks ?? {});
  }

  // The tasks whose texts are sorted, after the ordinary question; nothing to choose where there are none.
  paintTasks(tasks) {
    const shown = JSON.stringify(tasks);
    if (shown === this.tasksShown) return;
    this.tasksShown = shown;
    const options = Object.entries(tasks).map(([task, { ask }]) => element("option", { value: task, dir: "auto" }, ask ? `${task}: ${ask}` : task));
    $("task").replaceChildren(element("option", { value: "" }, "a question"), ...options);
    $("task").value = this.kept.task in tasks ? this.kept.task : "";
    $("task").hidden = options.length === 0;
  }

  save() { saveConversation(this.kept); }

  onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.submit(event);
    if (event.key === "Escape" && this.running) this.stop();
  }

  submit(event) {
    event.preventDefault();
    const text = $("question").value.trim();
    if (!text || this.running) return;
    $("question").value = this.kept.draft = "";
    this.ask(text);
    $("question").focus();
  }

  stop() { this.running?.abort(); }

  clear() {
    this.stop();
    this.kept.turns = [];
    this.cards.clear();
    $("log").replaceChildren();
    this.save();
    this.paintEmpty();
    announce("New chat");
    $("question").focus();
  }

  paintWho() { $("who").textContent = WHO[$("model").value]; }

  paintEmpty() { $("empty").hidden = this.kept.turns.length > 0; }

  show(turn) {
    const card = new AnswerCard(turn, (one) => this.again(one), () => this.save());
    this.cards.set(turn, card);
    $("log").append(card.asked, card.card);
    return card;
  }

  // The question goes to the end; what came of it before goes.
  again(turn) {
    if (this.running) return;
    const { asked, card } = this.cards.get(turn);
    asked.remove();
    card.remove();
    this.cards.delete(turn);
    this.kept.turns = this.kept.turns.filter((one) => one !== turn);
    this.ask(turn.question, turn.task);
    $("question").focus();
  }

  async ask(question, task = $("task").value) {
    if (this.running) return;
    const turn = newTurn(question, task);
    this.kept.turns.push(turn);
    const card = this.show(turn);
    this.paintEmpty();
    this.save();
    card.card.scrollIntoView({ block: "nearest" });
    this.toEnd(true);
    await this.run(turn, card);
    this.answered();
  }

  async run(turn, card) {
    const running = this.running = new AbortController();
    this.paintBusy(true);
    try {
      await this.stream(turn, card, running.signal);
      turn.state = "done";
    } catch (problem) {
      if (this.leaving) return; // a reload ends the stream: the turn is kept as it was, unfinished
      turn.state = problem.name === "AbortError" ? "stopped" : "failed";
      turn.problem = problem.message;
    }
    this.finished(turn, card);
  }

  finished(turn, card) {
    this.running = null;
    const following = this.atEnd();
    card.finish();
    this.toEnd(following);
    this.paintBusy(false);
    this.save();
    if (this.cards.has(turn)) announce(card.spoken());
  }

  async stream(turn, card, signal) {
    const metadata = turn.task ? { task: turn.task } : {};
    if ($("reasoned").checked && !$("reasoned-choice").hidden && !turn.task) metadata.form = "reasoned";
    const body = { model: $("model").value, messages: messagesFor(this.kept.turns, turn), metadata, stream: true };
    for await (const event of streamed("/v1/chat/completions", body, signal)) {
      const delta = event.choices[0]?.delta ?? {};
      turn.reasoning += delta.reasoning_content ?? "";
      turn.content += delta.content ?? "";
      turn.note = event.edge ?? turn.note;
      this.paintSoon(card);
    }
    if (!turn.note) throw new Error("The answer was cut off before its end.");
  }

  // Once a frame at most: a fast answer brings many pieces in one.
  paintSoon(card) {
    if (this.painting) return;
    this.painting = requestAnimationFrame(() => {
      this.painting = null;
      const following = this.atEnd();
      card.paint();
      this.toEnd(following);
    });
  }

  atEnd() {
    const page = document.documentElement;
    return page.scrollHeight - innerHeight - scrollY < NEAR_END_PX;
  }

  toEnd(following) {
    if (following && !$("view-chat").hidden) scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
  }

  paintBusy(busy) {
    const stopFocused = document.activeElement === $("stop");
    $("send").hidden = busy;
    $("stop").hidden = !busy;
    if (busy) announce("Working on it");
    if (stopFocused && !busy) $("question").focus();
  }
}
