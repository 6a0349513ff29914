"""Messages as real peers send them, and what is left of them after a hostile hand: for bench/hostile.py and tests."""

import random
from collections.abc import Iterator

from everstep.model import events, facts, observations
from everstep.wire.codec import encode
from everstep.wire.messages import PROTOCOL, Ack, Beat, Challenge, Hello, Report

_INTERESTING = (
    b"\x00",
    b"\xff",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xcb\x7f\xf8",
)


def real_events(node: str) -> list[events.Event]:
    """One of each kind that agents send most, for this node."""
    account = facts.RankAccount(rank=0, spawned_at=1.0, entered_at=2.0, last_step=7, first_step=1, last_step_at=9.0)
    at = 1e9
    return [
        events.ProgressReported(at=at, node=node, generation=0, accounts=(account,)),
        events.MarksReported(at=at, node=node, generation=0, accounts=(account,)),
        observations.SignalsReported(
            at=at, node=node, generation=0, signals=(facts.Signals(rank=0, phase="step", log_s=1.0, last_step=7),)
        ),
        observations.NumbersReported(
            at=at,
            node=node,
            generation=0,
            numbers=(facts.RankNumbers(rank=0, source="log", points=(facts.NumberPoint(step=3, loss=1.5),)),),
        ),
        observations.DigestsReported(
            at=at, node=node, generation=0, digests=(facts.RankDigest(rank=0, step=4, values={"w": "ab12"}),)
        ),
        observations.RoundReported(
            at=at, node=node, generation=0, round=3, ranks=(facts.RankRound(rank=0, num_steps=4, window_s=10.0),)
        ),
        events.WorkerExited(at=at, node=node, generation=0, exit=facts.Exit(rank=0, at=at, code=1, last_output="bang")),
        events.WorkersStopped(at=at, node=node, generation=0, held=(facts.Held(rank=0, steps=(4, 5)),)),
        events.WorkersStarted(
            at=at, node=node, generation=0, started=(facts.Started(rank=0, pid=77, how="fresh", at=at),)
        ),
        events.RestoreFailed(at=at, node=node, generation=0, rank=0, step=3, source="memory", where="n0", why="torn"),
        events.CheckpointCommitted(at=at, node=node, step=4, why="no room"),
        events.SnapshotPersisted(at=at, node=node, generation=0, step=4),
        events.TemplateReported(at=at, node=node, usable=True, num_modules=3),
        events.RuntimeFaulted(at=at, node=node, rank=0, generation=0, where="hooks", why="boom"),
    ]


def forbidden_events(node: str) -> list[events.Event]:
    """What an agent may not say, whoever it is; each of them would end or change a run."""
    return [
        events.NodeLost(at=1e9, node=node, reason="it is not"),
        events.StopRequested(at=1e9, why="because", signal=15),
        events.ProposalApproved(at=1e9, incident="i1", by="nobody"),
        events.TimerFired(at=1e9, key="backoff"),
        events.DrillRequested(at=1e9, drill="d1", kind="kill-controller"),
        events.StoreOpened(at=1e9, generation=0, host="127.0.0.1", port=1),
    ]


def hostile_messages(mine: str, theirs: list[str], seed: int) -> Iterator[bytes]:
    """Without end: mutations of what `mine` could say, and whole messages in the name of others."""
    chance = random.Random(seed)
    own = [Report(source_seq=1, event=event) for event in real_events(mine)]
    others = [
        Report(source_seq=1, event=event)
        for node in theirs
        for event in (
            *real_events(node),
            *forbidden_events(node),
            events.NodeJoined(at=1e9, node=node, host="h", pid=1),
        )
    ]
    greetings = [Hello(protocol=PROTOCOL, everstep_version="0", run="r", role="agent", name=mine), Beat()]
    odd = [encode(message) for message in greetings] + [encode(Ack(source_seq=1)), encode(Challenge(challenge="x"))]
    whole = [encode(report) for report in own + others] + odd
    number = 0
    while True:
        number += 1
        if chance.random() < 0.3:
            report = chance.choice(own + others)
            yield encode(Report(source_seq=number, event=report.event))
        else:
            yield mutated(bytearray(chance.choice(whole)), chance, whole)


def mutated(data: bytearray, chance: random.Random, others: list[bytes]) -> bytes:
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data)) if data else 0
        match chance.randrange(6):
            case 0 if data:
                data[at] ^= 1 << chance.randrange(8)
            case 1 if data:
                data[at] = chance.randrange(256)
            case 2:
                del data[at:]
            case 3:
                data[at:at] = chance.choice(_INTERESTING)
            case 4:
                other = chance.choice(others)
                data[at:] = other[chance.randrange(len(other)) :]
            case _:
                data += data[: chance.randrange(1, 200)]
    return bytes(data)
