"""What one event costs the brain, and what a restart of the whole fleet does, at 16 to 12,500 nodes, on one core.

    python bench/scale.py [--nodes 16 256 2048 12500] [--json]

Only `core.step`: no journal, no sockets (those are in `bench/agents.py`). The fleet is played: all nodes join, every
rank starts and steps, every node reports progress a few times, then one node is lost, the generation is stopped, a
standby takes the slot, the next one is formed and every rank makes its first step. Every event goes through `step` as
it would in the controller, one at a time. Times are CPU seconds of this process, so other programs do not count much.

Events that concern one node should cost the same at every size. Events that concern the whole fleet (the loss that
stops it, the last confirmation that forms it anew) give an action for each node, so they may grow as the fleet does.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterable, Iterator

from everstep.core.invariants import check
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.step import step
from everstep.model import actions, events
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.facts import Exit, Held, RankAccount, Started
from everstep.model.spec import RunSpec

RANKS_PER_NODE = 8
PROGRESS_ROUNDS = 3


class Fleet:
    """Plays nodes and ranks around the brain, and keeps the cost of every event."""

    def __init__(self, num_nodes: int) -> None:
        self.spec = RunSpec(program="train.py", num_slots=num_nodes, nproc_per_node=RANKS_PER_NODE, num_standby=1)
        self.state = State.initial()
        self.at = 1_000_000.0
        self.costs: list[float] = []
        self._policy = Policy()

    def feed(self, each: Iterable[Event]) -> list[Action]:
        """One event after the other; returns what the last of them led to. Making an event is not counted."""
        decided: list[Action] = []
        for event in each:
            begun = time.process_time()
            self.state, decided = step(self.state, event, self._policy)
            self.costs.append(time.process_time() - begun)
        return decided

    def take_costs(self) -> list[float]:
        taken, self.costs = self.costs, []
        return taken

    def begin(self) -> None:
        started = events.RunStarted(at=self.at, run="r", spec=self.spec, everstep_version="bench", policy="default")
        self.feed([started, events.StoreOpened(at=self.at, generation=0, host="10.0.0.1", port=1)])
        self.feed(self._joined(f"n{number}") for number in range(self.spec.num_slots + 1))

    def form(self) -> None:
        """From StartWorkers to the first step of every rank."""
        generation = self.state.generation
        slots = [(slot, node) for slot, node in enumerate(self.state.slots) if node is not None]
        self.feed(
            events.WorkersStarted(
                at=self.at,
                node=node,
                generation=generation,
                started=tuple(Started(rank=r, pid=r, how="template", at=self.at) for r in self._ranks(slot)),
            )
            for slot, node in slots
        )
        for step_done in (None, 1 + self._resumed()):
            self.feed(
                events.MarksReported(
                    at=self.at, node=node, generation=generation, accounts=self._accounts(slot, step_done)
                )
                for slot, node in slots
            )
        assert self.state.phase is Phase.RUNNING, self.state.phase
        self.at += 1.0
        self.feed([events.StoreOpened(at=self.at, generation=generation + 1, host="10.0.0.1", port=2)])

    def progress(self, number: int) -> None:
        """Every node reports once."""
        self.at += 1.0
        generation, newest = self.state.generation, self._resumed() + 2 + number
        self.feed(
            events.ProgressReported(at=self.at, node=node, generation=generation, accounts=self._accounts(slot, newest))
            for slot, node in enumerate(self.state.slots)
            if node is not None
        )

    def lose_and_stop(self) -> None:
        """One node is gone; the others end their ranks and say what they hold. The last one forms what comes next."""
        lost = self.state.slots[len(self.state.slots) // 2]
        assert lost is not None
        generation, done = self.state.generation, self.state.best_step
        assert done is not None
        slot_of = {node: slot for slot, node in enumerate(self.state.slots)}
        kept = tuple(self._held(slot_of[lost], done))
        self.feed([events.NodeLost(at=self.at, node=lost, reason="power", kept=kept)])
        self.feed(
            events.WorkersStopped(
                at=self.at,
                node=node,
                generation=generation,
                exits=tuple(Exit(rank=r, at=self.at, signal=15, stopped_by_us=True) for r in self._ranks(slot)),
                accounts=self._accounts(slot, done),
                held=tuple(self._held(slot, done)),
            )
            for node, slot in slot_of.items()
            if node is not None and node != lost
        )
        assert self.state.generation == generation + 1, self.state.phase

    def hang(self) -> None:
        """Every node sends its evidence, and it was no hang."""
        generation = self.state.generation
        ranks = tuple(range(self.spec.world_size))
        suspected = events.HangSuspected(
            at=self.at, generation=generation, ranks=ranks, since=self.at, window_s=2.0, why="nobody steps"
        )
        asked = self.feed([suspected])
        incident = next(action.incident for action in asked if isinstance(action, actions.CollectEvidence))
        nodes = [action.node for action in asked if isinstance(action, actions.CollectEvidence)]
        decided = self.feed(
            events.EvidenceCollected(
                at=self.at, node=node, generation=generation, incident=incident, gathered=(), took_s=0.1
            )
            for node in nodes
        )
        assert any(isinstance(action, actions.Diagnose) for action in decided), "the last answer asks for a diagnosis"

    def _joined(self, node: str) -> events.NodeJoined:
        return events.NodeJoined(at=self.at, node=node, host=node, pid=1, endpoint=f"{node}:1")

    def _ranks(self, slot: int) -> range:
        return range(slot * RANKS_PER_NODE, (slot + 1) * RANKS_PER_NODE)

    def _resumed(self) -> int:
        formation = self.state.formation
        return -1 if formation is None or formation.resume_step is None else formation.resume_step

    def _accounts(self, slot: int, newest: int | None) -> tuple[RankAccount, ...]:
        has_stepped = newest is not None
        return tuple(
            RankAccount(
                rank=rank,
                spawned_at=self.at - 3.0,
                entered_at=self.at - 2.0,
                rendezvous_begun_at=self.at - 1.5,
                rendezvous_done_at=self.at - 1.0,
                loop_at=self.at - 0.9 if has_stepped else None,
                first_step=1 + self._resumed() if has_stepped else None,
                last_step=newest,
                first_step_at=self.at - 0.5 if has_stepped else None,
                last_step_at=self.at if has_stepped else None,
                published_step=newest,
                counts_own_steps=has_stepped,
            )
            for rank in self._ranks(slot)
        )

    def _held(self, slot: int, newest: int) -> Iterator[Held]:
        generation = self.state.generation
        for rank in self._ranks(slot):
            yield Held(rank=rank, steps=(newest - 1, newest), generations=(generation, generation))


def measure(num_nodes: int) -> dict[str, float]:
    """Microseconds per event and seconds of the whole, for one size."""
    gc.collect()
    fleet = Fleet(num_nodes)
    row: dict[str, float] = {"nodes": num_nodes, "ranks": num_nodes * RANKS_PER_NODE}
    fleet.begin()
    row["join_us"] = 1e6 * statistics.median(fleet.take_costs())
    fleet.form()
    fleet.take_costs()
    for number in range(PROGRESS_ROUNDS):
        fleet.progress(number)
    progress = fleet.take_costs()
    row["progress_us"] = 1e6 * statistics.median(progress)
    row["progress_p99_us"] = 1e6 * sorted(progress)[int(0.99 * (len(progress) - 1))]
    check(fleet.state)
    fleet.lose_and_stop()
    fleet.form()
    cycle = fleet.take_costs()
    assert fleet.state.incident is None, "the incident is closed with the first new step of the last rank"
    check(fleet.state)
    row |= {"cycle_events": len(cycle), "cycle_s": sum(cycle), "cycle_us": 1e6 * sum(cycle) / len(cycle)}
    row |= {"cycle_median_us": 1e6 * statistics.median(cycle), "longest_ms": 1e3 * max(cycle)}
    fleet.hang()
    hang = fleet.take_costs()
    row |= {"hang_us": 1e6 * sum(hang) / len(hang), "hang_s": sum(hang)}
    return row


COLUMNS = {
    "nodes": "{:,.0f}",
    "ranks": "{:,.0f}",
    "progress_us": "{:.0f} us",
    "progress_p99_us": "{:.0f} us",
    "join_us": "{:.0f} us",
    "cycle_events": "{:,.0f}",
    "cycle_median_us": "{:.0f} us",
    "cycle_us": "{:.0f} us",
    "longest_ms": "{:.1f} ms",
    "cycle_s": "{:.2f} s",
    "hang_us": "{:.0f} us",
    "hang_s": "{:.2f} s",
}
TITLES = ("nodes", "ranks", "progress", "p99", "join", "events", "median", "mean", "longest", "cycle", "hang", "hang")


def render(rows: list[dict[str, float]]) -> str:
    lines = [list(TITLES)] + [[form.format(row[name]) for name, form in COLUMNS.items()] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(TITLES))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 256, 2_048, 12_500])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measure(num_nodes) for num_nodes in given.nodes]
    print(json.dumps(rows) if given.json else render(rows))


if __name__ == "__main__":
    main()
