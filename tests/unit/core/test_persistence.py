"""Steps on their way to the persistent tier, and what is saved before the end: the brain alone, with a storage that
answers, is late, or fails.
"""

import msgspec
import pytest

from everstep.core.restore.persistence import LIMIT_TIMER, MAX_AGE_S, NEXT_TIMER, step_to_come
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.model import actions, events
from everstep.model.actions import Action
from everstep.model.facts import Checkpoint, RankAccount
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster

EVERY_S = 60.0
ROOT = "/ckpt"


class Storing(Cluster):
    """Answers as agents do: the part when its step is done (`why` says what failed), the commit at once."""

    def __init__(self, *, nodes: int = 2, standby: int = 0, found: tuple[Checkpoint, ...] | None = (), **spec) -> None:
        policy = Policy(**spec.pop("policy", {}))
        self.fails: dict[str, str] = {}  # node, or "commit", -> why
        super().__init__(
            RunSpec(
                program="train.py",
                num_slots=nodes,
                nproc_per_node=4 // nodes,
                num_standby=standby,
                checkpoint_dir=ROOT,
                checkpoint_every_s=EVERY_S,
                **spec,
            ),
            policy,
        )
        for each in found or ():
            self.memory.commit(each)
        self.is_scanned = found is not None
        self.start()

    def find_checkpoints(self) -> list[Action]:
        return super().find_checkpoints() if self.is_scanned else []

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, actions.PersistSnapshot | actions.CommitCheckpoint):
            self.actions.append(action)
        else:
            super()._carry_out(action)
        if isinstance(action, actions.CommitCheckpoint) and type(action).__name__ not in self.held_back:
            why = self.fails.get("commit", "")
            found = None if why else checkpoint(action.step, is_trusted=action.is_trusted)
            self._queue.append(
                events.CheckpointCommitted(
                    at=self.clock.now, node=action.node, step=action.step, checkpoint=found, why=why
                )
            )

    def _account(self, rank: int) -> RankAccount:
        account = super()._account(rank)
        begun_at = self.clock.now - max(0, account.num_steps - 1)  # a step takes a second
        return msgspec.structs.replace(account, published_step=account.last_step, first_step_at=begun_at)

    def answer(self, *nodes: str, step: int | None = None) -> list[Action]:
        persisting = self.state.persisting
        step = step if step is not None or persisting is None else persisting.step
        assert step is not None
        return self.feed(
            *(
                events.SnapshotPersisted(
                    at=self.clock.now,
                    node=node,
                    generation=self.state.generation,
                    step=step,
                    written_bytes=10,
                    total_bytes=100,
                    why=self.fails.get(node, ""),
                )
                for node in nodes
            )
        )


def checkpoint(step: int, *, is_trusted: bool = False, at: float = 0.0) -> Checkpoint:
    return Checkpoint(step=step, path=f"{ROOT}/step-{step}", world_size=4, at=at, is_trusted=is_trusted)


def of(kind: type, decided: list[Action]) -> list:
    return [action for action in decided if isinstance(action, kind)]


def steps(job: Cluster) -> list[int]:
    return [each.step for each in job.state.checkpoints]


def due(job: Storing) -> list[Action]:
    """Until the next step is announced."""
    for _ in range(200):
        decided = job.train(1)
        if any(isinstance(action, actions.PersistSnapshot | actions.Refused) for action in decided):
            return decided
    raise AssertionError("no step is ever due")


