// All runs of a directory, those that need somebody first.

import "./print.js";
import { byId, count, duration, h, NONE, percent, plural, short, show, time } from "./dom.js";

const clean = new URL(location.href);
if (clean.searchParams.has("token")) {
  clean.searchParams.delete("token");
  const run = clean.searchParams.get("run") ?? "";
  clean.searchParams.delete("run");
  if (/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(run)) location.replace(`/runs/${run}/`);
  history.replaceState(null, "", clean);
}

let told = null, trouble = "";
const GLYPHS = { running: "●", succeeded: "✓", stopped: "■", damaged: "✗", failed: "✗", "gave-up": "✗", unread: "—" };

function wanted() {
  return (new URLSearchParams(location.search).get("find") ?? "").toLowerCase();
}

function table(found) {
  return h("table", null,
    h("thead", null, h("tr", null, ["run", "status", "program"].map((name) => h("th", { scope: "col" }, name)),
      ["step", "ranks", "incidents", "goodput", "took"].map((name) => h("th", { class: "n", scope: "col" }, name)), h("th", { scope: "col" }, "last"))),
    h("tbody", null, found.map((run) => h("tr", null,
      h("td", { class: "nowrap" }, run.status === "damaged" ? run.name : h("a", { href: `/runs/${run.name}/` }, run.name)),
      h("td", { class: run.needs_you ? "act nowrap" : "nowrap" }, `${GLYPHS[run.status] || "▲"} ${run.status}${!run.is_live && ["running", "starting", "recovering", "standing-still"].includes(run.status) ? ", controller gone" : ""}`),
      h("td", { class: "text" }, h("span", { class: "mono" }, run.program), run.needs_you || run.is_live || run.status === "unread" ? h("div", { class: "dim" }, run.now) : null),
      h("td", { class: "n" }, count(run.step)), h("td", { class: "n" }, count(run.world_size)), h("td", { class: "n" }, count(run.num_incidents)),
      h("td", { class: "n" }, percent(run.ettr)), h("td", { class: "n" }, run.started_at === null || run.last_at === null ? NONE : duration(run.last_at - run.started_at)),
      h("td", { class: "nowrap" }, run.last_at === null ? NONE : time(run.last_at, short(run.last_at)))))));
}

function draw() {
  const main = byId("main");
  if (told === null) return trouble && show(main, trouble, () => h("p", { class: "act" }, trouble));
  const words = wanted(), found = told.filter((run) => !words || JSON.stringify(run).toLowerCase().includes(words));
  const live = told.filter((run) => run.is_live).length, damaged = told.filter((run) => run.status === "damaged").length;
  show(main, [found, trouble, words], () => [
    h("div", { class: "answer" }, h("h1", null, `${plural(told.length, "run")}, ${live} live${damaged ? `, ${damaged} damaged` : ""}`), trouble ? h("p", { class: "act" }, trouble) : null),
    h("section", { class: "panel" }, h("div", { class: "row noprint" }, h("span", { class: "grow" }), h("input", { type: "search", value: words, placeholder: "run, program, status", "aria-label": "find runs", "data-focus": "find",
      oninput: (event) => { const url = new URL(location.href); event.target.value ? url.searchParams.set("find", event.target.value) : url.searchParams.delete("find"); history.replaceState(null, "", url); draw(); } })),
    told.length === 0 ? h("p", { class: "dim" }, "No run yet. Try: ", h("code", null, "everstep demo")) : found.length ? table(found) : h("p", { class: "dim" }, "None of them."))]);
  const field = document.activeElement;
  if (field?.dataset.focus === "find") field.setSelectionRange(words.length, words.length);
}

async function ask() {
  try {
    const answer = await fetch("/api/runs");
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    told = (await answer.json()).runs;
    trouble = "";
  } catch (error) {
    trouble = `everstep ui does not answer (${error.message}); start it again`;
  }
  draw();
  setTimeout(ask, told?.some((run) => run.status === "unread" && run.now.startsWith("not read yet")) ? 50 : 3000);
}

addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input")) {
    event.preventDefault();
    document.querySelector("[data-focus=find]")?.focus();
  }
});
ask();
