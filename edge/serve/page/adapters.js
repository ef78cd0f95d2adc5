// The adapter versions and going back to one. Knows versions and the gate's decisions; knows nothing of training.

import { get, post } from "./api.js";
import { $, announce, button, confirmed, element, refill, table } from "./elements.js";
import { bytes, minute, percent } from "./numbers.js";
import { Part } from "./view.js";

const NAMES = ["Version", "When", "Task", "Gate", "Validation questions right", "Local accuracy", "Asked", "Size", "State", "Roll back"];
const NEWEST_FIRST = (one, other) => other.version - one.version;

export class Adapters {
  constructor() {
    this.part = new Part($("adapters"), () => get("/api/adapters"), ({ adapters }) => this.show(adapters));
  }

  refresh() { return this.part.refresh(); }

  show(adapters) {
    const focused = document.activeElement?.dataset?.version;
    const fresh = refill($("adapters"), adapters, () => adapters.length ? [this.table(adapters)] : [element("p", { class: "note" }, "Nothing was learned yet: the model answers as it came.")]);
    if (fresh && focused !== undefined) this.focus(focused);
  }

  table(adapters) {
    const rows = [...adapters].sort(NEWEST_FIRST).map((one) => [
      String(one.version), minute(one.at), one.task, decision(one), one.gate_after === null || one.gate_after === undefined ? null : element("span", { class: "whole" }, `${percent(one.gate_before)} → ${percent(one.gate_after)}`),
      percent(one.kept_accuracy), percent(one.assist_rate), element("span", { class: "whole" }, bytes(one.size_bytes)), state(one), this.back(one.version, one.serving || one.damage || !one.at),
    ]);
    const serving = adapters.some((one) => one.serving);
    rows.push(["bare model", ...Array(7).fill(null), serving ? null : state({ serving: true }), this.back(0, !serving)]);
    return table("Adapter versions, newest first", NAMES, rows);
  }

  // Not to the one that serves, nor to one that is damaged or not finished.
  back(version, never) {
    if (never) return null;
    const name = version ? `version ${version}` : "the bare model";
    return button("Roll back", () => this.goBack(version, name), { "aria-label": `Roll back to ${name}`, "data-version": String(version) });
  }

  async goBack(version, name) {
    const sure = await confirmed(`Roll back to ${name}?`, "It is active immediately, and learning goes on from it. Nothing is deleted: you can return to a newer version in the same way.", "Roll back");
    if (!sure) return;
    try {
      await post("/api/adapters/rollback", { version });
    } catch (problem) {
      this.part.say(problem.message);
      announce(problem.message);
      return;
    }
    this.part.say("");
    announce(`Rolled back to ${name}`);
    await this.refresh();
    this.focus(String(version));
  }

  // The version's button, or the heading when it has none (any more).
  focus(version) {
    const place = [...$("adapters").querySelectorAll("button")].find((one) => one.dataset.version === version);
    (place ?? $("adapters-title")).focus();
  }
}

function decision({ gate, gate_reason: reason }) {
  if (!gate) return null;
  return element("span", {}, element("span", { class: `badge gate-${gate === "promoted" ? "good" : gate === "refused" || gate === "rolled back" ? "bad" : "other"}` }, gate === "refused" ? "rejected" : gate), " ", element("span", { class: "soft", dir: "auto" }, reason ?? ""));
}

function state({ serving, head, damage, at = null }) {
  if (damage) return element("span", { class: "problem", dir: "auto" }, damage);
  return [at === null && !serving ? "not finished" : "", serving ? "active" : "", head ? "training goes on from it" : ""].filter(Boolean).join(", ") || null;
}
