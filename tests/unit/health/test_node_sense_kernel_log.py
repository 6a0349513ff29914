"""Kernel lines to alerts: who is to blame, what is cause and what consequence, and what is nobody's business."""

import asyncio
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from built_in import BASE, ENGINE
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.agent.senses import ears as ears_module
from everstep.agent.senses import starting as senses_task
from everstep.agent.senses.ears import Ears
from everstep.agent.senses.hurry import Hurry
from everstep.knowledge import live
from everstep.knowledge.kept import Kept
from everstep.knowledge.review import ReviewQueue
from everstep.linux import proc
from everstep.model.facts import Alert
from everstep.probes.node.kernel import kernel_log as kernel_log_module
from everstep.probes.node.kernel.kernel_lines import MAX_BATCH_BYTES, KernelLines, path_for
from everstep.probes.node.kernel.kernel_log import KernelLog
from everstep.probes.oom import parse_record
from everstep.probes.sense import UnsupportedError

BUS = "0000:91:00"
FALLEN = f"NVRM: Xid (PCI:{BUS}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
CODE = "NVRM: Xid (PCI:{}): 31, pid={}, name=python, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS"
KILLED = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB"
HEALTHY = [
    "mlx5_core 0000:17:00.0 eth4: Link up",
    "docker0: port 1(veth12ab) entered disabled state",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "systemd[1]: Started Session 4 of User root.",
    "audit: type=1400 apparmor=DENIED operation=open",
    "Traceback (most recent call last):",
    "ValueError: invalid literal for int()",
    "",
]


def kernel_log(**options) -> KernelLog:
    return KernelLog(BASE, engine=ENGINE, **options)


def take(log: KernelLog, *lines: str, at: float = 1e9) -> list[Alert]:
    return log.take([line.encode() for line in lines], at)


def test_fallen_off_the_bus():
    (found,) = take(kernel_log(), FALLEN)
    assert (found.code, found.severity, found.blame, found.role) == ("ES-G79", "fault", "machine", "root")
    assert (found.device, found.source, found.at) == (BUS, "kernel log", 1e9)
    assert found.line == FALLEN


def test_what_a_process_of_somebody_else_did_says_nothing_of_this_run():
    """On a shared GPU any user's program may fault. The first process of the machine is no rank of ours."""
    if proc.is_in_pid_namespace():
        pytest.skip("the kernel calls processes by other numbers here")
    log, ours = kernel_log(), CODE.format(BUS, os.getpid())
    (found,) = take(log, CODE.format(BUS, 1))
    assert found.severity == "warning"
    assert re.search(r"it is of process 1 \(.+\), no rank of this run", found.sentence)
    (later,) = take(log, ours, at=1e9 + 3600)
    (alone,) = take(kernel_log(), ours, at=1e9 + 3600)
    assert later == alone, "it is no second time on this device"


def test_children_of_a_rank_and_what_cannot_be_told_are_not_strangers():
    log = kernel_log(rank_of=lambda pid: 3 if pid == os.getpid() else None)
    child = subprocess.Popen(["sleep", "60"])
    try:
        for pid in (child.pid, 4194303, "<unknown>"):
            (found,) = take(log, CODE.format(BUS, pid))
            assert "no rank of this run" not in found.sentence, pid
    finally:
        child.kill()
        child.wait()
    (found,) = take(log, FALLEN)
    assert found.severity == "fault"


def test_a_queue_that_hangs_is_waited_for_once(monkeypatch):
    assert kernel_log_module.REVIEW_LIMIT_S <= 1.0
    answers, is_asked = threading.Event(), threading.Event()
    asked, answered = [], []

    class Hangs(ReviewQueue):
        def add(self, findings) -> int:
            asked.append(1)
            is_asked.set()
            answers.wait(60)
            answered.append(1)
            return 0

    log = kernel_log(queue=Hangs(Path("/nowhere")))
    try:
        for limit_s in (0.05, 1e3, 1e3):  # who waited for it again would wait until it answers
            monkeypatch.setattr(kernel_log_module, "REVIEW_LIMIT_S", limit_s)
            assert take(log, "NVRM: something that nobody has ever seen before") == []
            assert is_asked.wait(60)
        assert (len(asked), answered) == (1, [])
    finally:
        answers.set()


def test_healthy_lines_are_no_alerts():
    assert take(kernel_log(), *HEALTHY) == []


