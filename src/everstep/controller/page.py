"""The controller's one page: status and incidents, self-contained. It reads the same API as anybody else."""

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>everstep</title>
<style>
:root { color-scheme: light dark; --bad: #D55E00; --busy: #E69F00; --good: #009E73; --dim: #808080; }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em;
       font-variant-numeric: tabular-nums; }
h1 { font-size: 1.2em; } h2 { font-size: 1em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2em .8em .2em 0; }
th, .dim { color: var(--dim); font-weight: normal; } code { font-family: ui-monospace, monospace; }
.running, .succeeded, .recovered { color: var(--good); }
.recovering, .standing-still, .starting, .stopping, .waiting-for-approval { color: var(--busy); }
.failed, .gave-up { color: var(--bad); }
</style>
<h1 id="head">everstep</h1><p id="now" class="dim">asking the controller ...</p>
<h2>Incidents</h2><table id="incidents"></table><p id="none" class="dim"></p>
<h2>Nodes</h2><table id="nodes"></table>
<p class="dim">In a terminal: <code>everstep status</code>, <code>everstep incident</code>,
<code>everstep goodput</code>. JSON: <a href="/api/status">status</a>, <a href="/api/health">health</a>,
<a href="/api/journal">journal</a>, <a href="/metrics">metrics</a>.</p>
<script>
"use strict";
history.replaceState(null, "", location.pathname);
const el = id => document.getElementById(id);
const span = (text, kind) => { const s = document.createElement("span"); s.textContent = text; s.className = kind || "";
  return s; };
const row = (table, cells, tag) => { const tr = document.createElement("tr");
  for (const c of cells) { const td = document.createElement(tag || "td");
    if (c instanceof Node) td.append(c); else td.textContent = c ?? "\\u2014"; tr.append(td); }
  table.append(tr); };
const clock = at => at == null ? null : new Date(at * 1000).toISOString().slice(11, 19) + " UTC";
const incidents = new Map(); let after = 0;
function fold(record) {
  for (const a of record.actions || []) {
    if (a.type === "IncidentOpened") incidents.set(a.incident, { id: a.incident, at: record.event.at });
    const i = incidents.get(a.incident); if (!i) continue;
    if (a.type === "Concluded") i.verdict = a.verdict;
    if (a.type === "IncidentClosed") Object.assign(i, { outcome: a.outcome, recovered_at: a.recovered_at,
      lost_steps: a.lost_steps });
  } }
function show(status) {
  el("head").replaceChildren(span(status.run + "  "), span(status.status.toUpperCase(), status.status));
  const step = status.step == null ? "no step reported" : "step " + status.step.toLocaleString("en");
  el("now").textContent = `${step} \\u00b7 generation ${status.generation ?? "\\u2014"} \\u00b7 ` +
    `${status.restarts_used} of ${status.restarts_allowed} restarts used \\u00b7 ` +
    `world size ${status.world_size} \\u00b7 mode ${status.mode}`;
  const table = el("incidents"); table.replaceChildren();
  if (incidents.size) row(table, ["id", "when", "code", "what", "outcome", "recovered in", "lost steps"], "th");
  for (const i of [...incidents.values()].reverse()) row(table, [i.id, clock(i.at), i.verdict?.code,
    i.verdict?.sentence, span(i.outcome || "open", i.outcome || "recovering"),
    i.recovered_at == null ? null : (i.recovered_at - i.at).toFixed(2) + " s", i.lost_steps]);
  el("none").textContent = incidents.size ? "" : "No incidents. Try: everstep drill kill-rank 0";
  const nodes = el("nodes"); nodes.replaceChildren(); row(nodes, ["node", "role", "slot", "host", "pid"], "th");
  for (const n of status.nodes) row(nodes, [n.node, n.role, n.slot, n.host, n.pid]);
}
async function poll() {
  try {
    const status = await (await fetch("/api/status")).json();
    while (after < status.journal_seq) {
      const got = await (await fetch("/api/journal?after=" + after)).json();
      if (!got.records?.length) break;
      got.records.forEach(fold); after = got.records.at(-1).seq;
    }
    show(status);
  } catch (e) { el("now").textContent = "the controller does not answer; training may go on without it"; }
  setTimeout(poll, 2000);
}
poll();
</script>
</html>
"""

LOCKED = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>everstep</title>
<p>This page needs its token. Open the link that <code>everstep run</code> printed beside <code>ui</code>, or add
<code>?token=</code> and the content of <code>RUN_DIR/token-read</code> to this address.</p></html>
"""
