"""A twin that forks ahead: the process that goes on is there before it is asked for, and never outlives its twin.

Real forks: a process that plays the agent adopts what its twin forks, in an interpreter of its own.
"""

import contextlib
import importlib.util
import json
import subprocess
import sys
import types

import pytest

from everstep.worker.parking import device_ahead, serving

AGENT = """
import json, os, signal, socket, sys, time
from everstep.linux.parent import adopt_orphans
from everstep.wire import local
from everstep.worker.parking import serving
from everstep.worker.parking.frozen import Frozen
from everstep.worker.parking.twin import Ended

class Reads:
    def changed(self): return "" if os.path.exists("true") else "a file has changed"

class Process:
    def __init__(self, fd):
        self.link_fd, self.agent, self.closing, self.own_fds = fd, os.getppid(), {fd}, {fd}
        self.env, self.asked, self.safe_threads, self.reads, self.frozen = {}, set(), set(), Reads(), Frozen()
        self.has_torch = False
    def become(self, frame, fds):
        told = {"pid": os.getpid(), "leads": os.getsid(0) == os.getpid(), "fds": len(os.listdir("/proc/self/fd")) - 1}
        open(frame["file"] + ".new", "w").write(json.dumps(told))
        os.rename(frame["file"] + ".new", frame["file"])

def twin():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        try:
            serving.serve(Process(theirs.detach()))
        except Ended:
            os._exit(0)
        time.sleep(60)
    theirs.close()
    return ours, hear(ours)["pid"]

def hear(sock):
    frame, fds = local.recv(sock)
    return {**frame, "links": [socket.socket(fileno=fd) for fd in fds]}

def ask(sock, **frame):
    local.send(sock, frame)
    return hear(sock)

def goes_on(answer, name):
    local.send(answer["links"][0], {"do": "assign", "file": name})
    until(lambda: os.path.exists(name))
    return json.load(open(name))

def until(condition):
    late = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < late
        time.sleep(0.002)
        reap()

def reap():
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None: pass
    except ChildProcessError:
        pass

def is_there(pid):
    return os.path.exists(f"/proc/{pid}")

def end(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        until(lambda: not is_there(pid))

adopt_orphans()
open("true", "w").close()
sock, pid = twin()
"""


