"""Storages that are full, read-only, gone, slow or object stores; what is written twice, and what is kept."""

import os
import subprocess
import threading
import time
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from persisting import Kept, ask, snapshot, tensors, write_args

from everstep.checkpoint.persist import scan, scan_all
from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.read.verifying import verify
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.store.storage import FolderStorage, sentence
from everstep.checkpoint.persist.write.writing import write
from everstep.errors import SnapshotError

MIB = 1 << 20


def persist(root, step, states, *, keep=3, generation=0, trusted=False):
    written = []
    for rank, state in enumerate(states):
        fd = snapshot(state, step, rank=rank, world_size=len(states), generation=generation)
        try:
            arenas = {rank: fd}
            written.append(write(str(root), step=step, generation=generation, world_size=len(states), arenas=arenas))
        finally:
            os.close(fd)
    return written, commit(str(root), step=step, world_size=len(states), keep=keep, is_trusted=trusted)


def object_bytes(root):
    return sum(path.stat().st_size for path in Path(root, "objects").rglob("*") if path.is_file())


def test_an_unchanged_half_is_not_written_again(tmp_path):
    frozen = tensors(0, *[(512, 512)] * 4)
    (first,), _ = persist(tmp_path, 1, [{"frozen": frozen, "model": tensors(1, *[(512, 512)] * 4)}])
    before = object_bytes(tmp_path)
    (second,), _ = persist(tmp_path, 2, [{"frozen": frozen, "model": tensors(2, *[(512, 512)] * 4)}])
    assert first.written_bytes > 8 * MIB
    assert second.total_bytes == first.total_bytes
    assert 0.49 < second.written_bytes / first.written_bytes < 0.51
    assert 0.49 < (object_bytes(tmp_path) - before) / before < 0.51
    (third,), _ = persist(tmp_path, 3, [{"frozen": frozen, "model": tensors(2, *[(512, 512)] * 4)}])
    assert third.written_bytes < 20_000  # the rank's own file


def test_what_two_nodes_hold_in_common_is_written_once(tmp_path):
    model = tensors(0, *[(256, 256)] * 16)
    fds = [snapshot({"model": model}, 1, rank=rank, world_size=2) for rank in range(2)]
    written = {}

    def node(rank):
        written[rank] = write(str(tmp_path), step=1, generation=0, world_size=2, arenas={rank: fds[rank]})

    nodes = [threading.Thread(target=node, args=(rank,)) for rank in range(2)]
    for thread in nodes:
        thread.start()
    for thread in nodes:
        thread.join()
    for fd in fds:
        os.close(fd)
    assert written[0].total_bytes - written[1].total_bytes < 100
    share = [one.written_bytes / one.total_bytes for one in written.values()]
    assert 0.95 < sum(share) < 1.6  # together about once; those under way at the same time may be written twice
    commit(str(tmp_path), step=1, world_size=2, keep=1)
    assert object_bytes(tmp_path) < 1.02 * written[0].total_bytes


def test_retention_keeps_the_newest_and_the_newest_trusted_and_collects_the_rest(tmp_path):
    for step in range(1, 7):
        _, done = persist(tmp_path, step, [{"model": tensors(step, (200, 200))}], keep=2, trusted=step == 2)
        assert verify(str(tmp_path), step) == []
    assert done.dropped == (4,)
    assert [(one.step, one.is_trusted) for one in scan(str(tmp_path))] == [(2, True), (5, False), (6, False)]
    assert object_bytes(tmp_path) < 3.2 * 200 * 200 * 4
    for step in (2, 5, 6):
        assert verify(str(tmp_path), step) == []


def test_a_commit_may_be_asked_for_again_and_trust_may_come_later(tmp_path):
    _, first = persist(tmp_path, 3, [{"model": tensors(0, (9,))}])
    again = commit(str(tmp_path), step=3, world_size=1, keep=3, is_trusted=True)
    assert (again.path, again.size_bytes, again.at) == (first.path, first.size_bytes, first.at)
    assert scan(str(tmp_path))[0].is_trusted
    assert verify(str(tmp_path), 3) == []
    with pytest.raises(SnapshotError, match="no part of step 4"):
        commit(str(tmp_path), step=4, world_size=1, keep=3)


def test_a_step_that_a_later_generation_did_again_replaces_the_old_one(tmp_path):
    persist(tmp_path, 3, [{"model": tensors(0, (9,))}])
    persist(tmp_path, 3, [{"model": tensors(1, (9,))}], generation=1)
    kept = Kept()
    load_into(scan(str(tmp_path))[0].path, {"model": kept}, rank=0, world_size=1)
    assert torch.equal(kept.state["t0"], tensors(1, (9,))["t0"])
    assert sorted(path.name for path in (tmp_path / ".writing").iterdir()) == []


