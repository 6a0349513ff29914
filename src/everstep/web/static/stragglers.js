// Which rank was how slow, when: a row for each rank, a column for each round. Shape and colour say the same.

import { clock, count, duration, h, NONE, percent } from "./dom.js";
import { base } from "./store.js";

const LEVELS = [[1.5, "█", "worst", "half as much again, or more"], [1.2, "▓", "worse", "20% more"], [1.08, "▒", "bad", "8% more"], [-Infinity, "░", "usual", "as the others"]];
const UNKNOWN = ["·", "none", "not measured"];

const level = (ratio) => (ratio === null ? UNKNOWN : LEVELS.find(([least]) => ratio >= least).slice(1));

// Neighbours that look alike are one piece of text: 256 rows of 60 cells are a few hundred elements.
function cells(ratios, width) {
  const row = h("td", { class: "mono heat" }), all = [...Array(Math.max(0, width - ratios.length)).fill(null), ...ratios];
  let at = 0;
  while (at < all.length) {
    const [glyph, kind] = level(all[at]);
    let end = at + 1;
    while (end < all.length && level(all[end])[1] === kind) end++;
    row.append(h("span", { class: kind }, glyph.repeat(end - at)));
    at = end;
  }
  return row;
}

export function stragglers(page) {
  const width = Math.max(0, ...page.lines.map((line) => line.ratios.length));
  const times = page.begin === null ? "" : `${clock(page.begin).slice(0, 8)} to ${clock(page.end).slice(0, 8)} UTC, the newest round on the right`;
  const shown = page.lines.length < page.num_measured ? `the slowest ${count(page.lines.length)} of ${count(page.num_ranks)} ranks` : `${count(page.num_ranks)} ranks`;
  return [
    h("div", { class: "answer" }, h("div", { class: "status" }, h("b", null, "step time by rank"), h("span", null, `generation ${page.generation}`), h("span", null, shown)),
      h("h1", null, page.sentence.charAt(0).toUpperCase() + page.sentence.slice(1)),
      h("p", { class: "dim" }, "Own time per step, without waiting for others, against the median of all ranks in the same round. This is what was measured; a verdict takes a vote, and looks for reasons.")),
    h("section", { class: "panel" }, h("div", { class: "legend" }, [...LEVELS].reverse().map(([, glyph, kind, says]) => h("span", null, h("i", { class: `heat ${kind}` }, glyph), ` ${says}`)),
      h("span", null, h("i", { class: "heat none" }, UNKNOWN[0]), ` ${UNKNOWN[2]}`), h("span", null, `ordered by ${page.order}`), h("span", null, times)),
      page.lines.length ? h("table", { class: "tight" }, h("thead", null, h("tr", null, h("th", { class: "n", scope: "col" }, "rank"), h("th", { scope: "col" }, "node"), h("th", { scope: "col" }, "rounds"),
        ["now", "own time", "waits", "data"].map((name) => h("th", { class: "n", scope: "col" }, name)))),
      h("tbody", null, page.lines.map((line) => h("tr", { class: line.ratio !== null && line.ratio >= 1.2 ? "open" : null }, h("td", { class: "n" }, line.rank),
        h("td", { class: "nowrap" }, line.node ? h("a", { href: `${base}/nodes/${encodeURIComponent(line.node)}` }, line.node) : NONE), cells(line.ratios, width),
        h("td", { class: "n" }, line.ratio === null ? NONE : line.ratio >= 1.08 ? `+${percent(line.ratio - 1, 0)}` : "usual"),
        h("td", { class: "n" }, duration(line.compute_s)), h("td", { class: "n" }, duration(line.wait_s)), h("td", { class: "n" }, duration(line.data_s))))))
        : h("p", { class: "dim" }, "No rank was measured."))];
}
