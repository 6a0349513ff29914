"""A snapshot turns out to be damaged, or missing: strike it, and let the next candidate be chosen.

The generation that was to start from it is stopped, because all ranks resume from the same step or none does. Each
candidate is struck once and there are finitely many, so this ends; `restoring` reports when nothing is left. What could
only not be read is retried first (`rereading`), and struck for this attempt of the run alone. Pure.
"""

import msgspec

from everstep.analyzer.exits import FailedRestore, FaultFacts
from everstep.core.faults.incidents import stop_generation
from everstep.core.faults.opening import open_incident
from everstep.core.restore import flaws, rereading
from everstep.core.state.phases import ALIVE
from everstep.core.state.schema import Formation, Struck
from everstep.core.state.turn import Turn
from everstep.model.events import RestoreFailed


def on_restore_failed(turn: Turn, event: RestoreFailed) -> None:
    formation = turn.state.formation
    if formation is None or not turn.own_workers(event.node, (event.rank,)):
        return
    if event.is_unfit:
        flaws.note_unfit(turn, event)
    elif not event.is_damaged:
        rereading.note_unread(turn)
    if event.is_damaged or rereading.is_worn_out(turn.state):
        known = {_identity(each) for each in turn.state.struck}
        new = [struck for struck in _struck(turn, event, formation) if _identity(struck) not in known]
        turn.set(struck=(*turn.state.struck, *new))
    if turn.state.phase in ALIVE:
        open_incident(turn, FaultFacts(at=turn.at))
    if turn.state.incident is not None and not turn.incident.restarted:
        facts = turn.incident.facts
        turn.set_incident(
            facts=msgspec.structs.replace(facts, unrestored=(*facts.unrestored, _failed(event, formation)))
        )
    if turn.state.phase in ALIVE:
        stop_generation(turn)


def _identity(struck: Struck) -> tuple[object, ...]:
    return struck.rank, struck.node, struck.path, struck.generation, struck.is_damaged


def _struck(turn: Turn, event: RestoreFailed, formation: Formation) -> tuple[Struck, ...]:
    """List the snapshots or the checkpoint that were tried. This is known better here than by the rank, which finds
    fetched snapshots in its own memory."""
    step = formation.resume_step
    if step is None:
        return ()
    failed = Struck(step=step, generation=turn.state.generation, at=turn.at, why=event.why, is_damaged=event.is_damaged)
    if formation.restore_path:
        return (msgspec.structs.replace(failed, path=formation.restore_path),)
    holders = [fetch.node for fetch in formation.fetch if fetch.rank == event.rank]
    return tuple(msgspec.structs.replace(failed, rank=event.rank, node=node) for node in (*holders, ""))


def _failed(event: RestoreFailed, formation: Formation) -> FailedRestore:
    holder = next((fetch.node for fetch in formation.fetch if fetch.rank == event.rank), "")
    if formation.restore_path or event.source == "disk":
        what = f"the checkpoint {formation.restore_path or event.where}"
    else:
        what = f"the copy on {holder}" if holder else "memory"
    return FailedRestore(
        rank=event.rank, node=event.node, at=event.at, step=event.step, what=what, source=event.source, why=event.why
    )
