"""Leaves in a host's run directory who has the controller and who would take over, for `everstep status` there."""

import logging
from pathlib import Path

from everstep.journal.beside import succession
from everstep.launcher.heirs.quorum import to_elect
from everstep.wire.heirs import Roster

log = logging.getLogger("everstep.launcher")


def note_succession(run_dir: Path, roster: Roster, session: str) -> None:
    """`session`: of the controller's host."""
    host = next((each.host for each in roster.voters if each.session == session), "?")
    heirs = tuple(each.host for each in roster.voters if each.session != session)
    doors = tuple((each.address, each.port) for each in roster.voters)
    needed = to_elect(len(roster.voters))
    try:
        succession.note(run_dir, epoch=roster.epoch, host=host, heirs=heirs, needed=needed, doors=doors)
    except OSError as error:
        log.warning("who would take over is not noted: %s", error)
