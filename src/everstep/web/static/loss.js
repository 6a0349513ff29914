// The loss over time: one line for each generation, dashed and grey where it was trained again, a cross where it was NaN.

import { count, s } from "./dom.js";
import { ofKind } from "./store.js";

export const points = () => ofKind("loss").flatMap((chunk) => chunk.points);
const digits = (value) => String(Number(value.toPrecision(4)));

export function paint({ x, top, tall, from, to }, left) {
  const all = points();
  if (!all.length) return s("g", null, s("text", { x: left + 4, y: top + 12 }, "no loss was told: everstep.step(loss=...), or a line of the log"));
  const seen = all.filter(([at], k) => (at >= from || all[k + 1]?.[0] >= from) && (at <= to || all[k - 1]?.[0] <= to));
  const known = seen.map(([, value]) => value).filter((value) => value !== null).sort((a, b) => a - b);
  if (!seen.length) return s("g", null, s("text", { x: left + 4, y: top + 16 }, "no loss was told in this time"));
  // Three of a hundred on each side may lie outside, or one jump would make a line of the rest.
  let low = known[Math.floor(0.03 * known.length)] ?? 0, high = known[Math.ceil(0.97 * known.length) - 1] ?? 1;
  const room = 0.12 * (high - low) || 0.05 * Math.abs(high) || 1;
  low = low >= 0 ? Math.max(0, low - room) : low - room;
  high += room;
  const y = (value) => (top + tall - Math.min(1, Math.max(0, (value - low) / (high - low))) * (tall - 4)).toFixed(1);
  const paths = ["", ""];
  let crosses = "", before = null;
  for (const point of seen) {
    const [at, value, , again, generation] = point, px = x(at).toFixed(1);
    if (value === null) crosses += `M${px} ${top + 8}m-3 -3l6 6m-6 0l6 -6`;
    else {
      const joined = before !== null && before[1] !== null && before[4] === generation;
      paths[again] += joined ? `M${x(before[0]).toFixed(1)} ${y(before[1])}L${px} ${y(value)}` : `M${px} ${y(value)}l.6 0`;
    }
    before = point;
  }
  return s("g", null, s("path", { d: paths[1], class: "loss again" }), s("path", { d: paths[0], class: "loss" }), s("path", { d: crosses, class: "nan" }, s("title", null, "not finite")),
    s("text", { x: left - 6, y: top + 10, "text-anchor": "end" }, digits(high)), s("text", { x: left - 6, y: top + tall, "text-anchor": "end" }, digits(low)),
    s("line", { x1: left, x2: x(to), y1: top + tall, y2: top + tall, class: "axis" }));
}

// The newest that was told until then, in the generation that ran then.
export function at(moment, generation) {
  const known = points().filter((point) => point[0] <= moment && point[4] === generation).at(-1);
  if (!known) return null;
  const [, value, step, again] = known;
  return `loss ${value === null ? "NaN or infinite" : digits(value)}${step === null ? "" : ` after step ${count(step)}`}${again ? ", trained again later" : ""}`;
}