def test_steps_of_a_history_that_was_given_up_are_not_offered(tmp_path):
    for step, generation in ((10, 0), (20, 0), (15, 1)):  # the job went back behind 15
        persist(tmp_path, step, [{"model": tensors(step, (9,))}], generation=generation)
    found = scan_all(str(tmp_path))
    assert [one.step for one in found.checkpoints] == [10, 15]
    assert found.refused[0].why == "the job went back before it: step 15 was written later"


def test_a_rank_that_is_missing_keeps_the_step_from_being_committed(tmp_path):
    fd = snapshot({"model": tensors(0, (9,))}, 1, rank=1, world_size=3)
    write(str(tmp_path), step=1, generation=0, world_size=3, arenas={1: fd})
    with pytest.raises(SnapshotError, match=r"lacks the parts of ranks \[0, 2\]"):
        commit(str(tmp_path), step=1, world_size=3, keep=1)
    with pytest.raises(SnapshotError, match=r"does not hold step 2 .*it holds \[1\]"):
        write(str(tmp_path), step=2, generation=0, world_size=3, arenas={1: fd})
    os.close(fd)
    assert scan(str(tmp_path)) == []


def test_an_object_that_vanished_before_the_commit_is_noticed(tmp_path):
    fd = snapshot({"model": tensors(0, (300, 300))}, 1)
    write(str(tmp_path), step=1, generation=0, world_size=1, arenas={0: fd})
    os.close(fd)
    max(tmp_path.joinpath("objects").rglob("*"), key=lambda path: path.stat().st_size * path.is_file()).unlink()
    with pytest.raises(SnapshotError, match="is missing"):
        commit(str(tmp_path), step=1, world_size=1, keep=1)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("may not mount here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def why_not(act, *arguments, root, **more):
    """What the agent is told."""
    with pytest.raises(OSError) as error:
        act(str(root), *arguments, **more)
    return sentence(error.value, str(root))


@pytest.mark.root
def test_a_full_disk_and_a_read_only_one_cost_the_step_and_nothing_else(small_disk):
    root = small_disk / "ckpt"
    small, large = ({"model": tensors(seed, *[(256, 256)] * number)} for seed, number in ((1, 8), (2, 20)))
    persist(root, 0, [small])
    before = object_bytes(root)
    fd = snapshot(large, 1)
    asked = {"step": 1, "generation": 0, "world_size": 1, "arenas": {0: fd}}
    full = "No space left on device; free space there, lower --checkpoint-keep"
    assert full in why_not(write, root=root, **asked)
    assert object_bytes(root) == before  # what did not fit leaves nothing behind
    assert verify(str(root), 0) == []
    again = snapshot({"model": {**small["model"], "t0": torch.ones(3)}}, 2)
    write(str(root), step=2, generation=0, world_size=1, arenas={0: again})  # and what fits goes on
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "Read-only file system; mount it writable" in why_not(write, root=root, **asked)
    assert "Read-only file system; mount it writable" in why_not(commit, root=root, step=2, world_size=1, keep=1)
    assert [one.step for one in scan(str(root))] == [0]
    os.close(fd)
    os.close(again)


@pytest.mark.root
def test_a_disk_full_of_what_killed_processes_left_is_freed(small_disk):
    root = small_disk / "ckpt"
    persist(root, 0, [{"model": tensors(0, (256, 256))}])
    leftover = root / "objects" / "ab" / ("ab" * 16)
    leftover.parent.mkdir(exist_ok=True)
    with leftover.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(root).f_bavail * os.statvfs(root).f_bsize)
    assert os.statvfs(root).f_bavail == 0
    persist(root, 1, [{"model": tensors(1, (256, 256))}])
    assert not leftover.exists()
    assert [one.step for one in scan(str(root))] == [0, 1]


def test_a_step_that_was_half_removed_goes_for_good_when_it_is_old(tmp_path):
    for step in (1, 2):
        persist(tmp_path, step, [{"model": tensors(step, (200, 200))}])
    folder = tmp_path / "step-0000000001"
    (folder / "manifest.json").unlink()
    persist(tmp_path, 3, [{"model": tensors(3, (200, 200))}])
    assert folder.exists()  # somebody may be putting it in place
    for file in folder.iterdir():
        os.utime(file, (0, 0))
    persist(tmp_path, 4, [{"model": tensors(4, (200, 200))}])
    assert not folder.exists()
    assert object_bytes(tmp_path) < 3.2 * 200 * 200 * 4


