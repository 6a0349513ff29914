"""Resources of the first host before its run is prepared: the endpoint's socket, and the token if the user gave one."""

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from everstep.engines.network import Address, Network
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.hosts.fleet import Fleet
from everstep.launcher.reach import token as tokens
from everstep.launcher.reach.munge import MungeToken, of_job
from everstep.launcher.rundir.rundir import Prepared
from everstep.wire.joining import JoinToken


class First(msgspec.Struct, frozen=True):
    hosts: Hosts
    sock: socket.socket
    token: JoinToken | None
    munge: MungeToken | None = None  # in a Slurm job: hosts that share no directory with this one join by it

    def network(self) -> tuple[Network, tuple[str, ...]]:
        """Nodes reach this host at the endpoint's address and nowhere else; and how they join."""
        hosts = self.hosts
        least = f"{hosts.least - 1} to " if hosts.least else ""
        waiting = f"waiting for {least}{hosts.num - 1} more host{'s' if hosts.num > 2 else ''} at {hosts.endpoint}"
        return Address(str(self.sock.getsockname()[0])), (waiting,)

    def with_token(self, run_dir: Path) -> tuple["First", tuple[Path, ...]]:
        """With the user's token or a new one, and where that was put. Raises JournalError."""
        if self.token is not None:
            tokens.forget_earlier(self.hosts)
            return self, ()
        token, places = tokens.make(self.hosts, run_dir)
        return First(self.hosts, self.sock, token, of_job(self.hosts)), places

    def fleet(self, prepared: Prepared, say: Callable[[str], None]) -> Fleet:
        assert self.token is not None
        return Fleet(self.hosts, self.sock, self.token, self.munge, prepared, say)
