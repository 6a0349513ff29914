"""Carries out one kill of snapshot_kills.py: waits for the phase it aims at, kills, and looks what was hit.

Answers for each kill: which phases the dead were in (from the memory they leave), which step was the newest that could
be restored at that moment (counted by the benchmark itself), which one the run went back to, and when it was whole
again. It must not help the run in any way; a lost machine is everstep's own drill, all else is SIGKILL from here.
"""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep.cli.ask import post
from everstep.errors import EverstepError
from everstep.journal.runs import RunDir
from killing.snapshot_kills_memory import Memories, is_persisting, is_valid, memories, phases
from killing.snapshot_kills_plan import Kill
from killing.strikes import StalledError, Watch, await_whole, whole_at
from measuring.figures import NEVER
from measuring.journaltail import Population

_AIM_S = {"persist": 8.0}
_AIM_OTHERS_S = 2.0
_PHASE_S = {"copy": 0.03, "publish": 0.03, "backup": 0.1, "persist": 0.4, "step": 0.3}
"""How long a phase lasts, roughly: the kill comes a random share of it after the phase was seen."""

_DEATH_S = 20.0
_COVER_S = 30.0


@dataclass
class Deeds(Population):
    """The run as its journal tells it, and what of restores is needed here."""

    resumes: dict[int, int] = field(default_factory=dict)  # generation: step, -1 for the start
    sources: dict[int, str] = field(default_factory=dict)  # generation: "memory", "peer" or "disk"
    ranks_of: dict[str, set[int]] = field(default_factory=dict)
    stepped: set[int] = field(default_factory=set)  # ranks that did a step in the newest generation
    restore_failures: list[str] = field(default_factory=list)
    committed: list[tuple[int, int]] = field(default_factory=list)  # step, and the generation at that moment
    not_persisted: list[str] = field(default_factory=list)

    def _take_event(self, event: dict[str, Any]) -> None:
        super()._take_event(event)
        match event["type"]:
            case "WorkersStarted" if event["generation"] == self.generation:
                self.ranks_of[event["node"]] = {one["rank"] for one in event["started"]}
            case "NodeLost":
                self.ranks_of.pop(event["node"], None)
            case "RestoreFailed":
                told = f"rank {event['rank']} step {event['step']} from {event['source']}: {event['why']}"
                self.restore_failures.append(told)
            case "CheckpointCommitted" | "SnapshotPersisted" if event.get("why"):
                self.not_persisted.append(f"step {event['step']}: {event['why']}")
            case "CheckpointCommitted":
                self.committed.append((event["step"], self.generation))

    def _take_action(self, action: dict[str, Any]) -> None:
        super()._take_action(action)
        if action["type"] == "StartWorkers":
            generation, step = action["generation"], action["resume_step"]
            self.resumes[generation] = -1 if step is None else step
            known = self.sources.get(generation, "memory")
            if action.get("restore_path"):
                known = "disk"
            elif action.get("fetch") and known == "memory":
                known = "peer"
            self.sources[generation] = known


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one kill did. `possible` and `resumed`: None where nothing had to be restored or it is not known."""

    kill: Kill
    hit: tuple[str, ...]
    recovered_s: float
    possible: int | None
    resumed: int | None
    source: str
    lost_steps: int | None
    restarted: bool
    uncovered_s: float | None = (
        None  # how long a lost machine's ranks had no copy elsewhere, from when it was due to die
    )
    why: str = ""

    @property
    def lost_all(self) -> bool:
        """It began anew, though steps had been completed."""
        return self.restarted and self.resumed == -1 and self.kill.after_step > 0

    @property
    def is_newest(self) -> bool | None:
        """What was there at the moment of the kill was used, or something newer."""
        return None if self.possible is None or self.resumed is None else self.resumed >= self.possible


def strike(watch: Watch, deeds: Deeds, kill: Kill, run_dir: RunDir, num_ranks: int, timeout_s: float) -> Outcome:
    watch.until_step(kill.after_step)
    watch.look()
    generation, num_closed = deeds.generation, len(deeds.closed)
    # Before anything dies, also where the machine is lost in a recovery.
    uncovered_s = _await_cover(watch, deeds, kill, num_ranks) if kill.target == "node" else None
    if kill.in_recovery_s is not None:
        with contextlib.suppress(ProcessLookupError):  # a recovery is under way already: that is as good
            os.kill(_picked(sorted(deeds.ranks.items()), 1 - kill.pick)[1], signal.SIGKILL)
        time.sleep(kill.in_recovery_s)
        watch.look()
    victims = _victims(watch, deeds, kill)
    with memories(deeds.agents, deeds.ranks_of) as found:
        _await_phase(found, deeds, kill, victims)
        was_open = watch.look() and deeds.num_open > 0
        killed_at, why = _kill(kill, victims, run_dir)
        hit = _hit(found, deeds, victims) | ({"restore"} if was_open else set())
        possible = _possible(found, deeds, kill, victims, num_ranks)
    gone = {pid for victim in victims for pid in victim.pids}
    why = why or await_whole(watch, kill.target, gone, timeout_s)
    closed = deeds.closed[num_closed:]
    lost = [one.lost_steps for one in closed if one.outcome != "superseded"]
    restarted = deeds.generation != generation
    later = sorted(one for one in deeds.resumes if one > generation)
    # In a recovery the first restart may have begun before the kill: the last one is what came of it.
    is_second = was_open or kill.in_recovery_s is not None
    first = (later[-1] if is_second else later[0]) if later else None
    return Outcome(
        kill=kill,
        hit=tuple(sorted(hit)) or ("step",),
        recovered_s=NEVER if why else whole_at(deeds, kill.target, num_closed) - killed_at,
        possible=possible if restarted else None,
        resumed=None if first is None else deeds.resumes[first],
        source="" if first is None else deeds.sources[first],
        lost_steps=None if any(steps is None for steps in lost) else sum(steps or 0 for steps in lost),
        restarted=restarted,
        uncovered_s=uncovered_s,
        why=why,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """One process that dies, and all that must go with it."""

    pid: int
    pids: frozenset[int]
    node: str | None = None
    rank: int | None = None


def _victims(watch: Watch, deeds: Deeds, kill: Kill) -> list[Victim]:
    deadline = time.monotonic() + _DEATH_S
    while time.monotonic() < deadline:
        with contextlib.suppress(IndexError):
            return _living(deeds, kill)
        time.sleep(0.01)
        watch.look()
    raise StalledError(f"nobody to kill for: {kill.told}")


def _living(deeds: Deeds, kill: Kill) -> list[Victim]:
    """Raises IndexError when there is none now."""
    nodes = sorted((node, pid) for node, pid in deeds.agents.items() if deeds.ranks_of.get(node))
    match kill.target:
        case "controller":
            pid = deeds.controllers[-1][1]
            return [Victim(pid=pid, pids=frozenset({pid}))]
        case "rank":
            rank, pid = _picked(sorted(deeds.ranks.items()), kill.pick)
            node = next((name for name, ranks in deeds.ranks_of.items() if rank in ranks), None)
            return [Victim(pid=pid, pids=frozenset({pid}), node=node, rank=rank)]
        case "node" if kill.group_ranks:
            wanted = set(kill.group_ranks)
            chosen = [(name, pid) for name, pid in nodes if deeds.ranks_of[name] & wanted]
            if {rank for name, _ in chosen for rank in deeds.ranks_of[name]} < wanted:
                raise IndexError
            return [_node(deeds, name, pid) for name, pid in chosen]
        case _:
            return [_node(deeds, *_picked(nodes, kill.pick))]


def _node(deeds: Deeds, name: str, pid: int) -> Victim:
    ranks = {deeds.ranks[rank] for rank in deeds.ranks_of[name] if rank in deeds.ranks}
    return Victim(pid=pid, pids=frozenset({pid, *ranks}), node=name)


def _picked(among: Sequence[tuple[Any, int]], pick: float) -> tuple[Any, int]:
    return among[int(pick * len(among))]


def _await_cover(watch: Watch, deeds: Deeds, kill: Kill, num_ranks: int) -> float:
    """Until what would be lost lies elsewhere as well: two machines that hold the only copies of each other are beyond
    what is promised. The seconds that took; when it does not come, the kill is carried out all the same."""
    began = time.monotonic()
    victims = _victims(watch, deeds, kill)
    is_last = len([node for node, ranks in deeds.ranks_of.items() if ranks]) <= len(victims)
    while time.monotonic() < began + _COVER_S:
        watch.look()
        with memories(deeds.agents, deeds.ranks_of) as found:
            if _possible(found, deeds, kill, victims, num_ranks, with_disk=is_last) is not None:
                break
        time.sleep(0.05)
    return time.monotonic() - began


def _await_phase(found: Memories, deeds: Deeds, kill: Kill, victims: list[Victim]) -> None:
    """Until the aimed phase is seen, and then a random share of its length. Not seen in time: whatever it is now."""
    if kill.aim == "restore":
        return
    deadline = time.monotonic() + _AIM_S.get(kill.aim, _AIM_OTHERS_S)
    while kill.aim != "step" and time.monotonic() < deadline:
        if kill.aim in _hit(found, deeds, victims):
            break
        time.sleep(0.001)
    time.sleep(kill.fraction * _PHASE_S[kill.aim])


def _hit(found: Memories, deeds: Deeds, victims: list[Victim]) -> set[str]:
    hit: set[str] = set()
    for victim in victims:
        agents = [victim.node] if victim.node is not None else list(deeds.agents)
        persists = any(is_persisting(deeds.agents[node]) for node in agents if node in deeds.agents)
        hit |= phases(found, node=victim.node, rank=victim.rank, persists=persists)
    return hit


def _possible(
    found: Memories, deeds: Deeds, kill: Kill, victims: list[Victim], num_ranks: int, *, with_disk: bool = True
) -> int | None:
    nodes = frozenset(victim.node for victim in victims if victim.node is not None)
    lost, restarted = (nodes if kill.target == "node" else frozenset()), frozenset[str]()
    if kill.target == "agent":
        restarted = nodes
    in_memory = found.restorable(num_ranks, deeds.resumes, lost, restarted)
    committed = deeds.committed if with_disk else []
    on_disk = [step for step, written in committed if is_valid(step, written, deeds.resumes)]
    return max([*on_disk, *([] if in_memory is None else [in_memory])], default=None)


def _kill(kill: Kill, victims: list[Victim], run_dir: RunDir) -> tuple[float, str]:
    """When, on the wall clock, and why it did not work. Returns when the victims are dead."""
    at = time.time()
    with contextlib.ExitStack() as stack:
        descriptors = [stack.enter_context(_pidfd(victim.pid)) for victim in victims]
        if kill.target == "node":
            why = _lose([victim.node or "" for victim in victims], run_dir)
        else:
            why = ""
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim.pid, signal.SIGKILL)
        for descriptor in descriptors:
            if not why and descriptor >= 0 and not select.select([descriptor], [], [], _DEATH_S)[0]:
                why = f"not dead after {_DEATH_S:g} s"
    return at, why


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    """Readable when it has ended; -1 if it has already."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield -1
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lose(nodes: list[str], run_dir: RunDir) -> str:
    """All at once. Why one of them was not lost."""
    failures: list[str] = []

    def lose(node: str) -> Callable[[], None]:
        def ask() -> None:
            try:
                post(run_dir, "/api/drill", {"kind": "lose-node", "node": node})
            except (EverstepError, OSError) as error:
                failures.append(f"drill lose-node {node}: {error}")

        return ask

    threads = [threading.Thread(target=lose(node)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "; ".join(failures)
