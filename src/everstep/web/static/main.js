// Which page is shown, and the overview: the answer first, then one time axis, then what it cost and who is there.

import { byId, clock, count, duration, h, NONE, percent, plural, short, show, stamp, time } from "./dom.js";
import * as fleet from "./fleet.js";
import * as incidents from "./incident.js";
import * as lanes from "./lanes.js";
import "./print.js";
import { stragglers } from "./stragglers.js";
import { ask, base, begin, changed, link, now, ofKind, onChange, rows } from "./store.js";
import { traffic } from "./traffic.js";

const GLYPHS = { running: "●", succeeded: "✓", stopped: "■", stopping: "■", starting: "◌", recovering: "▲", "standing-still": "▲",
  "waiting-for-approval": "▲", failed: "✗", "gave-up": "✗" };
const loaded = new Map();

// The link's token is in a cookie by now: it does not stay in the address.
const clean = new URL(location.href);
if (clean.searchParams.has("token")) {
  clean.searchParams.delete("token");
  history.replaceState(null, "", clean);
}

const below = () => location.pathname.slice(base.length) || "/";

function status(head) {
  const word = (head.is_gone ? `${head.status}, controller gone` : head.status).replaceAll("-", " ").toUpperCase();
  return h("span", { class: head.needs_you ? "act" : null }, `${head.is_gone ? "▲" : GLYPHS[head.status] || "▲"} ${word}`);
}

function drawBar() {
  const head = rows.get("head"), quiet = link.state === "live" && head && (head.is_over || head.is_gone);
  const words = link.state === "live" ? (quiet ? "recorded" : "live") : link.state === "lost" ? "no connection" : "asking";
  show(byId("bar"), [below(), head?.run, head?.program, words], () => [
    base ? h("a", { href: "/" }, "runs") : null, h("span", { class: "mark" }, head ? head.run : "everstep"),
    h("span", { class: "program dim mono", title: head?.program }, head?.program || ""), h("span", { class: "grow" }),
    h("nav", { "aria-label": "pages" }, [["/", "overview"], ["/fleet", "fleet"], ["/ranks", "ranks"], ["/traffic", "traffic"]].map(([path, name]) =>
      h("a", { href: (base + path) || "/", "aria-current": below() === path ? "page" : null, "data-focus": "nav" + path }, name))),
    h("span", { role: "status" }, h("i", { class: `dot ${link.state === "live" ? (quiet ? "" : "on") : "off"}` }), " ", words)].filter(Boolean));
  document.title = head ? `${GLYPHS[head.status] || ""} ${head.run} ${head.status} · everstep` : "everstep";
}

function drawFoot() {
  const path = below(), run = rows.get("head")?.run ?? "";
  const command = path === "/ranks" ? `everstep top ${run} (r)` : path === "/traffic" ? `everstep fabric traffic --runs ${run}` : path === "/fleet" || path.startsWith("/nodes/") ? "everstep node ls"
    : path.startsWith("/incidents/") ? `everstep incident show ${path.split("/")[2]} ${run}` : `everstep status ${run}`;
  const json = path === "/" || path === "/fleet" ? "/api/overview" : "/api" + path;
  show(byId("foot"), [command, json, link.state], () => [h("div", { class: "row" },
    h("span", null, "the same in a terminal: ", h("code", null, command), " or ", h("code", null, `everstep top ${run}`)),
    h("span", null, "JSON: ", h("a", { href: base + json }, json), " ", h("a", { href: `${base}/api/status` }, "/api/status")),
    h("span", { class: "grow" }), h("button", { type: "button", class: "noprint", onclick: help }, "keys ?"))]);
}

function answer(head) {
  const lost = link.state === "lost" ? h("p", { class: "act" }, "The controller does not answer; training may continue without it. This is the last that was told.") : null;
  return [lost, h("div", { class: "answer", "aria-live": "polite" },
    h("div", { class: "status" }, status(head), [`mode ${head.mode || NONE}`, `generation ${head.generation ?? NONE}`, plural(head.world_size ?? 0, "rank")].map((text) => h("span", null, text))),
    h("h1", null, head.now.charAt(0).toUpperCase() + head.now.slice(1)),
    head.what ? h("dl", { class: "facts" }, [["what", head.what], ["doing", head.doing], ["next", head.next]].filter(([, text]) => text && text !== head.now).map(([name, text]) => [h("dt", null, name), h("dd", null, text)]),
      h("dt", null, "incident"), h("dd", null, h("a", { href: `${base}/incidents/${head.incident}` }, head.incident))) : null,
    head.notes.map((note) => h("p", { class: "dim" }, "note: ", note)))];
}

