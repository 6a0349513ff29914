"""A byte that is not what was written is found, in any file of a checkpoint, and the file is named."""

import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from persisting import Kept, snapshot, tensors

from everstep.checkpoint.packing import DamagedError
from everstep.checkpoint.persist import scan, scan_all
from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.read.verifying import verify
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.write.writing import write

STEP = 12
SIZES = [(150, 200), (10,), (3, 3), ()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    for step in (STEP - 1, STEP):
        fds = [
            snapshot({"model": tensors(step, *SIZES), "at": {"rank": r, "lr": 0.1}}, step, rank=r, world_size=2)
            for r in (0, 1)
        ]
        write(str(root), step=step, generation=0, world_size=2, arenas=dict(enumerate(fds)))
        for fd in fds:
            os.close(fd)
        commit(str(root), step=step, world_size=2, keep=2)
    return root


@pytest.fixture
def root(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "root"))


def files_of(root):
    """Of the newest checkpoint, by kind."""
    older, folder = root / f"step-{STEP - 1:010d}", root / f"step-{STEP:010d}"
    used = [set(scan_objects(root, f)) for f in (older, folder)]
    objects = sorted(used[1] - used[0], key=lambda path: path.stat().st_size)
    assert len(objects) == 2  # small tensors, and one that has a file of its own; the rest is that of the step before
    return [folder / "manifest.json", folder / ".metadata", folder / "rank-00000.json", objects[0], objects[-1]]


def scan_objects(root, folder):
    from everstep.checkpoint.persist.form import form

    for name in ("rank-00000.json", "rank-00001.json"):
        part = form.unseal(name, (folder / name).read_bytes(), form.RankPart)
        yield from (root / form.object_name(content) for content in part.objects)


def load(root, world_size=2):
    kept = {"model": Kept(tensors(0, *SIZES)), "at": Kept({"rank": 0, "lr": 0.0})}
    return load_into(f"{root}/step-{STEP:010d}", kept, rank=0, world_size=world_size), kept


def flip(path, at, bit):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("kind", range(5), ids=["manifest", "metadata", "rank", "small", "large"])
def test_a_flipped_bit_anywhere_is_found_and_the_file_is_named(root, kind):
    choose = random.Random(kind)
    path = files_of(root)[kind]
    good, size = path.read_bytes(), path.stat().st_size
    places = {0, size - 1, *(choose.randrange(size) for _ in range(14))}
    for at in places:
        flip(path, at, choose.randrange(8))
        problems = verify(str(root), STEP)
        assert path.name in {Path(one.name).name for one in problems}, (path, at)
        # Ranks of the same number do not need .metadata, others do not need the parts of each rank.
        for world_size in {0: (2, 3), 1: (3,), 2: (2,), 3: (2,), 4: (2, 3)}[kind]:
            with pytest.raises(DamagedError, match=path.name):
                load(root, world_size)
        path.write_bytes(good)
    assert verify(str(root), STEP) == []
    loaded, kept = load(root)
    assert loaded.step == STEP
    assert all(torch.equal(value, kept["model"].state[name]) for name, value in tensors(STEP, *SIZES).items())


