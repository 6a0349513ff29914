// One incident: the verdict first, then what it cost, what happened, why this was done, and what a person should do.

import { clock, count, duration, h, NONE, percent, short, stamp, time } from "./dom.js";
import { base } from "./store.js";

export const outcome = (row) => (row.outcome === null ? "open" : row.outcome.replace("-", " ") + (row.drill ? ` (drill ${row.drill})` : ""));

export function table(found, all = true) {
  return h("table", null,
    h("thead", null, h("tr", null, ["id", "when (UTC)", "code", "what", ...(all ? ["who"] : [])].map((name) => h("th", { scope: "col" }, name)),
      ["lost", "steps", "detect"].map((name) => h("th", { class: "n", scope: "col" }, name)), h("th", { scope: "col" }, "outcome"))),
    h("tbody", null, found.map((row) => h("tr", { class: row.outcome === null ? "open" : null },
      h("td", { class: "nowrap" }, h("a", { href: `${base}/incidents/${row.id}`, "data-focus": row.id }, row.id)),
      h("td", { class: "nowrap" }, time(row.at, short(row.at))),
      h("td", { class: "nowrap" }, row.code || NONE), h("td", { class: "text" }, row.sentence),
      all ? h("td", null, row.who) : null,
      h("td", { class: "n" }, duration(row.lost_s)), h("td", { class: "n" }, count(row.lost_steps)),
      h("td", { class: "n" }, duration(row.detect_s)), h("td", { class: "nowrap" }, outcome(row))))));
}

function phases(page) {
  const known = page.phases.filter((phase) => phase.length_s !== null);
  if (!known.length) return null;
  const whole = known.reduce((sum, phase) => sum + phase.length_s, 0);
  const row = h("div", { class: "phases" });
  for (const phase of page.phases) {
    const box = h("div", { class: phase.length_s === null ? "unknown" : null, title: phase.name },
      h("b", null, duration(phase.length_s)), phase.name);
    box.style.flex = String(phase.length_s === null || whole === 0 ? 0.1 : Math.max(0.1, phase.length_s / whole));
    row.append(box);
  }
  return row;
}

const raw = (seq, text) => h("a", { href: `${base}/api/journal?after=${Number(seq) - 1}`, title: "the record in the journal" }, text);

export function incident(page, markdown) {
  const row = page.row;
  return [
    h("div", { class: "answer" },
      h("div", { class: "status" }, h("b", { class: row.outcome === null ? "act" : null }, row.outcome === null ? "▲ open" : (row.outcome === "recovered" ? "✓ " : "") + outcome(row)),
        h("span", null, row.id), h("span", null, stamp(row.at))),
      h("h1", null, row.sentence.charAt(0).toUpperCase() + row.sentence.slice(1)), h("p", { class: "dim" }, [[row.code, row.name].filter(Boolean).join(" "), page.belief].filter(Boolean).join("   ·   "))),
    h("div", { class: "tiles" }, [["lost", duration(row.lost_s)], ["steps done again", count(row.lost_steps)],
      ["detected in", duration(row.detect_s)], ["training again after", duration(page.recovered_s)],
      ["cost", page.cost_gpu_h === null ? NONE : page.cost_gpu_h < 0.1 ? (3600 * page.cost_gpu_h).toFixed(1) + " rank-s" : page.cost_gpu_h.toFixed(1) + " rank-h"]]
      .map(([name, value]) => h("div", { class: "tile" }, h("span", null, name), h("b", null, value)))),
    phases(page),
    h("div", { class: "columns two" },
      h("section", { class: "panel" }, h("h2", null, "What happened"), h("div", { class: "moments" }, page.timeline.map((moment) => [
        time(moment.at, clock(moment.at)), h("span", { "aria-hidden": "true" }, moment.is_key ? "★" : ""),
        h("span", { class: moment.is_key ? "says keyed" : "says" }, moment.says, " ", moment.seq ? h("small", { class: "dim" }, raw(moment.seq, `seq ${moment.seq}`)) : null)]))),
      h("div", null,
        h("section", { class: "panel" }, h("h2", null, "Do now"), h("p", null, page.do_now || "Nothing."),
          page.commands.map((command) => h("p", null, h("code", null, command))),
          h("div", { class: "row noprint" }, h("button", { type: "button", onclick: (event) => copy(event.target, markdown) }, "copy as Markdown"),
            h("a", { href: `${base}/incidents/${row.id}/export`, download: `${row.id}.html` }, "save as one HTML file"),
            h("a", { href: `${base}/incidents/${row.id}/ranks` }, "ranks and stacks"))),
        h("section", { class: "panel" }, h("h2", null, "Decision"),
          page.chosen ? [h("p", null, h("b", null, page.chosen)), h("p", { class: "dim" }, `rule ${page.rule}`), h("p", null, page.why)] : h("p", { class: "dim" }, "none yet"),
          page.refused.length ? h("p", { class: "dim" }, "refused:") : null,
          page.refused.map(([what, why]) => h("p", null, `${what}: ${why}`)),
          page.then ? h("p", null, h("span", { class: "dim" }, "if it comes again: "), page.then) : null,
          page.close_why ? h("p", null, h("span", { class: "dim" }, `${outcome(row)}: `), page.close_why) : null),
        h("section", { class: "panel" }, h("h2", null, "Similar in this run"), page.similar.length
          ? h("table", null, h("tbody", null, page.similar.map((other) => h("tr", null,
            h("td", null, h("a", { href: `${base}/incidents/${other.id}` }, other.id)), h("td", null, time(other.at, short(other.at))),
            h("td", { class: "text" }, other.why), h("td", { class: "n" }, duration(other.lost_s))))))
          : h("p", { class: "dim" }, "none")))),
    h("section", { class: "panel" }, h("h2", null, "Evidence, strongest first"), page.evidence.length
      ? h("ol", { class: "evidence" }, page.evidence.map((piece) => h("li", null, h("span", { class: "dim" }, `${piece.source}  ${clock(piece.at)}  `),
        piece.says, " ", piece.seqs ? h("small", { class: "dim" }, raw(piece.seqs.split(/[-,]/)[0], `seq ${piece.seqs}`)) : null,
        piece.detail ? h("details", { open: page.evidence.length < 3 }, h("summary", null, "detail"), h("pre", null, piece.detail)) : null)))
      : h("p", { class: "dim" }, "none")),
    page.trace.length ? h("section", { class: "panel" }, h("h2", null, "Trace of the slow rank"), page.trace.map((line) => h("p", null, line)),
      page.trace_opens ? h("p", null, `open it in ${page.trace_opens}`) : null) : null,
    page.examined.length ? h("section", { class: "panel" }, h("h2", null, "Examined machines"), page.examined.map((line) => h("p", null, line))) : null,
  ];
}

