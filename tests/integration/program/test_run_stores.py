"""The process in which ranks meet, hurt while it is needed, and before."""

import datetime
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed
from real_run import UNTIL_HIT, Run, launching, processes_of

from everstep.launcher.stores import store_class
from everstep.launcher.stores.store_process import WHOLE
from everstep.model.events import StoreOpened

BROKEN = "raise OSError('libtorch_cpu.so: cannot open shared object file')"

REFUSING = """
import sys, types
distributed = sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
def refuse(**given):
    raise TypeError("no listening socket, please")
distributed.TCPStore = refuse
"""


@pytest.fixture
def launcher(tmp_path):
    with launching(tmp_path) as made:
        yield made


def store_pid(run: Run) -> int:
    def find() -> int | None:
        for pid in processes_of(run.run_dir):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"everstep.launcher.stores.store_process" in command:
                return pid
        return None

    return run.until("the process with the stores", find)


def torch_that(folder: Path, does: str, *, has_files: bool) -> str:
    """Where a torch is that does this when it is imported; with its other files but the libraries, or with none."""
    made = folder / "broken/torch"
    made.mkdir(parents=True)
    for entry in Path(torch.__file__).parent.iterdir() if has_files else ():
        if entry.name not in ("__init__.py", "lib"):
            (made / entry.name).symlink_to(entry)
    (made / "__init__.py").write_text(does)
    return str(made.parent)


def test_one_that_is_killed_before_the_ranks_have_met_is_replaced(launcher):
    run = launcher.start("--nproc-per-node", 2, launcher.script(), 5)
    run.until("the first store", lambda: run.events(StoreOpened))
    os.kill(store_pid(run), signal.SIGKILL)
    assert run.wait() == 0
    assert "generation 0 has no store: the process with the stores has ended (killed by SIGKILL)" in run.err()
    assert [run.said(rank)["step"] for rank in range(2)] == ["4", "4"]


def test_one_that_is_killed_while_ranks_train_costs_the_next_generation_nothing(launcher):
    run = launcher.start("--nproc-per-node", 2, launcher.script(), 5, UNTIL_HIT)
    run.until_step(3)
    os.kill(store_pid(run), signal.SIGKILL)
    run.until("another store", lambda: "opening another" in run.err())
    other = store_pid(run)
    os.kill(run.rank_pid(1), signal.SIGKILL)  # while that loads torch
    assert WHOLE.encode() not in Path(f"/proc/{other}/cmdline").read_bytes().split(b"\0"), "it was well: the quick way"
    assert run.wait() == 0
    assert "did not answer" not in run.err()
    opened = run.events(StoreOpened)
    assert {store.generation for store in opened} == {0, 1}
    assert len({(store.host, store.port) for store in opened}) == 1


def test_one_that_stands_still_is_replaced(launcher):
    run = launcher.start("--nproc-per-node", 2, launcher.script(), 5, UNTIL_HIT)
    run.until_step(3)
    os.kill(store_pid(run), signal.SIGSTOP)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    assert run.wait() == 0
    assert "generation 1 has no store: the process with the stores did not answer" in run.err()


def test_all_generations_have_one_port_and_no_key_of_an_older_one(launcher):
    script = launcher.script("""
import os, sys, time
import uncompiled
from torch.distributed import TCPStore
generation = os.environ["EVERSTEP_GENERATION"]
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
print("port", os.environ["MASTER_PORT"], "old", store.check(["mark"]), flush=True)
store.set("mark", generation)
print("step", 0, flush=True)
if generation < "2":
    os.kill(os.getpid(), 9)
""")
    run = launcher.start("--nproc-per-node", 1, "--max-restarts", 5, script)
    assert run.wait() == 0
    said = [line for line in run.out().splitlines() if line.startswith("port")]
    assert len(said) == 3
    assert len(set(said)) == 1
    assert said[0].endswith("old False")


@pytest.mark.parametrize("has_files", [True, False], ids=["found when the stores begin", "found at once"])
def test_a_torch_that_cannot_be_imported_ends_the_run_with_its_reason(launcher, has_files):
    path = torch_that(launcher.folder, BROKEN, has_files=has_files)
    run = launcher.start(*launcher.loop(), env={"PYTHONPATH": path})
    assert run.wait() != 0
    assert re.search("torch cannot be imported|PyTorch, which this Python cannot import", run.err())
    assert "OSError: libtorch_cpu.so" in run.err()
    assert "Traceback" not in run.err()


