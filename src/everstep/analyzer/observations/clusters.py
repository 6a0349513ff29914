"""Ranks by what their main thread does: large clusters are healthy, the rest are outliers. Pure.

Two stacks are the same when they stand at the same place of the program: what the standard library does inside (poll,
select, acquire) is noise, so is the line at which the innermost frame executes, so are lines of installed packages; the
lines at which the user's own frames call on are meaning: two collectives of one function differ in nothing else.
"""

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TypeAlias

import msgspec

from everstep.analyzer.observations.records import Frame, ProcessStack, RankEvidence, Thread

Signature: TypeAlias = tuple[tuple[str, str, int], ...]

HEALTHY_SHARE = 0.5
"""Clusters at least this large relative to the largest are healthy as well: pipeline stages stand at different places.
Higher: a whole stage is called an outlier. Lower: a sick group of a small job hides."""

_SHAPE = attrgetter("file", "name", "is_user")
"""What a frame is, but for its line."""

_DEVICE_FILES = tuple(
    f"torch/{each}" for each in ("cuda/__init__.py", "cuda/streams.py", "xpu/__init__.py", "accelerator/__init__.py")
)
"""Their `synchronize` waits for all that the device has queued, collectives of NCCL as well. CUDA spins in it."""


class Activity(enum.StrEnum):
    """Activity of a main thread, as far as its stack shows it."""

    COLLECTIVE = "waits in communication"
    BACKWARD = "in the backward pass"
    DEVICE = "waits for its device"
    LOADER = "waits for its data loader"
    SAVING = "saves or loads a checkpoint"
    PYTHON = "executes Python"
    NATIVE = "is in native code and holds the GIL"
    BLOCKED = "waits in a call of its own"
    UNKNOWN = "not known"


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    ranks: tuple[int, ...]
    signature: Signature
    activity: Activity
    innermost: str  # "all_reduce (torch/distributed/distributed_c10d.py:3245)"
    place: str  # innermost frame of the user's: "train.py:212 step"


class Clusters(msgspec.Struct, frozen=True, kw_only=True):
    """`healthy` and `outliers` hold every rank that has a stack, once; largest cluster first."""

    healthy: tuple[Cluster, ...]
    outliers: tuple[Cluster, ...]

    @property
    def outlier_ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for cluster in self.outliers for rank in cluster.ranks))


def main_thread(process: ProcessStack) -> Thread | None:
    named = next((thread for thread in process.threads if thread.name == "MainThread"), None)
    return named or (process.threads[-1] if process.threads else None)


def cluster(main_threads: Mapping[int, Thread]) -> Clusters:
    """Main thread by rank. Cost is linear in the number of ranks; stacks that differ in the lines of libraries only are
    looked at once."""
    known: dict[object, list[int]] = {}  # all that signature and activity depend on
    members: defaultdict[tuple[Signature, Activity], list[int]] = defaultdict(list)
    for rank, thread in main_threads.items():
        frames = thread.frames
        lines = tuple([frame.line for frame in frames if frame.is_user])
        seen = (tuple(map(_SHAPE, frames)), lines, thread.active, thread.owns_gil)
        ranks = known.get(seen)
        if ranks is None:
            ranks = known[seen] = members[signature(frames), activity_of(thread)]
        ranks.append(rank)
    merged = _merge_by_signature(members)
    found = [
        Cluster(
            ranks=tuple(sorted(ranks)),
            signature=key,
            activity=activity,
            innermost=_innermost(main_threads[ranks[0]].frames),
            place=place_of(main_threads[ranks[0]].frames),
        )
        for (key, activity), ranks in merged.items()
    ]
    found.sort(key=lambda c: (-len(c.ranks), c.ranks))
    return _split(found)