def test_a_consequence_is_told_as_one_also_in_a_later_batch():
    log = kernel_log()
    take(log, FALLEN)
    found = take(log, f"NVRM: Xid (PCI:{BUS}): 45, pid=12, name=python, Ch 00000008", at=1e9 + 1)
    assert all(one.role == "cascade" for one in found)


def test_xid_31_on_several_gpus_is_the_code_and_again_on_the_same_one_is_the_machine():
    log = kernel_log()
    (first,) = take(log, CODE.format(BUS, 100))
    assert first.blame == "user"
    (again,) = take(log, CODE.format(BUS, 200), at=1e9 + 3600)
    assert (again.blame, again.action) == ("machine", "DRAIN_AND_RESTART_NODE")
    log = kernel_log()
    found = take(log, CODE.format(BUS, 100), CODE.format("0000:17:00", 200))
    assert {one.blame for one in found} == {"user"}


def test_the_killer_names_a_rank_or_nobody_of_ours():
    (other,) = take(kernel_log(), KILLED)
    assert (other.severity, other.rank) == ("warning", None)
    assert "no rank of this node" in other.sentence
    (rank,) = take(kernel_log(rank_of={4711: 5}.get), KILLED)
    assert (rank.severity, rank.rank) == ("warning", 5), "the rank's own end is the fault"
    assert "rank 5, process 4711 (python)" in rank.sentence


def test_unknown_lines_go_to_the_review_queue_and_a_queue_that_fails_is_left(tmp_path):
    queue = ReviewQueue(tmp_path / "kb" / "unknown.jsonl")
    log = kernel_log(queue=queue)
    assert take(log, "NVRM: something that nobody has ever seen before") == []
    assert [entry.family for entry in queue.read()] != []
    (tmp_path / "file").write_text("")
    log = kernel_log(queue=ReviewQueue(tmp_path / "file" / "unknown.jsonl"))
    assert take(log, "NVRM: something that nobody has ever seen before") == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8))
def test_garbage_is_no_alert_and_no_error(lines):
    for one in kernel_log().take(lines, 1e9):
        assert one.severity in ("fault", "error", "warning")
    for line in lines:
        parse_record(line)


# -- lines -------------------------------------------------------------------------------------------------------------


def test_a_file_from_its_end_in_pieces_and_cut(tmp_path):
    path = tmp_path / "kmsg"
    path.write_text("old\n")
    lines = KernelLines(str(path))
    try:
        assert lines.read() == []
        with path.open("a") as file:
            file.write("one\ntw")
        assert lines.read() == [b"one"]
        with path.open("a") as file:
            file.write("o\n\n\n")
        assert lines.read() == [b"two"]
        path.write_text("new\n")
        assert lines.read() == [b"new"]
    finally:
        lines.close()


def test_a_fifo_outlives_its_writers(tmp_path):
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    lines = KernelLines(str(path))
    try:
        for word in (b"one", b"two"):
            path.write_bytes(word + b"\n")
            assert lines.read() == [word]
        assert lines.read() == []
    finally:
        lines.close()


def test_a_line_without_an_end_is_bounded(tmp_path):
    path = tmp_path / "kmsg"
    path.write_bytes(b"")
    lines = KernelLines(str(path))
    try:
        path.write_bytes(b"x" * (5 * MAX_BATCH_BYTES))
        for _ in range(10):
            assert lines.read() == []
        assert len(lines._tail) <= MAX_BATCH_BYTES
    finally:
        lines.close()


@pytest.mark.parametrize("name", ["none", "folder"])
def test_what_is_no_log_is_unsupported(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UnsupportedError):
        KernelLines(str(tmp_path / name))


def test_a_terminal_is_no_log():
    """Containers make their console /dev/kmsg; what is typed there is nobody's business."""
    ours, theirs = os.openpty()
    try:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        with pytest.raises(UnsupportedError, match="is not a log"):
            KernelLines(os.ttyname(theirs))
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("error", [OSError(29, "Illegal seek"), RuntimeError("of ours")], ids=repr)
def test_whatever_opening_the_log_does_the_agents_task_goes_on(tmp_path, monkeypatch, caplog, error):
    def fail(path):
        raise error

    async def play() -> bool:
        task = asyncio.create_task(
            senses_task.sense("n0", lambda event: None, run_dir=tmp_path, home=tmp_path, rank_of=lambda pid: None)
        )
        async with asyncio.timeout(60):
            while "the node cannot watch itself" not in caplog.text:
                await asyncio.sleep(0.01)
        is_done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return is_done

    monkeypatch.delenv(senses_task.SWITCH, raising=False)
    monkeypatch.setattr(senses_task, "KernelLines", fail)
    assert not asyncio.run(play())