def test_every_interval_a_step_to_come_goes_to_all_nodes_and_is_committed_once():
    job = Storing()
    asked = of(actions.PersistSnapshot, due(job))
    now = max(a.account.last_step for a in job.state.workers.values() if a.account)
    assert [a.node for a in asked] == ["n0", "n1"]
    assert [a.ranks for a in asked] == [(0, 1), (2, 3)]
    assert len({a.step for a in asked}) == 1
    assert asked[0].step >= now + 2 - 1, "it is still to come, with time for the pin (the report came with the step)"
    assert job.state.persisting is not None
    assert job.answer("n0") == []
    committed = of(actions.CommitCheckpoint, job.answer("n1"))
    assert [(a.node, a.step, a.is_trusted, a.keep) for a in committed] == [("n0", asked[0].step, False, 3)]
    assert steps(job) == [asked[0].step]
    assert job.state.persisting is None
    assert LIMIT_TIMER not in job.state.timers
    assert NEXT_TIMER in job.state.timers
    again = of(actions.PersistSnapshot, due(job))
    assert again[0].step >= asked[0].step + EVERY_S - 1


def test_it_is_trusted_if_a_comparison_after_it_passed():
    job = Storing()
    step = of(actions.PersistSnapshot, due(job))[0].step
    job.feed(events.ReplicasAgreed(at=job.clock.now, generation=0, step=step))
    assert of(actions.CommitCheckpoint, job.answer("n0", "n1"))[0].is_trusted
    assert job.state.checkpoints[-1].is_trusted


def test_it_is_marked_as_trusted_when_a_later_comparison_passes_and_only_then():
    job = Storing()
    due(job)
    step = steps_after(job)
    assert not job.state.checkpoints[-1].is_trusted
    earlier = job.feed(events.ReplicasAgreed(at=job.clock.now, generation=0, step=step - 1))
    assert not of(actions.CommitCheckpoint, earlier)
    marked = of(actions.CommitCheckpoint, job.feed(events.ReplicasAgreed(at=job.clock.now, generation=0, step=step)))
    assert [(a.step, a.is_trusted) for a in marked] == [(step, True)]
    assert job.state.checkpoints[-1].is_trusted
    again = job.feed(events.ReplicasAgreed(at=job.clock.now, generation=0, step=step + 5))
    assert not of(actions.CommitCheckpoint, again)


def test_marking_that_fails_is_said_and_not_tried_for_ever():
    job = Storing()
    due(job)
    step = steps_after(job)
    job.fails["commit"] = "read-only file system"
    decided = job.feed(events.ReplicasAgreed(at=job.clock.now, generation=0, step=step))
    assert [r.what for r in of(actions.Refused, decided)] == [f"mark step {step} as trusted"]
    assert not of(actions.CommitCheckpoint, job.feed(events.ReplicasAgreed(at=1.0, generation=0, step=step + 1)))
    assert steps(job) == [step]


def steps_after(job: Storing) -> int:
    """Both nodes have answered; the step that is there now."""
    job.answer("n0", "n1")
    return steps(job)[-1]


@pytest.mark.parametrize("who", ["n1", "commit"])
def test_a_failure_is_told_with_what_stays_and_tried_again_with_the_next_timer(who):
    job = Storing()
    due(job)
    job.answer("n0", "n1")
    first = steps(job)
    due(job)
    job.fails[who] = "no space left"
    refused = of(actions.Refused, job.answer("n0", "n1"))
    assert len(refused) == 1
    assert refused[0].why.startswith(f"{'n0' if who == 'commit' else who}: no space left; training continues")
    assert f"stays step {first[0]}" in refused[0].why
    assert (job.state.phase, steps(job)) == (Phase.RUNNING, first)
    job.fails.clear()
    due(job)
    job.answer("n0", "n1")
    assert len(steps(job)) == 2


def test_a_node_that_never_answers_is_named_and_is_not_waited_for_for_ever():
    job = Storing()
    due(job)
    job.answer("n0")
    refused = []
    for _ in range(200):
        refused += of(actions.Refused, job.train(1))
        if job.state.persisting is None:
            break
    assert [("still on its way" in r.why, "no answer of n1" in r.why) for r in refused] == [
        (True, False),
        (False, True),
    ]


