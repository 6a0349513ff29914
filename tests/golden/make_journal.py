"""Writes the golden journal: `python tests/golden/make_journal.py`. Every byte follows from this file and the brain.

Story: four ranks on two nodes. Rank 2 is killed (a drill); the controller is killed and replaced; the agent of n1 is
lost and another node takes its slot; rank 1 raises at the same place twice, and the run gives up.

The journal itself is regenerated only with a new schema version: old ones must go on being read as they are.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.step import step
from everstep.journal.format import encode_header, encode_record
from everstep.model import actions, events
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.facts import ErrorReport, Exit, Held, RankAccount, Started
from everstep.model.record import Header, Record
from everstep.model.spec import RunSpec

PATH = Path(__file__).parent / "journal.jsonl"
BEGIN = 1795230125.25  # 2026-11-21 03:02:05 UTC
STEP_S = 0.1
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 240, in <module>
    main()
  File "train.py", line 212, in main
    loss = model(batch["labels"])
KeyError: 'labels'"""


class Story:
    def __init__(self) -> None:
        self.policy = Policy(max_same_failure=2)
        self.state = State.initial()
        self.records: list[Record] = []
        self.now = BEGIN
        self.accounts: dict[int, RankAccount] = {}
        self.source_seqs: dict[str, int] = {}

    def feed(self, event: Event, source: str = "") -> list[Action]:
        gen = self.state.generation
        self.state, decided = step(self.state, event, self.policy)
        if source:
            self.source_seqs[source] = self.source_seqs.get(source, 0) + 1
        record = Record(
            seq=len(self.records) + 1,
            at=round(event.at + 0.002, 6),
            gen=gen,
            event=event,
            actions=tuple(decided),
            source=source,
            source_seq=self.source_seqs.get(source, 0),
        )
        self.records.append(record)
        return decided

    def after(self, seconds: float) -> float:
        self.now = round(self.now + seconds, 6)
        return self.now

    def join(self, node: str, pid: int) -> list[Action]:
        decided = self.feed(events.NodeJoined(at=self.after(0.05), node=node, host="trainer-1", pid=pid), node)
        usable = node != "n1"
        why = "" if usable else "rendezvous at train.py:9: it has threads: native_loader"
        template = events.TemplateReported(
            at=self.after(0.01), node=node, usable=usable, why=why, num_modules=1412 if usable else 0, took_s=2.41
        )
        self.feed(template, node)
        return decided

    def open_store(self, generation: int) -> list[Action]:
        at = self.after(0.004)
        return self.feed(events.StoreOpened(at=at, generation=generation, host="127.0.0.1", port=29500 + generation))

    def form(self, decided: list[Action], first_step: int | None) -> None:
        """Both nodes start their ranks; with `first_step` they get as far as that."""
        starts = [action for action in decided if isinstance(action, actions.StartWorkers)]
        assert starts, "nothing was started"
        self.accounts = {}
        for start in starts:
            self._spawn(start)
        for start in starts:
            self._mark(start, loop=False)
        self.after(0.12)
        if first_step is not None:
            for start in starts:
                self._mark(start, loop=True, first_step=first_step)
            next_store = self.state.store_asked
            if next_store not in self.state.stores:
                self.open_store(next_store)

    def _spawn(self, start: actions.StartWorkers) -> None:
        fresh = start.node == "n1"
        why = "rendezvous at train.py:9: it has threads: native_loader" if fresh else ""
        started = []
        for rank in range(start.first_rank, start.first_rank + start.num_ranks):
            at = self.after(0.006)
            how = "fresh" if fresh else "twin"
            started.append(Started(rank=rank, pid=4000 + 10 * start.generation + rank, how=how, why=why, at=at))
            self.accounts[rank] = RankAccount(rank=rank, spawned_at=at, counts_own_steps=True)
        event = events.WorkersStarted(at=self.now, node=start.node, generation=start.generation, started=tuple(started))
        self.feed(event, start.node)

    def _mark(self, start: actions.StartWorkers, *, loop: bool, first_step: int = 0) -> None:
        at = self.after(0.02)
        ranks = range(start.first_rank, start.first_rank + start.num_ranks)
        for rank in ranks:
            account = self.accounts[rank]
            if loop:
                changes: dict[str, object] = {
                    "rendezvous_begun_at": account.entered_at,
                    "rendezvous_done_at": round(at - 0.08, 6),
                    "restore_s": 0.0 if start.resume_step is None else 0.011,
                    "loop_at": round(at - 0.05, 6),
                    "first_step": first_step,
                    "last_step": first_step,
                    "first_step_at": at,
                    "last_step_at": at,
                    "published_step": first_step,
                }
            else:
                changes = {"entered_at": round(at - 0.004, 6)}
            self.accounts[rank] = msgspec.structs.replace(account, **changes)
        self.feed(self._report(start.node, events.MarksReported), start.node)

    def _report(self, node: str, kind: type) -> Event:
        mine = tuple(self.accounts[w.rank] for w in self.state.workers.values() if w.node == node)
        return kind(at=self.now, node=node, generation=self.state.generation, accounts=mine)

    def train(self, num_steps: int) -> None:
        """In lockstep; nodes report once in ten steps."""
        for number in range(1, num_steps + 1):
            self.after(STEP_S)
            for rank, account in self.accounts.items():
                assert account.last_step is not None
                self.accounts[rank] = msgspec.structs.replace(
                    account,
                    last_step=account.last_step + 1,
                    last_step_at=round(self.now + 0.0002 * rank, 6),
                    published_step=account.last_step + 1,
                    communicated_at=self.now,
                    stall_s=round(account.stall_s + 0.0006, 6),
                )
            if number % 10 == 0:
                for node in self.state.active_nodes:
                    self.feed(self._report(node, events.ProgressReported), node)

    def exit(self, rank: int, **how: object) -> list[Action]:
        at = self.after(0.03)
        node = self.state.workers[rank].node
        exit_ = Exit(rank=rank, at=at, **how)
        self.accounts[rank] = msgspec.structs.replace(self.accounts[rank], ended_at=at)
        self.after(0.004)
        event = events.WorkerExited(
            at=self.now, node=node, generation=self.state.generation, exit=exit_, account=self.accounts[rank]
        )
        return self.feed(event, node)

    def stopped(self, nodes: tuple[str, ...] = ()) -> list[Action]:
        decided: list[Action] = []
        for node in nodes or self.state.active_nodes:
            at = self.after(0.012)
            alive = [w for w in self.state.workers.values() if w.node == node and w.exit is None]
            exits = tuple(Exit(rank=w.rank, at=at, signal=15, stopped_by_us=True) for w in alive)
            mine = [w.rank for w in self.state.workers.values() if w.node == node]
            held = tuple(Held(rank=r, steps=self._held(r)) for r in mine)
            accounts = tuple(msgspec.structs.replace(self.accounts[w.rank], ended_at=at) for w in alive)
            event = events.WorkersStopped(
                at=at, node=node, generation=self.state.generation, exits=exits, accounts=accounts, held=held
            )
            decided = self.feed(event, node)
        for asked in [action for action in decided if isinstance(action, actions.OpenStore)]:
            decided = self.open_store(asked.generation)  # at the same port, once the ranks have ended
        return decided

    def _held(self, rank: int) -> tuple[int, ...]:
        newest = self.accounts[rank].published_step
        if newest is None:
            return (148, 149)
        return (newest - 1, newest)


