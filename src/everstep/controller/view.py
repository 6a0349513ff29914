"""The controller's state as the JSON of /api/status and /api/health. Pure; the fields are listed in docs/api.md.

For anything about the past (incidents, goodput) the journal is the source: these answers are about now.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from everstep.controller.ledger import Ledger
from everstep.core.state import Phase, State
from everstep.version import __version__

if TYPE_CHECKING:
    from everstep.controller.loop import Controller

_PUBLIC = {
    Phase.NEW: "starting",
    Phase.GATHERING: "starting",
    Phase.FORMING: "starting",
    Phase.RUNNING: "running",
    Phase.SETTLING: "recovering",
    Phase.STOPPING: "recovering",
    Phase.PROPOSING: "waiting-for-approval",
    Phase.OVER: "over",
}


def run_status(state: State) -> str:
    """The small public status: a total function of the internal one."""
    if state.phase is Phase.OVER and state.ending is not None:
        return state.ending.outcome
    if state.phase is Phase.STOPPING and state.ending is not None:
        return "stopping"
    if state.incident is not None and state.phase in (Phase.GATHERING, Phase.FORMING, Phase.RUNNING):
        return "recovering"
    return _PUBLIC[state.phase]


def status_of(ledger: Ledger, *, at: float) -> dict[str, Any]:
    state, tally = ledger.state, ledger.tally
    spec = state.spec
    incident = state.incident
    return {
        "run": state.run,
        "at": at,
        "status": run_status(state),
        "phase": str(state.phase),
        "attempt": state.attempt,
        "generation": state.generation if state.generation >= 0 else None,
        "mode": str(spec.mode) if spec else None,
        "policy": ledger.policy.name,
        "world_size": spec.world_size if spec else None,
        "step": tally.last_step,
        "last_step_at": tally.last_step_at,
        "restarts": sum(tally.restarts.values()),
        "nodes": [msgspec.to_builtins(member) for member in state.members.values()],
        "incident": None
        if incident is None
        else {
            "id": incident.id,
            "opened_at": incident.opened_at,
            "verdict": msgspec.to_builtins(incident.verdict),
            "decision": msgspec.to_builtins(incident.decision),
        },
        "waiting": list(state.waiting),
        "ending": msgspec.to_builtins(state.ending),
        "seq": ledger.journal.seq,
    }


def health_of(controller: "Controller", dropped: dict[str, int]) -> dict[str, Any]:
    """How the controller itself is."""
    return {
        "everstep_version": __version__,
        "journal_writable": controller.unwritable_since is None,
        "unwritable_since": controller.unwritable_since,
        "peers": controller.peers.names,
        "queued": controller.queue.qsize(),
        "dropped": dropped,
        "replay_mismatches": controller.ledger.num_mismatches,
        "unknown_records": len(controller.ledger.journal.unknown),
    }
