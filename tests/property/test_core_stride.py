"""Reports of progress that are taken together make the state that they make one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.core.invariants import check
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.state.stride import stride
from everstep.core.step import step
from everstep.model import events
from everstep.model.facts import Exit, RankAccount, Started
from everstep.model.spec import RunSpec

NODES, RANKS_OF_EACH = 3, 2
POLICY = Policy()
RANKS = range(NODES * RANKS_OF_EACH)


def account(rank: int, last_step: int | None, **others: object) -> RankAccount:
    known: dict[str, object] = {
        "spawned_at": 1.0, "entered_at": 2.0, "rendezvous_begun_at": 3.0, "rendezvous_done_at": 4.0,
        "first_step": 0, "first_step_at": 5.0, "last_step_at": 6.0, "counts_own_steps": True,
    }  # fmt: skip
    return RankAccount(rank=rank, last_step=last_step, **{**known, **others})


def progress(node: int, *accounts: RankAccount, at: float = 10.0, generation: int = 0) -> events.ProgressReported:
    return events.ProgressReported(at=at, node=f"n{node}", generation=generation, accounts=accounts)


def running(first_step: int = 0) -> State:
    """Three nodes that train; what runs has trained long enough."""
    spec = RunSpec(program="train.py", num_slots=NODES, nproc_per_node=RANKS_OF_EACH)
    told: list[events.Event] = [
        events.RunStarted(at=0.0, run="r", spec=spec, everstep_version="test", policy="default"),
        events.StoreOpened(at=0.0, generation=0, host="h", port=1),
    ]
    told += [events.NodeJoined(at=0.0, node=f"n{node}", host="h", pid=1) for node in range(NODES)]
    for node in range(NODES):
        mine = range(node * RANKS_OF_EACH, (node + 1) * RANKS_OF_EACH)
        started = tuple(Started(rank=rank, pid=rank, how="fresh", at=1.0) for rank in mine)
        told.append(events.WorkersStarted(at=1.0, node=f"n{node}", generation=0, started=started))
        told.append(progress(node, *(account(rank, first_step) for rank in mine)))
    state = State.initial()
    for event in told:
        state, _ = step(state, event, POLICY)
    assert state.phase is Phase.RUNNING
    return state


CALM, YOUNG = running(first_step=20), running()

STEPS = st.integers(0, 24)
ACCOUNTS = st.one_of(
    st.builds(account, st.sampled_from(RANKS), STEPS, published_step=st.none() | STEPS),
    st.builds(account, st.integers(0, 9), st.none() | STEPS, entered_at=st.sampled_from([None, 2.0, 2.5])),
    st.builds(account, st.sampled_from(RANKS), STEPS, rendezvous_done_at=st.sampled_from([None, 4.0, 7.0])),
)
FORWARD = st.builds(
    lambda node, step_done: progress(
        node, *(account(node * RANKS_OF_EACH + rank, step_done, published_step=step_done) for rank in (0, 1))
    ),
    st.integers(0, NODES - 1),
    st.integers(20, 30),
)
REPORTS = st.lists(
    st.one_of(
        FORWARD,
        FORWARD,
        st.builds(lambda node, some: progress(node, *some), st.integers(0, NODES), st.lists(ACCOUNTS, max_size=3)),
        st.builds(lambda node, number: progress(node, generation=number), st.integers(0, 2), st.integers(-1, 1)),
    ),
    max_size=12,
)
ENDED = st.none() | st.sampled_from([None, 0, 1])


@settings(max_examples=100, deadline=None)
@given(reports=REPORTS, is_young=st.booleans(), code=ENDED)
def test_a_stride_is_the_steps_that_it_takes_the_place_of(reports, is_young, code):
    state = YOUNG if is_young else CALM
    if code is not None:
        ended = events.WorkerExited(at=9.0, node="n1", generation=0, exit=Exit(rank=2, at=9.0, code=code))
        state, _ = step(state, ended, POLICY)
    after, number = stride(state, reports)
    for report in reports[:number]:
        state, actions = step(state, report, POLICY)
        assert actions == []
    assert after == state
    check(after)


def test_progress_of_all_is_one_stride_and_a_surprise_ends_it():
    together = [progress(node, *(account(node * 2 + rank, 21) for rank in (0, 1))) for node in range(NODES)]
    after, number = stride(CALM, together)
    assert (number, after.best_step) == (3, 21)
    lost = progress(1, account(2, 21, rendezvous_done_at=None))
    assert stride(CALM, [together[0], lost, together[1]])[1] == 1
    assert stride(YOUNG, together) == (YOUNG, 0), "its first steps are looked at one by one"
