// What the views share: a part of the page that is filled from one of the agent's routes. Knows problems; knows nothing of what a part shows.

import { element } from "./elements.js";

// Fills a part of the page; a note is shown before it while it cannot be filled anew.
export class Part {
  // `load()` gives the value, `show(value)` shows it in `body`.
  constructor(body, load, show) {
    this.note = element("p", { class: "note", hidden: true });
    this.load = load;
    this.show = show;
    this.loading = null;
    this.given = 0;
    body.before(this.note);
  }

  refresh() {
    this.loading ??= this.fill().finally(() => { this.loading = null; });
    return this.loading;
  }

  // Shows what came another way, as in the reply to a change: it is newer than what was asked for before.
  give(value) {
    this.given += 1;
    this.show(value);
  }

  async fill() {
    const given = this.given;
    try {
      const value = await this.load();
      if (given === this.given) this.show(value);
      this.say("");
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (!problem.away) this.say(problem.message);
    }
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }
}
