"""`everstep explain`: why this was decided and why not something else; or the page of a verdict code. Pure.

Everything said here is read from the journal: the decision was recorded with its reasons when it was taken.
"""

from everstep.analyzer.observations.words import ranks_text
from everstep.journal.view import GenerationView, IncidentView, RefusedView, RunView
from everstep.model.code import Code
from everstep.report.incidents.examined import examined_lines
from everstep.report.incidents.incident import code_text, outcome_text
from everstep.report.parts.ansi import PLAIN, Paint, Style, printable
from everstep.report.parts.commands import command
from everstep.report.parts.evidence import evidence_groups
from everstep.report.parts.layout import fields, text_of
from everstep.report.parts.units import clock, count, stamp

_WIDTH = 11

KNOBS = {
    "roll-back": "policy trained_steps = {trained_steps}: new steps after which a version counts as one that trains; "
    "--mode advise: it would have been proposed",
    "merge-update": "everstep update: the version would have waited for another interruption",
    "program-cannot-run": "nothing: the program cannot run as it is, whatever the policy",
    "cannot-begin": "--init-from: another checkpoint, or none",
    "work-is-done": "a State that keeps snapshots, or --max-restarts N: then all ranks would be restarted",
    "same-place-again": "policy max_same_failure = {max_same_failure}: a higher one tries again at the same place",
    "failed-start": "--max-restarts N: it would be restarted N times, whatever it ends with; a step in between: "
    "policy max_same_failure = {max_same_failure} counts then",
    "restart-budget": "policy max_restarts = {max_restarts} within budget_window_s = {budget_window_s} s "
    "(--max-restarts): a higher one restarts further",
    "mode-observe": "--mode act: it would have been restarted; --mode advise: it would have been proposed",
    "mode-advise": "--mode act: done without asking; policy approval_timeout_s = {approval_timeout_s} s "
    "is how long it waits",
    "restart-in-place": "policy max_restarts = {max_restarts}: once it is used up the run gives up instead; "
    "--mode observe or advise: it would not have been done",
    "go-back": "policy digest_every = {digest_every}: more often, and less has to be done again; --standby N: the "
    "machine of a rank that is named would be replaced; --mode observe or advise: only explained",
    "corrupted-again": "policy max_same_failure = {max_same_failure}: a higher one goes back more often; "
    "digest_every = 0 does not compare replicas",
    "restore-none": "a State that loads what it saves; another version of the program is tried anew",
    "restore-another": "nothing: what is damaged is not tried again",
    "read-again": "nothing: what cannot be read may be whole, and an older step would cost more",
    "evict": "no standby, or policy max_evicted_share = {max_evicted_share} used up: restarted where it was",
    "drain": "no standby: it would have stayed until one comes; everstep drain --undo: it would have stayed",
    "examine": "policy blind_restarts = {blind_restarts}: more restarts in place before machines are examined; "
    "examine = false: never",
    "replay": "policy replay = false: it would have been given up, or restarted within the budget",
    "reattempt": "policy blind_restarts = {blind_restarts} and course_s = {course_s} s: when machines are examined",
    "evict-group": "no standbys, policy max_evicted_share = {max_evicted_share} or group_cooldown_s = "
    "{group_cooldown_s} s: the next stage instead",
    "flow-exhausted": "a new step in between: it would have continued within policy max_restarts = {max_restarts}",
    "explain-only": "--standby N, if a machine is to blame: it would have been evicted",
    "late-evidence": "nothing: the node reported it after the decision; the verdict is corrected, and a machine to "
    "blame is evicted as soon as that is possible",
    "replace-lost-node": "--standby N: another node would be ready at once; policy node_silent_s = {node_silent_s} s "
    "is how long a silent agent is waited for",
}
"""Rule to what would make the outcome different. A rule that is not here is shown without the line."""


