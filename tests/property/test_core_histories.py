"""The brain under random histories: whatever happens, in whatever order, the rules hold and nothing raises."""

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.core.invariants import check_step
from everstep.core.reissue import reissue
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Role, State
from everstep.core.step import step
from everstep.model import actions, events
from everstep.model.facts import Alert, Checkpoint, ErrorReport, Exit, Held, RankAccount, Started
from everstep.model.spec import Launch, Mode, RunSpec
from everstep.model.verdict import Blame, Certainty, Confidence, Refusal, Verdict
from everstep.testing import Cluster

NODES = [f"n{i}" for i in range(5)]
RANKS = st.integers(0, 4)
TIMES = st.floats(0, 5000)
GENERATIONS = st.integers(-1, 4)
EXITS = st.builds(
    Exit,
    rank=RANKS,
    at=TIMES,
    code=st.sampled_from([None, 0, 1]),
    signal=st.sampled_from([None, 6, 9, 15]),
    stopped_by_us=st.booleans(),
    error=st.sampled_from(
        [
            None,
            ErrorReport(kind="RuntimeError", message="Connection closed by peer"),
            ErrorReport(kind="KeyError", message="'x'", place="train.py:3"),
            ErrorReport(kind="SyntaxError", message="bad", place="train.py:1"),
        ]
    ),
)
STEPS = st.none() | st.integers(0, 9)
MARKS = st.none() | st.floats(1, 100)
ACCOUNTS = st.builds(
    RankAccount,
    rank=RANKS,
    spawned_at=TIMES,
    entered_at=MARKS,
    rendezvous_begun_at=MARKS,
    rendezvous_done_at=MARKS,
    first_step=STEPS,
    last_step=STEPS,
    first_step_at=MARKS,
    counts_own_steps=st.booleans(),
)
ENTRIES = st.lists(st.tuples(st.integers(0, 9), GENERATIONS), max_size=3)
HELD = st.lists(
    st.one_of(
        st.builds(Held, rank=RANKS, steps=st.lists(st.integers(0, 9), max_size=2).map(tuple)),
        st.builds(
            lambda rank, entries: Held(
                rank=rank, steps=tuple(step for step, _ in entries), generations=tuple(gen for _, gen in entries)
            ),
            rank=RANKS, entries=ENTRIES,
        ),
    ),
    max_size=4,
).map(tuple)  # fmt: skip
COMMON = {"at": TIMES, "node": st.sampled_from(NODES), "generation": GENERATIONS}
SPECS = st.builds(
    RunSpec,
    program=st.just("train.py"),
    num_slots=st.integers(1, 3),
    nproc_per_node=st.integers(1, 2),
    num_standby=st.integers(0, 2),
    mode=st.sampled_from(Mode),
    launch=st.sampled_from([Launch.SCRIPT, Launch.COMMAND]),
)
CHECKPOINTS = st.lists(
    st.builds(
        lambda step, trusted, at: Checkpoint(step=step, path=f"/c/{step}", world_size=2, at=at, is_trusted=trusted),
        step=st.integers(0, 9), trusted=st.booleans(), at=TIMES,
    ),
    max_size=2,
).map(tuple)  # fmt: skip
ANY_EVENT = st.one_of(
    st.builds(
        events.NodeJoined, host=st.just("h"), pid=st.just(1), held=HELD, backups=HELD, stopped=st.booleans(),
        endpoint=st.sampled_from(["", "h:1"]), **COMMON,
    ),
    st.builds(events.NodeLost, at=TIMES, node=st.sampled_from(NODES), reason=st.just("gone"), kept=HELD),
    st.builds(events.NodeSilent, at=TIMES, node=st.sampled_from(NODES), silent_s=st.just(4.0)),
    st.builds(events.NodeInDoubt, at=TIMES, node=st.sampled_from(NODES), number=st.just(1), silent_s=st.just(4.0)),
    st.builds(events.NodeRefused, at=TIMES, why=st.just("none")),
    st.builds(events.StoreOpened, at=TIMES, generation=GENERATIONS, host=st.just("h"), port=st.just(1)),
    st.builds(
        events.WorkersStarted,
        started=st.lists(
            st.builds(Started, rank=RANKS, pid=st.just(1), how=st.just("fresh"), at=TIMES), max_size=3
        ).map(tuple),
        **COMMON,
    ),
    st.builds(events.WorkersFailedToStart, why=st.just("fork"), **COMMON),
    st.builds(events.MarksReported, accounts=st.lists(ACCOUNTS, max_size=4).map(tuple), **COMMON),
    st.builds(events.WorkerExited, exit=EXITS, **COMMON),
    st.builds(
        events.NodeExamined, exam=st.sampled_from(["i1/1", "i2/1", "i2/2"]),
        passed=st.sampled_from([None, True, False]), why=st.just("it was examined"),
        digest=st.sampled_from(["", "a", "b"]), **COMMON,
    ),
    st.builds(events.WorkersStopped, exits=st.lists(EXITS, max_size=3).map(tuple), held=HELD, backups=HELD, **COMMON),
    st.builds(events.ReplicasAgreed, at=TIMES, generation=GENERATIONS, step=st.integers(0, 9)),
    st.builds(
        events.RestoreFailed, rank=RANKS, step=st.integers(0, 9), source=st.sampled_from(["memory", "peer", "disk"]),
        where=st.sampled_from(["", "n0", "/c/3"]), why=st.just("damaged"), is_damaged=st.booleans(),
        is_unfit=st.booleans(),
        **COMMON,
    ),
    st.builds(events.StateIncomplete, rank=RANKS, step=st.integers(0, 9), why=st.just("the scaler"), **COMMON),
    st.builds(events.CheckpointsFound, at=TIMES, checkpoints=CHECKPOINTS, why=st.sampled_from(["", "", "", "gone"])),
    st.builds(
        events.TimerFired,
        at=TIMES,
        key=st.builds(
            "{}:{}".format,
            st.sampled_from(
                ["settle", "start", "rendezvous", "node", "approval", "evidence", "diagnosis", "evict", "exam",
                 "backoff", "act"]
            ),
            st.sampled_from(["0", "1", "r1", "r2", "i1", "i1/1", "i2/1"]),
        ),
    ),
    st.builds(events.EvidenceRequested, at=TIMES, request=st.sampled_from(["e1", "i1"])),
    st.builds(
        events.HangSuspected, at=TIMES, generation=GENERATIONS, ranks=st.just((0,)), since=TIMES, window_s=st.just(2.0),
        why=st.just("hung"),
    ),
    st.builds(
        events.EvidenceCollected, incident=st.sampled_from(["i1", "i2"]), gathered=st.just(()), took_s=st.just(0.1),
        **COMMON,
    ),
    st.builds(
        events.Diagnosed, at=TIMES, generation=GENERATIONS, incident=st.sampled_from(["i1", "i2"]),
        moved_on=st.booleans(), verdict=st.builds(
            Verdict, code=st.sampled_from(["ES-H00", "ES-H02"]), sentence=st.just("it hangs."),
            blame=st.just(Blame.UNKNOWN), confidence=st.just(Confidence.HIGH), ranks=st.just((1,)), at=TIMES,
            certainty=st.sampled_from(Certainty), computes=st.booleans(), place=st.sampled_from(["", "train.py:1"]),
        ), limit_s=st.sampled_from([None, 5.0, 600.0]),
    ),
    st.builds(
        events.NodeAlerted, at=TIMES, node=st.sampled_from(NODES), alerts=st.lists(
            st.builds(
                Alert, at=TIMES, code=st.sampled_from(["ES-G13", "ES-G79"]), sentence=st.just("noticed"),
                component=st.just("gpu"), blame=st.sampled_from(["machine", "user", "nobody"]),
                severity=st.sampled_from(["fault", "error", "info"]),
                action=st.sampled_from(["REPLACE_NODE", "RESET_GPU", "CHECK_USER_CODE"]),
                role=st.sampled_from(["root", "cascade"]), device=st.sampled_from(["", "gpu 0"]),
            ), max_size=2,
        ).map(tuple),
    ),
    st.builds(
        events.AnomalyFound, at=TIMES, generation=GENERATIONS, verdict=st.builds(
            Verdict, code=st.sampled_from(["ES-S01", "ES-N01", "ES-N04", "ES-N05"]), sentence=st.just("it is slow."),
            blame=st.just(Blame.MACHINE), confidence=st.just(Confidence.HIGH), ranks=RANKS.map(lambda r: (r,)),
            at=TIMES,
        ),
        refusal=st.none() | st.just(Refusal(what="evict", why="uneven")),
    ),
    st.builds(events.StopRequested, at=TIMES, why=st.just("SIGINT"), signal=st.just(2)),
    st.builds(
        events.DrillRequested, at=TIMES, drill=st.just("d1"), kind=st.sampled_from(["kill-rank", "kill-agent", "x"]),
        rank=st.none() | RANKS, node=st.none() | st.sampled_from(NODES),
    ),
    st.builds(
        events.StandstillEnded, at=TIMES, generation=GENERATIONS, incident=st.sampled_from(["i1", "i2"]),
        lasted_s=st.floats(0, 1e4),
    ),
    st.builds(events.RestartRequested, at=TIMES),
    st.builds(events.ProposalApproved, at=TIMES, incident=st.sampled_from(["i1", "i2"])),
    st.builds(events.RunReopened, at=TIMES, attempt=st.just(2)),
)  # fmt: skip