def tell() -> Iterator[Record]:
    story = Story()
    spec = RunSpec(
        program="train.py",
        args=("--size", "small"),
        num_slots=2,
        nproc_per_node=2,
        torch_version="2.13.0",
        cwd="/home/me",
    )
    story.feed(
        events.RunStarted(at=story.now, run="r7f3", spec=spec, everstep_version="0.1.0", policy=story.policy.name)
    )
    story.feed(events.ControllerStarted(at=story.after(0.01), pid=3001))
    story.open_store(0)
    story.join("n0", 3100)
    story.form(story.join("n1", 3200), first_step=0)
    story.train(41)

    drill = events.DrillRequested(at=story.after(0.02), drill="d1", kind="kill-rank", rank=2)
    story.feed(drill)
    story.exit(2, signal=9)
    story.form(story.stopped(), first_step=42)
    story.train(60)

    story.feed(
        events.ControllerStarted(at=story.after(0.4), pid=3050, took_over=True, torn_bytes=73),
    )
    story.train(47)

    lost = events.NodeLost(at=story.after(0.05), node="n1", reason="its process was killed by SIGKILL", signal=9)
    story.feed(lost, "launcher")
    story.stopped(("n0",))
    joined = events.NodeJoined(
        at=story.after(0.3),
        node="n2",
        host="trainer-1",
        pid=3300,
        held=(Held(rank=2, steps=(148, 149)), Held(rank=3, steps=(148, 149))),
    )
    story.form(story.feed(joined, "n2"), first_step=150)
    story.train(5)

    error = ErrorReport(kind="KeyError", message="'labels'", traceback=TRACEBACK, place="train.py:212")
    story.exit(1, code=1, error=error)
    story.form(story.stopped(), first_step=None)
    story.exit(1, code=1, error=error)
    story.stopped()
    assert story.state.is_over, story.state.phase
    yield from story.records


def journal_bytes() -> bytes:
    policy = msgspec.structs.asdict(Policy(max_same_failure=2))
    header = Header(run="r7f3", everstep_version="0.1.0", policy=policy)
    return b"".join([encode_header(header), *(encode_record(record) for record in tell())])


if __name__ == "__main__":
    PATH.write_bytes(journal_bytes())
