"""A cluster without processes: plays launcher, agents and workers around the real brain.

It answers every action as a healthy system would (nodes join, stores open, workers start, step and stop), unless it
has been told otherwise (`hold`). Faults are the caller's: `kill`, `raise_in`, `lose_node`. After every step the
invariants of `core.invariants` are verified.
"""

from collections import deque

import msgspec

from everstep.core.invariants import check_step
from everstep.core.reissue import reissue
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Role, State
from everstep.core.step import step
from everstep.knowledge.ending import end_of_rank
from everstep.model import actions, events
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.facts import Checkpoint, ErrorReport, Exit, OomEvidence, RankAccount, Started
from everstep.model.record import Record
from everstep.model.spec import RunSpec
from everstep.model.verdict import Blame, Confidence, Refusal
from everstep.testing.clock import FakeClock
from everstep.testing.exams import FakeExams
from everstep.testing.memory import FakeMemory
from everstep.testing.telling import account_of, alert_of, diagnosis_of, restore_failed
from everstep.testing.tier import FakeTier

CONSEQUENCE = ErrorReport(kind="RuntimeError", message="Connection closed by peer [127.0.0.1]:4711")


class Cluster:
    """`records` is the journal that a controller would have written; `actions` what came out of the last call."""

    def __init__(
        self,
        spec: RunSpec,
        policy: Policy | None = None,
        *,
        snapshots: bool = True,
        collectives: bool = True,
        own_steps: bool = True,
        copies_lag: int | None = None,
        racks: tuple[str, ...] = (),
        capacity: int | None = None,
    ) -> None:
        """`copies_lag`: nodes copy their snapshots to others on request, so many steps behind. `racks`: of the nodes in
        turn; "" for none. `capacity`: nodes that the engine has."""
        self.policy = policy or Policy()
        self.clock = FakeClock()
        self.state = State.initial()
        self.records: list[Record] = []
        self.actions: list[Action] = []
        self.held_back: set[str] = set()  # types of actions that get no answer: "StartWorkers", ...
        self.snapshots = snapshots
        self.unheard: set[str] = set()  # nodes whose reports of progress do not come
        self.memory = FakeMemory(copies_lag=copies_lag)
        self.tier = FakeTier()
        self.exams = FakeExams()
        self.chosen: list[tuple[int | None, int | None]] = []  # of each generation: step resumed from, best possible
        self.diagnosis = diagnosis_of(None, "", 0.0)
        self.moved_on = False
        self.limit_s: float | None = None
        self.broken: dict[str, str] = {}  # versions of the program that cannot start, and why
        self._spec = spec
        self._own_steps = own_steps  # the program numbers its steps
        self._collectives = collectives  # the ranks' watch sees collectives
        self._capacity = capacity
        self._queue: deque[Event] = deque()
        self._late: set[str] = set()  # nodes that the engine spares
        self._num_nodes = 0
        self._racks = racks or ("",)
        self._done: dict[int, int] = {}  # rank -> newest step completed and held

    def start(self) -> None:
        run = events.RunStarted(
            at=self.clock.now, run="r0001", spec=self._spec, everstep_version="test", policy=self.policy.name
        )
        self.feed(run)
        if self._spec.checkpoint_dir:
            decided = self.actions
            self.actions = decided + self.find_checkpoints()

    def find_checkpoints(self) -> list[Action]:
        """Report the checkpoints as the launcher does when a run, or an attempt, begins."""
        return self.feed(events.CheckpointsFound(at=self.clock.now, checkpoints=self.memory.found()))

    def feed(self, *new: Event) -> list[Action]:
        """Feed events, and answer what comes out until nothing is left. Returns all actions, in order."""
        self.actions = []
        self._queue.extend(new)
        while self._queue:
            self._turn(self._queue.popleft())
        return self.actions

    def wait(self, duration_s: float) -> list[Action]:
        """Let time pass; timers that become due are fed."""
        until, out = self.clock.now + duration_s, []
        while (key := self.clock.next_due(until)) is not None:
            out += self.feed(events.TimerFired(at=self.clock.now, key=key))
        return out

    def train(self, num_steps: int, step_s: float = 1.0) -> list[Action]:
        """Every live rank does so many steps, in lockstep."""
        out: list[Action] = []
        for _ in range(num_steps):
            out += self.wait(step_s)
            for rank, worker in self.state.workers.items():
                if worker.exit is None and worker.node in self.state.active_nodes:
                    self._done[rank] = self._done.get(rank, -1) + 1
                    self._keep(rank, worker.node)
            out += self._report_progress()
            out += self.feed(*self.tier.answers(self._done, self.clock.now))
        return out

    def end(self, rank: int, **how: object) -> list[Action]:
        """A rank ends: code=1, signal=9, error=ErrorReport(...), oom=OomEvidence(...)."""
        exit_ = Exit(rank=rank, at=self.clock.now, **how)  # type: ignore[arg-type]
        return self.feed(self._exited(exit_))

    def end_after_work(self, rank: int, signal: int) -> list[Action]:
        """A signal ends the rank's process when its program has come to its last line."""
        exited = self._exited(Exit(rank=rank, at=self.clock.now, signal=signal))
        account = msgspec.structs.replace(self._account(rank), finished_at=self.clock.now)
        return self.feed(msgspec.structs.replace(exited, account=account))

    def hang(
        self,
        culprit: int | None,
        code: str = "ES-H02",
        moved_on: bool = False,
        group: tuple[int, ...] = (),
        others: tuple[int, ...] = (),
        doubt: str = "",
        place: str = "",
        limit_s: float | None = None,
    ) -> list[Action]:
        """The hang rule suspects; the evidence will say `code` of this rank, in a pipeline with the ranks of `group`,
        and that `others` differ as well. None: it shows no fault. `doubt`: that it "waits" or "computes", and may go on
        by itself; `limit_s`: of the collective that the others wait in."""
        self.diagnosis = diagnosis_of(culprit, code, self.clock.now, doubt, place)
        self.limit_s = limit_s
        if others:
            self.diagnosis = msgspec.structs.replace(self.diagnosis, ranks=(*self.diagnosis.ranks, *others))
        if group:
            pipeline = {"group": "mesh_pp", "group_ranks": group, "confidence": Confidence.MEDIUM}
            self.diagnosis = msgspec.structs.replace(self.diagnosis, **pipeline)
        self.moved_on = moved_on
        suspected = events.HangSuspected(
            at=self.clock.now,
            generation=self.state.generation,
            ranks=tuple(self.state.workers),
            since=self.clock.now - 2,
            window_s=2.0,
            why=f"hung: ranks 0-{len(self.state.workers) - 1} are silent",
        )
        return self.feed(suspected)

    def went_on(self) -> list[Action]:
        """The watch sees that every rank has moved since the job stood still."""
        still = self.state.standstill
        if still is None:
            return []
        at, generation = self.clock.now, self.state.generation
        lasted_s = at - still.since
        ended = events.StandstillEnded(at=at, generation=generation, incident=still.incident.id, lasted_s=lasted_s)
        return self.feed(ended)

    def anomaly(
        self, code: str, rank: int, refused: str = "", agreed: int | None = None, blame: str = ""
    ) -> list[Action]:
        """A watch found something wrong with the running job, or (`refused`) says why a slow rank's machine is not.
        `agreed`: of replicas that differ, the newest step after which they did not. `blame`: not that of the code."""
        verdict = msgspec.structs.replace(diagnosis_of(rank, code, self.clock.now), sentence=f"rank {rank} is {code}.")
        if blame:
            verdict = msgspec.structs.replace(verdict, blame=Blame(blame), confidence=Confidence.MEDIUM)
        refusal = Refusal(what=f"evict the machine of rank {rank}", why=refused) if refused else None
        generation = self.state.generation
        return self.feed(
            events.AnomalyFound(
                at=self.clock.now, generation=generation, verdict=verdict, refusal=refusal, agreed_step=agreed
            )
        )

    def alert(self, node: str, code: str, severity: str, action: str, device: str = "") -> list[Action]:
        """The node noticed something about itself."""
        alert = alert_of(code, severity, action, device, self.clock.now)
        return self.feed(events.NodeAlerted(at=self.clock.now, node=node, alerts=(alert,)))

    def kill(self, rank: int) -> list[Action]:
        return self.end(rank, signal=9)

    def oom(self, rank: int) -> list[Action]:
        return self.end(rank, signal=9, oom=OomEvidence(source="cgroup oom_kill 0 -> 1"))

    def raise_in(self, rank: int, kind: str = "ValueError", place: str = "train.py:10") -> list[Action]:
        error = ErrorReport(kind=kind, message="bad", place=place, at=self.clock.now)
        return self.end(rank, code=1, error=error)

    def say(self, rank: int, message: str, place: str = "train.py:10") -> list[Action]:
        """The rank raises with these words, which are understood by the real knowledge base."""
        error = ErrorReport(kind="RuntimeError", message=message, place=place, at=self.clock.now)
        finding = end_of_rank("", error, rank=rank, at=self.clock.now)
        return self.end(rank, code=1, error=error, finding=finding)

    def lose_peer(self, rank: int) -> list[Action]:
        """The rank ends because another one is gone."""
        return self.end(rank, code=1, error=CONSEQUENCE)

    def succeed(self) -> list[Action]:
        out: list[Action] = []
        for rank in sorted(self.state.workers):
            out += self.end(rank, code=0)
        return out

    def lose_node(self, node: str, reason: str = "its process was killed by SIGKILL") -> list[Action]:
        """With its memory."""
        self.memory.lose(node, keep=False)
        return self.feed(events.NodeLost(at=self.clock.now, node=node, reason=reason, signal=9))

    def have(self, capacity: int) -> list[Action]:
        """The engine has so many nodes from now on; those that were asked for come."""
        self._capacity = capacity
        for _ in self.state.requests:
            self._join()
        return self.feed()

    def fix_size(self, why: str, world_size: int | None = None) -> list[Action]:
        """The program says that it can go on with so many ranks only; with those that there are."""
        state = self.state
        worker = state.workers[0]
        num = len(state.workers) if world_size is None else world_size
        at, generation = self.clock.now, state.generation
        return self.feed(
            events.SizeFixed(at=at, node=worker.node, generation=generation, rank=0, world_size=num, why=why)
        )

    def lose_rack(self, rack: str) -> list[Action]:
        """All of its nodes, before anybody has done anything about the first."""
        nodes = [m.node for m in self.state.members.values() if m.rack == rack and m.role is not Role.OUT]
        for node in nodes:
            self.memory.lose(node, keep=False)
        why = "its process was killed by SIGKILL"
        return self.feed(*(events.NodeLost(at=self.clock.now, node=node, reason=why, signal=9) for node in nodes))

    def silence(self, node: str, silent_s: float = 3.6) -> list[Action]:
        """Nothing is heard of it any more; the engine can still end it."""
        return self.feed(events.NodeSilent(at=self.clock.now, node=node, silent_s=silent_s))

    def be_late(self, node: str, silent_s: float = 3.6) -> list[Action]:
        """Nothing is heard of it, and the engine finds that it lives."""
        self._late.add(node)
        return self.silence(node, silent_s)

    def agree(self, step: int | None = None) -> list[Action]:
        """All replicas held the same after this step; without one, after the newest."""
        newest = min(self._done.values(), default=0) if step is None else step
        return self.feed(events.ReplicasAgreed(at=self.clock.now, generation=self.state.generation, step=newest))

    def checkpoint(self, step: int | None = None, *, trusted: bool = False) -> list[Action]:
        """The newest step, or this one, is in the persistent tier."""
        newest = min(self._done.values(), default=0) if step is None else step
        found = Checkpoint(
            step=newest,
            path=f"/ckpt/step-{newest}",
            world_size=self._spec.world_size,
            at=self.clock.now,
            is_trusted=trusted,
        )
        self.memory.commit(found)
        return self.find_checkpoints()

    def restart_controller(self) -> list[Action]:
        """Another controller folds the journal; unconfirmed actions are carried out again."""
        state = State.initial()
        for record in self.records:
            state, _ = step(state, record.event, self.policy)
        assert state == self.state, "the fold of the journal is not the state"
        self.actions = []
        for action in reissue(self.state, self.policy):
            self._carry_out(action)
        return self.actions + self.feed(events.ControllerStarted(at=self.clock.now, pid=2, took_over=True))

    def _turn(self, event: Event) -> None:
        before = self.state
        self.state, decided = step(before, event, self.policy)
        record = Record(
            seq=len(self.records) + 1, at=self.clock.now, gen=before.generation, event=event, actions=tuple(decided)
        )
        self.records.append(record)
        check_step(before, self.state, self.records)
        for action in decided:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        self.actions.append(action)
        if type(action).__name__ in self.held_back:
            return
        match action:
            case actions.SetTimer():
                self.clock.set_timer(action.key, action.due_at)
            case actions.OpenStore():
                store = events.StoreOpened(
                    at=self.clock.now, generation=action.generation, host="127.0.0.1", port=29500 + action.generation
                )
                self._queue.append(store)
            case actions.AcquireNode():
                self._join()
            case actions.EvictNode() if action.may_spare and action.node in self._late:
                why = "its process lives, and waits for a CPU"
                self._queue.append(events.NodeSpared(at=self.clock.now, node=action.node, why=why))
            case actions.EvictNode():
                self._queue.append(self._evicted(action.node))
            case actions.StartWorkers():
                self._start_workers(action)
            case actions.StopWorkers():
                self._stop_workers(action)
            case actions.CollectEvidence():
                self._queue.append(
                    events.EvidenceCollected(
                        at=self.clock.now,
                        node=action.node,
                        generation=action.generation,
                        incident=action.incident,
                        gathered=(),
                        took_s=0.0,
                    )
                )
            case actions.ExamineNode():
                self._queue.append(self.exams.answer(action, self.clock.now))
            case actions.Diagnose():
                self._queue.append(
                    events.Diagnosed(
                        at=self.clock.now,
                        generation=action.generation,
                        incident=action.incident,
                        verdict=self.diagnosis,
                        moved_on=self.moved_on,
                        limit_s=self.limit_s,
                    )
                )
            case _:
                self._keep_copies(action)

    def _keep_copies(self, action: Action) -> None:
        match action:
            case actions.ValidateUpdate():
                why = self.broken.get(action.version.id, "")
                self._queue.append(
                    events.UpdateValidated(
                        at=self.clock.now,
                        node=action.node,
                        version=action.version.id,
                        is_good=not why,
                        why=why or "1 file compiles",
                    )
                )
            case actions.PlaceBackups():
                self.memory.backups.update({backup.rank: backup.node for backup in action.backups})
            case actions.PersistSnapshot():
                self.tier.ask(action)
                self._queue.extend(self.tier.answers(self._done, self.clock.now))
            case actions.CommitCheckpoint():
                committed = self.tier.commit(action, self.clock.now)
                if committed.checkpoint is not None:
                    self.memory.commit(committed.checkpoint)
                self._queue.append(committed)
            case actions.TrustStep():
                self.memory.trusted = action.step
            case _:
                pass

    def _evicted(self, node: str) -> events.NodeLost:
        kept = self.memory.lose(node, keep=True)
        reason = "it was killed by SIGKILL"
        return events.NodeLost(at=self.clock.now, node=node, reason=reason, signal=9, kept=kept)

    def _keep(self, rank: int, node: str) -> None:
        if self.snapshots:
            self.memory.complete(node, rank, self._done[rank], self.state.generation)

    def _join(self) -> None:
        there = sum(member.role is not Role.OUT for member in self.state.members.values())
        there += sum(isinstance(event, events.NodeJoined) for event in self._queue)
        if self._capacity is not None and there >= self._capacity:
            return
        node, endpoint = f"n{self._num_nodes}", f"host-n{self._num_nodes}:7000"
        self._num_nodes += 1
        rack = self._racks[(self._num_nodes - 1) % len(self._racks)]
        joined = events.NodeJoined(
            at=self.clock.now, node=node, host=f"host-{node}", pid=100, endpoint=endpoint, rack=rack
        )
        self._queue.append(joined)

    def _start_workers(self, action: actions.StartWorkers) -> None:
        if action.resume_step is None:
            self._done = {}
        else:
            self._done = dict.fromkeys(range(action.world_size), action.resume_step)
        if len(self.chosen) <= action.generation:
            self.memory.resize(action.world_size)
            node_of = {worker.rank: worker.node for worker in self.state.workers.values()}
            self.chosen.append((action.resume_step, self.memory.best(node_of)))
        ranks = range(action.first_rank, action.first_rank + action.num_ranks)
        started = tuple(Started(rank=r, pid=1000 + r, how="template", at=self.clock.now) for r in ranks)
        failed = self.memory.start(action)
        accounts = tuple(self._account(rank) for rank in ranks if rank not in {each.rank for each in failed})
        at, node, generation = self.clock.now, action.node, action.generation
        self._queue.append(events.WorkersStarted(at=at, node=node, generation=generation, started=started))
        self._queue.append(events.MarksReported(at=at, node=node, generation=generation, accounts=accounts))
        self._queue.extend(restore_failed(action, failed, at))

    def _stop_workers(self, action: actions.StopWorkers) -> None:
        mine = [worker for worker in self.state.workers.values() if worker.node == action.node]
        exits = tuple(
            Exit(rank=worker.rank, at=self.clock.now, signal=15, stopped_by_us=True)
            for worker in mine
            if worker.exit is None
        )
        held = self.memory.held(action.node, [worker.rank for worker in mine])
        copies = self.memory.held_copies(action.node)
        self._queue.append(
            events.WorkersStopped(
                at=self.clock.now,
                node=action.node,
                generation=action.generation,
                exits=exits,
                held=held,
                backups=copies,
            )
        )

    def _exited(self, exit_: Exit) -> events.WorkerExited:
        node = self.state.workers[exit_.rank].node
        return events.WorkerExited(at=self.clock.now, node=node, generation=self.state.generation, exit=exit_)

    def _report_progress(self) -> list[Action]:
        reports = [
            events.MarksReported(
                at=self.clock.now,
                node=node,
                generation=self.state.generation,
                accounts=tuple(self._account(w.rank) for w in self.state.workers.values() if w.node == node),
            )
            for node in self.state.active_nodes
            if node not in self.unheard
        ]
        return self.feed(*reports)

    def _account(self, rank: int) -> RankAccount:
        formation = self.state.formation
        resume = formation.resume_step if formation is not None else None
        kinds = {"snapshots": self.snapshots, "collectives": self._collectives, "own_steps": self._own_steps}
        return account_of(rank, self._done.get(rank), resume, self.clock.now, **kinds)
