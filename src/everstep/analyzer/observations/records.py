"""The input of the analysis: flight records, stacks and loads of ranks, already read and normalised.

Values only. The collectors of evidence (tracer, probes, `everstep analyze`) make them; `analyzer.hangs.combine` judges
them. Unknown is None or empty, and never a number that could be mistaken for a measurement.
"""

import enum
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeAlias

import msgspec

from everstep.analyzer.observations.claims import Claims
from everstep.model.facts import Taken

Sizes: TypeAlias = tuple[tuple[int, ...], ...]


class ParallelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as one rank or several described it. `ranks` is empty if its members are unknown."""

    name: str  # torch's own: "0", "3", or a hash
    desc: str = ""  # "default_pg", "mesh_tp", "TENSOR_MODEL_PARALLEL_GROUP", ...
    ranks: tuple[int, ...] = ()
    kind: str = ""  # "tp", "pp", "dp", "ep", "cp", "world", "" unknown
    complete: bool = False  # `ranks` was declared; otherwise others may belong to it

    @property
    def title(self) -> str:
        return self.desc if self.desc and self.desc != "undefined" else f"group {self.name}"


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that a rank entered."""

    group: str  # ParallelGroup.name
    seq: int  # place in the group's sequence, the same on all its ranks; for point to point: only this rank's own count
    op: str  # "all_reduce", without the backend
    record_id: int  # order in which this rank entered operations of all groups
    completed: bool
    is_p2p: bool = False
    peer: tuple[int, int] | None = None  # point to point: source and destination, as places within the group
    input_sizes: Sizes = ()
    output_sizes: Sizes = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    created_at: float | None = None
    place: str = ""  # "train.py:212 step", innermost frame that is the user's
    timeout_s: float | None = None  # after which torch ends it
    started: bool | None = None  # the device has begun it; None: the recorder does not time its device
    seen_at: float | None = None  # newest moment at which the recorder noted something of it


