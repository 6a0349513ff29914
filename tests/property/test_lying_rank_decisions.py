"""A rank that lies in every field of everything that it sends: nothing breaks, no other machine is taken out, and no
verdict is of high confidence on its word alone, nor names another rank with more than low."""

import logging
import math
import random
from collections.abc import Iterator

import pytest

from everstep.analyzer.hangs.signals import Phase
from everstep.controller.detectors.digests import MAX_GROUPS, DigestDetector
from everstep.controller.detectors.together import Detectors
from everstep.core.state.policy import Policy
from everstep.knowledge.ending import end_of_rank
from everstep.knowledge.loading import load_base
from everstep.model import actions, events, observations
from everstep.model.facts import (
    ErrorReport,
    Exit,
    NumberPoint,
    RankAccount,
    RankDigest,
    RankNote,
    RankNumbers,
    RankRound,
    Signals,
)
from everstep.model.spec import RunSpec
from everstep.model.verdict import Confidence
from everstep.testing import Cluster
from everstep.wire.codec import decode_from_peer, encode
from everstep.wire.messages import Report

RANKS = 4
LIAR = 2
LIES, LIES_PER_RUN, PARTS = 10_000, 200, 5

KINDS = ["KeyError", "SyntaxError", "ModuleNotFoundError", "ProgramNotFound", "DistBackendError", "", "\x1b["]
TEXTS = [
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "CUDA error: uncorrectable ECC error encountered",
    "Connection closed by peer [10.0.0.1]:4711",
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE",
    "NCCL WARN Net : Connection closed by remote peer n1<41822>",
    "node n0 is broken: evict n0",
    "Killed by the out of memory killer",
    "\ud800\x00",
    "",
]


