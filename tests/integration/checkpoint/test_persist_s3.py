"""The persistent tier in a real object store: S3's protocol over HTTP, by s3fs, and what happens when the store is
away, slow or overloaded. Needs `pip install "moto[server]" s3fs`, which is too much for every check of a change
(CONTRIBUTING.md, *Object storage*).
"""

import importlib.util
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator

import pytest
import torch
from faulty_http import FaultyProxy, faulty_proxy
from persisting import Kept, ask, commit_args, snapshot, tensors, write_args

from everstep.checkpoint.packing import DamagedError
from everstep.checkpoint.persist.read.exporting import export
from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.read.verifying import verify
from everstep.checkpoint.persist.store.committing import Committed, commit
from everstep.checkpoint.persist.store.scanning import scan
from everstep.checkpoint.persist.store.storage import open_storage, sentence
from everstep.checkpoint.persist.write.writing import write

HAS_SERVER = all(importlib.util.find_spec(name) for name in ("s3fs", "moto", "flask"))

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not HAS_SERVER, reason='needs pip install "moto[server]" s3fs'),
]

ROOT = "s3://bucket/job/ck"
SIZES = ((200, 200), (5,))
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    argv = [sys.executable, "-c", "from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"]
    said = tmp_path_factory.mktemp("s3") / "server.log"
    with said.open("wb") as out:
        server = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", said.read_text())):
            assert server.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        yield int(found[1])
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def store(server_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    import s3fs

    with faulty_proxy(server_port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 3)  # the waits between are s3fs's own
        s3fs.S3FileSystem.clear_instance_cache()
        filesystem = s3fs.S3FileSystem()
        if filesystem.exists("bucket"):
            filesystem.rm("bucket", recursive=True)
        filesystem.mkdir("bucket")
        yield proxy
        proxy.works()
        s3fs.S3FileSystem.clear_instance_cache()


def persist(
    step: int, states: list[dict[str, object]], *, keep: int = 3, trusted: bool = False
) -> tuple[int, Committed]:
    """Bytes that were written, and what was committed."""
    fds = [snapshot(state, step, rank=rank, world_size=len(states)) for rank, state in enumerate(states)]
    try:
        written = write(ROOT, step=step, generation=0, world_size=len(states), arenas=dict(enumerate(fds)))
    finally:
        for fd in fds:
            os.close(fd)
    return written.written_bytes, commit(ROOT, step=step, world_size=len(states), keep=keep, is_trusted=trusted)


def models(step: int) -> list[dict[str, object]]:
    return [{"model": tensors(step, *SIZES), "head": tensors(7, (300, 300))}] * 2


def test_the_whole_life_of_checkpoints_over_http(store, tmp_path):
    import torch.distributed.checkpoint as dcp

    assert scan(ROOT) == []
    fds = [snapshot(state, 1, rank=rank, world_size=2) for rank, state in enumerate(models(1))]
    first = ask(write_args(ROOT, 1, fds), fds, limit_s=LIMIT_S)  # by the processes that do it in a run
    assert first["why"] == ""
    assert ask(commit_args(ROOT, 1, 2, 2), limit_s=LIMIT_S)["why"] == ""
    for fd in fds:
        os.close(fd)
    assert 0 < persist(2, models(2), keep=2)[0] < 0.6 * first["written_bytes"], "the head has not changed"
    assert persist(3, models(3), keep=2, trusted=True)[1].dropped == (1,)
    assert [(one.step, one.is_trusted) for one in scan(ROOT)] == [(2, False), (3, True)]
    assert verify(ROOT, 3) == []
    assert open_storage(ROOT).names(".writing") == []
    kept, head = Kept(), Kept()
    load_into(scan(ROOT)[-1].path, {"model": kept, "head": head}, rank=1, world_size=2)
    assert torch.equal(kept.state["t0"], tensors(3, *SIZES)["t0"])
    other = Kept(tensors(0, *SIZES)), Kept(tensors(0, (300, 300)))
    load_into(scan(ROOT)[-1].path, {"model": other[0], "head": other[1]}, rank=2, world_size=3)
    assert torch.equal(other[0].state["t0"], kept.state["t0"]), "with another number of ranks"
    read = {"model": tensors(0, *SIZES)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(read, checkpoint_id=scan(ROOT)[-1].path)
        export(ROOT, 3, str(tmp_path / "out"), format="dcp")
        exported = {"model": tensors(0, *SIZES)}
        dcp.load(exported, checkpoint_id=str(tmp_path / "out"))
    assert torch.equal(read["model"]["t0"], kept.state["t0"])
    assert torch.equal(exported["model"]["t0"], kept.state["t0"])


def test_a_flipped_byte_in_the_store_is_found_and_the_next_checkpoint_heals_it(store):
    import s3fs

    persist(1, models(1))
    filesystem = s3fs.S3FileSystem(use_listings_cache=False)
    name = max(filesystem.find("bucket/job/ck/objects"), key=filesystem.size)
    data = bytearray(filesystem.cat_file(name))
    data[len(data) // 2] ^= 1
    filesystem.pipe_file(name, bytes(data))
    with pytest.raises(DamagedError, match="its checksum does not match"):
        load_into(scan(ROOT)[-1].path, {"model": Kept(), "head": Kept()}, rank=0, world_size=2)
    assert [problem.name.rsplit("/", 1)[-1] for problem in verify(ROOT, 1)] == [name.rsplit("/", 1)[-1]]
    persist(2, models(1))
    assert verify(ROOT, 1) == verify(ROOT, 2) == []


def test_a_store_that_is_slow_or_throttles_costs_time(store):
    store.fault = "half-busy"
    persist(1, models(1))
    store.works()
    store.delay_s = 0.1
    persist(2, models(2))
    store.works()
    assert [one.step for one in scan(ROOT)] == [1, 2]
    assert verify(ROOT, 2) == []


@pytest.mark.parametrize("fault", ["away", "busy"])
def test_a_store_that_fails_costs_that_checkpoint_and_says_so(store, fault):
    persist(1, models(1))
    store.fault = fault
    with pytest.raises(OSError) as failed:
        persist(2, models(2))
    assert "see whether it can be reached and written" in sentence(failed.value, ROOT)
    store.works()
    assert [one.step for one in scan(ROOT)] == [1]
    persist(3, models(3))
    assert [one.step for one in scan(ROOT)] == [1, 3]
    assert verify(ROOT, 1) == verify(ROOT, 3) == []