function tiles(head, goodput) {
  const ended = head.is_over || head.is_gone;
  const step = head.last_step_at === null ? NONE : ended ? short(head.last_step_at) : duration(Math.max(0, now() - head.last_step_at)) + " ago";
  return h("div", { class: "tiles" }, [
    ["step", count(head.step), ended ? `last at ${step}` : `last ${step}`],
    ["step time", duration(head.step_s), head.drift || `median of an hour ${duration(head.median_step_s)}`],
    ["goodput", percent(goodput?.ettr ?? null), goodput && goodput.window_s < goodput.wall_s ? `last ${duration(goodput.window_s)}: ${percent(goodput.window_ettr)}` : `of ${duration(goodput?.wall_s ?? null)}`],
    ["next fault costs", ended ? NONE : head.steps_at_risk === null ? NONE : plural(head.steps_at_risk, "step"), ended ? "the run has ended" : head.steps_at_risk === null ? "no snapshot is known" : `a machine lost: ${head.steps_if_node_dies === null ? "not known" : count(head.steps_if_node_dies)}`],
    ["restarts", `${head.restarts_used} of ${head.restarts_allowed ?? NONE}`, plural(head.num_incidents, "incident")],
    ["machines", `${count(head.active)} active`, `${count(head.standby)} standby, ${count(head.lost)} out`],
  ].map(([name, value, more]) => h("div", { class: "tile" }, h("span", null, name), h("b", null, value), h("span", null, more))));
}

function goodputPanel(goodput) {
  const shown = Object.entries(goodput?.shares ?? {}).filter(([, share]) => share !== null);
  const bar = h("div", { class: "bar", role: "img", "aria-label": "goodput by cause" });
  for (const [name, share] of shown) {
    const part = h("i", { class: name.split(" ")[0], title: `${name} ${percent(share)}` });
    part.style.width = 100 * share + "%";
    bar.append(part);
  }
  return [h("h2", null, "Goodput by cause"), h("div", { class: "row" }, h("span", { class: "big" }, percent(goodput?.ettr ?? null)),
    h("span", { class: "dim" }, goodput?.sampled_ranks ? `of ${plural(goodput.sampled_ranks, "rank")}, evenly over the job` : "productive time of all ranks")), bar,
    h("table", null, h("tbody", null, shown.map(([name, share]) => h("tr", null, h("td", null, h("i", { class: `key ${name.split(" ")[0]}` }), name),
      h("td", { class: "n" }, percent(share, 2))))))];
}

let width = 0;
function drawLanes(place) {
  const moved = (again) => {
    byId("readout").textContent = lanes.readout();
    if (again === true) changed();
  };
  const { from, to } = lanes.span(), step = Math.max(0.25, (to - from) / width / 2);
  const key = [width, Math.round(from / step), Math.round(to / step), rows.get("checkpoints"), rows.get("pace:0"), ofKind("loss").map((chunk) => chunk.points), [...rows.keys()].length,
    ofKind("pace").map((chunk) => chunk.points.at(-1)), ofKind("generation").at(-1), ofKind("generation").at(-2), ofKind("incident").map((row) => row.outcome)];
  show(place, key, () => lanes.draw(width, moved).svg);
  byId("readout").textContent = lanes.readout();
}

function overview(main) {
  const head = rows.get("head"), goodput = rows.get("goodput");
  show(main, "overview", () => [h("div", { id: "answer" }), h("div", { id: "tiles" }),
    h("section", { class: "panel" }, h("div", { class: "row noprint" }, [["all", null], ["day", 86400], ["hour", 3600], ["10 min", 600]].map(([name, length]) =>
      h("button", { type: "button", onclick: () => { const { last } = lanes.span(); length === null ? lanes.zoom(null, null) : lanes.zoom(last - length, last); changed(); } }, name)),
      h("span", { id: "readout", class: "readout" })), h("div", { id: "lanes" }), lanes.legend()),
    h("div", { class: "columns" }, ["copies", "goodput", "fleet"].map((id) => h("section", { class: "panel", id }))), h("section", { class: "panel", id: "incidents" })]);
  width = byId("lanes").clientWidth;
  show(byId("answer"), [head.now, head.status, head.what, head.next, head.notes, head.is_gone, link.state === "lost", head.generation], () => answer(head));
  show(byId("tiles"), [head, goodput, Math.floor(now())], () => tiles(head, goodput));
  drawLanes(byId("lanes"));
  show(byId("goodput"), goodput, () => goodputPanel(goodput));
  const newest = ofKind("incident").sort((a, b) => b.at - a.at), asked = new URLSearchParams(location.search).get("find") ?? "";
  show(byId("incidents"), [newest, asked, everything], () => incidentPanel(newest, asked));
  drawFleet(byId("fleet"), byId("fleet").clientWidth - 30, 170, true);
  show(byId("copies"), head.copies, () => [h("h2", null, head.is_over ? "What is left" : "What the next fault would cost"),
    head.copies.length ? h("dl", { class: "facts" }, head.copies.map(([name, text]) => [h("dt", null, name), h("dd", null, text)]))
      : h("p", { class: "dim" }, head.is_over ? "No checkpoint. Snapshots in memory went with the run." : "—")]);
}

