"""Updates among faults, in any order: who was taken back is never started again, and nothing of it ends the run."""

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.core.state.policy import Policy
from everstep.model import events
from everstep.model.actions import StartWorkers, UpdateConcluded
from everstep.model.spec import RunSpec
from everstep.model.versions import Stage
from everstep.testing import Cluster

COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.booleans(), st.booleans()),  # urgent, and can start
        st.tuples(st.just("train"), st.integers(1, 7)),
        st.tuples(st.just("raise"), st.sampled_from(["train.py:1", "train.py:2"])),
        st.tuples(st.just("kill")),
        st.tuples(st.just("lose-node")),
        st.tuples(st.just("wait")),
        st.tuples(st.just("restart-controller")),
    ),
    max_size=14,
)


def carry_out(made: Cluster, command: tuple[object, ...], number: int) -> None:
    match command:
        case ("update", bool(is_urgent), bool(can_start)):
            version = f"v{number}"
            if not can_start:
                made.broken[version] = "train.py:1: SyntaxError"
            at = made.clock.now
            made.feed(
                events.UpdateRequested(at=at, version=version, code=f"/c/{number}", root="/j", is_urgent=is_urgent)
            )
        case ("train", int(steps)):
            made.train(steps)
        case ("raise", str(place)):
            made.raise_in(0, place=place)
        case ("kill",):
            made.kill(1)
        case ("lose-node",):
            made.lose_node(made.state.active_nodes[0])
        case ("wait",):
            made.wait(90_000.0)
        case _:
            made.restart_controller()


@settings(max_examples=40, deadline=None)
@given(COMMANDS)
def test_updates_among_faults(commands: list[tuple[object, ...]]):
    made = Cluster(RunSpec(program="train.py", nproc_per_node=2, num_standby=1), Policy(max_restarts=100))
    made.start()
    number = 0
    for command in commands:
        if made.state.is_over:
            break
        number += command[0] == "update"
        carry_out(made, command, number)
    stages: dict[str, Stage] = {}
    for record in made.records:
        for action in record.actions:
            if isinstance(action, UpdateConcluded):
                assert stages.get(action.version) not in (Stage.REFUSED, Stage.ROLLED_BACK, Stage.SUPERSEDED)
                assert action.why
                stages[action.version] = action.stage
                assert list(stages.values()).count(Stage.WAITING) <= 1
            if isinstance(action, StartWorkers) and action.version is not None:
                assert stages[action.version.id] in (Stage.RUNNING, Stage.TRAINED)
    running = made.state.version
    assert running == "v0" or stages[running] in (Stage.RUNNING, Stage.TRAINED)
