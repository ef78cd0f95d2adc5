// What the views share: a part of the page that the agent may not offer. Knows problems; knows nothing of what a part shows.

import { element } from "./elements.js";

// Fills a part of the page from one of the agent's routes; a note stands in its place while it can't be filled.
export class Part {
  // `load()` gives the value, `show(value)` shows it in `body`.
  constructor(body, load, show) {
    this.note = element("p", { class: "note", hidden: true });
    this.body = body;
    this.load = load;
    this.show = show;
    this.missing = false;
    this.loading = null;
    body.before(this.note);
  }

  // `again`: ask also when the agent did not have it last time.
  refresh(again = false) {
    if (this.missing && !again) return Promise.resolve();
    this.loading ??= this.fill().finally(() => { this.loading = null; });
    return this.loading;
  }

  async fill() {
    try {
      this.show(await this.load());
      this.missing = false;
      this.say("");
      this.body.hidden = false;
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      this.missing = problem.missing;
      if (problem.missing) this.body.hidden = true;
      if (!problem.away) this.say(problem.missing ? "This agent does not offer this." : problem.message);
    }
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }
}