let everything = false;
function incidentPanel(all, asked) {
  const words = asked.toLowerCase(), found = all.filter((row) => !words || [row.id, row.code, row.name, row.who, row.sentence, row.outcome].join(" ").toLowerCase().includes(words));
  const some = everything ? found : found.slice(0, 12);
  const search = h("input", { type: "search", placeholder: "code, node, words", "aria-label": "find incidents", "data-focus": "find", value: asked,
    oninput: (event) => { const url = new URL(location.href); event.target.value ? url.searchParams.set("find", event.target.value) : url.searchParams.delete("find"); history.replaceState(null, "", url); changed(); } });
  if (document.activeElement?.dataset.focus === "find") setTimeout(() => { search.setSelectionRange(asked.length, asked.length); });
  return [h("div", { class: "row" }, h("h2", null, plural(all.length, "incident")), h("span", { class: "grow" }), all.length > 6 || asked ? search : null),
    all.length === 0 ? h("p", { class: "dim" }, "None. Try: ", h("code", null, "everstep drill kill-rank 0")) : incidents.table(some),
    found.length > some.length ? h("p", null, h("button", { type: "button", class: "noprint", onclick: () => { everything = true; changed(); } }, `show all ${count(found.length)}`)) : null];
}

function drawFleet(place, room, tallest, small) {
  const all = fleet.racks();
  show(place, [all.map((rack) => [rack.rack, rack.health]), room, matchMedia("(prefers-color-scheme: dark)").matches], () => {
    const says = h("p", { class: "readout mono" });
    return [small ? h("h2", null, h("a", { href: `${base}/fleet` }, "Machines")) : null, fleet.legend(),
      all.length ? fleet.map(room, tallest, (text) => { says.textContent = text; }) : h("p", { class: "dim" }, "No machine has joined yet."), says].filter(Boolean);
  });
}

function fleetPage(main) {
  show(main, "fleet", () => [h("div", { class: "answer" }, h("h1", { id: "sum" }), h("p", { class: "dim" }, "Each mark is one machine, by rack. Point at one for its name, select it for its history.")),
    h("section", { class: "panel", id: "map" }), h("div", { class: "columns pair" }, h("section", { class: "panel", id: "worst" }), h("section", { class: "panel", id: "trouble" }))]);
  const head = rows.get("head"), all = fleet.racks();
  byId("sum").textContent = `${count(head.active)} active, ${count(head.standby)} standby, ${count(head.lost)} out`;
  drawFleet(byId("map"), byId("map").clientWidth - 30, 620, false);
  const worst = all.flatMap((rack) => Object.entries(rack.incidents).map(([name, number]) => ({ name, number, rack: rack.rack }))).sort((a, b) => b.number - a.number).slice(0, 12);
  const away = all.flatMap((rack) => rack.nodes.map((name, k) => ({ name, state: rack.health[k], rack: rack.rack }))).filter((each) => each.state === "x" || each.state === "w" || each.state === "s").sort((a, b) => "wxs".indexOf(a.state) - "wxs".indexOf(b.state));
  const line = (each, more) => h("tr", null, h("td", null, h("a", { href: `${base}/nodes/${encodeURIComponent(each.name)}` }, each.name)), h("td", null, each.rack || NONE), h("td", { class: "n" }, more));
  show(byId("worst"), worst, () => [h("h2", null, "Named most often in incidents of this run"), worst.length ? h("table", null, h("tbody", null, worst.map((each) => line(each, plural(each.number, "incident"))))) : h("p", { class: "dim" }, "No machine was named. Drills do not count.")]);
  show(byId("trouble"), away, () => [h("h2", null, "Out, suspect and standby"), away.length ? [h("table", null, h("tbody", null, away.slice(0, 24).map((each) => line(each, fleet.STATES[each.state][0])))), away.length > 24 ? h("p", { class: "dim" }, `and ${count(away.length - 24)} more: point at them on the map`) : null] : h("p", { class: "dim" }, "none")]);
}

