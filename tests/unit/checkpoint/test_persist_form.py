"""Pieces, envelopes and claims of the persistent tier, without processes."""

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.form.splitting import split
from everstep.checkpoint.persist.store.claims import Claim, is_claimed
from everstep.checkpoint.persist.store.storage import FolderStorage, is_url, open_storage


@given(
    st.lists(st.integers(1, 7), min_size=0, max_size=4),
    st.randoms(use_true_random=False),
    st.integers(8, 200),
)
@settings(deadline=None, max_examples=100)
def test_pieces_are_all_of_a_tensor_in_the_order_of_its_memory(sizes, choose, limit):
    order = list(range(len(sizes)))
    choose.shuffle(order)
    whole = torch.arange(math.prod(sizes), dtype=torch.int64)
    dense = whole.reshape([sizes[d] for d in order]).permute([order.index(d) for d in range(len(sizes))])
    made = torch.full_like(dense, -1)
    expected_at = 0
    for at, num_bytes, offsets, block in split(tuple(dense.shape), dense.stride(), 8, limit):
        assert at == expected_at
        assert num_bytes == math.prod(block) * 8 <= max(limit, 8)
        expected_at += num_bytes
        piece = whole[at // 8 : (at + num_bytes) // 8].as_strided(block, dense.stride())
        place = tuple(slice(o, o + n) for o, n in zip(offsets, block, strict=True))
        assert (made[place] == -1).all()
        made[place] = piece
    assert expected_at == whole.numel() * 8
    assert torch.equal(made, dense)


def test_an_empty_tensor_is_one_piece_and_a_number_too():
    assert list(split((0, 3), (3, 1), 4)) == [(0, 0, (0, 0), (0, 3))]
    assert list(split((), (), 4)) == [(0, 4, (), ())]


MANIFEST = form.Manifest(step=3, generation=0, world_size=1, at=1.5, size_bytes=9, parts=("x",), metadata="y")


def test_an_envelope_is_what_was_sealed_or_an_error():
    data = form.seal(MANIFEST)
    assert form.unseal("m", data, form.Manifest) == MANIFEST
    for index in range(len(data)):
        for bit in (0, 5):
            changed = bytearray(data)
            changed[index] ^= 1 << bit
            with pytest.raises(form.DamagedFileError):
                form.unseal("m", bytes(changed), form.Manifest)
    for length in range(len(data)):
        with pytest.raises(form.DamagedFileError):
            form.unseal("m", data[:length], form.Manifest)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_garbage_is_neither_an_envelope_nor_an_object(data):
    with pytest.raises(form.DamagedFileError):
        form.unseal("m", data, form.Manifest)
    with pytest.raises(form.DamagedFileError):
        form.check_object("o", data)


def test_a_newer_form_says_so():
    class Newer(form.Manifest, frozen=True):
        more: int = 1

    data = form.seal(Newer(**{**{f: getattr(MANIFEST, f) for f in MANIFEST.__struct_fields__}, "version": 9}))
    with pytest.raises(form.DamagedFileError, match="form 9; this everstep reads up to 1"):
        form.unseal("m", data, form.Manifest)


def test_names_of_folders():
    assert form.step_of(form.step_name(40)) == 40
    assert [form.step_of(name) for name in ("step-1", "step-0000000001-g1", "steps", "step-00000000x1")] == [None] * 4
    assert form.draft_of(form.draft_name(7, 3, "r1").rsplit("/", 1)[1]) == (7, 3, form.run_tag("r1"))


@pytest.mark.parametrize("root", ["s3://b/x", "gs://b", "memory://x", "simplecache::s3://b"])
def test_urls(root):
    assert is_url(root)


def test_a_folder_may_be_given_as_a_url(tmp_path):
    assert not is_url("/a/b")
    assert not is_url("a:b")
    assert open_storage(f"file://{tmp_path}").root == str(tmp_path)


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    storage = FolderStorage(str(tmp_path))
    storage.write("a/b", [b"old"])

    def broken():
        yield b"new"
        raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        storage.write("a/b", broken())
    assert storage.read("a/b") == b"old"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (storage.size("a/c"), storage.age_s("a/c"), storage.names("c")) == (None, None, [])


def test_a_claim_ends_with_its_process(tmp_path):
    storage = FolderStorage(str(tmp_path))
    assert not is_claimed(storage, "claim")
    mine = Claim(storage, "claim")
    assert is_claimed(storage, "claim")
    mine.give_up()
    assert not is_claimed(storage, "claim")
    code = (
        "import sys, os; from everstep.checkpoint.persist.store.claims import Claim;"
        "from everstep.checkpoint.persist.store.storage import FolderStorage;"
        f"Claim(FolderStorage({str(tmp_path)!r}), 'claim'); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert is_claimed(storage, "claim")
        other.kill()
        other.wait()
        assert not is_claimed(storage, "claim")
    storage.write("claim", [b"another-boot space 1 2"])
    assert is_claimed(storage, "claim")  # of another machine: until it is old
    os.utime(tmp_path / "claim", (0, 0))
    assert not is_claimed(storage, "claim")
