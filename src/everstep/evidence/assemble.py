"""All files of each rank become one RankEvidence: the newest record wins, main process before its children. Pure."""

from collections.abc import Mapping

import msgspec

from everstep.analyzer.observations.records import Case, FlightRecord, Frame, ProcessStack, RankEvidence, RankLoad
from everstep.analyzer.reading.flight import normalise
from everstep.evidence.decode import Part, Said
from everstep.evidence.logs import LogFacts
from everstep.evidence.watched import TooLongError, Watch, say, unwatched

SAME_MOMENT_S = 1.0
"""Records of one rank whose newest entries are closer than this are one dump in two formats."""


_CHILD_BEGINS = frozenset({"run", "_bootstrap", "_main", "spawn_main"})
"""Functions of multiprocessing in which a child runs. Its parent is in others, as `join` and `start`."""


class RankFiles(msgspec.Struct, kw_only=True):
    """Everything that was found of one rank."""

    parts: list[tuple[str, Part]] = msgspec.field(default_factory=list)
    logs: list[LogFacts] = msgspec.field(default_factory=list)
    unavailable: list[str] = msgspec.field(default_factory=list)
    seen: bool = False

    def add(self, path: str, part: Part) -> None:
        self.parts.append((path, part))

    @property
    def has_dump(self) -> bool:
        return bool(self.parts)

    def merged(self, other: "RankFiles") -> "RankFiles":
        return RankFiles(
            parts=[*self.parts, *other.parts],
            logs=[*self.logs, *other.logs],
            unavailable=[*self.unavailable, *other.unavailable],
            seen=self.seen or other.seen,
        )


def with_record(part: Part, rank: int) -> Part:
    """Its record in columns instead of the raw one, which is thirty times as large. A record that cannot be read costs
    nothing that stands beside it in the file."""
    if part.record is not None:  # read ahead, of a rank that was not known
        return msgspec.structs.replace(part, record=msgspec.structs.replace(part.record, rank=rank, taken_at=part.at))
    if part.raw_record is None:
        return part
    try:
        record = msgspec.structs.replace(normalise(part.raw_record, rank), taken_at=part.at)
    except Exception as error:
        return msgspec.structs.replace(part, raw_record=None, unavailable=(*part.unavailable, say(error)))
    return msgspec.structs.replace(part, raw_record=None, record=record)


def assemble(by_rank: Mapping[int, RankFiles], at: float, watch: Watch = unwatched) -> tuple[Case, list[str]]:
    """The case, and notes about what was set aside."""
    notes: list[str] = []
    ranks = tuple(_guarded(rank, files, notes, watch) for rank, files in sorted(by_rank.items()))
    return Case(at=at, ranks=ranks, world=tuple(sorted(by_rank))), notes


def _guarded(rank: int, files: RankFiles, notes: list[str], watch: Watch) -> RankEvidence:
    """One rank's evidence, or why there is none: the others' counts all the same."""
    try:
        with watch(""):
            return _rank(rank, files, notes)
    except (Exception, TooLongError) as error:
        what = f"the evidence of rank {rank} cannot be put together: {say(error)}"
        notes.append(what)
        return RankEvidence(rank=rank, unavailable=(what,))


def _rank(rank: int, files: RankFiles, notes: list[str]) -> RankEvidence:
    records = [(path, part.record) for path, part in files.parts if part.record is not None]
    unavailable = [*files.unavailable, *(f"{path}: {why}" for path, part in files.parts for why in part.unavailable)]
    steps = [facts.last_step for facts in files.logs if facts.last_step is not None]
    timeouts = [facts.waits_at for facts in files.logs if facts.waits_at is not None]
    loads: list[RankLoad] = [part.load for _, part in files.parts if part.load is not None]
    said = next((part.said for _, part in reversed(files.parts) if part.said is not None), Said())
    processes = _processes([process for _, part in files.parts for process in part.processes])
    return RankEvidence(
        rank=rank,
        flight=_newest(rank, records, notes),
        processes=processes,
        states=_states(files, processes),
        native=tuple(thread for _, part in files.parts for thread in part.native),
        load=loads[-1] if loads else None,
        last_step=max(steps, default=None),
        waits_at=timeouts[-1] if timeouts else None,
        last_output="\n".join(line for facts in files.logs for line in facts.last_lines)[-2000:],
        unavailable=tuple(unavailable),
        **msgspec.structs.asdict(said),
    )


def _newest(rank: int, records: list[tuple[str, FlightRecord]], notes: list[str]) -> FlightRecord | None:
    if len(records) < 2:
        return records[0][1] if records else None

    def order(item: tuple[str, FlightRecord]) -> tuple[float, int, int]:
        record = item[1]
        with_place = sum(bool(kind.place) for kind in record.entries.ordered())
        return round(_last_at(record) / SAME_MOMENT_S), len(record.entries), with_place

    path, chosen = max(records, key=order)
    for other, record in records:
        age = _last_at(chosen) - _last_at(record)
        if age > SAME_MOMENT_S:
            notes.append(f"{other} was set aside: {path} is a record of rank {rank} too, and {age:.0f} s newer")
    return chosen


def _last_at(record: FlightRecord) -> float:
    return record.entries.created_at


def _processes(processes: list[ProcessStack]) -> tuple[ProcessStack, ...]:
    """The rank's own process first: it has no parent here, and its stack has the user's main program.

    py-spy's JSON does not report parents; then a data-loader worker is known by its stack.
    """
    by_pid = {process.pid: process for process in processes}  # several dumps of one process: the last one
    return tuple(sorted(by_pid.values(), key=lambda process: (_is_child(process, by_pid), process.pid)))


def _is_child(process: ProcessStack, by_pid: Mapping[int, ProcessStack]) -> bool:
    if process.parent is not None and process.parent in by_pid:
        return True
    return any(
        frame.name == "_worker_loop" or (frame.name.rpartition(".")[2] in _CHILD_BEGINS and _is_multiprocessing(frame))
        for thread in process.threads
        if thread.name == "MainThread"
        for frame in thread.frames
    )


def _is_multiprocessing(frame: Frame) -> bool:
    return frame.file.endswith(("multiprocessing/process.py", "multiprocessing/spawn.py"))


def _states(files: RankFiles, processes: tuple[ProcessStack, ...]) -> tuple[tuple[int, str], ...]:
    """States, of the rank's own process first: the first without a parent here, or if its stack is missing, the first
    that was listed and has none."""
    states = {pid: letter for _, part in files.parts for pid, letter in part.states}
    by_pid = {process.pid: process for process in processes}
    own = processes[0].pid if processes else None
    if processes and _is_child(processes[0], by_pid):
        own = next((pid for pid in states if pid not in by_pid), own)
    return tuple(sorted(states.items(), key=lambda state: (state[0] != own, state[0])))
