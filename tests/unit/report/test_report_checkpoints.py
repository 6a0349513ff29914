"""What a fault would cost now, and what is told of copies and checkpoints. From real journals of the fake cluster."""

import msgspec
import pytest

from everstep.core.state.policy import Policy
from everstep.journal.fold import fold
from everstep.journal.view import RunView
from everstep.model import events
from everstep.model.record import Header
from everstep.model.spec import RunSpec
from everstep.report.checkpoints import lines, loss_text, view
from everstep.report.now.narrate import Narrator
from everstep.report.parts.sentences import action_sentences, event_sentence
from everstep.testing.cluster import Cluster


def header(job: Cluster) -> Header:
    policy = msgspec.structs.asdict(job.policy)
    return Header(run="r1", everstep_version="test", policy=policy)


def cluster(nodes: int = 2, disk: str = "", standby: int = 0, racks: tuple[str, ...] = (), **policy: object) -> Cluster:
    spec = RunSpec(
        program="train.py",
        num_slots=nodes,
        nproc_per_node=4 // nodes,
        num_standby=standby,
        checkpoint_dir=disk,
        checkpoint_every_s=10.0,
    )
    made = Cluster(spec, Policy(**policy), racks=racks)  # type: ignore[arg-type]
    made.start()
    return made


def folded(job: Cluster, backed_up: dict[int, int | None] | None = None) -> RunView:
    """The view of its journal; ranks report these copies."""
    run = fold(header(job), job.records)
    assert run.generation is not None
    for rank, account in list(run.generation.accounts.items()):
        copied = (backed_up or {}).get(rank)
        run.generation.accounts[rank] = msgspec.structs.replace(account, backed_up_step=copied)
    return run


def texts(run: RunView, now: float) -> str:
    return "\n".join(f"{name}: {text}" for name, text in lines(run, now))


def test_the_worst_node_counts():
    job = cluster()
    job.train(20)
    run = folded(job, {0: 19, 1: 18, 2: 19, 3: 19})
    copies = view(run)
    assert (copies.backup_step, copies.last_step) == (18, 19)
    assert [(n.node, n.ranks, n.backup_step, n.backup_nodes) for n in copies.nodes] == [
        ("n0", (0, 1), 18, ("n1",)),
        ("n1", (2, 3), 19, ("n0",)),
    ]
    assert (copies.if_node_dies.steps, copies.if_node_dies.resume_step) == (1, 18)
    assert "step 18 of every rank on another node   (n0 -> n1, n1 -> n0)" in texts(run, 1.0)
    assert "if a node dies now: 1 step\n" in texts(run, 1.0)
    assert "if a rack dies: not known (nothing says which nodes share a rack)" in texts(run, 1.0)


def test_a_copy_that_nobody_has_is_not_taken_for_one():
    job = cluster()
    job.train(20)
    run = folded(job, {0: 19, 1: None, 2: 19, 3: 19})
    assert view(run).backup_step is None
    assert loss_text(view(run).if_node_dies) == "all 20 steps; there is no other copy"
    assert "1 node of 2 without a complete copy yet" in texts(run, 1.0)


def test_an_old_copy_does_not_count_where_the_others_may_hold_no_step_so_old():
    job = cluster(disk="/ckpt")
    job.train(30)
    run = folded(job, {0: 12, 1: 12, 2: 29, 3: 29})
    dies = view(run).if_node_dies
    assert (dies.source, dies.resume_step, dies.steps) == ("checkpoint", view(run).checkpoint.step, 29 - 20)
    assert dies.why == "the copy of n0 is 17 steps old, and the others may hold no step so old"


def test_a_node_that_reported_earlier_is_not_behind():
    """Reports of a large job are a minute apart: steps of different moments are not compared."""
    job = cluster()
    job.train(40)
    run = folded(job, dict.fromkeys(range(4), 39))
    for rank in (0, 1):
        account = run.generation.accounts[rank]
        run.generation.accounts[rank] = msgspec.structs.replace(
            account, last_step=30, published_step=30, backed_up_step=29
        )
    dies = view(run).if_node_dies
    assert (dies.source, dies.steps, dies.resume_step) == ("memory", 1, 29)


def test_without_another_node_disk_is_what_is_left():
    job = cluster(nodes=1, disk="/ckpt")
    job.train(14)
    run = folded(job)
    assert loss_text(view(run).if_node_dies) == "3 steps, from the checkpoint of step 10; the job has one node"
    assert "backup: none: the job has one node" in texts(run, 1.0)


def test_switched_off_is_said():
    job = cluster(backup=False)
    job.train(3)
    assert "backup: none: switched off (policy backup)" in texts(folded(job), 1.0)


def test_nothing_is_known_before_a_step():
    job = cluster()
    assert view(folded(job)).if_node_dies.steps is None