def test_where_the_log_is():
    assert path_for("n3", {}) == "/dev/kmsg"
    assert path_for("n3", {"EVERSTEP_KMSG": "/tmp/kmsg-{node}"}) == "/tmp/kmsg-n3"


# -- ears --------------------------------------------------------------------------------------------------------------


def nobody(_pid: int) -> None:
    """No rank runs."""


def test_ears_follow_a_flood_and_end_when_told(tmp_path):
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    heard: list[Alert] = []
    said: dict[str, str] = {}
    ears = Ears(str(path), SimpleNamespace(hear=heard.extend, say=said.__setitem__, rank_of=nobody), load_after_s=0.0)
    ears.start()
    try:
        flood = "".join(f"usb 1-{n}: new high-speed device number {n}\n" for n in range(3000)) + FALLEN + "\n"
        fd = os.open(path, os.O_RDWR)
        try:
            os.write(fd, flood[:60_000].encode())
            writer = threading.Thread(target=os.write, args=(fd, flood[60_000:].encode()))
            writer.start()
            deadline = time.monotonic() + 120
            while not any(one.code == "ES-G79" for one in heard):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            writer.join(60)
        finally:
            os.close(fd)
        assert said == {"kernel log": ""}
        assert len(heard) == 1
    finally:
        ears.close(60)
    assert not any(thread.name == "everstep-kernel-log" for thread in threading.enumerate())


def hears_at_once(path: Path) -> Ears:
    return Ears(str(path), SimpleNamespace(say=lambda *_: None, hear=lambda *_: None, rank_of=nobody), load_after_s=0.0)


def test_ears_have_the_signatures_that_explain_the_ends_of_ranks_and_others_only_for_a_site(tmp_path, monkeypatch):
    """An agent lives with one set of automata, not with two."""
    monkeypatch.delenv("EVERSTEP_KB_DIR", raising=False)
    ears = hears_at_once(tmp_path)
    assert ears._load()._engine is live.shared()
    monkeypatch.setenv("EVERSTEP_KB_DIR", str(tmp_path))
    assert ears._load()._engine is not live.shared()
    ears.close()


def test_whoever_needs_what_is_being_prepared_waits_for_nobody():
    """A thread that yields to the training prepares; a recovery may not be held up by it."""
    may_go_on, made = threading.Event(), []

    def make() -> int:
        made.append(threading.current_thread())
        if made == [preparing]:
            may_go_on.wait(60.0)
        return len(made)

    kept = Kept(make)
    preparing = threading.Thread(target=kept.prepare)
    preparing.start()
    until(lambda: bool(made))
    assert kept.get() == 2
    assert not may_go_on.is_set()
    may_go_on.set()
    preparing.join()
    assert (kept.get(), len(made)) == (2, 2), "what others have by now stays"


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_that_died_has_a_plain_file_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(ears_module, "FILE_LOOK_S", 3600.0)
    path, hurry, heard, said = tmp_path / "kmsg", Hurry(), [], {}
    path.write_text("")
    brain = SimpleNamespace(hear=heard.extend, say=said.__setitem__, rank_of=nobody)
    ears = Ears(str(path), brain, hurry=hurry, load_after_s=0.0)
    ears.start()
    try:
        until(lambda: said == {"kernel log": ""})
        for expected, number in enumerate(("79", "48"), start=1):  # a ring is heard once, and the next is another one
            with path.open("a") as log:
                log.write(f"NVRM: Xid (PCI:{BUS}): {number}, pid=7, name=python\n")
            hurry.ring()
            until(lambda wanted=expected: len(heard) == wanted)
    finally:
        ears.close(60)
        os.close(hurry.fd)
    assert [alert.code for alert in heard] == ["ES-G79", "ES-G48"]


def test_ears_that_were_never_started_can_be_closed(tmp_path):
    ears = Ears(str(tmp_path), SimpleNamespace())
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    ears.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1  # noqa: PTH208


def test_a_log_that_goes_away_is_said(tmp_path: Path):
    said: list[str] = []
    ears = Ears(str(tmp_path / "none"), SimpleNamespace(say=lambda name, why: said.append(why), rank_of=nobody))
    ears.start()
    try:
        deadline = time.monotonic() + 60
        while not said:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "No such file or directory" in said[0]
    finally:
        ears.close()
