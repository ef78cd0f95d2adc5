// Numbers, money, sizes and times as people of this browser write them. Knows values; knows nothing of where they are shown.

const known = (value) => typeof value === "number" && Number.isFinite(value);
const format = (options) => new Intl.NumberFormat(undefined, options);
const PERCENT = format({ style: "percent", maximumFractionDigits: 1 });
const WHOLE = format({ maximumFractionDigits: 0 });
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const MINUTE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const HOUR = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const SECOND = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

export const percent = (share) => known(share) ? PERCENT.format(share) : "–";
const POINTS = new Intl.NumberFormat(undefined, { signDisplay: "exceptZero", maximumFractionDigits: 1 });
// A difference of two shares.
export const points = (difference) => known(difference) ? `${POINTS.format(100 * difference)} points` : "–";
export const whole = (value) => known(value) ? WHOLE.format(value) : "–";
export const decimal = (value, digits = 2) => known(value) ? format({ minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value) : null;
export const seconds = (value) => known(value) ? `${format({ maximumFractionDigits: value < 0.1 ? 2 : value < 10 ? 1 : 0 }).format(value)} s` : "";
export const counted = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

// Micro-USD with as many digits as matter, as in the terminal (edge/core/formatting.py): three of them below 1 USD.
export function money(uusd) {
  if (!known(uusd)) return "–";
  const size = Math.abs(uusd) / 1e6;
  const digits = size >= 1 || size === 0 ? 2 : Math.max(2, 2 - Math.floor(Math.log10(size)));
  return `${format({ minimumFractionDigits: 2, maximumFractionDigits: digits }).format(uusd / 1e6)} USD`;
}

// The bundled cloud model charges nothing, wherever its amounts are shown.
export const practiceNote = (cloudModel) => cloudModel === "nano-cloud" ? " (practice cloud, nothing is charged)" : "";

export function bytes(count) {
  if (!known(count)) return "–";
  if (count < 1024) return counted(count, "byte");
  const unit = count < 2 ** 20 ? ["KiB", 2 ** 10] : ["MiB", 2 ** 20];
  return `${format({ maximumFractionDigits: 1 }).format(count / unit[1])} ${unit[0]}`;
}

export const minute = (epoch_s) => known(epoch_s) ? MINUTE.format(epoch_s * 1000) : "–";
export const moment = (epoch_s) => known(epoch_s) ? MOMENT.format(epoch_s * 1000) : "–";

// Ends of a time axis: as exact as its length asks for.
export const axisTime = (epoch_s, span_s) => (span_s < 600 ? SECOND : span_s < 86400 ? HOUR : DAY).format(epoch_s * 1000);

export const usedOf = (used, limit, show = whole) => known(limit) ? `${show(used)} of ${show(limit)}` : show(used);