def test_the_disk_line_follows_a_step_on_its_way():
    job = cluster(disk="/ckpt")
    assert "disk: no checkpoint in /ckpt yet" in texts(folded(job), 1.0)
    job.held_back.add("PersistSnapshot")
    job.train(12)
    now = job.clock.now
    assert "waits for n0, n1, for 2.00s" in texts(folded(job), now)
    persisting = job.state.persisting
    assert persisting is not None
    for node in ("n0", "n1"):
        job.held_back.add("CommitCheckpoint")
        job.feed(
            events.SnapshotPersisted(
                at=job.clock.now,
                node=node,
                generation=0,
                step=persisting.step,
                written_bytes=6 << 20,
                total_bytes=1 << 28,
            )
        )
    assert "is being committed" in texts(folded(job), now)
    job.held_back.clear()
    job.restart_controller()
    text = texts(folded(job), job.clock.now)
    assert f"disk: step {persisting.step} in /ckpt (0s ago)" in text


@pytest.mark.parametrize("how", ["why", "limit", "lost", "restart"])
def test_a_step_that_does_not_get_there_is_said_until_one_does(how):
    job = cluster(disk="/ckpt", standby=1)
    job.held_back.add("PersistSnapshot")
    job.train(12)
    step = job.state.persisting.step if job.state.persisting else -1
    if how == "why":
        job.feed(events.SnapshotPersisted(at=job.clock.now, node="n1", generation=0, step=step, why="disk full"))
        reason = "n1: disk full"
    elif how == "limit":
        job.wait(100.0)
        reason = "it took too long"
    elif how == "lost":
        job.lose_node("n1")
        reason = "n1 was lost meanwhile"
    else:
        job.kill(0)
        reason = "the ranks were restarted meanwhile"
    assert f"the last one failed: {reason}" in texts(folded(job), job.clock.now)
    job.held_back.clear()
    job.train(90)
    assert "failed" not in texts(folded(job), job.clock.now)


def told(job: Cluster) -> list[str]:
    narrator = Narrator(header(job))
    return [line[9:] for record in job.records for line in narrator.tell(record)]


def test_what_the_terminal_tells():
    job = cluster(disk="/ckpt")
    job.train(12)
    job.agree()
    job.train(3)
    job.feed(events.StopRequested(at=job.clock.now, why="SIGTERM", signal=15))
    lines_told = [line for line in told(job) if "ckpt" in line]
    assert lines_told == [
        "checkpoint of step 10 in /ckpt: 24.0 MiB written of 0.98 GiB, 1.30s",
        "writing step 14 to /ckpt before the end",
        "checkpoint of step 14 in /ckpt: 24.0 MiB written of 0.98 GiB, 1.30s",
    ], "once each, also when it is marked as trusted later"


def test_every_record_of_it_has_a_sentence_where_it_matters():
    job = cluster(disk="/ckpt")
    job.train(12)
    said = {type(r.event).__name__: event_sentence(r.event) for r in job.records}
    assert said["CheckpointsFound"] == "no checkpoint found"
    assert said["CheckpointCommitted"] == "checkpoint of step 10 can be restored: /ckpt/step-10"
    assert (
        "its part of step 10 is in the persistent tier (12.0 MiB written of 500 MiB, 1.3s)" in said["SnapshotPersisted"]
    )
    decided = [sentence for record in job.records for sentence in action_sentences(record)]
    assert "copying snapshots to other nodes from now on" in decided
    assert any(sentence.startswith("step 10 goes to /ckpt") for sentence in decided)


def test_what_the_worst_rack_would_cost():
    job = cluster(nodes=4, racks=("a", "a", "b", "b"))
    job.train(20)
    text = texts(folded(job, {0: 19, 1: 18, 2: 19, 3: 19}), job.clock.now)
    assert "if a rack dies: 1 step\n" in text
    assert "racks: a: n0, n1; b: n2, n3" in text


def test_a_rack_that_holds_both_copies_costs_all_since_disk():
    job = cluster(nodes=4, racks=("a", "a", "a", "b"), disk="/ckpt")
    job.train(15)
    everywhere = dict.fromkeys(range(4), 14)
    text = texts(folded(job, everywhere), job.clock.now)
    assert "if a node dies now: 0 steps" in text
    assert "if a rack dies: 4 steps, from the checkpoint of step 10; both copies of rank 2 are in rack a" in text


def test_a_rack_that_holds_the_whole_job():
    job = cluster(racks=("a",))
    job.train(5)
    text = texts(folded(job, dict.fromkeys(range(4), 4)), job.clock.now)
    assert "if a rack dies: all 5 steps; the whole job is in rack a" in text


def test_one_node_without_a_rack_and_nobody_knows():
    job = cluster(nodes=4, racks=("a", "a", "b", ""))
    job.train(5)
    text = texts(folded(job, dict.fromkeys(range(4), 4)), job.clock.now)
    assert "if a rack dies: not known (n3 did not report the rack)" in text
