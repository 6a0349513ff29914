"""A fleet in virtual time around the real brain: answers every action with the events that a fleet would report, after
the seconds that it would take. `core.step` decides everything; nothing here decides. Faults are `trouble`'s.

What is simplified, so that months of ten thousand machines take seconds: machines are seen in cells (`Setup`); steps
are arithmetic (`pace`), so progress is reported only when it matters; what all nodes report of their steps at one time
is one report. Copies on other nodes are as old as `backup_s`, and outlive a new placement.

Pure: no clock, and the dice are passed in.
"""

import heapq
import itertools
from collections.abc import Callable
from functools import partial
from random import Random

from everstep.core.state.phases import ALIVE, Phase
from everstep.core.state.schema import State
from everstep.core.step import step
from everstep.model import actions, events
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.facts import Checkpoint, RankAccount
from everstep.model.spec import RunSpec
from everstep.simulate.fleet.exams import Examiner
from everstep.simulate.fleet.ledger import Ledger
from everstep.simulate.fleet.machines import Cell, Pool
from everstep.simulate.fleet.memory import Memory
from everstep.simulate.fleet.pace import Pace
from everstep.simulate.fleet.setup import Setup
from everstep.simulate.fleet.signs import hang_verdict
from everstep.simulate.fleet.striking import draw_strikes
from everstep.simulate.fleet.trouble import Trouble

EPOCH = 1_700_000_000.0