def test_answers_for_another_step_or_twice_or_of_nobody_change_nothing():
    job = Storing()
    due(job)
    before = job.state.persisting
    assert job.answer("n0", step=3) == []
    assert job.state.persisting == before
    job.answer("n0")
    job.answer("n0")
    assert job.state.persisting is not None
    assert job.state.persisting.written_bytes == 10
    assert job.answer("n9") == []


def test_a_restart_gives_up_the_step_and_keeps_the_rhythm():
    job = Storing()
    due(job)
    given_up = job.state.persisting
    job.kill(1)
    job.train(1)
    assert job.state.generation == 1
    assert job.state.persist_at == pytest.approx(given_up.begun_at + EVERY_S)
    asked = of(actions.PersistSnapshot, due(job))
    assert asked[0].generation == 1
    job.answer("n0", "n1")
    assert steps(job) == [asked[0].step]


def test_one_that_was_due_in_the_middle_of_a_recovery_follows_soon_after_it():
    job = Storing()
    job.train(int(EVERY_S) - 2)
    job.held_back.add("StartWorkers")
    job.kill(1)
    job.wait(5.0)
    assert not any(isinstance(a, actions.PersistSnapshot) for r in job.records for a in r.actions)
    job.held_back.clear()
    job.restart_controller()
    assert of(actions.PersistSnapshot, job.train(12))


def test_a_lost_node_ends_the_wait_for_its_part():
    job = Storing(standby=1)
    due(job)
    refused = of(actions.Refused, job.lose_node("n1"))
    assert any("n1 was lost meanwhile" in r.why for r in refused)
    assert job.state.persisting is None


def test_without_snapshots_there_is_nothing_to_write_and_that_is_said_once():
    job = Storing(launch="command")
    refused = of(actions.Refused, job.wait(5 * EVERY_S))
    assert len(refused) == 1
    assert "rank 0 has reported no snapshot" in refused[0].why


def test_nothing_forms_before_it_is_known_what_the_tier_holds():
    job = Storing(found=None)
    job.memory.commit(checkpoint(40))
    assert job.state.phase is Phase.GATHERING
    started = of(actions.StartWorkers, job.feed(events.CheckpointsFound(at=1.0, checkpoints=(checkpoint(40),))))
    assert {(a.resume_step, a.restore_path) for a in started} == {(40, f"{ROOT}/step-40")}


def test_a_tier_that_cannot_be_read_ends_the_run_instead_of_beginning_at_step_0():
    job = Storing(found=None)
    finish = of(actions.Finish, job.feed(events.CheckpointsFound(at=1.0, why="permission denied")))
    assert finish[0].outcome == "gave-up"
    assert "permission denied" in finish[0].why
    assert job.state.generation == -1


def last_save(job: Storing, decided: list[Action]) -> list[actions.PersistSnapshot]:
    assert job.state.phase is Phase.SAVING
    assert not of(actions.Finish, decided)
    return of(actions.PersistSnapshot, decided)


def test_success_is_told_when_the_last_step_is_written():
    job = Storing()
    job.train(7)
    for rank in range(4):
        account = msgspec.structs.replace(job._account(rank), ended_at=job.clock.now)
        exited = job._exited(events.Exit(rank=rank, at=job.clock.now, code=0))
        decided = job.feed(msgspec.structs.replace(exited, account=account))
    assert {a.step for a in last_save(job, decided)} == {6}
    finish = of(actions.Finish, job.answer("n0", "n1"))
    assert [(f.outcome, f.exit_code) for f in finish] == [("succeeded", 0)]
    assert steps(job) == [6]


def test_a_stop_with_notice_saves_the_last_step_within_the_notice():
    job = Storing()
    job.train(7)
    decided = job.feed(events.StopRequested(at=job.clock.now, why="SIGTERM", signal=15))
    assert all(stop.save_s == job.policy.save_s for stop in of(actions.StopWorkers, decided))
    saves = last_save(job, decided)
    assert {a.step for a in saves} == {6}
    assert saves[0].limit_s < job.policy.notice_s
    finish = of(actions.Finish, job.answer("n0", "n1"))
    assert [(f.outcome, f.exit_code) for f in finish] == [("stopped", 143)]