def test_a_root_that_is_a_file_and_garbage_for_an_arena_have_a_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    fd = snapshot({"model": tensors(0, (9,))}, 1)
    answer = ask(write_args(tmp_path / "file", 1, [fd]), [fd])
    assert "a file is where a directory should be" in answer["why"]
    os.close(fd)
    with (tmp_path / "garbage").open("w+b") as garbage:
        garbage.write(os.urandom(10_000))
        garbage.flush()
        with pytest.raises(SnapshotError, match="not an arena"):
            write(str(tmp_path / "root"), step=1, generation=0, world_size=1, arenas={0: garbage.fileno()})


def test_two_runs_in_one_folder_do_not_mix_their_parts(tmp_path):
    for rank, run in ((0, "r1"), (1, "r2")):
        fd = snapshot({"model": tensors(rank, (9,))}, 1, rank=rank, world_size=2)
        write(str(tmp_path), step=1, generation=0, world_size=2, arenas={rank: fd}, run=run)
        os.close(fd)
    with pytest.raises(SnapshotError, match=r"lacks the parts of ranks \[1\]"):
        commit(str(tmp_path), step=1, world_size=2, keep=1, run="r1")


def write_and_commit(root, fd):
    write(str(root), step=1, generation=0, world_size=1, arenas={0: fd})
    commit(str(root), step=1, world_size=1, keep=1)


def test_a_folder_that_vanishes_while_it_is_written_to_is_an_error_and_no_checkpoint(tmp_path, monkeypatch):
    root, real = tmp_path / "root", FolderStorage.write
    seen = []

    def vanishing(storage, name, chunks):
        seen.append(name)
        if len(seen) == 4:
            root.rename(tmp_path / "away")
        return real(storage, name, chunks)

    fd = snapshot({"model": tensors(0, *[(200, 200)] * 6)}, 1)
    monkeypatch.setattr(FolderStorage, "write", vanishing)
    with pytest.raises((OSError, SnapshotError), match=str(root)):  # half of it is elsewhere
        write_and_commit(root, fd)
    os.close(fd)
    assert scan(str(root)) == []
    assert scan(str(tmp_path / "away")) == []


class SlowStore(MemoryFileSystem):
    """An object store that takes its time, and fails when it is told to."""

    protocol = "slow"
    store: dict = {}
    pseudo_dirs = [""]
    delay_s = 0.0
    fails = False

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + str(path).removeprefix("slow://").strip("/")

    def pipe_file(self, path, value, **kwargs):
        time.sleep(self.delay_s)
        if self.fails:
            raise RuntimeError("503 Slow Down")
        return super().pipe_file(path, value, **kwargs)


@pytest.fixture
def store():
    fsspec.register_implementation("slow", SlowStore, clobber=True)
    SlowStore.store.clear()
    SlowStore.delay_s, SlowStore.fails = 0.0, False
    yield "slow://bucket/run"
    SlowStore.store.clear()


def test_an_object_store_holds_checkpoints_that_torch_reads_too(store):
    import warnings

    import torch.distributed.checkpoint as dcp

    SlowStore.delay_s = 0.005
    for step in (1, 2, 3):
        persist(store, step, [{"model": tensors(step, (200, 200), (5,))}] * 2, keep=2)
    assert [one.step for one in scan(store)] == [2, 3]
    assert verify(store, 3) == []
    assert not [name for name in SlowStore.store if "/.writing/" in name]
    kept = Kept()
    load_into(scan(store)[-1].path, {"model": kept}, rank=1, world_size=2)
    assert torch.equal(kept.state["t0"], tensors(3, (200, 200))["t0"])
    resharded = Kept(tensors(0, (200, 200), (5,)))
    load_into(scan(store)[-1].path, {"model": resharded}, rank=1, world_size=5)
    assert torch.equal(resharded.state["t0"], kept.state["t0"])
    read = {"model": tensors(0, (200, 200), (5,))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(read, checkpoint_id=scan(store)[-1].path)
    assert torch.equal(read["model"]["t0"], kept.state["t0"])


def test_an_object_store_that_fails_is_an_error_with_its_own_words(store):
    persist(store, 1, [{"model": tensors(1, (9,))}])
    SlowStore.fails = True
    fd = snapshot({"model": tensors(2, (9,))}, 2)
    with pytest.raises(OSError, match="503 Slow Down"):
        write(store, step=2, generation=0, world_size=1, arenas={0: fd})
    os.close(fd)
    assert [one.step for one in scan(store)] == [1]
    with pytest.raises(SnapshotError, match=r"no-such-thing.*Install what such a URL needs|not known"):
        scan("no-such-thing://x/y")
