"""What is collected while others commit, write, are killed or have left damage; and what is not."""

import os
import threading
import time
from pathlib import Path

import pytest
from lateness import Lateness
from persisting import snapshot, tensors

from everstep.checkpoint.persist import scan, scan_all
from everstep.checkpoint.persist.read.verifying import verify
from everstep.checkpoint.persist.store import committing, retention
from everstep.checkpoint.persist.store import storage as storage_module
from everstep.checkpoint.persist.store.claims import Claim
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.store.storage import FolderStorage, open_storage
from everstep.checkpoint.persist.write import writing
from everstep.checkpoint.persist.write.writing import write
from everstep.errors import SnapshotError

OTHER_MACHINE = "another-boot pid:[1] 77 12345"


def written(root, step):
    fd = snapshot({"model": tensors(step, (64, 1024))}, step)
    try:
        write(str(root), step=step, generation=0, world_size=1, arenas={0: fd})
    finally:
        os.close(fd)


def committed(root, step, **more):
    written(root, step)
    return commit(str(root), step=step, world_size=1, **{"keep": 3, **more})


def unclaimed(root, name):
    Path(root, ".writing").mkdir(exist_ok=True)
    Path(root, ".writing", name).write_text(OTHER_MACHINE)


def test_a_draft_that_becomes_a_step_while_its_objects_are_listed_keeps_them(tmp_path, monkeypatch):
    committed(tmp_path, 5)
    written(tmp_path, 9)
    real, seen = retention.find_steps, []

    def with_a_commit_in_between(storage):
        found = real(storage)
        seen.append(len(found))
        if len(seen) == 2:  # what is in use is being listed
            monkeypatch.setattr(committing, "_retire", lambda *_: ((), ()))
            monkeypatch.setattr(retention, "await_collector", lambda *_: None)
            commit(str(tmp_path), step=9, world_size=1, keep=3)
        return found

    monkeypatch.setattr(retention, "find_steps", with_a_commit_in_between)
    retention.collect(open_storage(str(tmp_path)))
    assert len(seen) >= 2
    assert [one.step for one in scan(str(tmp_path))] == [5, 9]
    assert verify(str(tmp_path), 9) == []


def test_nothing_is_collected_when_a_step_vanishes_meanwhile(tmp_path, monkeypatch):
    committed(tmp_path, 5)
    real = FolderStorage.names

    def names(storage, folder=""):
        if folder == "step-0000000005" and retention_reads:
            return []
        return real(storage, folder)

    retention_reads = False
    real_find = retention.find_steps

    def find(storage):
        nonlocal retention_reads
        retention_reads = False
        found = real_find(storage)
        retention_reads = True
        return found

    monkeypatch.setattr(retention, "find_steps", find)
    monkeypatch.setattr(FolderStorage, "names", names)
    assert retention.collect(open_storage(str(tmp_path))) == 0
    monkeypatch.undo()
    assert verify(str(tmp_path), 5) == []


def test_nobody_collects_while_a_step_is_put_in_place(tmp_path, monkeypatch):
    committed(tmp_path, 5)
    leftover = tmp_path / "objects" / "ab" / ("ab" * 16)
    leftover.parent.mkdir(exist_ok=True)
    leftover.write_bytes(b"x")
    real, answers = FolderStorage.move_folder, []

    def moved(storage, *names):
        answers.append(retention.collect(storage))
        real(storage, *names)

    monkeypatch.setattr(FolderStorage, "move_folder", moved)
    written(tmp_path, 6)
    committing.commit(str(tmp_path), step=6, world_size=1, keep=3)
    assert answers == [0]
    assert not leftover.exists()  # by the commit itself, when it was done
    assert list((tmp_path / ".writing").iterdir()) == []


def test_who_ends_collecting_takes_away_nobody_elses_claim(tmp_path):
    committed(tmp_path, 5)
    unclaimed(tmp_path, "collecting-77-abcd")
    retention.collect(open_storage(str(tmp_path)))
    assert (tmp_path / ".writing" / "collecting-77-abcd").exists()
    os.utime(tmp_path / ".writing" / "collecting-77-abcd", (0, 0))
    retention.collect(open_storage(str(tmp_path)))
    assert not (tmp_path / ".writing" / "collecting-77-abcd").exists()