class Lies:
    """What an agent makes of what its rank says: each field is anything that its checks let through."""

    def __init__(self, seed: int, cluster: Cluster, signatures: list[str]) -> None:
        self.rng = random.Random(seed)
        self.cluster = cluster
        self.texts = [*TEXTS, *signatures]

    @property
    def common(self) -> dict[str, object]:
        return {"at": self.cluster.clock.now, "node": f"n{LIAR}", "generation": self.cluster.state.generation}

    def maybe(self, *values: object) -> object:
        return self.rng.choice([None, *values])

    def whole(self) -> int:
        return self.rng.choice([0, 1, 2, 7, 40, 10**9, 2**63 - 1, self.rng.randrange(100)])

    def seconds(self) -> float:
        return self.rng.choice([0.0, 1e-9, 0.5, 3.0, 600.0, 1e9, 1e300])

    def moment(self) -> float:
        return self.rng.choice([0.0, 1.0, self.cluster.clock.now, self.cluster.clock.now - 100.0])

    def rank(self) -> int:
        return self.rng.choice([0, 1, 2, 3, 4, 99])

    def account(self) -> RankAccount:
        return RankAccount(
            rank=LIAR,
            spawned_at=self.cluster.clock.now,
            entered_at=self.maybe(self.moment()),
            rendezvous_begun_at=self.maybe(self.moment()),
            rendezvous_done_at=self.maybe(self.moment()),
            restore_s=self.seconds(),
            loop_at=self.maybe(self.moment()),
            first_step=self.maybe(self.whole()),
            last_step=self.maybe(self.whole()),
            first_step_at=self.maybe(self.moment()),
            last_step_at=self.maybe(self.moment()),
            stall_s=self.seconds(),
            published_step=self.maybe(self.whole()),
            backed_up_step=self.maybe(self.whole()),
            ended_at=self.maybe(self.moment()),
            communicated_at=self.maybe(self.moment()),
            note=self.maybe(self.note()),
            counts_own_steps=self.rng.random() < 0.5,
        )

    def note(self) -> RankNote:
        return RankNote(
            kind=self.rng.choice(["busy", "ending", "nonsense"]),
            says=self.rng.choice(self.texts)[:200],
            since=self.moment(),
        )

    def size(self) -> events.Event:
        size = self.rng.choice([1, RANKS, RANKS - 1, 99, 2**31 - 1])
        return events.SizeFixed(**self.common, rank=LIAR, world_size=size, why=self.rng.choice(self.texts)[:200])

    def refused(self) -> events.Event:
        needed, free = self.whole(), self.maybe(self.whole())
        return events.SnapshotsRefused(
            **self.common, rank=LIAR, needed_bytes=needed, free_bytes=free, why=self.rng.choice(self.texts)
        )

    def marks(self) -> events.Event:
        return events.MarksReported(**self.common, accounts=(self.account(),))

    def progress(self) -> events.Event:
        return events.ProgressReported(**self.common, accounts=(self.account(),))

    def fault(self) -> events.Event:
        return events.RuntimeFaulted(**self.common, rank=LIAR, where=self.rng.choice(self.texts), why="x" * 2000)

    def restore(self) -> events.Event:
        return events.RestoreFailed(
            **self.common,
            rank=LIAR,
            step=self.whole(),
            source=self.rng.choice(["memory", "disk"]),
            where=self.rng.choice(["", "/ckpt/step-3", "the copy on n0"]),
            why=self.rng.choice(self.texts),
            is_damaged=self.rng.random() < 0.5,
            is_unfit=self.rng.random() < 0.2,
        )

    def incomplete(self) -> events.Event:
        return events.StateIncomplete(**self.common, rank=LIAR, step=self.whole(), why=self.rng.choice(self.texts))

    def signals(self) -> events.Event:
        ages = ("log_s", "stack_s", "device_s", "communication_s", "log_gap_s", "evaluation_s", "checkpoint_s")
        told = {name: self.maybe(self.seconds()) for name in ages}
        signals = Signals(
            rank=LIAR,
            phase=self.rng.choice([*map(str, Phase), "", "nonsense"]),
            **told,
            paused=self.rng.random() < 0.1,
            looking=self.rng.random() < 0.1,
            busy=self.rng.choice(["", "", "says that it is busy: " + self.rng.choice(self.texts)]),
            is_over=self.rng.random() < 0.1,
            has_snapshot=self.rng.random() < 0.5,
            last_step=self.maybe(self.whole()),
            last_step_at=self.maybe(self.moment()),
            state=self.rng.choice(["R", "S", "D", "T", "", "?"]),
            waits_on=self.rng.choice(["", "network", "timer", "nonsense"]),
            waits_for=self.rng.choice(self.texts),
            wait_left_s=self.maybe(self.seconds()),
            place=self.rng.choice(self.texts),
        )
        return observations.SignalsReported(**self.common, signals=(signals,))

    def numbers(self) -> events.Event:
        odd = [math.nan, math.inf, -math.inf, 1e308, 0.0, -1.0, 2.5]
        points = tuple(
            NumberPoint(
                step=self.maybe(self.whole()),
                loss=self.maybe(*odd),
                grad_norm=self.maybe(*odd),
                step_s=self.maybe(*odd),
                skipped=self.rng.random() < 0.2,
            )
            for _ in range(self.rng.randrange(5))
        )
        source = self.rng.choice(["step", "log"])
        return observations.NumbersReported(
            **self.common, numbers=(RankNumbers(rank=LIAR, source=source, points=points),)
        )

    def digest(self) -> events.Event:
        replicas = self.rng.choice([(), (0, 1, 2, 3), (0, 2), (2,), (0, 1), (99, 2**31), (0, 2**31 - 1), (-5, 7)])
        digest = RankDigest(
            rank=LIAR,
            step=self.rng.choice([self.cluster.state.best_step or 0, self.whole()]),
            values={f"p{n}": self.rng.choice(["a", "b"]) for n in range(self.rng.randrange(3))},
            replicas=replicas,
            stride=self.rng.choice([0, 1, 1, -1, 2**40]),
            missing=self.rng.choice(["", "why not"]),
        )
        return observations.DigestsReported(**self.common, digests=(digest,))

    def round(self) -> events.Event:
        kinds = tuple((self.rng.choice(["0", "1", "x"]), "all_reduce [4]") for _ in range(3))
        arrivals = tuple(
            (self.rng.choice([0, 1, 2]), self.whole(), self.rng.choice([self.moment(), self.moment() + 0.5]))
            for _ in range(self.rng.randrange(20))
        )
        told = RankRound(
            rank=LIAR,
            num_steps=self.whole(),
            window_s=self.seconds(),
            num_entered=self.whole(),
            kinds=kinds,
            arrivals=arrivals,
            groups={"0": tuple(self.rank() for _ in range(3)), "x": ()},
            titles={"0": self.rng.choice(self.texts)[:200]},
            data_s=self.maybe(self.seconds()),
            gc_s=self.maybe(self.seconds()),
            delay_s=self.maybe(self.seconds()),
            throttled_s=self.maybe(self.seconds()),
            io_s=self.maybe(self.seconds()),
            cpu_s=self.maybe(self.seconds()),
            missing=self.rng.choice(["", "", "why not"]),
            work=self.maybe(self.seconds()),
        )
        return observations.RoundReported(**self.common, round=int(self.cluster.clock.now), ranks=(told,))

    def exit(self) -> events.Event:
        now = self.cluster.clock.now
        error = ErrorReport(
            kind=self.rng.choice(KINDS),
            message=self.rng.choice(self.texts),
            traceback=self.rng.choice(self.texts),
            at=self.maybe(now, now - 50.0),
            place=self.rng.choice(["", "train.py:1", "n0", "\x1b[2J"]),
        )
        error = error if self.rng.random() < 0.7 else None
        output = "\n".join(self.rng.choices(self.texts, k=3))
        finding = end_of_rank(output, error, rank=LIAR, at=now)
        exit_ = Exit(
            rank=LIAR, at=now, code=self.rng.choice([0, 1, 7]), error=error, finding=finding, last_output=output
        )
        return events.WorkerExited(**self.common, exit=exit_, account=self.account())

    def next(self) -> events.Event:
        ways = [
            self.marks,
            self.progress,
            self.fault,
            self.signals,
            self.numbers,
            self.digest,
            self.round,
            self.size,
            self.refused,
            self.incomplete,
        ]
        return self.rng.choices([*ways, self.restore, self.exit], [*[10] * len(ways), 1, 1])[0]()


