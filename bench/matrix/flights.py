"""Flight records of NCCL jobs that never ran: hosts that queue, devices that follow, and one fault.

A model of a training job with tensor, pipeline and data parallelism. Each host queues its operations and runs ahead of
its device; each device takes them in order; a collective ends when the devices of all members are in it. The records
have the layout of torch's dumps, with the truth beside them. For tests and `flight_records.py`.
"""

import dataclasses
import random
from typing import Any

FAULTS = ("stopped-host", "stopped-device", "standing-watchdog", "skipped", "mismatched", "membership")
BEGAN_S = 1_760_000_000.0
OP_S = 0.004
GAP_S = 0.0005

Group = tuple[str, str, tuple[int, ...]]
"""Name, description, ranks."""


@dataclasses.dataclass(slots=True)
class Operation:
    """One entry of one rank."""

    group: Group
    op: str
    seq: int
    record_id: int
    peer: int | None = None  # of a send or receive: the other rank
    size: int = 4096
    created: float = 0.0
    started: float | None = None
    ended: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A folder's worth of records: what each rank dumped, who is guilty, and when the dumps were taken."""

    records: dict[int, dict[str, Any]]
    guilty: frozenset[int]
    fault: str
    taken_at: float
    world: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Of a job."""

    tp: int
    pp: int
    dp: int

    @property
    def size(self) -> int:
        return self.tp * self.pp * self.dp

    def place(self, rank: int) -> tuple[int, int, int]:
        """Its tensor, data and pipeline coordinates."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)


