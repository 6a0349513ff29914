"""What a run's snapshot memory holds at one moment, read from outside through /proc. Called by snapshot_kills.py.

Answers which steps could be restored now, by the benchmark's own count, and in which phase a process was when it died:
memory that is held open here outlives whoever wrote it. Must not write, and must let go soon: what it holds open stays
allocated.
"""

import contextlib
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from everstep.checkpoint import arena

_NAME = re.compile(r"/memfd:everstep-arena-(\d+) ")
_CELL = struct.Struct("<Qq")  # state, step; as in checkpoint/arena.py
_CELLS_AT, _CELL_STRIDE = 512, 128
_WRITER = b"everstep.agent.copies.writer_main"


@dataclass(slots=True)
class Memory:
    """One arena, held open. `is_own`: of a rank of that agent's node, otherwise a copy for another one."""

    node: str
    rank: int
    fd: int
    is_own: bool

    @property
    def inode(self) -> int:
        return os.fstat(self.fd).st_ino

    def is_being_written(self) -> bool:
        buffers = arena.inspect(self.fd).num_buffers
        cells = (os.pread(self.fd, _CELL.size, _CELLS_AT + _CELL_STRIDE * index) for index in range(buffers))
        return any(_CELL.unpack(cell)[0] == arena.WRITING for cell in cells if len(cell) == _CELL.size)

    def is_unsealed(self) -> bool:
        """The newest complete one has no sums yet."""
        snapshots = arena.inspect(self.fd).snapshots
        return bool(snapshots) and not snapshots[-1].sealed

    def pinned(self, which: int) -> bool:
        return arena.pins(self.fd)[which] is not None


@dataclass(slots=True)
class Memories:
    """Every arena of all agents of the run. Use as a context: it holds descriptors."""

    found: list[Memory] = field(default_factory=list)

    def close(self) -> None:
        for memory in self.found:
            os.close(memory.fd)
        self.found.clear()

    def of(self, *, node: str | None = None, rank: int | None = None, own: bool | None = None) -> list[Memory]:
        return [
            one
            for one in self.found
            if (node is None or one.node == node)
            and (rank is None or one.rank == rank)
            and (own is None or one.is_own == own)
        ]

    def restorable(
        self, world_size: int, resumes: Mapping[int, int], lost: frozenset[str], restarted: frozenset[str]
    ) -> int | None:
        """The newest step that every rank has a valid complete snapshot of. A lost machine has nothing any more; an
        agent that is started again still has what its own ranks wrote. On one machine several agents may hold the very
        same memory: it is gone with the first of them that is lost, unless it is what ranks write of another one that
        is not (an agent that follows a killed one is handed all memory of the machine)."""
        living = {one.inode for one in self.found if one.is_own and one.node not in lost}
        gone = {one.inode for one in self.found if one.node in lost} - living
        per_rank: list[set[int]] = [set() for _ in range(world_size)]
        for memory in self.found:
            is_there = memory.inode not in gone and (memory.is_own or memory.node not in restarted)
            if is_there and memory.rank < world_size:
                held = arena.held(memory.fd)
                per_rank[memory.rank] |= {step for step, written in held if is_valid(step, written, resumes)}
        common = set.intersection(*per_rank) if per_rank else set()
        return max(common, default=None)


def is_valid(step: int, written: int, resumes: Mapping[int, int]) -> bool:
    """No later generation went back to before it."""
    return all(step <= resumed for generation, resumed in resumes.items() if generation > written)


@contextlib.contextmanager
def memories(agents: Mapping[str, int], ranks_of: Mapping[str, set[int]]) -> Iterator[Memories]:
    found = Memories()
    try:
        for node, pid in agents.items():
            found.found += _of_agent(node, pid, ranks_of.get(node, set()))
        yield found
    finally:
        found.close()


def _of_agent(node: str, pid: int, ranks: set[int]) -> Iterator[Memory]:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = _NAME.match(str(link.readlink()))
                if name is not None:
                    rank = int(name[1])
                    yield Memory(node, rank, os.open(link, os.O_RDONLY), rank in ranks)


def is_persisting(agent_pid: int) -> bool:
    """A process that writes to the persistent tier runs below this agent."""
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/{agent_pid}/task/{agent_pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if _WRITER in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return True
    return False


def phases(found: Memories, *, node: str | None, rank: int | None, persists: bool) -> set[str]:
    """What was under way there. Of a rank: its own memory; of a node: all that lies on it; neither: anywhere."""
    own = found.of(node=node, rank=rank, own=True)
    copies = found.of(node=node, own=False) if rank is None else found.of(rank=rank, own=False)
    hit = set()
    if any(one.is_being_written() for one in own):
        hit.add("copy")
    if any(one.is_unsealed() for one in own):
        hit.add("publish")
    if any(one.pinned(arena.PIN_BACKUP) for one in own) or any(one.is_being_written() for one in copies):
        hit.add("backup")
    if persists or any(one.pinned(arena.PIN_PERSIST) for one in own):
        hit.add("persist")
    return hit
