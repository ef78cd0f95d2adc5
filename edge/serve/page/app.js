// The page of the local agent: its views, which one is shown, and following the agent. No libraries, nothing from elsewhere.

import { get, tokensComeFrom } from "./api.js";
import { Budget } from "./budget.js";
import { Chat } from "./chat.js";
import { $, announce } from "./elements.js";
import { Headline } from "./headline.js";
import { Learning, learningWords } from "./learning.js";
import { Outbox } from "./outbox.js";
import { Steps } from "./steps.js";
import { tokenFromPerson } from "./token.js";
import { reasonWords } from "./words.js";

const STATUS_EVERY_MS = 2000;
const VIEW_EVERY_MS = 5000;
const HEADLINE_EVERY_MS = 10000;
const TITLES = { chat: "Chat", budget: "Budget", learning: "Learning", outbox: "Outbox" };

class App {
  constructor() {
    this.steps = new Steps();
    this.headlineNumbers = new Headline();
    this.chat = new Chat(() => { this.follow(); this.headlineNumbers.refresh(); });
    this.views = { budget: new Budget(this.steps), learning: new Learning(this.steps), outbox: new Outbox() };
    this.connection = "";
    this.declined = false;
    tokensComeFrom((refused) => this.token(refused));
    $("token-open").addEventListener("click", () => { this.declined = false; this.follow().then(() => this.open()); });
    addEventListener("hashchange", () => this.route(true));
    $("skip").addEventListener("click", (event) => { event.preventDefault(); this.heading().focus(); });
    $("confirm-no").addEventListener("click", () => $("confirm").close("no"));
    $("confirm-yes").addEventListener("click", () => $("confirm").close("yes"));
  }

  start() {
    this.route(false);
    this.follow();
    setInterval(() => document.hidden || this.follow(), STATUS_EVERY_MS);
    setInterval(() => document.hidden || this.connection === "away" || this.views[this.shown]?.tick(), VIEW_EVERY_MS);
    setInterval(() => document.hidden || this.connection === "away" || this.headlineNumbers.refresh(), HEADLINE_EVERY_MS);
    document.addEventListener("visibilitychange", () => document.hidden || this.follow());
  }

  // ---- which view

  heading() { return $(`${this.shown}-title`); }

  route(byPerson) {
    const wanted = location.hash.slice(1);
    this.shown = Object.hasOwn(TITLES, wanted) ? wanted : "chat";
    for (const name of Object.keys(TITLES)) {
      $(`view-${name}`).hidden = name !== this.shown;
      const link = $(`to-${name}`);
      if (name === this.shown) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    document.title = `${TITLES[this.shown]} – edge agent`;
    if (byPerson) { scrollTo(0, 0); this.heading().focus({ preventScroll: true }); }
    this.open();
  }

  open() { if (this.connection !== "away") this.views[this.shown]?.opened?.(); }

  // ---- the agent

  // Asked once; a person who declines is not asked again until they wish.
  async token(refused) {
    if (this.declined) return null;
    const token = await tokenFromPerson(refused);
    this.declined = !token;
    return token;
  }

  follow() {
    this.following ??= this.poll().finally(() => { this.following = null; });
    return this.following;
  }

  async poll() {
    try {
      const status = await get("/api/status");
      this.showStatus(status);
      for (const view of [this.chat, ...Object.values(this.views)]) view.onStatus?.(status);
      if (await this.steps.follow(status.steps_done)) for (const view of Object.values(this.views)) view.onSteps?.();
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      this.showProblem(problem);
    }
  }

  showStatus(status) {
    const offline = status.online === false;
    const back = this.connection === "away", first = this.connection === "";
    this.headline(offline ? `offline: ${status.offline_reason || "the coordinator does not answer"}; answers come from this device` : learningWords(status), offline);
    $("quota-line").textContent = quotaWords(status.quota);
    this.becomes(offline ? "offline" : "online", offline ? "Offline: the cloud cannot be asked, answers come from this device" : "The agent is there");
    if (back) this.open();
    if (back || first) this.headlineNumbers.refresh();
  }

  showProblem(problem) {
    this.headline(problem.away ? "the agent does not answer; trying again …" : problem.message, true);
    $("token-open").hidden = problem.status !== 401;
    this.becomes("away", problem.message);
  }

  headline(text, alarm) {
    $("headline").textContent = text;
    $("headline").className = alarm ? "alarm" : "";
    $("token-open").hidden = true;
  }

  // Announced once, when it changes, and not when the page has just been opened and all is well.
  becomes(connection, words) {
    if (connection === this.connection) return;
    if (this.connection || connection !== "online") announce(words);
    this.connection = connection;
  }
}

// The quota's own line; where all is well, it starts with what is counted in it.
const quotaWords = (quota) => !quota ? "" : ["ok", "low", "used_up"].includes(quota.state) ? `Cloud: ${quota.line}` : reasonWords(quota.line);

new App().start();