def _merge_by_signature(
    members: Mapping[tuple[Signature, Activity], list[int]],
) -> dict[tuple[Signature, Activity], list[int]]:
    """One place, one cluster: a sample that caught a rank on a processor does not make it another place."""
    by_place: defaultdict[Signature, Counter[Activity]] = defaultdict(Counter)
    for (key, activity), ranks in members.items():
        by_place[key][activity] += len(ranks)
    merged: defaultdict[tuple[Signature, Activity], list[int]] = defaultdict(list)
    for (key, _), ranks in members.items():
        merged[key, by_place[key].most_common(1)[0][0]] += ranks
    return merged


def _split(found: list[Cluster]) -> Clusters:
    if not found:
        return Clusters(healthy=(), outliers=())
    least = len(found[0].ranks) * HEALTHY_SHARE
    # A cluster of one is never healthy by its size beside a cluster of two: that is a job of three ranks.
    healthy = [c for c in found if len(c.ranks) >= least and (len(c.ranks) > 1 or len(found[0].ranks) == 1)]
    return Clusters(healthy=tuple(healthy), outliers=tuple(c for c in found if c not in healthy))


def signature(frames: Iterable[Frame]) -> Signature:
    """Innermost first."""
    listed = list(frames)
    start = next((i for i, frame in enumerate(listed) if not is_noise(frame)), 0)
    parts = [
        (frame.file, frame.name, frame.line if frame.is_user and position > 0 else 0)
        for position, frame in enumerate(listed[start:])
    ]
    return tuple(part for i, part in enumerate(parts) if i == 0 or part != parts[i - 1])  # recursion counts once


def is_noise(frame: Frame) -> bool:
    """The standard library, when it is innermost."""
    return not frame.is_user and "/" not in frame.file.replace("multiprocessing/", "").replace("concurrent/", "")


def activity_of(thread: Thread) -> Activity:
    frames = thread.frames
    if not frames:
        return Activity.UNKNOWN
    for frame in frames:
        if frame.is_user:
            break
        if "torch/utils/data/" in frame.file:
            return Activity.LOADER
        if "torch/distributed/checkpoint" in frame.file or frame.file.endswith("torch/serialization.py"):
            return Activity.SAVING
        if "torch/distributed/" in frame.file:
            return Activity.COLLECTIVE
        if frame.name == "synchronize" and frame.file.endswith(_DEVICE_FILES):
            return Activity.DEVICE
        if frame.file.endswith("torch/autograd/graph.py"):
            return Activity.BACKWARD if thread.active else Activity.COLLECTIVE
    if thread.owns_gil:
        return Activity.PYTHON if thread.active else Activity.NATIVE
    if thread.active:
        return Activity.UNKNOWN  # in native code without the lock: computing, or spinning in a device call
    return Activity.BLOCKED


def place_of(frames: Iterable[Frame]) -> str:
    frame = next((frame for frame in frames if frame.is_user), None)
    return f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.name}" if frame else ""


def doing(process: ProcessStack) -> str:
    """`waits in communication, all_reduce (torch/distributed/c10d.py:40), called at train.py:30 main`; empty: its stack
    was not read."""
    thread = main_thread(process)
    if thread is None or not thread.frames:
        return ""
    activity, place = activity_of(thread), place_of(thread.frames)
    known = "" if activity is Activity.UNKNOWN else f"{activity}, "
    return f"{known}{_innermost(thread.frames)}{f', called at {place}' if place else ''}"


def _innermost(frames: tuple[Frame, ...]) -> str:
    frame = next((frame for frame in frames if not is_noise(frame)), frames[0] if frames else None)
    return f"{frame.name} ({frame.file}:{frame.line})" if frame else "no Python frame"


def children_of(evidence: RankEvidence) -> list[tuple[ProcessStack, Thread]]:
    """Child processes of a rank with their main threads: data-loader workers, checkpoint writers."""
    own = evidence.own
    return [(p, thread) for p in evidence.processes if p is not own and (thread := main_thread(p))]


def is_fetching(thread: Thread) -> bool:
    """A data-loader worker that is reading a sample, as opposed to waiting for work."""
    return any(frame.file.endswith("_utils/fetch.py") for frame in thread.frames)
