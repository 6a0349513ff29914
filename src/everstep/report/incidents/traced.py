"""The trace of an incident's slow rank: where it is and how to open it, or why there is none. View to words; pure.

The same words stand in `everstep incident show`, `--md`, `--html` and on the page; `--json` has them as fields.
"""

from typing import Any

import msgspec

from everstep.journal.view import IncidentView, RunView

VIEWER = "https://ui.perfetto.dev"
OPEN_WITH = f"{VIEWER} (Open trace file), or chrome://tracing"

_SLOW = "ES-S"
_ASKED = "trace rank "  # how the core's refusal begins


class TraceStory(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the trace of one slow rank. Empty and 0: not known, or there is no file."""

    rank: int
    node: str = ""
    host: str = ""
    generation: int | None = None
    taken: bool = False
    file: str = ""  # below the run directory
    path: str = ""  # on that host, as its agent says
    num_bytes: int = 0
    seconds: float = 0.0
    why: str = ""  # there is none; or which tracks are missing
    open_with: str = ""


def trace_story(view: RunView, incident: IncidentView) -> TraceStory | None:
    """None: the incident blames no slow rank."""
    asked, told, verdict = incident.trace_asked, incident.trace, incident.verdict
    if asked is None:
        is_slow = verdict is not None and verdict.code.startswith(_SLOW) and bool(verdict.ranks)
        why = _why_not_asked(view, incident) if is_slow else ""
        return TraceStory(rank=verdict.ranks[0], why=why) if verdict is not None and why else None
    node = view.nodes.get(asked.node)
    made = TraceStory(
        rank=asked.rank, node=asked.node, host="" if node is None else node.host, generation=asked.generation
    )
    if told is None:
        why = f"{asked.node} was asked and has not answered; recording takes {asked.seconds:g} s and some seconds more"
        return msgspec.structs.replace(made, why=why)
    if not told.file:
        return msgspec.structs.replace(made, why=told.why)
    return msgspec.structs.replace(
        made,
        taken=True,
        file=told.file,
        path=told.path,
        num_bytes=told.num_bytes,
        seconds=told.seconds,
        why=told.why,
        open_with=OPEN_WITH,
    )


def trace_lines(view: RunView, incident: IncidentView) -> list[str]:
    """All of it; nothing where the incident blames no slow rank. What the agent said is in them as it said it."""
    story = trace_story(view, incident)
    return [] if story is None else [*what_there_is(story), *([f"open it in {OPEN_WITH}"] if story.taken else [])]


def what_there_is(story: TraceStory) -> list[str]:
    """Without how to open it, which is ours and not an agent's."""
    if not story.taken:
        return [f"rank {story.rank}: no trace: {story.why}"]
    where = f"recorded on {story.host or story.node}" + (f" as {story.path}" if story.path else "")
    kib = f"{story.num_bytes / 1024:,.0f} KiB"
    lines = [f"rank {story.rank}, {story.seconds:.1f} s: {story.file} in the run directory ({kib}), {where}"]
    return [*lines, f"missing in it: {story.why}"] if story.why else lines


def trace_json(view: RunView, incident: IncidentView) -> dict[str, Any] | None:
    """The fields; null where the incident blames no slow rank."""
    story = trace_story(view, incident)
    return None if story is None else msgspec.to_builtins(story)


def _why_not_asked(view: RunView, incident: IncidentView) -> str:
    """Empty: it is not decided yet, or the record is of an everstep that made no traces."""
    refused = next((each.why for each in incident.refused if each.what.startswith(_ASKED)), "")
    if refused:
        return refused
    if "slow_trace_s" not in view.policy:
        return ""
    if not view.policy["slow_trace_s"]:
        return "traces are switched off (policy slow_trace_s = 0)"
    if incident.stopped_at is not None or incident.next_generation is not None:
        return "the ranks were stopped at once, and nothing is recorded while a recovery is under way"
    return "" if incident.is_open else "the rank had no process then"
