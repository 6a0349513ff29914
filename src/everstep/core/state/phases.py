"""The phases of a run, and which may follow which: one literal table. `docs/state-machine.md` is generated from it.

`Turn.enter` is the only function that changes the phase. It looks the edge up here. An edge that is not listed is a bug
of ours: `core.invariants` fails on it in every test, and in production the run continues and the controller logs it.
"""

import enum


class Phase(enum.StrEnum):
    NEW = "new"
    GATHERING = "gathering"
    FORMING = "forming"
    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    EXAMINING = "examining"
    PROPOSING = "proposing"
    SAVING = "saving"
    OVER = "over"


MEANINGS: dict[Phase, str] = {
    Phase.NEW: "no `RunStarted` yet",
    Phase.GATHERING: "nodes for all slots, or the store of the next generation",
    Phase.FORMING: "workers are being started; not every rank is through yet",
    Phase.RUNNING: "nothing: every rank of this generation is through rendezvous, or has stepped",
    Phase.SETTLING: "a fault is known and its culprit is not: a later exit, or the evidence of a hang",
    Phase.STOPPING: "nodes end the workers of the generation",
    Phase.EXAMINING: "workers have ended and no machine is to blame: all are examined before the restart",
    Phase.PROPOSING: "mode advise: approval",
    Phase.SAVING: "workers have ended, and so will the run: the last step goes to the persistent tier first",
    Phase.OVER: "nothing; the run has ended",
}


ALIVE = (Phase.FORMING, Phase.RUNNING, Phase.SETTLING)
"""Workers of the current generation may be running, and nothing has asked them to stop."""

_ENDS = {
    Phase.SAVING: "the run ends; the last step is not in the persistent tier yet",
    Phase.OVER: "the run ends; nothing is left to save",
}

TRANSITIONS: dict[Phase, dict[Phase, str]] = {
    Phase.NEW: {Phase.GATHERING: "the run is started"},
    Phase.GATHERING: {Phase.FORMING: "every slot has a node and the store is open", **_ENDS},
    Phase.FORMING: {
        Phase.RUNNING: "every rank is through rendezvous, or has stepped",
        Phase.SETTLING: "a rank exits, and the exit looks like a consequence",
        Phase.STOPPING: "a fault, an urgent update, or a stop request",
        **_ENDS,
    },
    Phase.RUNNING: {
        Phase.SETTLING: "a hang is suspected, or a rank exits and the exit looks like a consequence",
        Phase.STOPPING: "a fault, an update that is due, nodes that are taken in, or a stop request",
        **_ENDS,
    },
    Phase.SETTLING: {
        Phase.RUNNING: "no hang, or one that may end by itself and is left alone",
        Phase.STOPPING: "the culprit is known, or time is up",
        **_ENDS,
    },
    Phase.STOPPING: {
        Phase.GATHERING: "workers have ended; the decision is to restart",
        Phase.EXAMINING: "workers have ended; the decision is to examine the machines",
        Phase.PROPOSING: "workers have ended; mode advise asks before it restarts",
        **_ENDS,
    },
    Phase.EXAMINING: {Phase.STOPPING: "the examination is over; the run decides again", **_ENDS},
    Phase.PROPOSING: {Phase.GATHERING: "the proposal is approved", **_ENDS},
    Phase.SAVING: {Phase.OVER: "the last step is in the persistent tier, or cannot get there"},
    Phase.OVER: {},
}
"""From each phase to those that may follow it, and when."""

REOPENABLE = tuple(phase for phase in Phase if phase not in (Phase.NEW, Phase.OVER))
"""From each of these a new attempt of the run (`RunReopened`) goes to GATHERING, whatever the phase was."""


def is_legal(before: Phase, after: Phase, *, is_reopened: bool = False) -> bool:
    if is_reopened:
        return before in REOPENABLE and after is Phase.GATHERING
    return after in TRANSITIONS[before]
