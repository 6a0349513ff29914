// One time axis, one cursor: what the job did, its generations, checkpoints, incidents, step times and loss.

import { count, duration, h, most, s, short, stamp } from "./dom.js";
import * as loss from "./loss.js";
import { base, now, ofKind, rows } from "./store.js";

const LEFT = 78, RIGHT = 8;
const LANES = [["phase", 26], ["generation", 18], ["checkpoint", 16], ["incident", 24], ["step time", 84], ["loss", 64]];
const GAP = 6, AXIS = 18;
const KINDS = ["idle", "unmeasured", "starting", "productive", "lost", "recovering"];
const SAYS = { idle: "nothing ran", unmeasured: "not measured", starting: "starting", productive: "training",
  lost: "trained, and done again later", recovering: "recovering" };
const PART = { idle: 0.3, unmeasured: 0.3, starting: 0.55, productive: 1, lost: 1, recovering: 0.55 };

export const view = { from: null, to: null, at: null };

export function span() {
  const head = rows.get("head");
  const first = head?.started_at ?? now();
  const end = head && (head.is_over || head.is_gone) ? head.finished_at ?? head.as_of : now();
  const last = Math.max(end, first + 1);
  return { first, last, from: view.from ?? first, to: view.to ?? last };
}

export function readUrl() {
  const query = new URLSearchParams(location.search);
  const number = (name) => (query.get(name) && Number.isFinite(Number(query.get(name))) ? Number(query.get(name)) : null);
  view.from = number("from");
  view.to = number("to");
  if (view.from !== null && view.to !== null && view.to <= view.from) view.from = view.to = null;
}

export function zoom(from, to) {
  const { first, last } = span();
  const whole = from === null || (from <= first && to >= last);
  view.from = whole ? null : Math.max(first, from);
  view.to = whole || to >= last ? null : Math.max(view.from + 1, to);
  const url = new URL(location.href);
  for (const name of ["from", "to"]) {
    if (view[name] === null) url.searchParams.delete(name);
    else url.searchParams.set(name, view[name].toFixed(1));
  }
  history.replaceState(null, "", url);
}

export function zoomBy(factor) {
  const { from, to } = span(), middle = view.at ?? (from + to) / 2;
  zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
}

export function pan(share) {
  const { first, last, from, to } = span();
  const by = Math.max(first - from, Math.min(last - to, (to - from) * share));
  zoom(from + by, to + by);
}

const segments = () =>
  ofKind("generation").flatMap((g) => g.segments.map(([begin, end, lane, incident]) => ({ begin, end, lane, incident, g })));

function ticks(from, to, width) {
  const steps = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000];
  const step = steps.find((each) => ((to - from) / each) * 96 < width) ?? steps.at(-1);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { step, found };
}

function label(at, step) {
  const text = new Date(1000 * at).toISOString();
  return step >= 86400 ? text.slice(5, 10) : step >= 60 ? (at % 86400 === 0 ? text.slice(5, 10) : text.slice(11, 16)) : text.slice(11, 19);
}