@settings(max_examples=examples(1500), deadline=None)
@given(spec=SPECS, history=st.lists(ANY_EVENT, max_size=40))
def test_no_order_of_events_breaks_the_rules(spec: RunSpec, history: list[events.Event]) -> None:
    policy = Policy(max_restarts=3)
    state = State.initial()
    begin = events.RunStarted(at=0.0, run="r", spec=spec, everstep_version="t", policy="default")
    for event in [begin, *history]:
        before = state
        state, decided = step(before, event, policy)
        check_step(before, state)
        assert (state, decided) == step(before, event, policy), "same inputs, same outputs"
        for action in decided:
            assert action.why, f"no reason: {action}"
            if isinstance(action, actions.SettleDoubt) and action.node in state.members:
                member = state.members[action.node]
                assert action.may_go_on <= (member.role is not Role.OUT and not member.suspected), member
        if before.is_over:
            assert not decided
        reissue(state, policy)


@settings(max_examples=examples(1500), deadline=None)
@given(data=st.data(), spec=SPECS, snapshots=st.booleans())
def test_a_cluster_that_answers_always_gets_somewhere(data: st.DataObject, spec: RunSpec, snapshots: bool) -> None:
    """With peers that answer, no fault leaves the run stuck: it trains, waits for approval, or is over."""
    copies_lag = data.draw(st.none() | st.integers(0, 2))
    cluster = Cluster(spec, Policy(max_restarts=4), snapshots=snapshots, copies_lag=copies_lag)
    cluster.start()
    for _ in range(data.draw(st.integers(0, 12))):
        if cluster.state.is_over:
            break
        _one_thing(cluster, data)
        assert cluster.state.phase not in (Phase.STOPPING, Phase.EXAMINING, Phase.NEW)
        assert cluster.state.phase is not Phase.GATHERING or cluster.state.is_backing_off
    cluster.wait(2000)
    assert cluster.state.phase is not Phase.GATHERING
    if cluster.state.phase is Phase.PROPOSING:
        raise AssertionError("a proposal outlived its timer")
    started = [a for record in cluster.records for a in record.actions if isinstance(a, actions.StartWorkers)]
    generations = {action.generation for action in started}
    assert len(generations) <= 1 + len(cluster.state.restarts)
    assert generations == set(range(len(generations)))