def test_the_notice_is_not_overrun():
    job = Storing()
    job.train(7)
    job.feed(events.StopRequested(at=job.clock.now, why="SIGTERM", signal=15))
    decided = job.wait(job.policy.notice_s)
    assert any("no answer of n0, n1" in r.why for r in of(actions.Refused, decided))
    assert of(actions.Finish, decided)[0].exit_code == 143


def test_a_second_signal_skips_it():
    job = Storing()
    job.train(7)
    job.feed(events.StopRequested(at=job.clock.now, why="SIGINT", signal=2))
    decided = job.feed(events.StopRequested(at=job.clock.now, why="SIGINT", signal=2))
    assert of(actions.Finish, decided)[0].exit_code == 130
    assert job.state.is_over


@pytest.mark.parametrize("failure", ["lost", "why"])
def test_what_cannot_be_saved_does_not_change_how_the_run_ended(failure):
    job = Storing()
    job.train(7)
    job.feed(events.StopRequested(at=job.clock.now, why="SIGTERM", signal=15))
    job.fails["n1"] = "disk full"
    decided = job.lose_node("n1") if failure == "lost" else job.answer("n1")
    assert [(f.outcome, f.exit_code) for f in of(actions.Finish, decided)] == [("stopped", 143)]
    assert of(actions.Refused, decided)
    assert not of(actions.AcquireNode, decided)


def test_giving_up_saves_too():
    job = Storing(policy={"max_restarts": 0})
    job.train(7)
    saves = last_save(job, job.kill(2))
    assert {a.step for a in saves} == {6}
    job.answer("n0", "n1")
    assert job.state.ending is not None
    assert job.state.ending.outcome == "gave-up"


def test_what_is_there_already_is_not_written_again():
    job = Storing(found=(checkpoint(40),))
    decided = job.feed(events.StopRequested(at=job.clock.now, why="SIGTERM", signal=15))
    assert of(actions.Finish, decided)
    assert not of(actions.PersistSnapshot, decided)


def test_a_controller_that_takes_over_asks_again_for_what_is_not_answered():
    job = Storing()
    step = of(actions.PersistSnapshot, due(job))[0].step
    job.answer("n0")
    again = of(actions.PersistSnapshot, job.restart_controller())
    assert [(a.node, a.step) for a in again] == [("n1", step)]
    job.held_back.add("CommitCheckpoint")
    job.answer("n1")
    job.held_back.clear()
    assert [a.step for a in of(actions.CommitCheckpoint, job.restart_controller())] == [step]
    assert steps(job) == [step]
    job.train(9)
    job.feed(events.StopRequested(at=job.clock.now, why="SIGTERM", signal=15))
    assert len(of(actions.PersistSnapshot, job.restart_controller())) == 2


def account(rank: int = 0, step: int = 100, at: float = 1000.0, step_s: float = 0.1) -> RankAccount:
    return RankAccount(
        rank=rank, spawned_at=0.0, first_step=0, last_step=step, first_step_at=at - step * step_s, last_step_at=at
    )


def test_the_step_to_come_is_so_far_ahead_that_a_pin_can_be_there_first():
    assert step_to_come([account()], 1000.0)[0] == pytest.approx(110, abs=1)
    assert step_to_come([account()], 1001.0)[0] == pytest.approx(120, abs=1)  # it trained on since it told
    assert step_to_come([account(step_s=30.0)], 1000.0) == (102, pytest.approx(60.0))
    assert step_to_come([account(), account(1, step=104)], 1000.0)[0] == pytest.approx(114, abs=1)
    silent = step_to_come([account()], 5000.0)[0]
    assert silent == pytest.approx(100 + MAX_AGE_S / 0.1 + 10, abs=2), "who is silent has not trained for an hour"
    assert step_to_come([account(step=0)], 1000.0)[0] >= 2
