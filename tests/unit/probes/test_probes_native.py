"""What the kernel says of threads, on real processes that wait in known places."""

import os
import signal
import socket
import subprocess
import sys
import time

import msgspec
import pytest

from everstep.analyzer.hangs.describe import of_suspects
from everstep.analyzer.observations.clusters import cluster
from everstep.analyzer.observations.records import Case, GpuLoad, KernelThread, RankEvidence, RankLoad
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.evidence.decode import decode
from everstep.evidence.sniff import Kind
from everstep.probes.rank import native
from everstep.probes.rank.native import native_thread, native_threads
from everstep.report.now.ranks import render_ranks

WAITS = {
    "read of socket:[": "import socket, sys; s = socket.socket(fileno={fd}); print(1, flush=True); s.recv(1)",
    "clock_nanosleep": "import time; print(1, flush=True); time.sleep(100)",
    "futex": "import threading; lock = threading.Lock(); lock.acquire(); print(1, flush=True); lock.acquire()",
}


@pytest.fixture
def waiting():
    near, far = socket.socketpair()
    started = []

    def start(text: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", text.replace("{fd}", str(far.fileno()))], stdout=-1, pass_fds=[far.fileno()]
        )
        started.append(process)
        assert process.stdout.readline() == b"1\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    near.close()
    far.close()


@pytest.mark.parametrize("call", WAITS)
def test_a_wait_is_named(waiting, call):
    process = waiting(WAITS[call])
    deadline = time.monotonic() + 60
    names = (call, call.replace("read", "recvfrom"))
    while True:
        first, *_ = native_threads(process.pid)
        if "Operation not permitted" in first.why or "Permission denied" in first.why:
            pytest.skip(f"this machine does not let us: {first.why}")
        if first.call.startswith(names):
            break
        assert time.monotonic() < deadline, first
        time.sleep(0.01)
    assert (first.pid, first.tid, first.state) == (process.pid, process.pid, "S")


def test_state_and_call_are_of_one_moment(waiting, monkeypatch):
    process = waiting(WAITS["futex"])
    looked = []

    def stopped_while_we_look(path, missing):
        if not looked:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        looked.append(path.name)
        return real(path, missing)

    real = native._read
    monkeypatch.setattr(native, "_read", stopped_while_we_look)
    assert native_thread(process.pid, process.pid).state == "T", "what it was when its call was read"
    assert looked == ["syscall", "stack", "wchan"] * 2


def test_a_thread_that_never_stays_in_a_state_is_told_as_last_seen(waiting, monkeypatch):
    process = waiting(WAITS["futex"])
    signals = {"S": signal.SIGSTOP, "T": signal.SIGCONT}
    states = []

    def turned_while_we_look(path, missing):
        if path.name == "syscall":
            states.append(native._stat(path.parent)[1])
            process.send_signal(signals[states[-1]])
            until = time.monotonic() + 60
            while native._stat(path.parent)[1] != ("T" if states[-1] == "S" else "S"):
                assert time.monotonic() < until
        return real(path, missing)

    real = native._read
    until = time.monotonic() + 60
    while native_thread(process.pid, process.pid).state != "S":
        assert time.monotonic() < until
    monkeypatch.setattr(native, "_read", turned_while_we_look)
    assert native_thread(process.pid, process.pid).state == states[-1]
    assert states == ["S", "T", "S"]


def test_a_process_that_is_gone_has_no_threads():
    process = subprocess.Popen(["true"])
    process.wait()
    assert native_threads(process.pid) == []
    assert native_thread(process.pid, process.pid) is None


def test_what_may_not_be_read_is_said(monkeypatch):
    def denied(path, *_args, **_kwargs):
        if path.name in ("syscall", "stack"):
            raise PermissionError(1, "Operation not permitted")
        return real(path, *_args, **_kwargs)

    real = native.Path.read_text
    monkeypatch.setattr(native.Path, "read_text", denied)
    found = native_thread(os.getpid(), os.getpid())
    assert found.call == ""
    assert found.why == "syscall: Operation not permitted; stack: Operation not permitted"


def test_kernel_functions():
    assert native._function("[<0>] nfs_wait_bit_killable+0x2a/0xa0 [nfs]") == "nfs_wait_bit_killable [nfs]"
    assert native._function("[<0>]") == "[<0>]"
    assert native._call(1, "running") == ""
    assert native._call(1, "-1 0x7f 0x0") == "", "not in a system call"
    assert native._call(1, "99999 0x0") == "system call 99999"


def envelope(**more: object) -> bytes:
    thread = KernelThread(pid=7, tid=7, name="pt", state="D", call="read of /nfs/x", waits_in="rpc_wait", stack=("a",))
    return msgspec.json.encode({"everstep_evidence": 1, "rank": 2, "native": [thread], **more})


def test_it_comes_through_evidence_into_the_verdict():
    (part,) = decode(envelope(phase="train", gpus=[GpuLoad(index=1)], links={"eth0": 3.5}, stack_source=""), Kind.JSON)
    assert part.said.gpus == (GpuLoad(index=1),)
    evidence = RankEvidence(rank=2, native=part.native, states=((7, "D"),))
    says = [(e.source, e.says, e.detail) for e in of_suspects(0.0, [2], {2: evidence})]
    assert ("kernel", "process 7: state D in read of /nfs/x, waits in rpc_wait", "a") in says


@pytest.mark.parametrize("bad", [{"native": 3}, {"native": [{"pid": "x"}]}, {"phase": 4}, {"links": {"a": "b"}}])
def test_an_envelope_of_the_wrong_shape_is_unreadable_and_no_traceback(bad):
    with pytest.raises(UnreadableError):
        decode(envelope(**bad), Kind.JSON)


def rank(number: int, **more: object) -> RankEvidence:
    return RankEvidence(
        rank=number, phase="train", step=412, step_age_s=2.0, states=((10 + number, "S"),),
        load=RankLoad(cpu_share=0.02, traffic_bytes_s=0.0), links={"eth0": 1500.0, "eth1": 0.0}, **more,
    )  # fmt: skip


def test_ranks_are_listed_by_what_they_do():
    gpu = GpuLoad(index=0, use_share=1.0, used_bytes=60 << 30, total_bytes=80 << 30, power_w=310.0)
    stopped = msgspec.structs.replace(
        rank(2), states=((12, "T"), (13, "D")), load=RankLoad(),
        native=(KernelThread(pid=12, tid=12, name="x", state="T"),), unavailable=("a.json: stack of 12: no",),
    )  # fmt: skip
    ranks = (rank(0, gpus=(gpu,)), rank(1), stopped, rank(3, unavailable=("a.json: stack of 13: no",)))
    lines = render_ranks(Case(at=1.0, ranks=ranks, world=(0, 1, 2, 3)), cluster({}))
    assert lines[1].split() == [
        "0-1,3", "412", "(2.00s", "ago)", "train", "S", "2%", "0", "B/s", "no", "stack",
    ]  # fmt: skip
    assert "T stopped, a child D uninterruptible sleep  —    —" in lines[2], "what was not measured is not 0"
    assert "no Python stack; the kernel has it in state T" in lines[2]
    assert "gpu       rank 0: GPU 0 use 100%, memory 60.0 of 80 GiB, —, 310 W, —" in lines
    assert "links     node of rank 0: eth0 1.5 KB/s" in lines
    assert "unavailable  ranks 2-3: stack: no" in lines
    assert render_ranks(Case(at=1.0, ranks=()), cluster({})) == []