@settings(max_examples=examples(600), deadline=None)
@given(data=st.data(), spec=SPECS, copies_lag=st.none() | st.integers(0, 2))
def test_the_newest_step_that_every_rank_can_have_is_the_one(
    data: st.DataObject, spec: RunSpec, copies_lag: int | None
) -> None:
    """The cluster knows the truth of who holds what, and refuses a start that cannot be (FakeMemory)."""
    cluster = Cluster(spec, Policy(max_restarts=20, max_same_failure=9), copies_lag=copies_lag)
    cluster.start()
    went_back = set()
    for _ in range(data.draw(st.integers(1, 15))):
        if cluster.state.is_over:
            break
        before, num_records = cluster.state.generation, len(cluster.records)
        trusted = cluster.state.trusted_step
        if data.draw(st.booleans()):
            _memory_thing(cluster, data)
        else:
            _one_thing(cluster, data)
        decided = [action for record in cluster.records[num_records:] for action in record.actions]
        if any(isinstance(a, actions.Concluded) and a.decision.rule == "go-back" for a in decided):
            went_back |= set(range(before + 1, cluster.state.generation + 1))
            if not any(isinstance(a, actions.Refused) and a.what == "go back to a trusted step" for a in decided):
                cluster.memory.distrust(trusted, before)
    for generation, (chosen, best) in enumerate(cluster.chosen):
        if generation in went_back and chosen is not None and best is not None:
            assert chosen <= best  # to what is trusted, where that is to be had
        else:
            assert chosen == best


