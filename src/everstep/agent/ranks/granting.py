"""Memory for the snapshots of a rank: made, handed over, or refused with the reason. Called by `agent.node`."""

import asyncio
import logging
import time

import msgspec

from everstep.agent.memory import arenas
from everstep.agent.memory.arenas import Memory
from everstep.agent.ranks.workers import Worker
from everstep.checkpoint import arena
from everstep.model.events import SnapshotsRefused
from everstep.wire.frames import MemoryAsked

_log = logging.getLogger(__name__)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank asks for."""

    num_bytes: int
    num_buffers: int = arena.NUM_BUFFERS


def asked(told: MemoryAsked) -> Asked:
    return Asked(num_bytes=told["bytes"], num_buffers=told.get("buffers", arena.NUM_BUFFERS))


async def grant(worker: Worker, wanted: Asked, world_size: int, held: Memory) -> arenas.ArenaRefusal | None:
    """The rank is answered whatever happens here, as its training waits for that; a refusal is returned as well."""
    try:
        fd = await asyncio.to_thread(arenas.make, wanted.num_bytes, worker.rank, world_size, wanted.num_buffers)
        held.add(worker.rank, fd)
    except arenas.ArenaRefusal as refusal:
        return _refuse(worker, refusal)
    except Exception as error:
        _log.exception("no snapshot memory for rank %d", worker.rank)
        return _refuse(worker, arenas.ArenaRefusal(f"our own failure: {type(error).__name__}: {error}", None))
    if worker.channel is not None:
        worker.channel.send({"memory": "granted", "bytes": wanted.num_bytes}, (fd,))
    return None


def _refuse(worker: Worker, refusal: arenas.ArenaRefusal) -> arenas.ArenaRefusal:
    if worker.channel is not None:
        worker.channel.send({"memory": "refused", "why": refusal.why, "free_bytes": refusal.free_bytes})
    return refusal


def as_event(
    refused: arenas.ArenaRefusal, node: str, rank: int, generation: int, needed_bytes: int
) -> SnapshotsRefused:
    return SnapshotsRefused(
        at=time.time(),
        node=node,
        rank=rank,
        generation=generation,
        needed_bytes=needed_bytes,
        free_bytes=refused.free_bytes,
        why=refused.why,
    )