function detail(main, path) {
  const row = path.startsWith("/incidents/") ? rows.get("incident:" + path.split("/")[2]) : null;
  const head = rows.get("head"), isLive = (path === "/ranks" || path === "/traffic") && !head.is_over && !head.is_gone;
  const key = path + JSON.stringify(row) + (isLive ? Math.floor(now() / 5) : ""), known = loaded.get(path);
  if (!known || known.key !== key) {
    loaded.set(path, { key, value: known?.value });
    ask("/api" + path).then((value) => loaded.set(path, { key, value }), (error) => loaded.set(path, { key, value: { error: error.message } })).then(changed);
  }
  const value = loaded.get(path)?.value;
  if (!value) return show(main, "asking " + path, () => h("p", { class: "dim" }, path.startsWith("/incidents/") && path.endsWith("/ranks") ? "Reading what the ranks left; some seconds." : "Asking."));
  const name = path.split("/")[2];
  show(main, [path, value], () => value.error ? [h("h1", null, name ?? (path === "/traffic" ? "Traffic by link" : "Step time by rank")), h("p", null, value.error), name && path.endsWith("/ranks") ? h("p", null, h("a", { href: `${base}/incidents/${name}` }, `back to ${name}`)) : null].filter(Boolean)
    : (path === "/ranks" ? stragglers(value) : path === "/traffic" ? traffic(value) : path.endsWith("/ranks") ? incidents.ranks(value, name) : path.startsWith("/incidents/") ? incidents.incident(value, async () => (await (await fetch(`${base}/incidents/${name}/markdown`)).text())) : incidents.node(value)).flat().filter(Boolean));
}

function draw() {
  drawBar();
  drawFoot();
  const main = byId("main"), path = below();
  if (!rows.has("head")) {
    if (link.state === "lost") show(main, link.why, () => h("p", { class: "act" }, `The run cannot be shown: ${link.why || "no answer"}. Asking again.`));
    return;
  }
  if (path === "/") overview(main);
  else if (path === "/fleet") fleetPage(main);
  else detail(main, path);
}

function go(address) {
  history.pushState(null, "", address);
  lanes.readUrl();
  scrollTo(0, 0);
  changed();
}

function help() {
  const keys = [["o", "overview"], ["f", "fleet"], ["r", "ranks: who is slow"], ["t", "traffic: which link is full"], ["i", "newest incident"], ["/", "find incidents"], ["+ −", "zoom the time axis"], ["← →", "move it"], ["0", "all of the run"], ["Esc", "back to the overview"]];
  const dialog = h("dialog", { onclose: () => dialog.remove() }, h("h2", null, "Keys"), h("dl", { class: "facts" }, keys.map(([key, what]) => [h("dt", { class: "mono" }, key), h("dd", null, what)])), h("form", { method: "dialog" }, h("button", null, "close")));
  document.body.append(dialog);
  dialog.showModal();
}

const KEYS = { o: () => go((base || "") + "/"), f: () => go(base + "/fleet"), r: () => go(base + "/ranks"), t: () => go(base + "/traffic"), i: () => { const last = ofKind("incident").sort((a, b) => b.at - a.at)[0]; if (last) go(`${base}/incidents/${last.id}`); },
  "/": () => document.querySelector("[data-focus=find]")?.focus(), "?": help, Escape: () => go((base || "") + "/"),
  "+": () => lanes.zoomBy(0.5), "=": () => lanes.zoomBy(0.5), "-": () => lanes.zoomBy(2), 0: () => lanes.zoom(null, null), ArrowLeft: () => lanes.pan(-0.25), ArrowRight: () => lanes.pan(0.25) };

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, dialog")) {
    if (event.key === "Escape") event.target.blur?.();
    return;
  }
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
  changed();
});

addEventListener("click", (event) => {
  const anchor = event.target.closest("a");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const from = anchor.getAttribute("data-from");
  if (from !== null) {
    event.preventDefault();
    const to = Number(anchor.getAttribute("data-to")), slack = Math.max(60, 0.2 * (to - Number(from)));
    lanes.zoom(Number(from) - slack, to + slack);
    return changed();
  }
  const address = new URL(anchor.getAttribute("href"), location.href), path = address.pathname.slice(base.length);
  const ours = address.origin === location.origin && address.pathname.startsWith(base) && (path === "/" || /^\/(fleet|ranks|traffic|nodes\/[^/]+|incidents\/[^/]+(\/ranks)?)$/.test(path));
  if (!ours || (path === "/" && base && address.pathname === "/")) return;
  event.preventDefault();
  go(address);
});
addEventListener("go", (event) => go(event.detail));
addEventListener("popstate", () => { lanes.readUrl(); changed(); });
addEventListener("resize", changed);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
setInterval(() => { const head = rows.get("head"); if (head && !head.is_over && !head.is_gone && !document.hidden) changed(); }, 1000);
onChange(draw);
lanes.readUrl();
drawBar();
begin();