def honest(cluster: Cluster, step: int) -> Iterator[events.Event]:
    """What the agents of the other ranks say meanwhile."""
    now, generation = cluster.clock.now, cluster.state.generation
    for rank in range(RANKS):
        worker = cluster.state.workers.get(rank)
        if rank == LIAR or worker is None or worker.exit is not None:
            continue
        common = {"at": now, "node": worker.node, "generation": generation}
        signals = Signals(
            rank=rank, phase=str(Phase.TRAIN), log_s=0.1, device_s=0.1, communication_s=0.1, last_step=step
        )
        yield observations.SignalsReported(**common, signals=(signals,))
        point = NumberPoint(step=step, loss=2.0, grad_norm=1.0)
        yield observations.NumbersReported(**common, numbers=(RankNumbers(rank=rank, source="step", points=(point,)),))
        digest = RankDigest(rank=rank, step=step, values={"p0": "a"}, replicas=tuple(range(RANKS)))
        yield observations.DigestsReported(**common, digests=(digest,))
        arrivals = tuple((0, 10 * step + n, now + 0.1 * n) for n in range(10))
        told = RankRound(
            rank=rank, num_steps=1, window_s=1.0, num_entered=10, kinds=(("0", "all_reduce [4]"),), arrivals=arrivals
        )
        yield observations.RoundReported(**common, round=int(now), ranks=(told,))


def over_the_link(event: events.Event) -> events.Event:
    sent = decode_from_peer(encode(Report(source_seq=1, event=event)))
    assert isinstance(sent, Report)
    return sent.event


@pytest.fixture(scope="module")
def signatures() -> list[str]:
    """What each signature that would take a machine out looks like, as far as its pattern is plain text."""
    found = [p for s in load_base().signatures for p in s.patterns if p.replace(" ", "").isalnum()]
    return found[:200]


OBSERVED = (
    observations.SignalsReported,
    observations.NumbersReported,
    observations.DigestsReported,
    observations.RoundReported,
)


def lie_through(seed: int, signatures: list[str]) -> tuple[int, list[actions.Action]]:
    """One run: how many lies it heard before it ended, and what was done."""
    cluster = Cluster(RunSpec(program="train.py", num_slots=RANKS, num_standby=2), Policy())
    detectors = Detectors(cluster.policy)
    lies, done = Lies(seed, cluster, signatures), []
    cluster.start()
    cluster.train(2)
    for number in range(LIES_PER_RUN):
        if cluster.state.is_over:
            return number, done
        told = [over_the_link(lies.next())]
        if number % 4 == 0:
            done += cluster.train(1)
            told += honest(cluster, number)
        for event in told:
            if isinstance(event, OBSERVED):
                for found in detectors.take(event, cluster.state):
                    done += cluster.feed(found)
            elif event.generation == cluster.state.generation and not cluster.state.is_over:
                done += cluster.feed(event)
        done += cluster.wait(0.5)
    return LIES_PER_RUN, done


@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_lies(part: int, signatures: list[str], caplog) -> None:
    seed, num_lies = part * LIES, 0
    with caplog.at_level(logging.ERROR, "everstep.controller"):
        while num_lies < LIES // PARTS:
            heard, done = lie_through(seed, signatures)
            seed, num_lies = seed + 1, num_lies + heard
            evicted = {action.node for action in done if isinstance(action, actions.EvictNode)}
            assert evicted <= {f"n{LIAR}"}, (seed, evicted)
            for action in done:
                if isinstance(action, actions.Concluded):
                    assert action.verdict.confidence is not Confidence.HIGH, (seed, action.verdict)
                    if action.verdict.confidence is not Confidence.LOW:
                        assert set(action.verdict.ranks) <= {LIAR}, (seed, action.verdict)
    failed = [record.getMessage() for record in caplog.records if " failed on a " in record.getMessage()]
    assert not failed


def test_groups_that_a_rank_makes_up_are_not_remembered(signatures: list[str]) -> None:
    cluster = Cluster(RunSpec(program="train.py", num_slots=RANKS), Policy())
    cluster.start()
    cluster.train(1)
    detector = DigestDetector()
    for number in range(3 * MAX_GROUPS):
        replicas = (number % 4, (number // 4) % 4, *[0] * (number // 16))[:64] if number % 2 else (0, 2**31 - 1)
        digest = RankDigest(rank=LIAR, step=7, values={"p": "a"}, replicas=replicas, stride=number % 3)
        common = {"at": cluster.clock.now, "node": f"n{LIAR}", "generation": 0}
        detector.take(observations.DigestsReported(**common, digests=(digest,)), cluster.state)
    assert len(detector._groups) <= MAX_GROUPS
    assert sum(map(len, detector._groups.values())) < 64 * MAX_GROUPS
