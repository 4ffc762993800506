// Elements from data, and numbers as text. Text is only ever set as text, never as markup.

// el("p", {class: "note", onclick: f}, "text", child): an element. Properties that are functions become
// listeners, true an empty attribute; null and false are left out.
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// A table with a caption for screen readers; cells are texts or elements. `numeric`: columns aligned to the right.
export function tableOf(caption, heads, rows, numeric = []) {
  const kind = (column) => (numeric.includes(column) ? "number" : null);
  return el("div", { class: "table-box", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head, i) => el("th", { scope: "col", class: kind(i) }, head)))),
      el("tbody", {}, rows.map((row) => el("tr", { class: row.className ?? null }, row.map((cell, i) =>
        i === 0 ? el("th", { scope: "row", class: kind(i) }, cell) : el("td", { class: kind(i) }, cell)))))));
}

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

const NONE = "–";

// Four significant digits: 2.104, 0.002, 1.234e-7, 24,610.
export function formatNumber(value, digits = 4) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e12)) return String(Number(value.toPrecision(digits)).toExponential());
  return value.toLocaleString("en-US", { maximumSignificantDigits: size >= 10 ** (digits - 1) ? Math.max(digits, Math.ceil(Math.log10(size))) : digits });
}

export const formatCount = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en-US") : NONE);
export const formatPercent = (share, digits = 1) => (isNumber(share) ? `${(100 * share).toFixed(digits).replace(/^-(0\.?0*)$/, "$1")} %` : NONE);

// 1500 -> "1.5k": for axes.
export function formatShort(value) {
  if (!isNumber(value)) return "";
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${Number((value / unit).toPrecision(4))}${letter}`;
  }
  return size !== 0 && size < 1e-3 ? Number(value.toPrecision(3)).toExponential() : String(Number(value.toPrecision(4)));
}

export function formatBytes(value) {
  if (!isNumber(value)) return NONE;
  for (const [unit, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (Math.abs(value) >= unit) return `${(value / unit).toFixed(value / unit < 10 ? 2 : 1)} ${name}`;
  }
  return `${Math.round(value)} B`;
}

// 2 h 03 min, 4 min 12 s, 8.1 s, 45 ms.
export function formatDuration(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 0.9995) return `${formatNumber(1000 * seconds, 3)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${String(minutes).padStart(2, "0")} min`;
  return `${minutes} min ${String(whole % 60).padStart(2, "0")} s`;
}

export function formatTime(unixSeconds) {
  if (!isNumber(unixSeconds) || unixSeconds <= 0) return NONE;
  return new Date(1000 * unixSeconds).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export function median(values) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;  // NaN without values
}
