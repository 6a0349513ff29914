"""Snapshots between nodes: each agent serves, pushes what is to be copied elsewhere, and fetches what lies elsewhere.

For the agent, all in its event loop; blocking work is done in threads that end when the call is cancelled:

    shelf = Backups(memory.free_bytes)                       # checkpoint.backups: what is kept for ranks of other nodes
    server = Server(token, shelf, own, run=run_id)           # own() -> (rank, fd) of this node's arenas
    endpoint = await server.start()                          # NodeJoined.endpoint; tell it to others exactly so
    limiter = Limiter(policy.backup_rate_bytes_s)            # one for all pushes of the node

    arena.pin(fd, arena.PIN_BACKUP, snapshot.step)           # then look with inspect() that it is (still) there
    pushed = await push(endpoint, token, run=run_id, rank=r, world_size=w, fd=fd, snapshot=snapshot, limiter=limiter)
    await drop(old_endpoint, token, run=run_id, rank=r, generation=g)   # what lies there is not needed any more
    fd = await fetch(endpoint, token, run=run_id, rank=r, step=k, make_arena=make)   # the descriptor is yours

    await server.close(); shelf.close()                      # in this order

`make(capacity_bytes)` makes an empty arena with buffers of at least that size (`arena.arena_bytes(capacity_bytes, n)`
bytes are enough), in a thread, and may raise. Whatever does not work is a TransferError with a sentence; `is_refusal`
says that the same will come of it until something changes over there. A push that broke off is simply done again: it
goes on where it was. Every wait ends after `patience_s` without progress. Pushed snapshots of older generations are
refused, see `Backups.invalidate_after(step, generation)`, which belongs to every StartWorkers.

Here: TCP, with `tls` TLS 1.3 over it. These functions are the seam for another one (docs/checkpoints.md, "Transport").
"""

from everstep.checkpoint.transport.client import drop, fetch, push
from everstep.checkpoint.transport.outcome import Pushed, TransferError
from everstep.checkpoint.transport.pacing import Limiter
from everstep.checkpoint.transport.server import Server
from everstep.checkpoint.transport.tls import Tls

__all__ = ["Limiter", "Pushed", "Server", "Tls", "TransferError", "drop", "fetch", "push"]