@settings(max_examples=examples(500), deadline=None)
@given(data=st.data(), spec=SPECS)
def test_the_fold_of_the_journal_is_the_state_at_every_moment(data: st.DataObject, spec: RunSpec) -> None:
    cluster = Cluster(spec, Policy(max_restarts=4))
    cluster.start()
    for _ in range(data.draw(st.integers(0, 6))):
        if not cluster.state.is_over:
            _one_thing(cluster, data)
        before = cluster.state
        cluster.restart_controller()
        assert cluster.state.generation == before.generation, "a controller that takes over starts nothing anew"
        assert cluster.state.num_incidents == before.num_incidents


@settings(max_examples=examples(500), deadline=None)
@given(data=st.data(), spec=SPECS)
def test_every_start_has_all_ranks_once_and_its_own_store(data: st.DataObject, spec: RunSpec) -> None:
    cluster = Cluster(spec, Policy(max_restarts=4))
    cluster.start()
    for _ in range(data.draw(st.integers(0, 8))):
        if not cluster.state.is_over:
            _one_thing(cluster, data)
    by_generation: dict[int, list[actions.StartWorkers]] = {}
    for record in cluster.records:
        for action in record.actions:
            if isinstance(action, actions.StartWorkers):
                by_generation.setdefault(action.generation, []).append(action)
    ports = []
    for starts in by_generation.values():
        ranks = [r for s in starts for r in range(s.first_rank, s.first_rank + s.num_ranks)]
        assert sorted(ranks) == list(range(spec.world_size))
        assert len({(s.store_port, s.resume_step) for s in starts}) == 1
        ports.append(starts[0].store_port)
    assert len(set(ports)) == len(ports)


def _memory_thing(cluster: Cluster, data: st.DataObject) -> None:
    """Something happens to what is held, or to what is known of it."""
    memory, state = cluster.memory, cluster.state
    node_of = {worker.rank: worker.node for worker in state.workers.values()}
    what = data.draw(st.sampled_from(["agree", "corrupt", "checkpoint", "damage", "late", "train"]))
    places = [("", rank, step) for rank, node in node_of.items() for step in memory.own.get(node, {}).get(rank, {})]
    places += [(n, rank, step) for n, shelf in memory.copies.items() for rank in shelf for step in shelf[rank]]
    if what == "train":
        cluster.train(data.draw(st.integers(1, 4)))
    elif what == "agree":
        cluster.agree()
    elif what == "corrupt" and node_of:
        cluster.anomaly(data.draw(st.sampled_from(["ES-N04", "ES-N05"])), data.draw(st.sampled_from(sorted(node_of))))
    elif what == "checkpoint":
        cluster.checkpoint(trusted=data.draw(st.booleans()))
    elif what == "damage" and (places or memory.disk):
        memory.damaged.add(data.draw(st.sampled_from([*places, *memory.disk])))
    elif what == "late" and state.generation > 0 and state.active_nodes:
        rank, node = data.draw(st.sampled_from(sorted(node_of))), data.draw(st.sampled_from(state.active_nodes))
        memory.arrive_late(rank, node, data.draw(st.integers(0, 12)), data.draw(st.integers(0, state.generation - 1)))


def _one_thing(cluster: Cluster, data: st.DataObject) -> None:
    alive = sorted(rank for rank, worker in cluster.state.workers.items() if worker.exit is None)
    if not alive or cluster.state.phase is Phase.PROPOSING:
        cluster.feed(events.ProposalApproved(at=cluster.clock.now, incident=f"i{cluster.state.num_incidents}"))
        return
    rank = data.draw(st.sampled_from(alive))
    what = data.draw(
        st.sampled_from(["train", "kill", "raise", "peer", "node", "wait", "exit0", "oom", "hang", "hang-none"])
    )
    if what == "train":
        cluster.train(data.draw(st.integers(1, 3)))
    elif what == "kill":
        cluster.kill(rank)
    elif what == "raise":
        cluster.raise_in(rank)
    elif what == "peer":
        cluster.lose_peer(rank)
    elif what == "node":
        cluster.lose_node(data.draw(st.sampled_from(sorted(cluster.state.members))))
    elif what == "exit0":
        cluster.end(rank, code=0)
    elif what == "oom":
        cluster.oom(rank)
    elif what.startswith("hang"):
        cluster.hang(rank if what == "hang" else None)
    cluster.wait(1)
