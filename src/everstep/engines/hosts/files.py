"""Files of other hosts, written into this host's run directory as they arrive: logs and traces of ranks, error reports,
evidence.

A host is believed about its own ranks and nodes only, as the controller had nodes start them, and names follow a list
of patterns, so nothing else can be written. Each address has a limit, and so have all hosts together: a host draws its
session itself, so leaving and joining again resets nothing. What is skipped stays a hole in the file.
"""

import contextlib
import ipaddress
import os
import re
from collections.abc import Callable
from pathlib import Path

from everstep.errors import WireError
from everstep.wire.joining import PIECE_BYTES, Piece

MAX_FILE_BYTES = 1 << 40
"""The largest offset in a log; how much of it is sent is limited by the sender, and by the next limit."""

MAX_HOST_BYTES = 1 << 30
"""What hosts of one address (of IPv6, one network of 64 bits) may write here in the life of the run's launcher."""

LEAST_HOSTS = 4
"""All hosts together may write as much as so many, or as the run has: hosts that replace others need room too."""

HOLE_SHARE = 16
"""A skipped part of a file counts this much less than a written one: it takes no disk, until somebody copies it."""

FILE_BYTES = 4096
"""What a new file counts for beside its content: empty ones fill a disk too."""

NodeOf = Callable[[int, int], str | None]
"""(generation, rank) -> the node that was to start it."""

LOG = re.compile(r"logs/gen-(\d{1,9})/rank-(\d{1,7})/std(?:out|err)\.log", re.ASCII)
_OTHERS = (
    re.compile(r"errors/gen-(\d{1,9})/rank-(\d{1,7})\.json", re.ASCII),
    re.compile(r"traces/(?:i|slow|t)\d{1,9}-gen-(\d{1,9})-rank-(\d{1,7})\.json", re.ASCII),
    re.compile(r"evidence/[ie]\d{1,9}/gen-(\d{1,9})/rank-(\d{1,7})(?:-flight)?\.json", re.ASCII),
)
_NODE_FILE = re.compile(r"nodes/(n\d{1,9})/(?:agent\.log|persist\.log)", re.ASCII)


class Received:
    """The files of all hosts. Raises WireError for what a host may not write, OSError for what cannot be written."""

    def __init__(self, run_dir: Path, node_of: NodeOf, num_hosts: int = LEAST_HOSTS) -> None:
        self._run_dir = run_dir
        self._num_hosts = max(num_hosts, LEAST_HOSTS)
        self._node_of = node_of
        self._owners: dict[str, str] = {}  # file -> session of the host that sent it first
        self._upto: dict[str, int] = {}
        self._written: dict[str, int] = {}  # network -> bytes, holes at their share
        self._elsewhere: set[tuple[int, int]] = set()  # generation and rank of logs that were written on other hosts

    def is_elsewhere(self, generation: int, rank: int) -> bool:
        """Whether this rank's output belongs to another host's terminal. From any thread."""
        return (generation, rank) in self._elsewhere

    def of(self, session: str) -> dict[str, int]:
        """What this host need not send again."""
        return {path: self._upto.get(path, 0) for path, owner in self._owners.items() if owner == session}

    def take(self, session: str, nodes: frozenset[str], piece: Piece, address: str = "") -> int:
        """Write it; returns up to where the file is here. `nodes`: that run, or ran, on that host. `address`: that its
        connection comes from."""
        self._check(session, nodes, piece, _network(address))
        log = LOG.fullmatch(piece.path)
        if log is not None:
            self._elsewhere.add((int(log[1]), int(log[2])))
        path = self._run_dir / piece.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if log is not None and piece.is_whole and not piece.data:  # the same file as the rank's stdout
            with contextlib.suppress(FileExistsError):
                path.symlink_to("stdout.log")
            self._upto[piece.path] = 0
            return 0
        is_atomic = log is None and not piece.path.startswith("nodes/")
        target = path.with_name(f"{path.name}.part") if is_atomic else path
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if piece.at == 0 and is_atomic:
                os.ftruncate(fd, 0)
            os.pwrite(fd, piece.data, piece.at)
        finally:
            os.close(fd)
        if is_atomic and piece.is_whole:
            target.replace(path)
        self._upto[piece.path] = upto = piece.at + len(piece.data)
        return upto

    def has(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            return (self._run_dir / path).exists()
        return False

    def _check(self, session: str, nodes: frozenset[str], piece: Piece, network: str) -> None:
        node = self._node(piece.path)
        if node is None or node not in nodes:
            raise WireError(f"it may not write {piece.path[:120]!a}")
        if len(piece.data) > PIECE_BYTES or not 0 <= piece.at <= MAX_FILE_BYTES:
            raise WireError(f"a piece of {len(piece.data)} bytes at {piece.at} of {piece.path}")
        new = FILE_BYTES if piece.path not in self._owners else 0
        hole = max(0, piece.at - self._upto.get(piece.path, 0)) // HOLE_SHARE
        costs = len(piece.data) + new + hole
        written = self._written.get(network, 0) + costs
        if written > MAX_HOST_BYTES:
            raise WireError(f"more than {MAX_HOST_BYTES} bytes of files")
        if sum(self._written.values()) + costs > self._num_hosts * MAX_HOST_BYTES:
            raise WireError(f"more than {self._num_hosts * MAX_HOST_BYTES} bytes of files of all hosts")
        if self._owners.setdefault(piece.path, session) != session:
            raise WireError(f"{piece.path} is another host's")
        self._written[network] = written

    def _node(self, path: str) -> str | None:
        """The node that owns this file; None: none does."""
        if own := _NODE_FILE.fullmatch(path):
            return own[1]
        found = next((match for match in (each.fullmatch(path) for each in (LOG, *_OTHERS)) if match), None)
        return self._node_of(int(found[1]), int(found[2])) if found is not None else None


def _network(address: str) -> str:
    """One host has all addresses of an IPv6 network of 64 bits."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(address.partition("%")[0])
        if found.version == 6 and found.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(found), 64), strict=False))
    return address
