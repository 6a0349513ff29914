// Machines by rack, drawn at once: 12,500 of them are one picture. Each state has a shape and a colour.

import { count, h, plural } from "./dom.js";
import { base, ofKind, rows } from "./store.js";

export const STATES = { a: ["active", "--blue"], s: ["standby", "--sky"], w: ["suspect", "--orange"], x: ["out", "--red"], u: ["joined", "--grey"] };
const GLYPHS = { a: "■", s: "□", w: "▲", x: "✗", u: "—" };
const ORDER = ["w", "x", "s", "a", "u"];

export const racks = () => [...rows].filter(([key]) => key.startsWith("fleet:")).map(([key, row]) => ({ key, ...row }));

export function counts() {
  const found = {};
  for (const row of ofKind("fleet")) for (const state of row.health) found[state] = (found[state] || 0) + 1;
  return found;
}

export const legend = () => {
  const found = counts();
  return h("div", { class: "legend" }, ORDER.filter((state) => found[state]).map((state) =>
    h("span", null, `${GLYPHS[state]} ${count(found[state])} ${STATES[state][0]}`)));
};

function shape(context, state, x, y, size, colours) {
  context.fillStyle = context.strokeStyle = colours[state] || colours.u;
  const edge = Math.max(1, size / 7);
  context.lineWidth = edge;
  if (state === "a") context.fillRect(x, y, size, size);
  else if (state === "s") context.strokeRect(x + edge / 2, y + edge / 2, size - edge, size - edge);
  else if (state === "w") {
    context.beginPath();
    context.moveTo(x, y + size);
    context.lineTo(x + size / 2, y);
    context.lineTo(x + size, y + size);
    context.fill();
  } else if (state === "x") {
    context.lineWidth = Math.max(1.4, size / 5);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y);
    context.lineTo(x, y + size);
    context.stroke();
  } else context.fillRect(x, y + size / 2 - edge, size, 2 * edge);
}

// The largest cell with which everything fits; racks are bands with a name where there is room.
function layout(all, width, tallest) {
  for (const cell of [18, 14, 11, 9, 7, 6, 5, 4, 3]) {
    const named = cell >= 7 && all.length <= 400, head = named ? 14 : 0, gap = named ? 10 : cell >= 5 ? 4 : 2;
    const places = [];
    let x = 0, y = 0, line = 0;
    for (const rack of all) {
      const most = Math.max(1, Math.floor(width / cell)), across = Math.min(most, rack.nodes.length <= 16 ? rack.nodes.length : Math.ceil(Math.sqrt(2 * rack.nodes.length)));
      const wide = Math.max(across * cell, named && rack.rack ? 46 : 0), tall = head + Math.ceil(rack.nodes.length / across) * cell;
      if (x > 0 && x + wide > width) { x = 0; y += line + gap; line = 0; }
      places.push({ rack, x, y: y + head, across, named });
      x += wide + gap;
      line = Math.max(line, tall);
    }
    if (y + line <= tallest || cell === 3) return { cell, places, height: y + line };
  }
}

export function map(width, tallest, tell) {
  const all = racks(), { cell, places, height } = layout(all, width, tallest);
  const canvas = h("canvas", { class: "map", tabindex: 0, role: "img", "data-focus": "map",
    "aria-label": `map of ${plural(all.reduce((sum, rack) => sum + rack.nodes.length, 0), "node")}; the list below has the same` });
  const dense = window.devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(Math.max(1, height) * dense);
  canvas.style.height = Math.max(1, height) + "px";
  const context = canvas.getContext("2d"), size = cell - (cell > 6 ? 3 : 1);
  context.scale(dense, dense);
  const colours = Object.fromEntries(Object.entries(STATES).map(([state, [, name]]) => [state, style.getPropertyValue(name).trim()]));
  context.font = "11px system-ui, sans-serif";
  for (const { rack, x, y, across, named } of places) {
    if (named && rack.rack) {
      context.fillStyle = style.getPropertyValue("--dim").trim();
      context.fillText(rack.rack.slice(0, 12), x, y - 4);
    }
    for (let k = 0; k < rack.health.length; k++) {
      shape(context, rack.health[k], x + (k % across) * cell, y + Math.floor(k / across) * cell, size, colours);
    }
  }
  const under = (event) => {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    for (const { rack, x, y, across } of places) {
      const column = Math.floor((px - x) / cell), line = Math.floor((py - y) / cell), k = line * across + column;
      if (column >= 0 && column < across && line >= 0 && k < rack.nodes.length) return { rack, k };
    }
    return null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const found = under(event);
    tell(found ? `${found.rack.nodes[found.k]}   ${STATES[found.rack.health[found.k]][0]}${found.rack.rack ? "   rack " + found.rack.rack : ""}` : "");
  });
  canvas.addEventListener("click", (event) => {
    const found = under(event);
    if (found) canvas.dispatchEvent(new CustomEvent("go", { bubbles: true, detail: `${base}/nodes/${encodeURIComponent(found.rack.nodes[found.k])}` }));
  });
  return canvas;
}
