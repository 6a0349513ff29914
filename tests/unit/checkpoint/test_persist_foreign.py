"""A checkpoint folder that somebody else filled names, renames, runs and exhausts nothing of the reader's."""

import os
import pickle
import resource
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.read.exporting import export
from everstep.checkpoint.persist.read.metadata import unpickle
from everstep.checkpoint.persist.read.streams import stream_of
from everstep.checkpoint.persist.read.verifying import verify
from everstep.checkpoint.persist.store import files
from everstep.checkpoint.persist.store.plain import chunks_of, read_file
from everstep.checkpoint.persist.store.scanning import scan_all
from everstep.checkpoint.persist.store.storage import FolderStorage, open_storage
from everstep.errors import SnapshotError

STEP = 40
ESCAPES = ["../../home/keys", "/etc/passwd", "..", "", "ab", "A" * 32, "a" * 33, "a" * 32 + "\n", "a" * 31 + "/"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "integration"))
    try:
        from persisting import snapshot
    finally:
        sys.path.pop(0)
    from everstep.checkpoint.persist.store.committing import commit
    from everstep.checkpoint.persist.write.writing import write

    root = tmp_path_factory.mktemp("made")
    state = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "at": {"lr": 0.5}}
    fd = snapshot(state, STEP)
    write(str(root), step=STEP, generation=0, world_size=1, arenas={0: fd})
    os.close(fd)
    commit(str(root), step=STEP, world_size=1, keep=2)
    return root


@pytest.fixture
def root(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "theirs"))


def folder(root):
    return root / form.step_name(STEP)


def rewrite(root, *, part=None, metadata=None, **fields):
    """As its owner can: every checksum is right."""
    name = folder(root) / "rank-00000.json"
    if part is not None:
        name.write_bytes(form.seal(part))
    if metadata is not None:
        (folder(root) / ".metadata").write_bytes(metadata)
    manifest = form.unseal("m", (folder(root) / "manifest.json").read_bytes(), form.Manifest)
    sums = [form.checksum(file.read_bytes()) for file in (name, folder(root) / ".metadata")]
    fields |= {"parts": (sums[0],), "metadata": sums[1]}
    (folder(root) / "manifest.json").write_bytes(form.seal(msgspec.structs.replace(manifest, **fields)))


def part_of(root):
    return form.unseal("p", (folder(root) / "rank-00000.json").read_bytes(), form.RankPart)


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_part_that_names_what_is_no_object_is_damaged_and_nothing_is_renamed(root, tmp_path, escape):
    victim = tmp_path / "home" / "keys"
    victim.parent.mkdir()
    victim.write_text("mine")
    part = part_of(root)
    rewrite(root, part=msgspec.structs.replace(part, objects={**part.objects, escape: 26}))
    assert [one.name for one in verify(str(root), STEP)] == [f"{form.step_name(STEP)}/rank-00000.json"]
    assert [one.name for one in victim.parent.iterdir()] == ["keys"]


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_reader_of_an_object_makes_a_path_of_another_name(tmp_path, escape):
    (tmp_path / "root").mkdir()
    storage = open_storage(str(tmp_path / "root"))
    for act in (files.put_aside, files.read_object):
        with pytest.raises(form.DamagedFileError, match="not the name of an object"):
            act(storage, escape)


def test_a_piece_of_an_object_that_the_part_does_not_hold_is_damage_and_no_traceback(root):
    part = part_of(root)
    skeleton = msgspec.structs.replace(part.skeleton, object="0" * 32)
    rewrite(root, part=msgspec.structs.replace(part, skeleton=skeleton))
    assert "refers to what it does not hold" in verify(str(root), STEP)[0].why


def test_a_folder_on_the_way_that_is_a_link_is_not_renamed_through(root, tmp_path):
    content = next(iter(part_of(root).objects))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / content).write_text("mine")
    shutil.rmtree(root / "objects" / content[:2])
    (root / "objects" / content[:2]).symlink_to(mine)
    assert verify(str(root), STEP)
    assert [one.name for one in mine.iterdir()] == [content]


def test_a_damaged_object_of_a_plain_folder_is_still_put_aside(root):
    content = next(iter(part_of(root).objects))
    place = root / form.object_name(content)
    place.write_bytes(place.read_bytes()[:-1] + b"?")
    assert verify(str(root), STEP)
    assert not place.exists()
    assert place.with_name(content + form.DAMAGED).exists()


class Bomb:
    def __init__(self, ran):
        self.ran = ran

    def __reduce__(self):
        return Path.touch, (self.ran,)


@pytest.mark.parametrize("kind", form.EXPORTED_AS)
def test_an_export_runs_nothing_of_the_metadata(root, tmp_path, kind):
    rewrite(root, metadata=pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(SnapshotError, match="which everstep does not write"):
        export(str(root), STEP, str(tmp_path / "out"), format=kind)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["torch", "dcp"])
