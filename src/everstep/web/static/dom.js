// Elements and numbers. Whatever a rank wrote becomes text and nothing else: there is no way to markup here.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

// Inside a list of a hundred thousand there may be one that breaks Math.max(...list).
export const most = (list) => list.reduce((a, b) => (b > a ? b : a), -Infinity);

export const NONE = "—";

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 0) return "-" + duration(-seconds);
  if (seconds < 0.0005) return "0s";
  if (seconds < 0.0995) return (1000 * seconds).toFixed(0) + "ms";
  if (seconds < 9.995) return seconds.toFixed(2) + "s";
  if (seconds < 59.95) return seconds.toFixed(1) + "s";
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d ${two(Math.floor((whole % 86400) / 3600))}h`;
}

export const count = (n) => (n === null || n === undefined ? NONE : n.toLocaleString("en-US"));
export const percent = (ratio, digits = 1) =>
  ratio === null || ratio === undefined ? NONE : (100 * ratio).toFixed(digits) + "%";
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

const iso = (at) => {
  const date = new Date(1000 * at);
  return Number.isNaN(date.getTime()) ? null : date.toISOString();
};
export const stamp = (at) => (at === null || at === undefined ? NONE : (iso(at) || NONE).replace("T", " ").slice(0, 19) + " UTC");
export const short = (at) => (at === null || at === undefined ? NONE : (iso(at) || NONE).replace("T", " ").slice(5, 19));
export const clock = (at) => (at === null || at === undefined ? NONE : (iso(at) || NONE).slice(11, 23));
export const time = (at, text) => h("time", { datetime: iso(at), title: iso(at) }, text);

// A place in which only what changed is made anew: the focus, a selection and the scroll position stay.
const shown = new WeakMap();
export function show(element, key, make) {
  const text = JSON.stringify(key);
  if (shown.get(element) === text) return;
  shown.set(element, text);
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  element.replaceChildren(...[make()].flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  if (focused) [...element.querySelectorAll("[data-focus]")].find((e) => e.dataset.focus === focused)?.focus();
}