def test_in_a_hurry_a_collector_that_was_killed_elsewhere_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "_HURRIED_WAIT_S", 0.1)
    monkeypatch.setenv("EVERSTEP_WRITER_HURRY", "1")
    unclaimed(tmp_path, "collecting-77-abcd")
    began = time.monotonic()
    with Lateness() as late:
        committed(tmp_path, 1)
    assert time.monotonic() - began < 10.0 + late.seconds
    assert [one.step for one in scan(str(tmp_path))] == [1]


@pytest.mark.parametrize(("error", "is_collected"), [(OSError(28, "full"), True), (SystemExit(1), False)])
def test_who_is_ended_takes_its_own_files_away_and_collects_nothing(tmp_path, monkeypatch, error, is_collected):
    committed(tmp_path, 1)
    before = sorted(path for path in tmp_path.rglob("objects/*/*"))
    calls = []
    monkeypatch.setattr(writing, "collect", lambda storage: calls.append(storage))

    def failing(*_):
        raise error

    monkeypatch.setattr(writing.form, "rank_name", failing)
    with pytest.raises(type(error)):
        written(tmp_path, 2)
    assert bool(calls) == is_collected
    assert sorted(path for path in tmp_path.rglob("objects/*/*")) == before
    assert not list(tmp_path.rglob("writing-*"))


def test_a_rewritten_object_that_was_there_before_is_not_taken_away(tmp_path, monkeypatch):
    committed(tmp_path, 1)
    damaged = max(tmp_path.rglob("objects/*/*"), key=lambda path: path.stat().st_size)
    good = damaged.read_bytes()
    damaged.write_bytes(good[:-1])

    def failing(*_):
        raise OSError(28, "full")

    fd = snapshot({"model": tensors(1, (64, 1024))}, 1)
    monkeypatch.setattr(writing.form, "rank_name", failing)
    with pytest.raises(OSError, match="full"):
        write(str(tmp_path), step=1, generation=1, world_size=1, arenas={0: fd})
    os.close(fd)
    assert damaged.read_bytes() == good  # mended, and step 1 refers to it


def test_an_entry_that_cannot_be_read_is_one_that_is_refused(tmp_path, monkeypatch):
    committed(tmp_path, 5)
    (tmp_path / "step-0000000099").write_text("x")
    (tmp_path / "step-0000000098" / "manifest.json").mkdir(parents=True)
    found = scan_all(str(tmp_path))
    assert [one.step for one in found.checkpoints] == [5]
    assert [one.step for one in found.refused] == [98, 99]
    assert "cannot be read" in found.refused[0].why
    assert "a file" in found.refused[1].why
    assert committed(tmp_path, 6).notes == ()
    assert [one.step for one in scan(str(tmp_path))] == [5, 6]


def test_a_damaged_part_is_told_and_neither_counts_nor_keeps_others_from_being_collected(tmp_path):
    committed(tmp_path, 1, keep=2, is_trusted=True)
    part = tmp_path / "step-0000000001" / "rank-00000.json"
    data = bytearray(part.read_bytes())
    data[99] ^= 1
    part.write_bytes(data)
    answers = [committed(tmp_path, step, keep=2) for step in (2, 3, 4)]
    assert "step 1 is damaged" in answers[0].notes[0]
    assert [answer.dropped for answer in answers] == [(), (1,), (2,)]
    assert answers[2].notes == ()
    assert set(tmp_path.rglob("objects/*/*")) == {*objects_of(tmp_path, 3), *objects_of(tmp_path, 4)}


def objects_of(root, step):
    from everstep.checkpoint.persist.form import form

    name = root / form.step_name(step) / "rank-00000.json"
    part = form.unseal("", name.read_bytes(), form.RankPart)
    return [root / form.object_name(content) for content in part.objects]


def test_what_can_still_be_read_of_a_step_with_a_damaged_part_stays(tmp_path):
    committed(tmp_path, 1)
    (tmp_path / "step-0000000001" / "rank-00000.json").write_bytes(b"garbage")
    large = max(tmp_path.rglob("objects/*/*"), key=lambda path: path.stat().st_size)
    committed(tmp_path, 2)
    assert large.exists()  # .metadata refers to it, which is all that torch and other numbers of ranks need