def play(folder, story: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", AGENT + story], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_who_was_forked_ahead_goes_on(tmp_path):
    found = play(
        tmp_path,
        """
ahead = ask(sock, do="ahead")
woken = ask(sock, do="wake", env={})
first = goes_on(woken, "first")
again = ask(sock, do="wake", env={})
second = goes_on(again, "second")
print(json.dumps([ahead["pid"], woken["pid"], first, again["pid"], second, len(ahead["links"])]))
end(woken["pid"], again["pid"], pid)
""",
    )
    ahead, woken, first, again, second, links = found
    assert ahead == woken == first["pid"]
    assert again == second["pid"] != ahead  # the next one is forked when it is asked for
    assert first == {**second, "pid": ahead}, "nothing tells the two kinds apart"
    assert first["leads"]
    assert links == 0, "the twin keeps its end until somebody is to go on"


def test_one_that_died_waiting_is_replaced(tmp_path):
    found = play(
        tmp_path,
        """
ahead = ask(sock, do="ahead")["pid"]
end(ahead)
woken = ask(sock, do="wake", env={})
print(json.dumps([ahead, woken["pid"], goes_on(woken, "told")["pid"]]))
end(woken["pid"], pid)
""",
    )
    ahead, woken, told = found
    assert woken == told != ahead


def test_another_agent_becomes_its_parent(tmp_path):
    """The process that was forked ahead has been killed with the first agent."""
    found = play(
        tmp_path,
        """
ahead = ask(sock, do="ahead")["pid"]
end(ahead)
here = ask(sock, do="adopt", agent=os.getpid())
woken = ask(sock, do="wake", env={})
print(json.dumps([here["is"], here["pid"] == pid, woken["pid"], goes_on(woken, "told")["pid"]]))
end(woken["pid"], pid)
""",
    )
    assert found[:2] == ["here", True]
    assert found[2] == found[3]


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_it_ends_with_its_twin(tmp_path, how):
    play(
        tmp_path,
        f"""
ahead = ask(sock, do="ahead")["pid"]
split = ask(sock, do="split")
other = hear(split["links"][0])["pid"]
assert is_there(ahead)
sock.close() if {how!r} == "closed" else os.kill(pid, signal.SIGKILL)
until(lambda: not is_there(pid) and not is_there(ahead))
assert is_there(other)  # a twin of its own, which holds nothing of the first one's
split["links"][0].close()
until(lambda: not is_there(other))
print("null")
""",
    )


def test_it_does_not_go_on_where_its_twin_is_not_true_any_more(tmp_path):
    found = play(
        tmp_path,
        """
ahead = ask(sock, do="ahead")["pid"]
os.unlink("true")
answer = ask(sock, do="wake", env={})
print(json.dumps([answer["is"], answer["why"]]))
sock.close()
until(lambda: not is_there(pid) and not is_there(ahead))
""",
    )
    assert found == ["stale", "a file has changed"]


@pytest.mark.parametrize(
    ("torch", "is_imported"),
    [(None, False), ("being imported", False), ("loaded", True)],
)
def test_what_each_rank_imports_of_ours_its_twin_has_ahead(tmp_path, monkeypatch, torch, is_imported):
    (tmp_path / "needed_of_ours.py").write_text("")
    (tmp_path / "broken_of_ours.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(serving, "OURS", ("needed_of_ours", "broken_of_ours"))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if torch is not None:
        module = types.ModuleType("torch")
        module.__spec__ = types.SimpleNamespace(_initializing=torch == "being imported")
        monkeypatch.setitem(sys.modules, "torch", module)
    serving._import_ours()
    assert (sys.modules.pop("needed_of_ours", None) is not None) is is_imported
    assert "broken_of_ours" not in sys.modules


def test_those_are_modules_that_exist():
    assert all(importlib.util.find_spec(name) for name in serving.OURS)


PREPARED = """
import os, threading
over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
def end():
    over.set()
    thread.join()
os.register_at_fork(before=end)
"""


@pytest.mark.parametrize("is_prepared", [True, False])
def test_threads_that_end_before_a_fork_spoil_no_twin(tmp_path, is_prepared):
    """As OpenBLAS's do, of which scipy brings one of its own; other ones would not be there in who goes on."""
    text = PREPARED if is_prepared else PREPARED.replace("os.register_at_fork(before=end)", "")
    (tmp_path / "threaded.py").write_text(text)
    told = play(
        tmp_path,
        """
answer = ask(sock, do="import", modules=["threaded"])
del answer["links"]
print(json.dumps(answer))
end(pid)
""",
    )
    assert told["is"] == ("ready" if is_prepared else "spoiled"), told


class FakeTorch(types.ModuleType):
    """Notes on which device something is made, and which one was the current one then."""

    def __init__(self):
        super().__init__("torch")
        self.__spec__ = importlib.util.spec_from_loader("torch", None)
        self.made, self.current = [], 0
        self.cuda = types.SimpleNamespace(device_count=lambda: 2, device=self._device)

    @contextlib.contextmanager
    def _device(self, index):
        before, self.current = self.current, index
        yield
        self.current = before

    def ones(self, *shape, device):
        self.made.append((device, self.current))
        return FakeTensor()


class FakeTensor:
    def __matmul__(self, other):
        return self

    def sum(self):
        return self

    def item(self):
        return 8.0


def test_a_context_is_made_ahead_only_where_it_is_asked_for_and_the_current_device_stays(monkeypatch):
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    for env in ({}, {"EVERSTEP_CUDA_AHEAD": "off"}, {"EVERSTEP_CUDA_AHEAD": "on", "LOCAL_RANK": "2"}):
        device_ahead.begin(env, has_torch=True)
    assert torch.made == [], "not asked for, or no such device"
    device_ahead.begin({"EVERSTEP_CUDA_AHEAD": "on", "LOCAL_RANK": "1"}, has_torch=False)
    assert torch.made == [], "it is still being imported"
    torch.__spec__._initializing = True  # an early twin waits inside of the import, after all of it has run
    device_ahead.begin({"EVERSTEP_CUDA_AHEAD": "on", "LOCAL_RANK": "1"}, has_torch=True)
    assert torch.made == [("cuda:1", 1)]
    assert torch.current == 0


def test_no_context_is_made_while_torch_is_not_there(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    device_ahead.begin({"EVERSTEP_CUDA_AHEAD": "on"}, has_torch=True)