class World:
    """One run of one fleet. `trouble.faults` has everything that struck, `ledger` where the time went."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.now = EPOCH
        self.state = State.initial()
        self.ledger = Ledger(EPOCH)
        self.num_events = self.num_resubmits = self.num_evictions = self.num_incidents = 0
        self._dice = Random(seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._timers: dict[str, float] = {}
        self._pool = Pool(setup, self._dice)
        self.cell_of: dict[str, Cell] = {}
        self._num_nodes = 0
        self._attempt = 0
        self._memory = Memory(setup)
        self._examiner = Examiner(setup, self._dice)
        self.trouble = Trouble(self, self._dice)
        self._saved: Checkpoint | None = None
        self._rule = ""  # of the last conclusion
        self._waits_since: float | None = None  # for a machine
        self._examined_since = EPOCH
        self._examined = ""  # since the last start: "checks", "replay"
        self._vacated: dict[int, tuple[Cell, int]] = {}  # slot -> what was there, and which machine of it is gone

    def run(self) -> None:
        """Until the end of the days that are simulated."""
        end = EPOCH + self.setup.wall_s
        for strike in draw_strikes(self.setup, self._dice):
            self.at(EPOCH + strike.at_s, partial(self.trouble.strike, strike))
        self._submit()
        while self._queue and self._queue[0][0] <= end:
            self.now, _, act = heapq.heappop(self._queue)
            act()
        self.now = end

    # The brain, and its clock.

    def feed(self, event: Event) -> None:
        before = self.state
        self.state, decided = step(before, event, self.setup.policy)
        self.num_events += 1
        if before.phase in ALIVE and self.state.phase not in ALIVE:
            self.ledger.decide_at(self.now)
        if self.state.phase is Phase.EXAMINING:
            self._examined_since = self.now if before.phase is not Phase.EXAMINING else self._examined_since
        elif before.phase is Phase.EXAMINING:
            self.ledger.parts.exam_s += self.now - self._examined_since
        if self.state.phase is Phase.GATHERING and self._waits_since is None:
            self._waits_since = self.now
        if decided:
            self._carry_out(decided)

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), act))

    def _after(self, mean_s: float, act: Callable[[], None]) -> None:
        self.at(self.now + self.draw(mean_s), act)

    def draw(self, mean_s: float) -> float:
        """Gamma around the mean."""
        spread = self.setup.spread
        if spread <= 0 or mean_s <= 0:
            return mean_s
        shape = 1.0 / (spread * spread)
        return self._dice.gammavariate(shape, mean_s / shape)

    def _fire(self, key: str, due_at: float) -> None:
        if self._timers.get(key) == due_at:
            del self._timers[key]
            self.feed(events.TimerFired(at=self.now, key=key))

    # Answers.

    def _carry_out(self, decided: list[Action]) -> None:
        starts = [action for action in decided if isinstance(action, actions.StartWorkers)]
        stops = [action for action in decided if isinstance(action, actions.StopWorkers)]
        exams = [action for action in decided if isinstance(action, actions.ExamineNode)]
        places = [action for action in decided if isinstance(action, actions.PlaceBackups)]
        if starts:
            self._start(starts)
        if stops:
            self._after(self.setup.costs.stop_s, partial(self._stopped, stops, self.mark))
        if exams:
            self._examine(exams)
        if places:
            self._memory.place(places)
        for action in decided:
            self._answer(action)

    def _answer(self, action: Action) -> None:
        match action:
            case actions.SetTimer():
                self._timers[action.key] = action.due_at
                self.at(action.due_at, partial(self._fire, action.key, action.due_at))
            case actions.OpenStore():
                opened = events.StoreOpened(at=self.now, generation=action.generation, host="store", port=29500)
                self.at(self.now, partial(self.feed, opened))
            case actions.AcquireNode():
                self._acquire()
            case actions.EvictNode():
                self.num_evictions += 1
                self._after(self.setup.costs.evict_s, partial(self.lose, action.node, "evicted"))
            case actions.CollectEvidence():
                evidence = events.EvidenceCollected(
                    at=self.now,
                    node=action.node,
                    generation=action.generation,
                    incident=action.incident,
                    gathered=(),
                    took_s=0.0,
                )
                self.at(self.now, partial(self.feed, evidence))
            case actions.ValidateUpdate():
                good = events.UpdateValidated(
                    at=self.now,
                    node=action.node,
                    version=action.version.id,
                    is_good=True,
                    why="simulated: it can start",
                )
                self._after(self.setup.costs.update_s, partial(self.feed, good))
            case actions.Diagnose():
                self._diagnose(action)
            case actions.IncidentOpened():
                self.num_incidents += 1
            case actions.Concluded():
                self._rule = action.decision.rule
                if self._rule == "explain-only":
                    self.trouble.note_rule(self._rule)
            case actions.Finish():
                self._finish()
            case _:
                pass  # only on record, or of no cost here

    def _diagnose(self, action: actions.Diagnose) -> None:
        hang = self.trouble.hang
        rank = self.trouble.rank_of(hang) if hang is not None else None
        found = hang_verdict(hang if rank is not None else None, rank or 0, self.now)
        diagnosed = events.Diagnosed(at=self.now, generation=action.generation, incident=action.incident, verdict=found)
        self.at(self.now, partial(self.feed, diagnosed))

    def _examine(self, exams: list[actions.ExamineNode]) -> None:
        costs = self.setup.costs
        self._examined = "replay" if Examiner.is_replay(exams[0]) else "checks"
        took_s = self.draw(costs.replay_s * exams[0].num_rounds if Examiner.is_replay(exams[0]) else costs.exam_s)
        answers = self._examiner.answers(exams, self.cell_of, self.now + took_s, took_s)
        self.at(self.now + took_s, partial(self._tell_all, answers, self.mark))

    def _tell_all(self, answers: list[events.NodeExamined], mark: tuple[int, int]) -> None:
        for answer in answers:
            if self.mark == mark:
                self.feed(answer)

    # The run and its nodes.

    @property
    def _num_first(self) -> int:
        """Nodes that a run begins with."""
        return self.setup.num_cells + self.setup.num_standby

    @property
    def mark(self) -> tuple[int, int]:
        """Return the attempt and its generation: what was sent to an earlier one no longer counts."""
        return self._attempt, self.state.generation

    def _submit(self) -> None:
        self._attempt += 1
        self._timers = {}
        spec = RunSpec(
            program="train.py", num_slots=self.setup.num_cells, nproc_per_node=1, num_standby=self.setup.num_standby
        )
        self.state = State.initial()
        name = self.setup.policy.name
        run = f"simulated-{self._attempt}"
        self.feed(events.RunStarted(at=self.now, run=run, spec=spec, everstep_version="simulated", policy=name))
        if self._saved is not None:
            self.feed(events.CheckpointsFound(at=self.now, checkpoints=(self._saved,)))

    def _finish(self) -> None:
        """People look at it, repair or take out what is broken, mend the code, and submit it again."""
        outcome = self.state.ending.outcome if self.state.ending is not None else ""
        self.trouble.note_rule(outcome)
        wait_s = self.draw(self.setup.costs.resubmit_s)
        self.num_resubmits += 1
        self._waits_since = None
        self.ledger.parts.resubmit_s += wait_s
        self.ledger.decide_at(self.now)
        self.ledger.close()
        self._memory.forget()
        self._pool.give_back_all(len(self.cell_of))
        for cell in self.cell_of.values():
            for fault in cell.faults:
                fault.is_solved_by_person = True
        self.trouble.mend_code()
        self.cell_of = {}
        self._vacated = {}
        self._attempt += 1
        self.at(self.now + wait_s, self._submit)

    def _acquire(self) -> None:
        cell, can_be_had = self._pool.take(self.now)
        self._num_nodes += 1
        node = f"n{self._num_nodes}"
        is_first = self.state.generation < 0 and self.state.num_requests <= self._num_first
        wait_s = 0.0 if is_first else self.draw(self.setup.costs.provision_s)
        if can_be_had < EPOCH + self.setup.wall_s:
            self.at(can_be_had + wait_s, partial(self._join, node, cell, self._attempt))

    def _join(self, node: str, cell: Cell, attempt: int) -> None:
        if attempt != self._attempt:
            return
        self.cell_of[node] = cell
        joined = events.NodeJoined(at=self.now, node=node, host=node, pid=1, endpoint=f"{node}:7000")
        self.feed(joined)

    def lose(self, node: str, reason: str, repair_s: float | None = None) -> None:
        """The machine is gone, with its memory."""
        cell = self.cell_of.pop(node, None)
        if cell is None:
            return
        member = self.state.members.get(node)
        if member is not None and member.slot is not None:
            guilty = [fault.unit for fault in (*self.trouble.shown, *cell.faults) if fault.cell is cell]
            self._vacated[member.slot] = cell, guilty[0] if guilty else self._dice.randrange(len(cell.weights))
        self._memory.lose(node)
        self._pool.give_back(self.now, repair_s)
        self.feed(events.NodeLost(at=self.now, node=node, reason=reason))

    # Generations.

    def _start(self, starts: list[actions.StartWorkers]) -> None:
        first, costs = starts[0], self.setup.costs
        begin_s = self.draw(costs.initialise(self.setup.num_gpus))
        restore_s = 0.0
        if first.restore_path:
            restore_s = self.draw(costs.load_s)
        elif first.resume_step is not None:
            fetches = any(start.fetch for start in starts)
            restore_s = self.draw(costs.restore_s) + (self.draw(costs.fetch_s) if fetches else 0.0)
        resumed = -1 if first.resume_step is None else first.resume_step
        begun_at = self.now + begin_s + restore_s
        pace = Pace(cadence=self.setup.cadence, first_step=resumed + 1, begun_at=begun_at)
        self.trouble.note_rule(self._rule_of_start())
        self.trouble.version = first.version.id if first.version is not None else ""
        self._settle_cells()
        if self._waits_since is not None:
            self.ledger.parts.node_s += self.now - self._waits_since
            self._waits_since = None
        self.ledger.form(self.now, pace, restore_s)
        self._memory.start(first.generation, {start.node for start in starts if start.fetch}, first.resume_step)
        entered_s = self.setup.policy.start_timeout_s / 2
        if begun_at - self.now > entered_s:  # ranks are in the program long before it steps
            self.at(self.now + entered_s, partial(self._told, self.mark))
        self.at(pace.done_at(1), partial(self._told, self.mark))
        self.trouble.recur(begun_at)

    def _rule_of_start(self) -> str:
        """The rule that was concluded last, and by what a machine was found."""
        examined, self._examined = self._examined, ""
        if not examined:
            return self._rule
        return f"evicted-by-{examined}" if self._vacated else "reattempt"

    def _settle_cells(self) -> None:
        for slot, (gone, unit) in self._vacated.items():
            self.cell_of[self.state.slots[slot] or ""].take_over(gone, unit)
        self._vacated = {}
        for node in self.state.active_nodes:
            weights = self.cell_of[node].weights
            while len(weights) < self.setup.nodes_per_cell:  # the first one of its place
                weights.append(self._pool.draw_weight())

    def _told(self, mark: tuple[int, int]) -> None:
        if mark == self.mark and self.ledger.broken_at is None and self.state.phase in ALIVE:
            self.report(self.now)

    def report(self, at: float) -> None:
        """All ranks, as far as they had got: each node for its own."""
        pace, generation = self.ledger.pace, self.state.generation
        if pace is None:
            return
        number = pace.completed(at)
        begun_at, first_at = pace.begun_at, pace.done_at(1)
        last = pace.first_step + number - 1
        for worker in list(self.state.workers.values()):
            account = RankAccount(
                rank=worker.rank,
                spawned_at=self.now,
                entered_at=self.now,
                loop_at=begun_at if number else None,
                first_step=pace.first_step if number else None,
                last_step=last if number else None,
                first_step_at=first_at if number else None,
                last_step_at=at if number else None,
                published_step=last if number and self.setup.every_step else None,
                counts_own_steps=True,
            )
            self.feed(events.MarksReported(at=self.now, node=worker.node, generation=generation, accounts=(account,)))

    def _stopped(self, stops: list[actions.StopWorkers], mark: tuple[int, int]) -> None:
        if mark != self.mark:
            return
        self._note_save()
        broken_at = self.ledger.broken_at if self.ledger.broken_at is not None else self.now
        pace = self.ledger.pace
        shelf = self._memory.shelf(pace, broken_at, self.state.trusted_step) if pace is not None else None
        for stop in stops:
            member = self.state.members.get(stop.node)
            if stop.node not in self.cell_of or member is None or member.slot is None:
                continue
            held, copies = shelf.of(stop.node, member.slot) if shelf is not None else ((), ())
            stopped = events.WorkersStopped(
                at=self.now, node=stop.node, generation=stop.generation, held=held, backups=copies
            )
            self.feed(stopped)

    def _note_save(self) -> None:
        """Report the newest checkpoint that storage has by now, before the brain chooses what to resume from."""
        pace, broken_at = self.ledger.pace, self.ledger.broken_at
        newest = pace.newest_save(self.now if broken_at is None else broken_at) if pace is not None else None
        if newest is None or (self._saved is not None and self._saved.step == newest):
            return
        self._saved = Checkpoint(
            step=newest, path=f"/checkpoints/step-{newest}", world_size=self.setup.num_cells, at=self.now
        )
        self.feed(events.CheckpointsFound(at=self.now, checkpoints=(self._saved,)))

    def cell_in(self, slot: int) -> Cell | None:
        node = self.state.slots[slot] if 0 <= slot < len(self.state.slots) else None
        return self.cell_of.get(node) if node is not None else None
