// Curves and gauges, each with words and a table of the same content. Knows numbers and SVG; knows nothing of where they come from.

import { element, svgElement, table } from "./elements.js";
import { percent, whole } from "./numbers.js";

const EDGE = { left: 34, right: 12, top: 22, bottom: 24 };
const HEIGHT_PX = 210;
const LETTER_PX = 7;
const MOST_ROWS = 60;
const GAUGE = { cx: 60, cy: 60, r: 46 };

// A figure: `curves` are {name, kind, values} over `xs`; `top` is the upper end.
export class Chart {
  constructor(title) {
    this.svg = svgElement("svg", { role: "img", class: "chart", height: HEIGHT_PX });
    this.legend = element("ul", { class: "legend" });
    this.rows = element("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": `${title}, as a table` });
    this.details = element("details", {}, element("summary", {}, "As a table"), this.rows);
    this.figure = element("figure", {}, this.svg, this.legend, this.details);
    this.title = title;
    this.details.addEventListener("toggle", () => this.fillTable());
    new ResizeObserver(() => this.data && this.draw()).observe(this.figure);
    this.nothing("nothing yet");
  }

  nothing(text) {
    this.data = null;
    this.legend.replaceChildren();
    this.details.hidden = true;
    this.svg.setAttribute("aria-label", `${this.title}: ${text}`);
    this.svg.replaceChildren(svgElement("text", { x: "50%", y: "50%", "text-anchor": "middle" }, text));
  }

  show(data) {
    if (!data.xs.length) return;
    this.data = data;
    this.details.hidden = false;
    this.svg.setAttribute("aria-label", `${this.title}. ${data.summary}`);
    this.legend.replaceChildren(...data.curves.map(({ name, kind }) => element("li", { class: kind }, name)));
    this.draw();
    this.fillTable();
  }

  draw() {
    const { xs, curves, top, showX, showY } = this.data;
    const left = Math.max(EDGE.left, 10 + LETTER_PX * Math.max(...[0, 0.5, 1].map((share) => showY(share * top).length)));
    const width = Math.max(200, this.figure.clientWidth), right = width - EDGE.right, bottom = HEIGHT_PX - EDGE.bottom;
    const span = Math.max(1e-9, xs.at(-1) - xs[0]);
    const x = (value) => left + (right - left) * (xs.length > 1 ? (value - xs[0]) / span : 0.5);
    const y = (value) => bottom - (bottom - EDGE.top) * value / top;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT_PX}`);
    const frame = [0, 0.5, 1].flatMap((share) => [
      svgElement("line", { class: "axis", x1: left, x2: right, y1: y(share * top), y2: y(share * top) }),
      svgElement("text", { x: left - 6, y: y(share * top) + 4, "text-anchor": "end" }, showY(share * top)),
    ]);
    const one = xs.length === 1;
    frame.push(svgElement("text", { x: x(xs[0]), y: HEIGHT_PX - 6, "text-anchor": one ? "middle" : "start" }, showX(xs[0])));
    if (!one) frame.push(svgElement("text", { x: right, y: HEIGHT_PX - 6, "text-anchor": "end" }, showX(xs.at(-1))));
    this.svg.replaceChildren(...frame, ...curves.flatMap(({ values, kind }) => line(xs, values, x, y, `curve ${kind}`)));
  }

  fillTable() {
    if (!this.details.open || !this.data) return;
    const { xs, curves, showX, showY, xName } = this.data;
    const every = Math.ceil(xs.length / MOST_ROWS);
    const rows = xs.map((value, index) => [value, index]).filter(([, index]) => (xs.length - 1 - index) % every === 0);
    this.rows.replaceChildren(table(`${this.title}${every > 1 ? ` (every ${every}th)` : ""}`, [xName, ...curves.map(({ name }) => name)],
      rows.map(([value, index]) => [showX(value), ...curves.map(({ values, show = showY }) => known(values[index]) ? show(values[index]) : null)])));
  }
}

const known = (value) => value !== null && value !== undefined;

function line(xs, values, x, y, className) {
  const points = values.map((value, index) => known(value) ? [x(xs[index]), y(value)] : null).filter(Boolean);
  if (points.length === 1) return [svgElement("circle", { class: className, cx: points[0][0], cy: points[0][1], r: 3 })];
  return [svgElement("polyline", { class: className, points: points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ") })];
}

const WINDOW = { least: 10, most: 100, share: 1 / 12 };

// Means over the last values that are known, over a window that grows with how many came before, so that a quick rise at the beginning is
// seen; null where too few are known yet.
export function smoothed(values) {
  const count = values.filter(known).length;
  return values.map((_, end) => {
    const width = Math.min(WINDOW.most, Math.max(WINDOW.least, Math.round((end + 1) * WINDOW.share)));
    const there = values.slice(Math.max(0, end - width + 1), end + 1).filter(known);
    return there.length && there.length >= Math.min(count, Math.round(width / 2)) ? there.reduce((sum, value) => sum + value, 0) / there.length : null;
  });
}

// A chart for each task over its own steps, so that no curve has gaps where others were learned. `dataOf(steps)` gives what a chart shows
// of a task's steps.
export class TaskCharts {
  constructor(place, title, dataOf) {
    this.place = place;
    this.title = title;
    this.dataOf = dataOf;
    this.charts = new Map();
    this.none = new Chart(title);
    place.append(this.none.figure);
  }

  show(tasks) {
    if (!tasks.length) return;
    this.none.figure.remove();
    for (const { name, steps } of tasks) {
      if (!this.charts.has(name)) this.add(name);
      const known = this.charts.get(name);
      if (known.steps === steps.length) continue;
      known.steps = steps.length;
      known.chart.show({ xs: steps.map(({ step }) => step), xName: "Step", showX: (step) => `step ${whole(step)}`, ...this.dataOf(steps) });
    }
  }

  add(name) {
    const chart = new Chart(`${this.title}, ${name}`);
    chart.figure.prepend(element("figcaption", { dir: "auto" }, name));
    this.charts.set(name, { chart, steps: 0 });
    this.place.append(chart.figure);
  }
}

// A half circle: how much of everything asks, with a mark where it should be.
export function gauge() {
  return svgElement("svg", { viewBox: "0 0 120 76", role: "img", class: "gauge" });
}

export function drawGauge(svg, share, target, label) {
  const over = target !== null && share !== null && share > target + 0.05;
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(svgElement("path", { class: "gauge-back", d: arc(1) }));
  if (share) svg.append(svgElement("path", { class: over ? "gauge-over" : "gauge-value", d: arc(Math.min(share, 0.999)) }));
  if (target !== null) {
    const [[x1, y1], [x2, y2]] = [at(target, 37), at(target, 55)];
    svg.append(svgElement("line", { class: "gauge-mark", x1, y1, x2, y2 }));
  }
  svg.append(svgElement("text", { x: 60, y: 58, "text-anchor": "middle", class: "big" }, percent(share)), svgElement("text", { x: 60, y: 73, "text-anchor": "middle" }, "asked"));
}

const at = (share, radius) => [GAUGE.cx - radius * Math.cos(Math.PI * share), GAUGE.cy - radius * Math.sin(Math.PI * share)];

function arc(share) {
  const [x, y] = at(share, GAUGE.r);
  return `M 14 60 A 46 46 0 0 1 ${x.toFixed(2)} ${y.toFixed(2)}`;
}