def test_a_part_of_a_later_form_keeps_everything(tmp_path):
    from everstep.checkpoint.persist.form import form

    committed(tmp_path, 1)
    name = tmp_path / "step-0000000001" / "rank-00000.json"
    part = form.unseal("", name.read_bytes(), form.RankPart)
    Path(name).write_bytes(form.seal(form.msgspec.structs.replace(part, version=form.FORM_VERSION + 1)))
    with pytest.raises(OSError, match="none is removed"):
        retention.collect(open_storage(str(tmp_path)))


def test_claims_of_this_process_count(tmp_path):
    storage = open_storage(str(tmp_path))
    claim = Claim(storage, ".writing/collecting-1-x")
    assert retention._is_anybody(storage, "collecting")
    claim.give_up()
    assert not retention._is_anybody(storage, "collecting")


def test_a_step_whose_successor_did_not_come_is_put_back(tmp_path, monkeypatch):
    committed(tmp_path, 5)
    before = (tmp_path / "step-0000000005" / "manifest.json").read_bytes()
    real = Path.rename

    def killed(path, target):
        if Path(target).name == "step-0000000005":
            raise KeyboardInterrupt  # between the two acts
        return real(path, target)

    fd = snapshot({"model": tensors(6, (64, 1024))}, 5, generation=1)
    write(str(tmp_path), step=5, generation=1, world_size=1, arenas={0: fd})
    os.close(fd)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            commit(str(tmp_path), step=5, world_size=1, keep=3)
    assert scan(str(tmp_path)) == []
    retention.collect(open_storage(str(tmp_path)))
    assert (tmp_path / "step-0000000005" / "manifest.json").read_bytes() == before
    assert verify(str(tmp_path), 5) == []
    commit(str(tmp_path), step=5, world_size=1, keep=3)  # and the other one can still come
    assert (tmp_path / "step-0000000005" / "manifest.json").read_bytes() != before
    assert verify(str(tmp_path), 5) == []


def test_new_folders_are_synced_up_to_one_that_was_there(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(storage_module, "_sync_folder", synced.append)
    storage = FolderStorage(str(tmp_path / "a" / "b"))
    storage.write("c/d", [b"x"])
    assert synced == [tmp_path / "a" / "b" / "c", tmp_path / "a" / "b", tmp_path / "a", tmp_path]
    synced.clear()
    storage.write("c/e", [b"x"])
    assert synced == [tmp_path / "a" / "b" / "c"]


def test_a_writer_that_stood_still_gives_up(tmp_path, monkeypatch):
    monkeypatch.setattr(Claim, "renew", lambda _: False)
    with pytest.raises(SnapshotError, match="stood still"):
        written(tmp_path, 1)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_claim_is_renewed_while_an_object_takes_long(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "RENEW_S", 0.01)
    renewed, enough = [], threading.Event()

    def renew(_):
        renewed.append(1)
        if len(renewed) > 20:
            enough.set()
        return True

    def slow(storage, name, chunks, real=FolderStorage.write):
        if name.startswith("objects/"):
            assert enough.wait(20)
        return real(storage, name, chunks)

    monkeypatch.setattr(Claim, "renew", renew)
    monkeypatch.setattr(FolderStorage, "write", slow)
    written(tmp_path, 1)
    assert len(renewed) > 20


def test_a_commit_that_is_killed_while_it_removes_an_old_step_leaves_nothing_for_the_next_one(tmp_path, monkeypatch):
    """Whatever file was removed last: the next commit lets go of the rest, and of the objects that it alone needed."""
    committed(tmp_path, 1)

    def killed(path, **_):
        Path(path, ".metadata").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage_module.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            committed(tmp_path, 2, keep=1)
    assert [one.step for one in scan(str(tmp_path))] == [2]
    committed(tmp_path, 3, keep=1)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-0000000003"]
    assert list(tmp_path.glob(".writing/*")) == []
    alone = tmp_path / "alone"
    committed(alone, 3)
    assert {path.name for path in tmp_path.glob("objects/*/*")} == {path.name for path in alone.glob("objects/*/*")}
