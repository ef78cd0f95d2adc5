// The hard limit of this device's own ledger, what asking is held to, and what the cloud is called. Knows the agent's budgets.

import { post } from "./api.js";
import { announce, button, element, freshId } from "./elements.js";
import { minute } from "./numbers.js";
import { PERIODS, UNITS } from "./units.js";

const OPERATOR = "The limits of this device are set by who runs its coordinator.";

export class Limit {
  // `changed(budget)` is given the agent's reply to a change.
  constructor(place, changed) {
    this.changed = changed;
    this.dirty = false;
    this.target = element("p", { class: "target", dir: "auto" });
    this.now = element("p", { class: "note", dir: "auto" });
    const edited = () => { this.dirty = true; this.paint(); };
    const field = ({ limit, label }, id = freshId("limit")) => [id, element("input", { type: "text", id, inputMode: "decimal", autocomplete: "off", "data-unit": limit, "on:input": edited }), label];
    const [calls, tokens, spend] = UNITS;
    this.fields = [spend, calls, tokens].map((unit) => field(unit));
    const period = freshId("period");
    this.period = element("select", { id: period, "on:change": edited }, ...PERIODS.map(({ name, words }) => element("option", { value: name }, words)));
    this.set = button("Set limit", () => this.apply());
    this.off = button("Take off", () => this.send({ off: true }), { class: "quiet", title: "Take off what was set here; limits of the configuration hold again." });
    this.problem = element("p", { class: "problem", role: "alert" });
    this.form = element("div", { class: "limit-form" },
      element("div", { class: "row" }, ...this.fields.map(([id, input, unit]) => element("span", { class: "limit-field" }, input, element("label", { htmlFor: id }, unit))),
        element("label", { htmlFor: period, class: "limit-field" }, this.period)),
      element("div", { class: "row" }, this.set, this.off), this.problem);
    this.period.setAttribute("aria-label", "Period of the limit");
    place.replaceChildren(this.target, this.now, this.form);
  }

  update({ limits, target, cloud_name: cloud }) {
    this.limits = limits;
    this.target.textContent = `Target: ${target}`;
    const renews = limits?.renews_at && limits.words !== "no limit" ? `; begins anew on ${minute(limits.renews_at)}` : "";
    const words = limits === null ? OPERATOR : `Limit: ${limits.words}${renews}`;
    this.now.textContent = [words, cloud].filter(Boolean).join(" · ");
    this.form.hidden = limits === null;
    if (!this.dirty) this.reset();
  }

  reset() {
    this.dirty = false;
    if (!this.limits) return;
    for (const [, input] of this.fields) {
      const value = this.limits[input.dataset.unit];
      input.value = value === null ? "" : input.dataset.unit === "spend_limit_uusd" ? String(value / 1e6) : String(value);
    }
    this.period.value = this.limits.period;
    this.paint();
  }

  paint() {
    this.set.disabled = !this.dirty;
    this.problem.textContent = "";
  }

  apply() {
    const changes = { period: this.period.value };
    for (const [, input, unit] of this.fields) {
      const read = input.value.trim() === "" ? null : amountOf(input.value, unit);
      if (Number.isNaN(read)) {
        this.problem.textContent = `${input.value} is no ${unit === "USD" ? "amount of USD such as 5 or 0.25" : `number of ${unit}`}; leave it empty for no limit.`;
        input.focus();
        return;
      }
      changes[input.dataset.unit] = read;
    }
    this.send(changes);
  }

  async send(changes) {
    let budget;
    try {
      budget = await post("/api/budget/limit", changes);
    } catch (problem) {
      this.problem.textContent = problem.message;
      return;
    }
    this.dirty = false;
    this.changed(budget);
    announce(`Limit: ${budget.limits?.words ?? ""}`);
  }
}

// Micro-USD, or a whole count; NaN for what is neither.
function amountOf(text, unit) {
  const word = text.trim().replace(/^\$/, "").replace(/\s*USD$/i, "");
  if (unit === "USD") return /^\d{1,9}(\.\d{1,6})?$/.test(word) ? Math.round(Number(word) * 1e6) : NaN;
  return /^\d{1,15}$/.test(word) ? Number(word) : NaN;
}
