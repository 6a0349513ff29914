"""Notes in a host's run directory which host has the controller and which would take over, for `everstep status`
there."""

import logging
from pathlib import Path

from everstep.journal.beside import succession
from everstep.launcher.heirs.quorum import to_elect
from everstep.wire.heirs import Roster

log = logging.getLogger("everstep.launcher")


def note_succession(run_dir: Path, roster: Roster, session: str, endpoints: tuple[tuple[str, int], ...]) -> None:
    """`session`: of the controller's host. `endpoints`: under which hosts look for the run."""
    leader = next((each for each in roster.voters if each.session == session), None)
    heirs = tuple(each.host for each in roster.voters if each.session != session)
    doors = tuple((each.address, each.port) for each in roster.voters)
    needed = to_elect(len(roster.voters))
    try:
        succession.note(
            run_dir,
            epoch=roster.epoch,
            host=leader.host if leader is not None else "?",
            heirs=heirs,
            needed=needed,
            doors=doors,
            door=(leader.address, leader.port) if leader is not None else None,
            endpoints=endpoints,
        )
    except OSError as error:
        log.warning("who would take over is not noted: %s", error)
