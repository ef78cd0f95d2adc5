// The learning steps that this page has seen, as columns. Knows the agent's step events; knows nothing of how they are drawn.

import { get } from "./api.js";

export class Steps {
  constructor() { this.all = []; }

  get last() { return this.all.at(-1) ?? null; }

  // Brings what is new. A smaller number of steps than known means another state folder: everything is read anew.
  async follow(stepsDone) {
    if (stepsDone < (this.last?.step ?? 0)) this.all = [];
    if (stepsDone <= (this.last?.step ?? 0)) return false;
    const { steps } = await get(`/api/steps?after=${this.last?.step ?? 0}`);
    const known = this.last?.step ?? 0;
    this.all = this.all.concat(steps.filter(({ step }) => step > known));
    return steps.length > 0;
  }

  column(name) { return this.all.map((step) => step[name] ?? null); }

  // Where phases begin: their first steps with the task's name, and for each step the index at which its phase began.
  phases() {
    const marks = [], begins = [];
    this.all.forEach((step, index) => {
      const before = this.all[index - 1];
      const fresh = !before || before.phase !== step.phase || before.task !== step.task;
      if (fresh) marks.push({ x: step.step, text: String(step.task ?? "") });
      begins.push(fresh ? index : begins.at(-1));
    });
    return { marks, begins };
  }
}
