// What jobs send over each link, second by second: predicted from their collectives, beside what its ports counted.
// A second of which nothing is known is a gap in its curve, and never zero.

import { clock, count, h, NONE, percent, plural, s } from "./dom.js";

const WIDE = 240, TALL = 30, HOT = 0.7, MOST_JOBS = 3;
const UNITS = [[1e12, "Tbit/s"], [1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]];

function rate(bps) {
  if (bps === null || bps === undefined) return "not known";
  const [size, unit] = UNITS.find(([least]) => bps >= least) ?? UNITS.at(-1);
  return `${Number((bps / size).toPrecision(3))} ${unit}`;
}

function difference(link) {
  if (link.predicted_bps === null || link.measured_bps === null) return NONE;
  const more = link.measured_bps - link.predicted_bps, sign = more < 0 ? "−" : "+";
  return `${sign}${rate(Math.abs(more))}` + (link.predicted_bps > 0 ? ` (${sign}${percent(Math.abs(more) / link.predicted_bps, 0)})` : "");
}

// Pieces of what is known, one after the other; a second is as wide as a second.
function pieces(link, name) {
  const found = [], step = WIDE / Math.max(1, link.seconds.length), y = (bps) => TALL * (1 - Math.min(1, bps / link.capacity_bps));
  let piece = null;
  link.seconds.forEach((second, k) => {
    const bps = second[name];
    if (bps === null) { piece = null; return; }
    if (!piece) found.push(piece = []);
    piece.push(`${(k * step).toFixed(1)},${y(bps).toFixed(1)}`, `${((k + 1) * step).toFixed(1)},${y(bps).toFixed(1)}`);
  });
  return found;
}

function curve(link) {
  const known = (name) => link.seconds.filter((second) => second[name] !== null).length;
  const says = `${link.link}: measured in ${known("measured_bps")} of ${plural(link.seconds.length, "second")}, predicted in ${known("predicted_bps")}`;
  return s("svg", { width: WIDE, height: TALL, viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": says, class: "curve" },
    s("title", null, says),
    pieces(link, "measured_bps").map((piece) => s("polygon", { class: "p99", points: [`${piece[0].split(",")[0]},${TALL}`, ...piece, `${piece.at(-1).split(",")[0]},${TALL}`].join(" ") })),
    s("line", { class: "axis", x1: 0, x2: WIDE, y1: TALL * (1 - HOT), y2: TALL * (1 - HOT) }),
    pieces(link, "measured_bps").map((piece) => s("polyline", { class: "median", points: piece.join(" ") })),
    pieces(link, "predicted_bps").map((piece) => s("polyline", { class: "loss again", points: piece.join(" ") })));
}

function jobs(link) {
  if (link.predicted_bps === null) return "not known";
  if (!link.jobs.length) return "no known job";
  const named = link.jobs.slice(0, MOST_JOBS).map((share) => h("div", null, `${share.job} ${share.group} `, h("span", { class: "dim nowrap" }, rate(share.bps))));
  return [named, link.jobs.length > MOST_JOBS ? h("div", { class: "dim" }, `and ${link.jobs.length - MOST_JOBS} more`) : null];
}

const fullest = (link) => link.peak === null ? "not known" : [percent(link.peak), link.measured_bps === null ? h("span", { class: "dim" }, " predicted") : null];

const row = (link) => h("tr", { class: link.is_hot ? "open" : null }, h("td", { class: "text" }, link.link), h("td", null, curve(link)),
  h("td", { class: "n" }, rate(link.predicted_bps)), h("td", { class: "n" }, rate(link.measured_bps)), h("td", { class: "n" }, difference(link)),
  h("td", { class: "n" }, fullest(link), link.is_hot ? " ▲ hot" : ""), h("td", { class: "text" }, jobs(link)));

function unknown(page) {
  const lines = [...page.missing, ...page.unknown.map(([job, group, op]) => `${job} ${group} ${op}: how it moves its data`)];
  return lines.length ? h("section", { class: "panel" }, h("h2", null, "Not known, and in no figure"), lines.map((line) => h("p", null, line))) : null;
}

export function traffic(page) {
  const times = `${plural(page.end - page.begin, "second")}, ${clock(page.begin).slice(0, 8)} to ${clock(page.end).slice(0, 8)} UTC`;
  const shown = page.links.length < page.num_links ? `the fullest ${count(page.links.length)} of ${count(page.num_links)} links` : plural(page.num_links, "link");
  return [
    h("div", { class: "answer" }, h("div", { class: "status" }, h("b", null, "traffic by link"), h("span", null, page.source), h("span", null, shown), h("span", null, times)),
      h("h1", null, page.sentence.charAt(0).toUpperCase() + page.sentence.slice(1)),
      h("p", { class: "dim" }, "Predicted: what the jobs' collectives send. Measured: what the ports counted; headers, storage and all that is no collective is in it too. Hot: 70% of a link's capacity in its fullest second. Means are over the seconds in which both are known.")),
    h("section", { class: "panel" }, h("div", { class: "legend" }, h("span", null, h("i", { class: "key productive" }), "measured"), h("span", null, h("i", { class: "key again" }), "predicted"),
      h("span", null, "height: the link's capacity, the line at 70%"), h("span", null, "a gap: not known")),
      h("table", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, "link"), h("th", { scope: "col" }, "second by second"),
        ["predicted", "measured", "difference", "fullest second"].map((name) => h("th", { class: "n", scope: "col" }, name)), h("th", { scope: "col" }, "jobs"))),
      h("tbody", null, page.links.map(row)))),
    unknown(page)];
}
