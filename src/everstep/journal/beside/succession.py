"""Where the controller of a run over several hosts is, and which host would take over: `succession.json`.

Each host that keeps the journal has its own, and writes it again while it hears of the controller's host.
"""

import socket
import time
from pathlib import Path

import msgspec

from everstep.linux.files import write_whole
from everstep.linux.regular import read_regular

NAME = "succession.json"
WRITE_S = 2.0
FRESH_S = 10.0
"""A host that has not heard of the controller's host for so long does not know where it is."""


class Succession(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    epoch: int
    host: str  # of the controller
    here: str  # who wrote this
    heirs: tuple[str, ...]  # in the order in which they ask for votes
    needed: int  # votes, of these and of the controller's host together
    doors: tuple[tuple[str, int], ...] = ()  # address and port of all of them
    door: tuple[str, int] | None = None  # of the controller's host
    endpoints: tuple[tuple[str, int], ...] = ()  # under which hosts look for the run

    @property
    def may_be_succeeded(self) -> bool:
        return len(self.heirs) >= self.needed

    def is_elsewhere(self, now: float) -> bool:
        """The controller was heard of on another host than this one."""
        return self.host != self.here and now - self.at < FRESH_S

    def text(self, now: float) -> str:
        where = f"on {self.host}, epoch {self.epoch}"
        if self.epoch > 1 and self.door is not None:
            address, port = self.door
            where = f"on {self.host} ({f'[{address}]' if ':' in address else address}:{port}), epoch {self.epoch}"
        if self.host != self.here and now - self.at >= FRESH_S:
            where += f", not heard of for {now - self.at:.0f} s"
        if not self.may_be_succeeded:
            return f"{where}; no host can take over: that needs {self.needed} other hosts, there are {len(self.heirs)}"
        first, *others = self.heirs
        then = f", then {', '.join(others)}" if others else ""
        return f"{where}; {first} would take over{then} ({self.needed} of {len(self.heirs) + 1} must agree)"


def note(
    run_dir: Path,
    *,
    epoch: int,
    host: str,
    heirs: tuple[str, ...],
    needed: int,
    doors: tuple[tuple[str, int], ...],
    door: tuple[str, int] | None = None,
    endpoints: tuple[tuple[str, int], ...] = (),
) -> None:
    """Raises OSError."""
    value = Succession(
        at=time.time(),
        epoch=epoch,
        host=host,
        here=socket.gethostname(),
        heirs=heirs,
        needed=needed,
        doors=doors,
        door=door,
        endpoints=endpoints,
    )
    write_whole(run_dir / NAME, msgspec.json.encode(value), mode=0o600)


def known(run_dir: Path) -> Succession | None:
    """The succession on record; None: no host is to take over."""
    try:
        return msgspec.json.decode(read_regular(run_dir / NAME), type=Succession)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