@pytest.mark.parametrize("kind", range(5), ids=["manifest", "metadata", "rank", "small", "large"])
def test_a_file_that_is_cut_or_gone_is_found(root, kind):
    path = files_of(root)[kind]
    good = path.read_bytes()
    for length in (0, 1, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        assert path.name in {Path(one.name).name for one in verify(str(root), STEP)}
        if kind >= 3:
            assert path.name in {Path(one.name).name for one in verify(str(root), STEP, deep=False)}
    path.unlink(missing_ok=True)
    assert path.name in {Path(one.name).name for one in verify(str(root), STEP)}
    if kind != 1:
        with pytest.raises(DamagedError, match=path.name):
            load(root)


def test_what_is_not_whole_is_left_out_of_a_scan_with_its_reason(root):
    assert [one.step for one in scan(str(root))] == [STEP - 1, STEP]
    flip(root / f"step-{STEP:010d}" / "manifest.json", 100, 0)
    (root / f"step-{STEP + 5:010d}").mkdir()
    (root / "something else").mkdir()
    found = scan_all(str(root))
    assert [one.step for one in found.checkpoints] == [STEP - 1]
    assert [(one.step, one.why.split(":")[0]) for one in found.refused] == [(STEP, "damaged"), (STEP + 5, "incomplete")]
    (root / f"step-{STEP - 1:010d}" / "rank-00001.json").unlink()
    assert "ranks [1] missing" in scan_all(str(root)).refused[0].why
    assert scan(str(root / "not there")) == []


def test_a_swapped_object_is_found(root):
    """It is whole in itself, but it is not the one that is meant."""
    objects = sorted(files_of(root)[3].parent.parent.rglob("[0-9a-f]" * 32))
    large = [path for path in objects if path.stat().st_size == max(p.stat().st_size for p in objects)]
    assert len(large) == 2
    used = files_of(root)[4]
    other = next(path for path in large if path != used)
    used.write_bytes(other.read_bytes())
    assert [one.why for one in verify(str(root), STEP)] == ["holds other bytes than the checkpoint refers to"]
    used.write_bytes(other.read_bytes())  # put aside by now
    with pytest.raises(DamagedError, match="holds other bytes"):
        load(root)


def test_a_damaged_piece_is_put_aside_and_the_next_checkpoint_heals_the_old_one(root):
    large = files_of(root)[4]
    flip(large, 5000, 1)
    with pytest.raises(DamagedError, match=f"{large.name}: its checksum does not match"):
        load(root)
    assert large.with_name(large.name + ".damaged").exists()
    fd = snapshot({"model": tensors(STEP, *SIZES), "at": {"rank": 0, "lr": 0.5}}, STEP + 1)
    write(str(root), step=STEP + 1, generation=0, world_size=1, arenas={0: fd})
    os.close(fd)
    commit(str(root), step=STEP + 1, world_size=1, keep=3)
    assert verify(str(root), STEP) == []
    assert load(root)[0].step == STEP


def written(root, step, model):
    fd = snapshot({"model": model}, step)
    write(str(root), step=step, generation=0, world_size=1, arenas={0: fd})
    os.close(fd)
    commit(str(root), step=step, world_size=1, keep=3)


def test_another_release_of_torch_does_not_write_over_the_pieces_of_the_one_before(tmp_path, monkeypatch):
    from torch.utils.serialization import config

    from everstep.checkpoint.persist.read import streams
    from everstep.checkpoint.persist.write import sources

    def other(value, real=streams.stream_of):
        with config.patch("save.storage_alignment", 4096):
            return real(value)

    model = tensors(0, (64, 1024), (9,))
    written(tmp_path, 5, model)
    monkeypatch.setattr(streams, "stream_of", other)  # another layout
    monkeypatch.setattr(sources, "stream_of", other)
    written(tmp_path, 9, model)
    for step in (9, 5):
        assert verify(str(tmp_path), step) == []
    assert not list(tmp_path.rglob("*.damaged"))


def test_a_whole_piece_that_a_reader_expected_to_be_longer_stays_where_it_is(root):
    from everstep.checkpoint.persist.form.form import DamagedFileError
    from everstep.checkpoint.persist.store.files import read_object
    from everstep.checkpoint.persist.store.storage import open_storage

    path = files_of(root)[4]
    with pytest.raises(DamagedFileError, match="instead of"):
        read_object(open_storage(str(root)), path.name, path.stat().st_size + 1)
    assert path.exists()


@pytest.mark.parametrize("find", ["verify", "load"])
def test_a_piece_with_other_content_under_a_right_checksum_is_put_aside_too(root, find):
    import xxhash

    from everstep.checkpoint.persist.form import form

    path = files_of(root)[4]
    hasher = xxhash.xxh3_128(b"\x07" * (path.stat().st_size - form.FOOTER_BYTES))
    path.write_bytes(b"\x07" * (path.stat().st_size - form.FOOTER_BYTES) + form.footer(hasher))
    if find == "verify":
        assert [Path(one.name).name for one in verify(str(root), STEP)] == [path.name]
    else:
        with pytest.raises(DamagedError, match=path.name):
            load(root)
    assert not path.exists()
