"""Faults on request: checked, recorded, and sent to the component that can inject them."""

from collections.abc import Mapping

import msgspec

from everstep.analyzer.exits import FaultFacts
from everstep.core.restore import racks
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.turn import Turn
from everstep.core.state.workers import Worker
from everstep.model.actions import Inject, Refused
from everstep.model.events import DrillFailed, DrillRequested

LOUD_KINDS = ("kill-rank", "exit", "raise", "oom")
HANG_KINDS = (
    "stop",
    "python-loop",
    "native-call",
    "skip-collective",
    "mismatched-shape",
    "opposite-order",
    "blocked-loader",
)
ANOMALY_KINDS = ("slow", "flip-bit", "nan")
RANK_KINDS = (*LOUD_KINDS, *HANG_KINDS, *ANOMALY_KINDS)
MACHINE_KINDS = ("miscompute",)
"""A machine has them until it is given back: every process on it, also those of examinations."""

AWAY_KINDS = ("cut-node", "freeze-node")
"""Faults after which the node lives but cannot be heard from for a while."""

LINK_KINDS = ("flap-link",)
"""The node's own link goes down and comes back, twice; it is never away for long."""

NODE_KINDS = ("kill-agent", "lose-node", *AWAY_KINDS, *LINK_KINDS, *MACHINE_KINDS)
RACK_KINDS = ("lose-rack",)
"""All nodes of a rack at once, standbys as well."""

RUN_KINDS = ("kill-controller",)
KINDS = (*RANK_KINDS, *NODE_KINDS, *RACK_KINDS, *RUN_KINDS)

_SEEN_AS = {"slow": ("ES-S",), "flip-bit": ("ES-N04", "ES-N05"), "nan": ("ES-N",), "miscompute": ("ES-N",)}
_SEEN_AS |= {"flap-link": ("ES-M13", "ES-M14")}
"""With what the codes begin that a drill leads to."""

PATTERNS = ("steady", "growing", "intermittent")
RESULTS = ("bit", "nan")
MAX_SEED = 2**31
MAX_PERCENT = 1000.0
MAX_SECONDS = 86400.0


def why_bad_options(kind: str, options: Mapping[str, float | str]) -> str:
    """Why these options cannot be those of this drill; empty when they can."""
    if kind == "miscompute":
        return _why_bad_miscompute(options)
    if kind in AWAY_KINDS:
        return _why_bad_away(kind, options)
    if kind in RACK_KINDS:
        is_named = set(options) == {"rack"} and isinstance(options["rack"], str)
        return "" if is_named else f"drill {kind} needs a rack and nothing else, got {', '.join(options) or 'nothing'}"
    if kind != "slow":
        return f"drill {kind} takes no options, got {', '.join(options)}" if options else ""
    unknown = sorted(set(options) - {"percent", "seconds", "pattern"})
    if unknown:
        return f"no option {', '.join(unknown)} of drill slow; there are: percent, seconds, pattern"
    if options.get("pattern", PATTERNS[0]) not in PATTERNS:
        return f"pattern {options['pattern']!r} of drill slow; there are: {', '.join(PATTERNS)}"
    for name, most in (("percent", MAX_PERCENT), ("seconds", MAX_SECONDS)):
        value = options.get(name, 1.0)
        if isinstance(value, str) or not 0 < value <= most:
            return f"{name} {value!r} of drill slow: a number above 0, at most {most:g}"
    return ""


def _why_bad_away(kind: str, options: Mapping[str, float | str]) -> str:
    seconds = options.get("seconds", 1.0)
    if set(options) - {"seconds"}:
        return f"drill {kind} takes seconds and nothing else, got {', '.join(options)}"
    if isinstance(seconds, str) or not 0 < seconds <= MAX_SECONDS:
        return f"seconds {seconds!r} of drill {kind}: a number above 0, at most {MAX_SECONDS:g}"
    return ""


def _why_bad_miscompute(options: Mapping[str, float | str]) -> str:
    unknown = sorted(set(options) - {"chance", "seed", "result"})
    chance, seed = options.get("chance", 1.0), options.get("seed", 0)
    if unknown:
        return f"no option {', '.join(unknown)} of drill miscompute; there are: chance, seed, result"
    if isinstance(chance, str) or not 0 < chance <= 1:
        return f"chance {chance!r} of drill miscompute: of a step, above 0 and at most 1"
    if isinstance(seed, str) or not 0 <= seed < MAX_SEED or seed != int(seed):
        return f"seed {seed!r} of drill miscompute: a whole number from 0"
    if options.get("result", RESULTS[0]) not in RESULTS:
        return f"result {options['result']!r} of drill miscompute; there are: {', '.join(RESULTS)}"
    return ""


def why_unwatched(kind: str, policy: Policy) -> str:
    """Why this run would not detect this fault; empty if it would."""
    if kind in HANG_KINDS and not policy.watch_hangs:
        return "this run does not look for hangs, so nothing would end it (policy watch_hangs)"
    if kind == "slow" and not policy.watch_slowness:
        return "this run does not look for slow ranks (policy watch_slowness)"
    if kind == "flip-bit" and not policy.digest_every:
        return "this run takes no digests of the parameters, so nothing would see it (policy digest_every)"
    if kind == "miscompute" and not policy.digest_every and not policy.watch_numbers:
        return "this run looks neither at parameters nor at losses (policy digest_every, watch_numbers)"
    if kind == "nan" and not policy.watch_numbers:
        return "this run does not look at losses (policy watch_numbers)"
    return ""


