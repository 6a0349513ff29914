"""The phases of an incident: when each began, how long it took. Pure; None if unknown."""

import msgspec

from everstep.journal.view import IncidentView, RunView


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    begin: float | None
    end: float | None

    @property
    def length_s(self) -> float | None:
        if self.begin is None or self.end is None:
            return None
        return max(0.0, self.end - self.begin)


class IncidentTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Moments in order. `started`: every new rank is a process. `in_loop`: every rank begins its first step."""

    fault: float | None
    detected: float
    decided: float | None
    stopped: float | None
    started: float | None
    in_loop: float | None
    recovered: float | None
    restore_s: float | None  # longest of a rank, within initialising

    @property
    def lost_s(self) -> float | None:
        """From the fault to the first new step of the slowest rank."""
        return Phase(name="lost", begin=self.fault, end=self.recovered).length_s

    @property
    def detect_s(self) -> float | None:
        return Phase(name="detect", begin=self.fault, end=self.detected).length_s

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(name="detect", begin=self.fault, end=self.detected),
            Phase(name="decide", begin=self.detected, end=self.decided),
            Phase(name="stop", begin=self.decided, end=self.stopped),
            Phase(name="start", begin=self.stopped, end=self.started),
            Phase(name="initialise", begin=self.started, end=self.in_loop),
            Phase(name="first step", begin=self.in_loop, end=self.recovered),
        )


def times_of(view: RunView, incident: IncidentView) -> IncidentTimes:
    started = in_loop = restore_s = None
    new = next((g for g in view.generations if g.number == incident.next_generation), None)
    if new is not None:
        spawned = [new.accounts[r].spawned_at if r in new.accounts else s.at for r, s in new.started.items()]
        loops = [account.loop_at for account in new.accounts.values()]
        known = [at for at in loops if at is not None]
        started = max(spawned, default=None) if len(new.started) == len(new.node_of) else None
        in_loop = max(known) if known and len(known) == len(new.node_of) else None
        restore_s = max((account.restore_s for account in new.accounts.values()), default=None)
    return IncidentTimes(
        fault=incident.fault_at,
        detected=incident.opened_at,
        decided=incident.decided_at,
        stopped=incident.stopped_at,
        started=started,
        in_loop=in_loop,
        recovered=incident.recovered_at,
        restore_s=restore_s,
    )