async function copy(button, markdown) {
  const text = await markdown();
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    const area = h("textarea", { rows: 12, cols: 80 });
    area.value = text;
    button.replaceWith(area);
    area.select();
  }
}

const SAYS = { W: ["waits", "waits"], x: ["absent", "never arrived"], ">": ["past", "already past"], "?": ["unknown", "not known"] };

export function ranks(page, name) {
  return [
    h("div", { class: "answer" }, h("div", { class: "status" }, h("b", null, h("a", { href: `${base}/incidents/${name}` }, name)), h("span", null, "ranks and stacks")),
      h("h1", null, page.sentence), h("p", { class: "dim" }, [page.code, `${count(page.num_ranks)} ranks`, page.missing ? `no evidence of ranks ${page.missing}` : ""].filter(Boolean).join("   ·   "))),
    h("section", { class: "panel" }, h("h2", null, "Who waits for whom"),
      h("div", { class: "legend" }, h("span", null, "W waits in it"), h("span", null, "✗ never arrived"), h("span", null, "> already past"), h("span", null, "? not known"),
        h("span", null, `by ${page.order}`)),
      page.waves.length ? page.waves.map((wave) => [
        h("p", null, h("b", null, `${wave.op} #${count(wave.seq)}`), ` in ${wave.group}`, wave.place ? h("span", { class: "dim" }, `   at ${wave.place}`) : null),
        h("div", { class: "wave" }, wave.ranks.map((rank, k) => h("span", { class: SAYS[wave.marks[k]][0], title: `rank ${rank} ${SAYS[wave.marks[k]][1]}` },
          h("small", null, rank), wave.marks[k] === "x" ? "✗" : wave.marks[k])))])
        : h("p", { class: "dim" }, "No rank waits in a collective of a flight record."),
      page.num_waves > page.waves.length ? h("p", { class: "dim" }, `${page.num_waves - page.waves.length} more groups wait`) : null),
    h("section", { class: "panel" }, h("h2", null, "Stacks, grouped"), page.stacks.length ? h("table", null,
      h("thead", null, h("tr", null, h("th", { class: "n" }, "ranks"), h("th", null, "which"), h("th", null, "doing"), h("th", null, "innermost"), h("th", null, "in the program"))),
      h("tbody", null, page.stacks.map((stack) => h("tr", { class: stack.is_outlier ? "open" : null }, h("td", { class: "n" }, count(stack.num)), h("td", null, stack.ranks),
        h("td", null, stack.doing + (stack.is_outlier ? " ▲" : "")), h("td", { class: "mono text" }, stack.innermost), h("td", { class: "mono text" }, stack.place || NONE)))))
      : h("p", { class: "dim" }, "No stack could be read.")),
    page.table.length ? h("section", { class: "panel" }, h("h2", null, "Each place of the program"), h("pre", null, page.table.join("\n"))) : null,
  ];
}

export function node(page) {
  return [
    h("div", { class: "answer" }, h("h1", null, page.node), h("p", null, page.lost_at !== null
      ? `out since ${stamp(page.lost_at)}: ${page.lost_why}` : page.slot === null ? "standby" : `active in slot ${page.slot}, ranks ${page.ranks.join(", ")}`)),
    h("dl", { class: "facts panel" }, [["host", page.host], ["agent", `pid ${page.pid}`], ["rack", page.rack || NONE], ["joined", stamp(page.joined_at)],
      ["restart", page.restarts ? `cold: ${page.restarts}` : "warm, as far as is known"],
      ...(page.drained ? [["drained", page.drained]] : [])].map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
    h("section", { class: "panel" }, h("h2", null, "Incidents that named it"), page.incidents.length ? table(page.incidents) : h("p", { class: "dim" }, "none in this run")),
    page.commands.map((command) => h("p", null, h("code", null, command), h("span", { class: "dim" }, command.startsWith("everstep node") ? "  across runs" : "  this run"))),
  ];
}