def test_an_export_leaves_out_a_value_that_could_run_code_and_says_so(root, tmp_path, kind):
    stream = bytes(stream_of(Bomb(tmp_path / "ran")))
    place = root / form.object_name("ab" * 16)
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(stream + form.footer(xxhash.xxh3_128(stream)))
    metadata = unpickle("m", (folder(root) / ".metadata").read_bytes())
    for index, at in metadata.storage_data.items():
        if index.fqn == "at.lr":
            at.relative_path, at.offset, at.length = f"../{form.object_name('ab' * 16)}", 0, len(stream)
    rewrite(root, metadata=pickle.dumps(metadata))
    said = []
    export(str(root), STEP, str(tmp_path / "out"), format=kind, on_note=said.append)
    assert [one for one in said if "could run code" in one] == ["left out, because reading it could run code: at.lr"]
    assert not (tmp_path / "ran").exists()
    if kind == "torch":
        tree = torch.load(tmp_path / "out", weights_only=True)
        assert torch.equal(tree["model"]["w"], torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "paths",
    [
        {"model.w": ("a",), "at.lr": ("a", "b")},
        {"model.w": ("a", (0,)), "at.lr": ("a", "b")},
        {"model.w": tuple("abc" * 300), "at.lr": ("at", "lr")},
        {"model.w": ("a", (1 << 40,)), "at.lr": ("at", "lr")},
        {"model.w": ("a", (-5,)), "at.lr": ("at", "lr")},
    ],
)
def test_names_that_make_no_tree_are_damage_and_no_traceback(root, tmp_path, paths):
    metadata = unpickle("m", (folder(root) / ".metadata").read_bytes())
    metadata.everstep_paths = paths
    rewrite(root, metadata=pickle.dumps(metadata))
    try:
        export(str(root), STEP, str(tmp_path / "out"), format="torch")
    except SnapshotError:
        assert not (tmp_path / "out").exists()


def test_a_tensor_that_claims_more_than_its_pieces_have_is_not_made(root, tmp_path):
    metadata = unpickle("m", (folder(root) / ".metadata").read_bytes())
    metadata.state_dict_metadata["model.w"].size = torch.Size([1 << 40, 3])
    rewrite(root, metadata=pickle.dumps(metadata))
    with pytest.raises(SnapshotError, match="larger than its pieces"):
        export(str(root), STEP, str(tmp_path / "out"))


def test_every_class_that_is_written_can_be_read(root):
    metadata = unpickle("m", (folder(root) / ".metadata").read_bytes())
    assert set(metadata.state_dict_metadata) >= {"model.w", "at.lr"}


@given(st.data())
@settings(deadline=None, max_examples=120)
def test_metadata_with_other_bytes_is_read_or_damaged(made, data):
    """Changed, cut and spliced: nothing but DamagedFileError comes out, and nothing runs."""
    whole = bytearray((folder(made) / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    try:
        unpickle("m", bytes(whole))
    except form.DamagedFileError:
        pass


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=100)
def test_garbage_is_no_metadata(data):
    with pytest.raises(form.DamagedFileError):
        unpickle("m", data)


@pytest.mark.parametrize("callee", ["builtins.eval", "os.system", "torch.load", "torch.hub", "posix.system"])
def test_no_other_name_is_looked_up(callee):
    module, name = callee.split(".")
    with pytest.raises(form.DamagedFileError, match="does not write"):
        unpickle("m", b"c" + module.encode() + b"\n" + name.encode() + b"\n.")


def test_a_world_that_is_not_there_is_not_counted_up_to(root):
    rewrite(root, world_size=10**15)
    assert "10" in verify(str(root), STEP)[0].why
    assert scan_all(str(root)).refused[0].step == STEP


@pytest.mark.parametrize("name", ["manifest.json", ".metadata", "rank-00000.json", "struck.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "endless", "sparse"])
def test_links_pipes_and_endless_files_are_refused_at_once(root, tmp_path, name, kind):
    path = folder(root) / name
    path.unlink(missing_ok=True)
    if kind == "link":
        (tmp_path / "other").write_text("{}")
        path.symlink_to(tmp_path / "other")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif name != ".metadata":  # which is read a piece at a time, by whoever asks for every byte
        with path.open("wb") as file:
            file.truncate(1 << 40)
    scan_all(str(root))
    if name != ".metadata" or kind != "sparse":
        assert verify(str(root), STEP)
    if name != "rank-00000.json":  # which an export does not need
        with pytest.raises(SnapshotError):
            export(str(root), STEP, str(tmp_path / "out"))


def test_a_file_is_read_to_its_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345" == b"".join(chunks_of(path))
    with pytest.raises(OSError, match="at most 4"):
        read_file(path, 4)


def test_a_planted_link_is_no_object_that_is_there_already(tmp_path):
    (tmp_path / "other").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    storage = FolderStorage(str(tmp_path))
    assert (storage.size("other"), storage.size("link"), storage.size("none")) == (5, None, None)


@pytest.mark.parametrize(
    "data", [b"\x80\x04Nr\xff\xff\xff\x0f.", b"\x80\x05\x96" + (1 << 33).to_bytes(8, "little") + b"x."]
)
def test_a_few_bytes_of_metadata_take_little_memory(data):
    """The first is a place far out in the table of what was seen, the second a length: both were made at once."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + (256 << 20), before[1]))
    try:
        with pytest.raises(form.DamagedFileError) as refused:
            unpickle(".metadata", data)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert "MemoryError" not in str(refused.value)