def on_drill_requested(turn: Turn, event: DrillRequested) -> None:
    if event.kind in RANK_KINDS:
        _inject_rank(turn, event)
    elif event.kind in NODE_KINDS:
        _inject_node(turn, event)
    elif event.kind in RACK_KINDS:
        _inject_rack(turn, event)
    elif event.kind in RUN_KINDS:
        turn.do(_inject(turn, event))
    else:
        _refuse(turn, event, f"there is no such drill; there are: {', '.join(KINDS)}")


def on_drill_failed(turn: Turn, event: DrillFailed) -> None:
    _forget(turn, event.drill)
    turn.do(Refused(what=f"drill {event.drill}", why=event.why))


def claim(turn: Turn, facts: FaultFacts) -> str | None:
    """The drill that can have caused these facts.

    A drill whose effect has not been seen must not claim an unrelated fault; a slow rank or a wrong number leads to
    many things in its generation, and all of them belong to the drill."""
    pending = turn.state.pending_drills
    if facts.anomaly is not None:
        return next((drill for drill in reversed(pending) if _leads_to(pending[drill], facts.anomaly.code)), None)
    lasting = (*ANOMALY_KINDS, *LINK_KINDS, *MACHINE_KINDS)
    claimed = next((drill for drill, kind in pending.items() if kind not in lasting), None)
    if claimed is not None:
        _forget(turn, claimed)
    return claimed


def _leads_to(kind: str, code: str) -> bool:
    return code.startswith(_SEEN_AS.get(kind, ()))


def _steps(worker: Worker) -> bool:
    return worker.account is not None and worker.account.first_step is not None


def _expect(turn: Turn, event: DrillRequested) -> None:
    turn.set(pending_drills={**turn.state.pending_drills, event.drill: event.kind})


def _forget(turn: Turn, drill: str) -> None:
    turn.set(pending_drills={each: kind for each, kind in turn.state.pending_drills.items() if each != drill})


def _inject_rank(turn: Turn, event: DrillRequested) -> None:
    worker = None if event.rank is None else turn.state.workers.get(event.rank)
    why = why_bad_options(event.kind, event.options) or why_unwatched(event.kind, turn.policy)
    if worker is None:
        _refuse(turn, event, f"there is no rank {event.rank}; ranks are 0 to {turn.spec.world_size - 1}")
    elif why:
        _refuse(turn, event, why)
    elif worker.exit is not None or turn.state.phase not in (Phase.FORMING, Phase.RUNNING):
        _refuse(turn, event, f"rank {event.rank} has no live process now (the run is {turn.state.phase})")
    elif event.kind in HANG_KINDS and turn.state.has_stepped and not _steps(worker):
        why = f"rank {event.rank} has done no step since the restart: a start may take long, it is not a hang"
        _refuse(turn, event, why)
    else:
        _expect(turn, event)
        turn.do(_inject(turn, event, node=worker.node))


def _inject_node(turn: Turn, event: DrillRequested) -> None:
    """`kill-agent`: its memory outlives it. `lose-node`: the machine is gone, with its memory; the engine does that.
    Those of the machine stay with it."""
    worker = turn.state.workers.get(event.rank) if event.rank is not None else None
    if event.rank is not None and worker is None:
        _refuse(turn, event, f"there is no rank {event.rank}; ranks are 0 to {turn.spec.world_size - 1}")
        return
    asked = event.node or (worker.node if worker is not None else None)
    node = asked or next(iter(turn.state.active_nodes), None)
    why = why_bad_options(event.kind, event.options) or why_unwatched(event.kind, turn.policy)
    if not turn.state.is_active(node):
        _refuse(turn, event, f"no node {node!r} holds a slot; those that do: {list(turn.state.active_nodes)}")
    elif why:
        _refuse(turn, event, why)
    else:
        _expect(turn, event)
        turn.do(_inject(turn, event, node=node))


def _inject_rack(turn: Turn, event: DrillRequested) -> None:
    """To the engine it is the loss of several nodes, one right after the other."""
    rack, known = str(event.options.get("rack", "")), racks.known(turn.state)
    mine = racks.members_of(turn.state, rack)
    if why := why_bad_options(event.kind, event.options):
        _refuse(turn, event, why)
    elif not known:
        how = "everstep run --racks a,a,b,b, or EVERSTEP_RACK on each machine"
        _refuse(turn, event, f"no node has reported its rack: {how}")
    elif not mine:
        _refuse(turn, event, f"no node is in rack {rack!r}; racks of this run: {', '.join(known)}")
    elif not racks.active_nodes(turn.state, rack):
        _refuse(turn, event, f"no node of rack {rack} holds a slot, so nothing would be seen of it")
    else:
        _expect(turn, event)
        lost = msgspec.structs.replace(event, kind="lose-node", rank=None, options={})
        for member in mine:
            turn.do(_inject(turn, lost, node=member.node))


def _inject(turn: Turn, event: DrillRequested, node: str | None = None) -> Inject:
    return Inject(
        drill=event.drill,
        kind=event.kind,
        node=node,
        rank=event.rank if event.kind in RANK_KINDS else None,
        generation=turn.state.generation,
        options=event.options,
        why=f"drill {event.drill} was asked for",
    )


def _refuse(turn: Turn, event: DrillRequested, why: str) -> None:
    turn.do(Refused(what=f"drill {event.drill} ({event.kind})", why=why))