def test_nothing_is_left_of_it_when_the_launcher_is_killed_while_it_imports(launcher):
    run = launcher.start(*launcher.loop())
    store_pid(run)
    run.process.kill()
    run.process.wait()
    run.assert_nothing_left()


def test_a_process_that_can_never_begin_ends_the_run_with_the_reason(launcher):
    path = torch_that(launcher.folder, "import os; os._exit(7)", has_files=True)
    run = launcher.start(*launcher.loop(), env={"PYTHONPATH": path})
    assert run.wait() == 1
    assert "no store can be opened: the process with the stores has ended (exit code 7), 5 times" in run.err()


def test_a_store_that_can_never_be_opened_ends_the_run_with_the_reason(launcher):
    path = torch_that(launcher.folder, REFUSING, has_files=True)
    run = launcher.start(*launcher.loop(), env={"PYTHONPATH": path})
    assert run.wait() == 1
    assert "no store can be opened: no listening socket, please, 5 times, and has never opened one" in run.err()


ASKED_ALONE = """
import datetime, sys
from everstep.launcher.stores import store_class
alone = store_class.loaded()
store = alone("127.0.0.1", 0, None, True, datetime.timedelta(seconds=20), False)
store.set("key", "value")
assert store.get("key") == b"value"
assert "torch.nn" not in sys.modules
from_torch = "torch._C._distributed_c10d"
assert alone.__module__ == from_torch, alone.__module__
"""

WITHOUT_THE_QUICK_WAY = """
from everstep.launcher.stores import store_class
from everstep.launcher.stores import store_process
def refuse():
    raise AttributeError("_c10d_init")
store_class.loaded = refuse
store_process.main()
"""


OF_TORCH_2_6 = """
import sys, torch.distributed
from everstep.launcher.stores import store_class
from everstep.launcher.stores import store_process
torch.__path__ = [sys.argv.pop()]
class Earlier(torch.distributed.TCPStore):
    def __init__(self, use_libuv=True, **given):
        if use_libuv and given["master_listen_fd"] is not None:
            raise RuntimeError("The libuv TCPStore backend does not support initialization with an listen fd.")
        super().__init__(use_libuv=use_libuv, **given)
store_class.loaded = lambda: Earlier
store_process.main()
"""


def test_the_store_needs_nothing_else_of_torch():
    subprocess.run([sys.executable, "-P", "-c", ASKED_ALONE], check=True, timeout=60)


def assert_serves(program: str, *last: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listening:
        words = [str(os.getpid()), str(theirs.fileno()), *last]
        process = subprocess.Popen([sys.executable, "-P", "-c", program, *words], pass_fds=(theirs.fileno(),))
        theirs.close()
        port = listening.getsockname()[1]
        socket.send_fds(ours, [f"open 0 127.0.0.1 {port}".encode()], [listening.fileno()])
        assert ours.recv(4096) == b"loaded"
        assert ours.recv(4096) == b"closed 0"
        assert ours.recv(4096) == b"opened 0"
        ours.setblocking(False)
        client = torch.distributed.TCPStore(
            "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=datetime.timedelta(seconds=20)
        )
        client.set("key", "value")
        assert client.get("key") == b"value"
        with pytest.raises(BlockingIOError):
            ours.recv(4096)
    assert process.wait(timeout=60) == 0


def test_a_torch_that_is_made_otherwise_is_imported_whole():
    assert_serves(WITHOUT_THE_QUICK_WAY)


def test_a_torch_whose_libuv_takes_no_socket_gets_the_older_store(tmp_path):
    (tmp_path / "version.py").write_text("from typing import Optional\n\n__version__ = '2.6.0+cu124'\n")
    assert_serves(OF_TORCH_2_6, str(tmp_path))


@pytest.mark.parametrize(
    ("text", "kind"),
    [("'2.6.0+cu124'", False), ("'2.8.0'", False), ("'2.11.0+cu130'", None), ('"2.13.0+cpu"', None), ("made()", None)],
)
def test_the_kind_of_store_follows_from_the_version(tmp_path, monkeypatch, text, kind):
    (tmp_path / "version.py").write_text(f"__version__ = {text}\n")
    monkeypatch.setattr(torch, "__path__", [str(tmp_path)])
    assert store_class.kind() == ({} if kind is None else {"use_libuv": kind})
