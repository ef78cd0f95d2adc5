// The learning steps that this page has seen, as columns. Knows the agent's step events; knows nothing of how they are drawn.

import { get } from "./api.js";
import { sourceName } from "./words.js";

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

  // The steps of each task, in the order in which the tasks began. What a task learns of the same source has a name of its own.
  byTask() {
    const tasks = new Map();
    for (const step of this.all) {
      const key = `${step.source}\n${step.task}`;
      if (!tasks.has(key)) tasks.set(key, { source: step.source, task: step.task, steps: [] });
      tasks.get(key).steps.push(step);
    }
    const sources = [...tasks.values()].map(({ source }) => source);
    return [...tasks.values()].map((one) => ({ ...one, name: sourceName(one.source) + (sources.filter((source) => source === one.source).length > 1 ? `, ${one.task}` : "") }));
  }
}