class OpKind(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that many operations of one record have in common; they are those of `Collective`."""

    group: str
    op: str
    is_p2p: bool = False
    peer: tuple[int, int] | None = None
    input_sizes: Sizes = ()
    output_sizes: Sizes = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    place: str = ""
    timeout_s: float | None = None


class Entries(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of one record in the order of their `record_id`, in columns: the two million of a thousand ranks
    have 75 MB. Each is made when it is asked for, anew each time. Columns are arrays of machine integers; 0 nanoseconds
    are not known."""

    kinds: tuple[OpKind, ...] = ()  # each is used
    kind: bytes = b""  # 32 bits: place in `kinds`
    seq: bytes = b""  # 64 bits, as all that follow
    record_id: bytes = b""
    created_ns: bytes = b""
    seen_ns: bytes = b""
    state: bytes = b""  # 8 bits: COMPLETED, STARTED

    COMPLETED: ClassVar[int] = 1
    STARTED: ClassVar[int] = 2

    @classmethod
    def of(cls, collectives: Iterable[Collective]) -> "Entries":
        """Build the columns from single operations, in their order."""
        listed = tuple(collectives)
        kinds: dict[OpKind, int] = {}
        kind = [kinds.setdefault(_kind_of(each), len(kinds)) for each in listed]
        return cls(
            kinds=tuple(kinds),
            kind=array("I", kind).tobytes(),
            seq=array("q", [each.seq for each in listed]).tobytes(),
            record_id=array("q", [each.record_id for each in listed]).tobytes(),
            created_ns=array("q", [round((each.created_at or 0) * 1e9) for each in listed]).tobytes(),
            seen_ns=array("q", [round((each.seen_at or 0) * 1e9) for each in listed]).tobytes(),
            state=bytes(cls.COMPLETED * each.completed | cls.STARTED * bool(each.started) for each in listed),
        )

    def __len__(self) -> int:
        return len(self.state)

    def __getitem__(self, index: int) -> Collective:
        number = index + len(self) if index < 0 else index
        state = self.state[number]
        created, seen = self._at(self.created_ns, number), self._at(self.seen_ns, number)
        kind = self.kinds[memoryview(self.kind).cast("I")[number]]
        return Collective(
            group=kind.group,
            seq=self._at(self.seq, number),
            op=kind.op,
            record_id=self._at(self.record_id, number),
            completed=bool(state & self.COMPLETED),
            is_p2p=kind.is_p2p,
            peer=kind.peer,
            input_sizes=kind.input_sizes,
            output_sizes=kind.output_sizes,
            input_dtypes=kind.input_dtypes,
            output_dtypes=kind.output_dtypes,
            created_at=created / 1e9 if created else None,
            place=kind.place,
            timeout_s=kind.timeout_s,
            started=True if state & self.STARTED else None,
            seen_at=seen / 1e9 if seen else None,
        )

    def __iter__(self) -> Iterator[Collective]:
        return map(self.__getitem__, range(len(self)))

    @staticmethod
    def _at(column: bytes, number: int) -> int:
        return memoryview(column).cast("q")[number]

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Place in `kinds`, sequence number and state of each: what thousands of ranks can be looked through by."""
        return zip(memoryview(self.kind).cast("I"), memoryview(self.seq).cast("q"), self.state, strict=True)

    def find(self, group: str, seq: int) -> int | None:
        """Where the newest collective with this number in this group is. Sends and receives are numbered apart."""
        wanted = seq.to_bytes(8, sys.byteorder, signed=True)
        at = self.seq.rfind(wanted)
        while at >= 0:
            number, odd = divmod(at, 8)
            if not odd:
                kind = self.kinds[memoryview(self.kind).cast("I")[number]]
                if kind.group == group and not kind.is_p2p:
                    return number
            at = self.seq.rfind(wanted, 0, at + 7)
        return None

    def ordered(self) -> list[OpKind]:
        """The kind of each operation."""
        return [self.kinds[number] for number in memoryview(self.kind).cast("I")]

    @property
    def record_ids(self) -> "memoryview[int]":
        return memoryview(self.record_id).cast("q")

    @property
    def seen_at(self) -> float | None:
        """The newest moment at which the recorder noted something."""
        newest = max(memoryview(self.seen_ns).cast("q"), default=0)
        return newest / 1e9 if newest else None

    @property
    def created_at(self) -> float:
        """When the newest was entered; 0: not known."""
        return max(memoryview(self.created_ns).cast("q"), default=0) / 1e9


def _kind_of(each: Collective) -> OpKind:
    return OpKind(
        group=each.group,
        op=each.op,
        is_p2p=each.is_p2p,
        peer=each.peer,
        input_sizes=each.input_sizes,
        output_sizes=each.output_sizes,
        input_dtypes=each.input_dtypes,
        output_dtypes=each.output_dtypes,
        place=each.place,
        timeout_s=each.timeout_s,
    )


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`pg_status` of one group: the newest sequence numbers, also where the record shows no entry of the group. None is
    unknown, 0 is none yet."""

    group: str
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None


class FlightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one rank's flight recorder; its ring buffer may have dropped the oldest entries."""

    rank: int
    version: str = ""
    entries: Entries = Entries()
    groups: tuple[ParallelGroup, ...] = ()
    world: tuple[int, ...] = ()  # ranks of the whole job, where the record says so
    taken_at: float | None = None  # when it was dumped, or somewhat later
    status: tuple[GroupStatus, ...] = ()
    p2p_groups: tuple[str, ...] = ()  # where sends and receives were seen, or counted: their numbers share `status`
    is_queued: bool = False  # the host queues operations for a device (NCCL), and runs ahead of it


class Frame(msgspec.Struct, frozen=True):
    name: str
    file: str  # as short as its source gave it
    line: int
    is_user: bool  # the user's own file: not the standard library, not an installed package


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    frames: tuple[Frame, ...]  # innermost first
    active: bool = False  # on a processor when it was looked at
    owns_gil: bool = False
    tid: int | None = None  # the kernel's number of it


class ProcessStack(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    threads: tuple[Thread, ...]
    parent: int | None = None
    command: str = ""


class KernelThread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thread as the kernel sees it, in the form in which evidence files have it."""

    pid: int
    tid: int
    name: str
    state: str
    call: str = ""  # "read of /data/shard-3", "futex"; empty: it runs, or that may not be read
    waits_in: str = ""  # the kernel's function
    stack: tuple[str, ...] = ()  # kernel functions, innermost first
    why: str = ""  # what may not be read


class Hold(enum.StrEnum):
    """Reason why a thread waits, as the kernel sees it."""

    NOTHING = "nothing"  # it runs, or is about to
    LOCK = "lock"  # of a thread or process of its own: without a time limit
    TIMED = "timed"  # the same with a time limit: it wakes up by itself
    OWN = "own"  # a pipe whose ends only the rank's processes hold, or the end of a child
    OUTSIDE = "outside"  # a socket, a file, a file lock, a user at a terminal
    TIMER = "timer"  # sleeps
    DISK = "disk"  # uninterruptible
    STOPPED = "stopped"
    ENDED = "ended"
    UNKNOWN = "unknown"  # another call, or it may not be read


class ThreadWait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thread of a rank or of a child of it, in the form in which evidence files have it."""

    pid: int
    tid: int
    name: str = ""  # the kernel's: "gloo_tcp_loop"
    hold: Hold = Hold.UNKNOWN
    what: str = ""  # "waits for a socket"
    left_s: float | None = None  # until it wakes up by itself
    is_store: bool = False  # what it waits for is the job's own store
    holders: tuple[int, ...] = ()  # processes that have the file lock it waits for
    held_by: tuple[int, ...] = ()  # the ranks of this machine whose processes these are; empty: not all are of ranks
    moved: bool = False  # it was on a processor between two looks: whatever it waits for comes


class RankLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Use over the last seconds. Shares are of one processor, which eight busy threads use
    eightfold, and 0..1 of a GPU; None where there is no source."""

    cpu_share: float | None = None
    gpu_share: float | None = None
    traffic_bytes_s: float | None = None


class GpuLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one moment, in the form in which evidence files have it."""

    index: int
    name: str = ""
    pids: tuple[int, ...] = ()  # as NVML numbers them: in a container these may be the host's
    use_share: float | None = None  # 0..1: some kernel ran; of the last sampling period (up to a second)
    memory_share: float | None = None  # 0..1: memory was read or written
    used_bytes: int | None = None
    total_bytes: int | None = None
    clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    why: str = ""  # it does not answer


class RankTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds per step of one rank in one round. None: not measured."""

    rank: int
    compute_s: float  # forward, backward, optimizer: everything that is not waiting for other ranks
    others_s: float | None = None  # median compute_s of the other ranks in the same round; only known of first rounds
    error_s: float = 0.0  # standard error of compute_s, from the scatter of the steps; 0: not known
    wait_s: float | None = None  # in collectives
    data_s: float | None = None  # waiting for the data loader; part of compute_s
    gc_s: float | None = None  # in the garbage collector; part of compute_s
    delay_s: float | None = None  # ready to run, and waited for a processor; part of compute_s
    throttled_s: float | None = None  # stopped by a CPU quota; part of compute_s
    io_s: float | None = None  # waiting for a disk or a server of files; part of compute_s
    cpu_s: float | None = None  # had a CPU, in a program that computes on it; part of compute_s
    send_s: float | None = None  # its data was on its way to another machine
    lost: int | None = None  # segments that it sent again, in the whole round
    takers: tuple[Taken, ...] | None = None  # who had its CPU while it was ready to run
    held: dict[str, float] | None = None  # kind of sleep in a file, or for a lock -> seconds; part of compute_s
    host: str = ""  # the machine, where it is known: ranks of one share its processors
    work: float | None = None  # amount of work: tokens, or elements of the batch


class RankEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of one rank at one moment."""

    rank: int
    flight: FlightRecord | None = None
    processes: tuple[ProcessStack, ...] = ()  # the rank's own first, then its children
    states: tuple[tuple[int, str], ...] = ()  # (pid, state letter of /proc), the rank's own first
    phase: str = ""  # what the rank said that it does: "train", "evaluation", "rendezvous", ...
    step: int | None = None  # newest step that it did, and how long ago
    step_age_s: float | None = None
    cpu_left_s: float | None = None  # until the kernel ends it for its limit of CPU time; None: no limit, or not known
    waits: tuple[ThreadWait, ...] = ()  # what keeps each thread of the rank and of its children
    native: tuple[KernelThread, ...] = ()  # where a Python stack could not be had, or says nothing
    load: RankLoad | None = None
    gpus: tuple[GpuLoad, ...] = ()
    links: dict[str, float] = {}  # of its node: interface or port -> bytes per second
    last_step: int | None = None  # newest step that its log mentions
    waits_at: tuple[str, int] | None = None  # (operation, sequence number) that the library said it timed out in
    last_output: str = ""
    stack_source: str = ""  # "py-spy", "sampler", "signal"
    unavailable: tuple[str, ...] = ()  # sources that were asked and did not answer, in words
    unsupported: tuple[str, ...] = ()  # sources that its node does not have

    @property
    def main_wait(self) -> ThreadWait | None:
        """Return what keeps the main thread of the rank's own process; None: not known."""
        own = self.states[0][0] if self.states else None
        return next((wait for wait in self.waits if wait.tid == wait.pid and own in (None, wait.pid)), None)

    @property
    def own(self) -> ProcessStack | None:
        """The rank's own process. None when only stacks of its children could be had: a stopped process gives none."""
        first = self.processes[0] if self.processes else None
        is_child = first is not None and bool(self.states) and first.pid != self.states[0][0]
        return None if is_child else first


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence about one generation. Ranks that are known to exist and have no evidence are in `world` only."""

    claims: Claims = Claims()  # what libraries and tools said in logs

    at: float
    ranks: tuple[RankEvidence, ...]
    world: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()  # ranks whose files are there, and there was no time to read them
    usual_s: float | None = None  # longest pause that is usual in this job; None: not observed