def render_explanation(view: RunView, incident: IncidentView, style: Style = PLAIN) -> str:
    decision, verdict = incident.decision, incident.verdict
    head = f"{incident.id}  {code_text(incident)}   {outcome_text(incident)}"
    lines = [style(head, Paint.BOLD)]
    if decision is None or verdict is None:
        lines.append("nothing is decided yet: the rank that caused it may still be ending")
        return text_of(lines)
    when = f"{stamp(incident.concluded_at)}   {printable(decision.chosen)}"
    lines += _field("decision", [when])
    lines += _field(
        "rule", [f"{decision.rule} (policy {view.policy.get('name', '—')})   {command('explain', verdict.code)}"]
    )
    lines += _field("because", _because(incident))
    lines += _field("so", [printable(decision.why)])
    lines += _field("refused", [f"{printable(r.what)}: {printable(r.why)}" for r in decision.refused])
    lines += _field("examined", examined_lines(incident))
    lines += _field("again", [f"if it comes again: {printable(decision.then)}"] if decision.then else [])
    lines += _field(
        "also", [f"{printable(r.what)}: {printable(r.why)}   (seq {r.seq})" for r in _other_refusals(incident)]
    )
    new = next((g for g in view.generations if g.number == incident.next_generation), None)
    if new is not None:
        lines += _field("resume", [_resume(new)])
        lines += _field("started", how_started(view, new))
    knob = KNOBS.get(decision.rule)
    if knob is not None:
        lines += _field("otherwise", [_fill(knob, view)])
    return text_of(lines)


def render_code(code: Code, style: Style = PLAIN) -> str:
    lines = [style(f"{code.code} {code.name}", Paint.BOLD) + f"   blame without further evidence: {code.blame}"]
    lines += _field("means", [code.means])
    lines += _field("everstep", [code.everstep_does])
    lines += _field("confirm", [code.confirm])
    lines += _field("you", [code.you_do])
    lines += _field("drill", [code.drill] if code.drill else [])
    return text_of(lines)


def how_started(view: RunView, generation: GenerationView) -> list[str]:
    """How the ranks became processes, and why not from the template where they did not."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, started in sorted(generation.started.items()):
        groups.setdefault((started.how, started.why), []).append(rank)
    told = []
    for (how, why), ranks in groups.items():
        node = view.nodes.get(generation.node_of[ranks[0]])
        template = node.template if node is not None else None
        reason = why or (template.why if template is not None and not template.usable else "")
        ways = {
            "template": "forked from the template process",
            "twin": "from twins",
            "fresh": "as a fresh interpreter",
        }
        because = f": {printable(reason)}" if reason and how != "template" else ""
        told.append(f"{ranks_text(ranks)} {ways.get(how, f'as {how}')}{because}")
    return told or ["no worker is confirmed yet"]


def _because(incident: IncidentView) -> list[str]:
    assert incident.verdict is not None
    told = [printable(incident.verdict.sentence)]
    for group in evidence_groups(incident):
        where = f", seq {group.seqs}" if group.seqs else ""
        told.append(f"{printable(group.says)} at {clock(group.first.at)} ({group.first.source}{where})")
    confidence = f"blame {incident.verdict.blame}, confidence {incident.verdict.confidence}"
    return [*told, confidence]


def _other_refusals(incident: IncidentView) -> list[RefusedView]:
    decision = incident.decision
    return [r for r in incident.refused if decision is None or r.what != decision.chosen]


def _resume(generation: GenerationView) -> str:
    step = (
        "nothing is restored" if generation.resume_step is None else f"step {count(generation.resume_step)} from memory"
    )
    return f"{step}: {printable(generation.why.rsplit('; ', 1)[-1])}"  # the clauses before repeat the verdict


def _fill(knob: str, view: RunView) -> str:
    values = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in view.policy.items()}
    try:
        return knob.format_map(values)
    except KeyError:
        return knob.split(" = ")[0]  # a journal of a version whose policy had no such number


def _field(name: str, texts: list[str]) -> list[str]:
    return fields(name, texts, width=_WIDTH, indent="")