export function draw(width, move) {
  const { first, last, from, to } = span();
  const inner = Math.max(50, width - LEFT - RIGHT), scale = inner / (to - from);
  const x = (at) => LEFT + Math.min(Math.max((at - from) * scale, 0), inner);
  const lanes = LANES.map(([name, tall]) => [name, name === "loss" && !loss.points().length ? 16 : tall]);
  const height = lanes.reduce((sum, [, each]) => sum + each + GAP, 0) + AXIS;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "lanes", role: "img", tabindex: 0,
    "data-focus": "lanes", "aria-label": "the run over time; + and - zoom, arrows move, 0 shows all" },
    s("defs", null, s("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("rect", { width: 5, height: 5, class: "lost" }), s("rect", { width: 2, height: 5, class: "paper" }))));
  const marks = ticks(from, to, inner);
  for (const at of marks.found) {
    svg.append(s("line", { x1: x(at), x2: x(at), y1: 0, y2: height - AXIS, class: "axis" }));
    if (x(at) < width - 52) svg.append(s("text", { x: x(at) + 3, y: height - 5 }, label(at, marks.step)));
  }
  let top = 0;
  for (const [name, tall] of lanes) {
    svg.append(s("text", { x: 0, y: top + tall / 2 + 4 }, name));
    svg.append(PAINT[name]({ x, top, tall, from, to, inner, scale, now: last }));
    top += tall + GAP;
  }
  const cursor = s("line", { y1: 0, y2: height - AXIS, class: "cursor", visibility: "hidden" });
  const picked = s("rect", { y: 0, height: height - AXIS, class: "picked", visibility: "hidden" });
  svg.append(picked, cursor);
  listenTo(svg, { cursor, picked, from, scale, inner, move });
  return { svg, first };
}

function listenTo(svg, { cursor, picked, from, scale, inner, move }) {
  let begun = null;
  const at = (event) => {
    const place = event.clientX - svg.getBoundingClientRect().left - LEFT;
    return from + Math.min(Math.max(place, 0), inner) / scale;
  };
  const px = (moment) => LEFT + (moment - from) * scale;
  svg.addEventListener("pointermove", (event) => {
    view.at = at(event);
    cursor.setAttribute("x1", px(view.at));
    cursor.setAttribute("x2", px(view.at));
    cursor.setAttribute("visibility", "visible");
    if (begun !== null) {
      picked.setAttribute("x", px(Math.min(begun, view.at)));
      picked.setAttribute("width", Math.abs(view.at - begun) * scale);
      picked.setAttribute("visibility", "visible");
    }
    move();
  });
  svg.addEventListener("pointerdown", (event) => { if (event.target.closest("a") === null) begun = at(event); });
  svg.addEventListener("pointerup", (event) => {
    const end = at(event);
    if (begun !== null && Math.abs(end - begun) * scale > 6) zoom(Math.min(begun, end), Math.max(begun, end));
    begun = null;
    picked.setAttribute("visibility", "hidden");
    move(true);
  });
  svg.addEventListener("pointerleave", () => {
    view.at = begun = null;
    cursor.setAttribute("visibility", "hidden");
    picked.setAttribute("visibility", "hidden");
    move();
  });
}

const PAINT = {
  phase({ x, top, tall, from, to, now: last }) {
    const paths = Object.fromEntries(KINDS.map((kind) => [kind, ""])), all = segments();
    const few = all.filter((each) => (each.end ?? last) >= from && each.begin <= to).length < 300;
    for (const { begin, end, lane } of all) {
      const until = end ?? last;
      if (until < from || begin > to || !(lane in paths)) continue;
      const least = few && (lane === "recovering" || lane === "lost") ? 1.5 : 0.25; // a short one is seen; 500 would hide the rest
      const a = x(begin), b = Math.max(x(until), a + least), size = tall * PART[lane], y = top + tall - size;
      paths[lane] += `M${a.toFixed(1)} ${y.toFixed(1)}H${b.toFixed(1)}V${top + tall}H${a.toFixed(1)}Z`;
    }
    return s("g", null, KINDS.map((kind) => s("path", { d: paths[kind], class: kind === "lost" ? null : kind,
      fill: kind === "lost" ? "url(#hatch)" : null })));
  },
  generation({ x, top, tall, from, to }) {
    const all = ofKind("generation").filter((g) => g.number !== null && g.begun_at >= from && g.begun_at <= to);
    let path = "", free = -Infinity;
    const texts = [];
    for (const g of all.sort((a, b) => a.begun_at - b.begun_at)) {
      const at = x(g.begun_at);
      path += `M${at.toFixed(1)} ${top}v${tall}`;
      if (at < free) continue;
      const text = `gen ${g.number}`;
      texts.push(s("text", { x: at + 3, y: top + 12 }, text, s("title", null, g.why)));
      free = at + 8 + 6.4 * text.length;
    }
    return s("g", null, s("path", { d: path, class: "gen", fill: "none", opacity: all.length > 120 ? 0.35 : null }), texts);
  },
  checkpoint({ x, top, tall, from, to }) {
    const paths = { true: "", false: "" }, seen = { true: new Set(), false: new Set() };
    for (const [at, , trusted] of rows.get("checkpoints")?.commits ?? []) {
      const place = Math.round(x(at));
      if (at < from || at > to || seen[trusted].has(place)) continue;
      seen[trusted].add(place);
      paths[trusted] += trusted ? `M${place} ${top + 2}v${tall - 4}` : `M${place} ${top + tall - 7}v5`;
    }
    const none = !paths.true && !paths.false;
    return s("g", null, s("path", { d: paths.true, class: "tick" }), s("path", { d: paths.false, class: "tick hollow" }),
      none ? s("text", { x: LEFT + 4, y: top + 12 }, "no checkpoint was written to storage in this time") : null);
  },
  incident({ x, top, tall, from, to }) {
    const group = s("g"), places = new Map();
    for (const each of ofKind("incident")) {
      if (each.at < from || each.at > to) continue;
      const place = Math.round(x(each.at) / 12);
      places.set(place, [...(places.get(place) ?? []), each]);
    }
    for (const found of places.values()) {
      const at = x(found[0].at), open = found.some((each) => each.outcome === null), drill = found.every((each) => each.drill);
      const shape = s("path", { d: `M${at - 5} ${top + 12}h10l-5 -9z`, class: `inc ${open ? "" : drill ? "drill" : "past"}` });
      const text = found.length > 1 ? String(found.length) : found[0].id;
      const says = found.slice(0, 8).map((each) => `${each.id} ${each.code} ${each.sentence}`).join("\n");
      group.append(s("a", { href: found.length > 1 ? `#${found[0].at},${found.at(-1).at}` : `${base}/incidents/${found[0].id}`,
        "data-focus": "at" + found[0].id, "data-from": found.length > 1 ? Math.min(...found.map((f) => f.at)) : null,
        "data-to": found.length > 1 ? Math.max(...found.map((f) => f.at)) : null },
        s("title", null, says), shape,
        places.size < 60 ? s("text", { x: at, y: top + 23, "text-anchor": "middle", class: found.length > 1 ? "strong" : "" }, text) : null));
    }
    if (!places.size) group.append(s("text", { x: LEFT + 4, y: top + 14 }, "no incident in this time"));
    return group;
  },
  "step time"({ x, top, tall, from, to }) {
    const chunks = ofKind("pace"), width = chunks[0]?.width_s ?? 1;
    const points = chunks.flatMap((chunk) => chunk.points).filter(([at]) => at >= from - width && at <= to).sort((a, b) => a[0] - b[0]);
    if (!points.length) return s("g", null, s("text", { x: LEFT + 4, y: top + 16 }, "no step time was told in this time"));
    const sorted = points.map((p) => p[2]).sort((a, b) => a - b);
    const high = Math.max(1.25 * most(points.map((p) => p[1])), 1.1 * sorted[Math.floor(0.97 * (sorted.length - 1))]);
    const y = (value) => (top + tall - Math.min(1, value / high) * (tall - 4)).toFixed(1);
    let line = "", area = "", before = null, run = [];
    const close = () => {
      if (run.length) area += "M" + run.map(([px, , p99]) => `${px} ${y(p99)}`).join("L") + "L" + run.reverse().map(([px, median]) => `${px} ${y(median)}`).join("L") + "Z";
      run = [];
    };
    for (const [at, median, p99] of points) {
      const broken = before === null || at - before > 3.5 * width, px = x(at + width / 2).toFixed(1);
      if (broken) close();
      line += `${broken ? "M" : "L"}${px} ${y(median)}${broken ? `l.6 0` : ""}`;
      run.push([px, median, p99]);
      before = at;
    }
    close();
    return s("g", null, s("path", { d: area, class: "p99" }), s("path", { d: line, class: "median" }),
      s("text", { x: LEFT - 6, y: top + 10, "text-anchor": "end" }, duration(high)),
      s("text", { x: LEFT - 6, y: top + tall, "text-anchor": "end" }, "0"),
      s("line", { x1: LEFT, x2: x(to), y1: top + tall, y2: top + tall, class: "axis" }));
  },
  loss: (place) => loss.paint(place, LEFT),
};

export function readout() {
  if (view.at === null) {
    const { from, to } = span();
    return `${stamp(from)} to ${short(to)} (${duration(to - from)}). Drag to zoom; move to read.`;
  }
  const found = segments().find(({ begin, end }) => begin <= view.at && view.at < (end ?? Infinity));
  const chunks = ofKind("pace"), width = chunks[0]?.width_s ?? 0;
  const point = chunks.flatMap((chunk) => chunk.points).find(([at]) => at <= view.at && view.at < at + width);
  const parts = [stamp(view.at)];
  if (found) parts.push(SAYS[found.lane] + (found.incident ? ` (${found.incident})` : ""));
  if (found?.g.number !== undefined && found?.g.number !== null) parts.push(`generation ${found.g.number}`);
  if (point) parts.push(`step ${duration(point[1])} median, ${duration(point[2])} p99 of the ranks`);
  const told = loss.at(view.at, found?.g.number);
  if (told) parts.push(told);
  return parts.join("   ·   ");
}

export const legend = () => h("div", { class: "legend" },
  ["productive", "lost", "recovering", "starting", "idle"].map((kind) => h("span", null, h("i", { class: `key ${kind}` }), SAYS[kind])),
  h("span", null, "▲ incident"), h("span", null, "| checkpoint, tall: trusted"), h("span", null, "step time: median, shade to p99"),
  loss.points().length ? h("span", null, h("i", { class: "key again" }), "loss that was trained again later") : null);