class Job:
    """A job that is built, runs, and is dumped."""

    def __init__(self, draw: random.Random, shape: Shape, *, timed: bool, only_active: bool) -> None:
        self.draw, self.shape = draw, shape
        self._timed, self._only_active = timed, only_active
        self.groups = _groups(shape)
        self.ops: dict[int, list[Operation]] = {rank: [] for rank in range(shape.size)}
        self.stops_at: dict[int, int] = {}  # rank -> index of the operation that its device never begins
        self.unwatched: dict[int, int] = {}  # rank -> index from which nothing is noted as ended
        self.declares: dict[int, dict[str, tuple[int, ...]]] = {}
        self._seq: dict[tuple[int, str], int] = {}
        self._p2p: dict[tuple[int, str], int] = {}

    def queue_step(self, micro: int, at: float, halted: dict[int, int], skip: tuple[int, int] | None = None) -> None:
        """One step on every host. `halted`: ranks that stop after so many operations in all; `skip`: a rank, and which
        operation of this step it leaves out."""
        for rank in range(self.shape.size):
            clock = at + self.draw.uniform(0, 0.002)
            for number, (group, op, peer, size) in enumerate(self.program(rank, micro)):
                if rank in halted and len(self.ops[rank]) >= halted[rank]:
                    break
                if skip == (rank, number):
                    continue
                self._queue(rank, group, op, peer, size, clock)
                clock += GAP_S * self.draw.uniform(0.5, 1.5)

    def program(self, rank: int, micro: int) -> list[tuple[Group, str, int | None, int]]:
        """The operations of one step: group, name, peer, size."""
        _, _, stage = self.shape.place(rank)
        by_kind = self.groups[rank]
        program: list[tuple[Group, str, int | None, int]] = []
        step = self.shape.tp * self.shape.dp
        for _ in range(micro):
            if stage > 0:
                program.append((by_kind["pp"], "recv", rank - step, 2048))
            if "tp" in by_kind:
                program += [
                    (by_kind["tp"], "_all_gather_base", None, 1024),
                    (by_kind["tp"], "_reduce_scatter_base", None, 8192),
                ]
            if stage < self.shape.pp - 1:
                program.append((by_kind["pp"], "send", rank + step, 2048))
        for _ in range(micro):
            if stage < self.shape.pp - 1:
                program.append((by_kind["pp"], "recv", rank + step, 2048))
            if "tp" in by_kind:
                program += [
                    (by_kind["tp"], "_all_gather_base", None, 2048),
                    (by_kind["tp"], "_reduce_scatter_base", None, 4096),
                ]
            if stage > 0:
                program.append((by_kind["pp"], "send", rank - step, 2048))
        if "dp" in by_kind:
            program += [
                (by_kind["dp"], "_reduce_scatter_base", None, 65536),
                (by_kind["dp"], "_all_gather_base", None, 16384),
            ]
        program.append((by_kind["world"], "all_reduce", None, 1))
        return program

    def _queue(self, rank: int, group: Group, op: str, peer: int | None, size: int, at: float) -> None:
        key = rank, group[0]
        counter = self._seq if peer is None else self._p2p
        counter[key] = counter.get(key, 0) + 1
        listed = self.ops[rank]
        listed.append(Operation(group, op, counter[key], len(listed), peer, size, at))

    def run(self, until: float, after: dict[int, int] | None = None) -> None:
        """Devices take operations in order, as long as their members' devices come to the same one. `after`: how many
        of each rank's operations are over already."""
        at = dict(after) if after is not None else dict.fromkeys(self.ops, 0)
        free = dict.fromkeys(self.ops, BEGAN_S)
        moved = True
        while moved:
            moved = False
            for rank in self.ops:
                moved = self._advance(rank, at, free, until) or moved

    def _advance(self, rank: int, at: dict[int, int], free: dict[int, float], until: float) -> bool:
        heads = {}
        entry = self._head(rank, at)
        if entry is None:
            return False
        if entry.started is None:
            start = max(free[rank], entry.created) + OP_S * self.draw.uniform(0.8, 1.2)
            if start > until:
                return False
            entry.started = start
        members = self._members(rank, entry)
        for member in members:
            theirs = self._head(member, at)
            if theirs is None or not _same(entry, theirs, rank, member):
                return False
            if entry.peer is None and set(self._members(member, theirs)) != set(members):
                return False
            if theirs.started is None:
                return member != rank and self._advance_start(member, theirs, free, until)
            heads[member] = theirs
        ended = max(e.started for e in heads.values() if e.started is not None) + OP_S / 4
        if ended > until:
            return False
        for member, theirs in heads.items():
            theirs.ended = ended
            free[member] = ended
            at[member] += 1
        return True

    def _advance_start(self, rank: int, entry: Operation, free: dict[int, float], until: float) -> bool:
        start = max(free[rank], entry.created) + OP_S * self.draw.uniform(0.8, 1.2)
        if start > until:
            return False
        entry.started = start
        return True

    def _head(self, rank: int, at: dict[int, int]) -> Operation | None:
        index = at[rank]
        if index >= len(self.ops[rank]) or self.stops_at.get(rank, 1 << 60) <= index:
            return None
        return self.ops[rank][index]

    def _members(self, rank: int, entry: Operation) -> tuple[int, ...]:
        if entry.peer is not None:
            return (rank, entry.peer)
        return self.declares.get(rank, {}).get(entry.group[0], entry.group[2])

    def dump(self, rank: int) -> dict[str, Any]:
        """As `_dump_nccl_trace` gives it."""
        listed = self.ops[rank]
        unwatched = self.unwatched.get(rank, 1 << 60)
        done = [e.ended is not None and i < unwatched for i, e in enumerate(listed)]
        entries = [self._entry(rank, e, d) for e, d in zip(listed, done, strict=True) if not (self._only_active and d)]
        config, status = {}, {}
        for number, (name, desc, ranks) in enumerate(sorted(self.groups[rank].values(), key=lambda g: int(g[0]))):
            mine = self.declares.get(rank, {}).get(name, ranks)
            config[name] = {"name": name, "desc": desc, "ranks": str(list(mine))}
            own = [(e, d) for e, d in zip(listed, done, strict=True) if e.group[0] == name]
            started = [e.seq for e, d in own if e.started is not None]
            status[str(number)] = {
                "last_enqueued_collective": own[-1][0].seq if own else -1,
                "last_started_collective": max(started, default=-1) if self._timed else -1,
                "last_completed_collective": max((e.seq for e, d in own if d), default=-1),
            }
        return {"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries}

    def _entry(self, rank: int, e: Operation, done: bool) -> dict[str, Any]:
        name, desc, ranks = e.group
        label = e.op
        if e.peer is not None:
            mine, other = ranks.index(rank), ranks.index(e.peer)
            label = f"send {mine}->{other}" if e.op == "send" else f"recv {mine}<-{other}"
        numbers = sorted(int(group[0]) for group in self.groups[rank].values())
        began = e.started if self._timed else None
        state = "completed" if done else "started" if began is not None else "scheduled"
        return {
            "record_id": e.record_id, "pg_id": numbers.index(int(name)), "process_group": (name, desc),
            "collective_seq_id": 0 if e.peer is not None else e.seq, "p2p_seq_id": e.seq if e.peer is not None else 0,
            "op_id": e.record_id, "profiling_name": f"nccl:{label}", "time_created_ns": int(e.created * 1e9),
            "input_sizes": [[e.size]], "input_dtypes": ["BFloat16"], "output_sizes": [[e.size]],
            "output_dtypes": ["BFloat16"], "state": state,
            "time_discovered_started_ns": int(began * 1e9) if began is not None else None,
            "time_discovered_completed_ns": int(e.ended * 1e9) if done and e.ended is not None else None,
            "retired": done, "timeout_ms": 600_000, "is_p2p": e.peer is not None,
        }  # fmt: skip


def _same(mine: Operation, theirs: Operation, rank: int, other: int) -> bool:
    if mine is theirs:
        return True
    if mine.group[0] != theirs.group[0] or (mine.peer is None) != (theirs.peer is None):
        return False
    if mine.peer is not None:
        return mine.peer == other and theirs.peer == rank and mine.op != theirs.op
    return mine.seq == theirs.seq and mine.op == theirs.op and mine.size == theirs.size


def _groups(shape: Shape) -> dict[int, dict[str, Group]]:
    """Of each rank by kind. Names count up over the job, as torch's do."""
    names = iter(range(1, 1 << 20))
    found: dict[int, dict[str, Group]] = {
        rank: {"world": ("0", "default_pg", tuple(range(shape.size)))} for rank in range(shape.size)
    }
    for kind, desc, axis in (("dp", "DATA_PARALLEL_GROUP", 1), ("tp", "TENSOR_MODEL_PARALLEL_GROUP", 0),
                             ("pp", "PIPELINE_MODEL_PARALLEL_GROUP", 2)):  # fmt: skip
        if (shape.tp, shape.dp, shape.pp)[axis] < 2:
            continue
        seen: dict[tuple[int, ...], Group] = {}
        for rank in range(shape.size):
            ranks = tuple(r for r in range(shape.size) if _differs_only(shape, r, rank, axis))
            if ranks not in seen:
                seen[ranks] = (str(next(names)), desc, ranks)
            found[rank][kind] = seen[ranks]
    return found


def _differs_only(shape: Shape, one: int, other: int, axis: int) -> bool:
    pairs = zip(shape.place(one), shape.place(other), strict=True)
    return all(mine == theirs for number, (mine, theirs) in enumerate(pairs) if number != axis)


SHAPES = (
    Shape(2, 2, 2),
    Shape(2, 1, 4),
    Shape(4, 2, 2),
    Shape(2, 4, 2),
    Shape(1, 1, 8),
    Shape(1, 4, 2),
    Shape(4, 1, 2),
)


def make_guilty(seed: int, fault: str = "") -> Made:
    """A job in which one rank breaks, dumped by the library minutes later."""
    draw = random.Random(seed)
    fault = fault or FAULTS[seed % len(FAULTS)]
    shape = draw.choice([s for s in SHAPES if fault != "mismatched" or s.tp > 2 or s.dp > 2])
    # Without timed devices the record of a stopped one looks like that of its peers.
    timed = fault == "stopped-device" or draw.random() < 0.5
    job = Job(draw, shape, timed=timed, only_active=draw.random() < 0.5 and fault != "skipped")
    guilty = draw.randrange(shape.size)
    micro = draw.randint(1, 4)
    good = draw.randint(3, 6)
    at = BEGAN_S
    for _ in range(good):
        job.queue_step(micro, at, {})
        at += 1.0
    begun = len(job.ops[guilty])
    program = job.program(guilty, micro)
    _break(job, draw, guilty, fault, begun, program, micro, at)
    job.run(at + 600.0)
    return Made({r: job.dump(r) for r in job.ops}, frozenset({guilty}), fault, at + 600.0, tuple(job.ops))


def _break(
    job: Job, draw: random.Random, guilty: int, fault: str, begun: int, program: list[Any], micro: int, at: float
) -> None:
    number = draw.randrange(len(program))
    ahead = draw.randint(0, 1)
    if fault == "stopped-host":
        for i in range(1 + ahead):
            job.queue_step(micro, at + i, {guilty: begun + number})
        return
    collectives = [i for i, (_, _, peer, _) in enumerate(program) if peer is None]
    number = draw.choice(collectives)
    if fault == "skipped":
        job.queue_step(micro, at, {}, skip=(guilty, number))
        return
    for i in range(1 + ahead):
        job.queue_step(micro, at + i, {})
    entry = job.ops[guilty][begun + number]
    if fault == "stopped-device":
        job.stops_at[guilty] = begun + number
    elif fault == "standing-watchdog":
        job.stops_at[guilty] = begun + len(program)
        job.unwatched[guilty] = begun + number
    elif fault == "mismatched":
        big = [i for i in collectives if len(program[i][0][2]) > 2]
        entry = job.ops[guilty][begun + draw.choice(big)]
        entry.op, entry.size = draw.choice([(entry.op, entry.size + 7), ("broadcast", entry.size)])
    elif fault == "membership":
        group = draw.choice([g for k, g in job.groups[guilty].items() if len(g[2]) > 2 and k != "pp"])
        other = draw.choice([r for r in group[2] if r != guilty])
        job.declares[guilty] = {group[0]: tuple(r for r in group[2] if r != other)}


def make_healthy(seed: int) -> Made:
    """A job that moves, dumped at some moment: its queues are full of what is not begun."""
    draw = random.Random(seed)
    shape = draw.choice(SHAPES)
    job = Job(draw, shape, timed=draw.random() < 0.5, only_active=draw.random() < 0.5)
    micro = draw.randint(1, 6)
    step_s = draw.choice([0.05, 0.2, 1.0, 2.0])
    at = BEGAN_S
    steps = draw.randint(4, 8)
    for _ in range(steps - 1):
        job.queue_step(micro, at, {})
        at += step_s
    # In the newest step hosts are at different places.
    newest = {r: len(ops) + draw.randrange(len(job.program(r, micro)) + 1) for r, ops in job.ops.items()}
    job.queue_step(micro, at, newest)
    taken_at = at + draw.uniform(0.01, 0.5)
    job.run(taken_at - step_s * draw.uniform(0, 1.5))
    return Made({r: job.dump(r) for r in job.ops}, frozenset(), "healthy", taken_at, tuple(job.ops))
