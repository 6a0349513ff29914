"""What a rank writes, sends and leaves behind may be anything: its agent goes on, its end is reported and recorded."""

import asyncio
import fcntl
import json
import logging
import math
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from everstep.agent.memory.board import Board
from everstep.agent.processes import error_reports as exits
from everstep.agent.processes.channel import MAX_FRAMES_PER_TURN, Channel
from everstep.agent.ranks.watch_link import _content
from everstep.agent.ranks.workers import Group, Paths, Worker
from everstep.agent.watching.observing import Observing
from everstep.agent.watching.rank_frames import MAX_TEXT, MAX_TOLD, RankFrames
from everstep.agent.watching.rank_ops import declared
from everstep.controller.record.bare import bare
from everstep.journal.format import decode_record, encode_record
from everstep.launcher import error_file
from everstep.linux.children import Ended
from everstep.model.events import NodeLost, RuntimeFaulted, WorkerExited, WorkersStopped
from everstep.model.facts import ErrorReport, Exit, RankAccount
from everstep.model.record import Record
from everstep.probes.oom import KernelLog
from everstep.wire import local
from everstep.wire.codec import decode_from_peer, encode
from everstep.wire.messages import Report
from everstep.worker.process.board import LINE_BYTES

BIG = "9" * 400
REPORTS = [
    b"",
    b"null",
    b"[]",
    b"[" * 200_000,
    b"\xff\xfe",
    b'{"message": {"message": "x", "extraInfo": {"timestamp": %s}}}' % BIG.encode(),
    b'{"message": {"message": "x", "extraInfo": {"timestamp": "%s"}}}' % BIG.encode(),
    b'{"message": {"message": "x", "extraInfo": {"timestamp": NaN}}}',
    b'{"message": {"message": "x", "extraInfo": {"timestamp": "nan"}}}',
    b'{"message": {"message": "x", "extraInfo": {"timestamp": -Infinity}}}',
    b'{"message": {"message": "x", "extraInfo": {"timestamp": true}}}',
    b'{"message": {"message": "\\ud800 x", "extraInfo": {"py_callstack": "\\udfff"}}}',
    b'{"message": 7, "everstep": {"kind": "\\ud83d", "message": ["x"], "at": 1e999, "place": {}}}',
    b'{"everstep": {"kind": "SystemExit", "at": "inf", "place": "\\udc00"}}',
    b'{"message": {"message": "%s"}}' % (b"y" * 3_000_000),
]


def values(rng: random.Random, depth: int = 0) -> object:
    """Anything that JSON can say, and some things that it should not."""
    plain = [
        None, True, False, 0, -1, 7, 2**63, -(2**70), 10**400, 1e308, math.nan, math.inf, -math.inf, "", "x", "\ud800",
        "nan", "9" * 500, "a\x1b[2J\x00b", time.time(), "memory", "disk", "entered", "first_step",
    ]  # fmt: skip
    if depth > 2 or rng.random() < 0.6:
        return rng.choice(plain)
    if rng.random() < 0.5:
        return [values(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(NAMES): values(rng, depth + 1) for _ in range(rng.randrange(5))}


NAMES = [
    "mark", "listens", "begins", "modules", "changed", "took_s", "memory", "bytes", "buffers", "drilled", "why",
    "is_armed", "fault", "where", "restore_failed", "step", "source", "rank", "is_damaged", "numbers", "urgent",
    "digest", "values", "replicas", "stride", "missing", "twin", "stage", "reads", "out", "no_twin", "message",
    "extraInfo", "timestamp", "everstep", "at", "kind", "place", "py_callstack",
]  # fmt: skip


def recorded(event: object) -> object:
    """As the controller has it, over the link and in the journal; or the bare one, as `controller.loop` does."""
    sent = decode_from_peer(encode(Report(source_seq=1, event=event)))
    assert isinstance(sent, Report)
    try:
        line = encode_record(Record(seq=1, at=1.0, gen=0, event=sent.event))
    except ValueError:
        line = encode_record(Record(seq=1, at=1.0, gen=0, event=bare(sent.event, 1.0)))
    return decode_record(line).event


@pytest.fixture
def kernel_log():
    log = KernelLog()
    yield log
    log.close()


def make_worker(folder: Path, log: KernelLog, rank: int = 0) -> Worker:
    paths = Paths(stdout=folder / "out", stderr=folder / "err", error_file=folder / "error.json")
    return Worker(rank=rank, local_rank=rank, pid=os.getpid(), paths=paths, log=log)


def end_of(worker: Worker) -> Exit:
    worker.ended = Ended(pid=worker.pid, at=time.time(), code=1)
    return worker.conclude()


@pytest.mark.parametrize("number", range(len(REPORTS)))
def test_whatever_the_report_says_the_end_is_reported_and_recorded(tmp_path, kernel_log, number):
    worker = make_worker(tmp_path, kernel_log)
    (tmp_path / "error.json").write_bytes(REPORTS[number])
    (tmp_path / "err").write_bytes(b"last words \xff\x00\n")
    exit_ = end_of(worker)
    event = recorded(WorkerExited(at=exit_.at, node="n0", generation=0, exit=exit_))
    assert (event.exit.rank, event.exit.code) == (0, 1)
    assert event.exit.last_output.startswith("last words")
    at = exit_.error.at if exit_.error is not None else None
    assert at is None or math.isfinite(at)


def test_random_reports(tmp_path, kernel_log):
    rng = random.Random(7)
    worker = make_worker(tmp_path, kernel_log)
    for _ in range(500):
        report = values(rng) if rng.random() < 0.2 else {name: values(rng) for name in rng.sample(NAMES, 5)}
        (tmp_path / "error.json").write_text(json.dumps(report))
        exit_ = end_of(worker)
        assert recorded(WorkerExited(at=exit_.at, node="n0", generation=0, exit=exit_)).exit.code == 1


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop", "sparse"])
def test_what_stands_in_the_place_of_the_report_and_the_log(tmp_path, kernel_log, kind):
    for name in ("error.json", "err"):
        path = tmp_path / name
        match kind:
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "device":
                path.symlink_to("/dev/zero")
            case "loop":
                path.symlink_to(path)
            case "sparse":
                with path.open("wb") as file:
                    file.truncate(1 << 40)
    exit_ = end_of(make_worker(tmp_path, kernel_log))
    assert (exit_.code, exit_.error) == (1, None)


@pytest.mark.parametrize("kind", ["pipe", "device", "sparse", *range(len(REPORTS))])
def test_the_launchers_own_report_is_made_of_any_report(tmp_path, kind):
    """What a job scheduler reads, and never a reason to fail or to wait."""
    path, target = tmp_path / "rank-0.json", tmp_path / "report.json"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "sparse":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case number:
            path.write_bytes(REPORTS[number])
    report = error_file._read(path)
    if report is not None:
        error_file._write(str(target), error_file._with_code(report, 1))
        assert isinstance(json.loads(target.read_bytes()), dict)


def test_a_reader_that_breaks_costs_the_explanation(tmp_path, kernel_log, monkeypatch):
    def broken(_path: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(exits, "read_error", broken)
    exit_ = end_of(make_worker(tmp_path, kernel_log))
    assert (exit_.rank, exit_.code, exit_.error) == (0, 1, None)


@pytest.mark.parametrize("at", [0.0, -1e308, 1.0, 4e9])
def test_a_rank_cannot_say_that_it_failed_before_it_lived(tmp_path, kernel_log, at):
    """Others' ends are ordered by it, and whether it was us who ended it."""
    worker = make_worker(tmp_path, kernel_log)
    (tmp_path / "error.json").write_text(json.dumps({"everstep": {"kind": "E", "message": "x", "at": at}}))
    worker.stopped_at = time.time()
    exit_ = end_of(worker)
    assert exit_.stopped_by_us
    assert exit_.error is not None
    assert exit_.error.at == exit_.at


@pytest.mark.parametrize("lie", [math.nan, math.inf, -math.inf])
def test_an_end_that_cannot_be_written_is_recorded_bare(lie):
    account = RankAccount(rank=3, spawned_at=lie)
    error = ErrorReport(kind="E", message="x", at=lie)
    exit_ = Exit(rank=3, at=lie, signal=9, error=error, last_output="x")
    exited = bare(WorkerExited(at=lie, node="n0", generation=1, exit=exit_, account=account), 5.0)
    assert exited == WorkerExited(at=5.0, node="n0", generation=1, exit=Exit(rank=3, at=5.0, signal=9))
    stopped = bare(WorkersStopped(at=2.0, node="n0", generation=1, exits=(exit_,), accounts=(account,)), 5.0)
    assert stopped == WorkersStopped(at=2.0, node="n0", generation=1, exits=(Exit(rank=3, at=2.0, signal=9),))
    lost = bare(NodeLost(at=lie, node="n0", reason="gone \ud800"), 5.0)
    assert recorded(lost) == lost
    assert bare(RuntimeFaulted(at=lie, node="n0", rank=0, generation=0, where="x", why="y"), 5.0) is None


def test_the_board_cannot_be_cut_under_the_agent():
    board = Board(2)
    try:
        for size in (0, 64, 1 << 20):
            with pytest.raises(OSError, match="not permitted"):
                os.ftruncate(board.fd, size)
        with pytest.raises(OSError, match="not permitted"):
            fcntl.fcntl(board.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        board.close()


def test_random_bytes_on_the_board():
    rng = random.Random(1)
    odd = [math.nan, math.inf, -math.inf, 1e308, -1.0, 0.0, time.time() + 1e6, 5e-324]
    board = Board(2)
    try:
        board.reset(1, rank=5, generation=0)
        for _ in range(500):
            cells = b"".join(
                struct.pack("<d", rng.choice(odd)) if rng.random() < 0.5 else rng.randbytes(8) for _ in range(64)
            )
            os.pwrite(board.fd, cells[:LINE_BYTES], LINE_BYTES)
            account = board.account(1)
            assert account.rank == 5
            assert abs(account.spawned_at - time.time()) < 600
            times = (account.entered_at, account.loop_at, account.first_step_at, account.last_step_at)
            assert all(at is None or 0 <= at <= time.time() + 6 for at in times)
            assert all(0 <= each < math.inf for each in (account.restore_s, account.stall_s))
            steps = (account.first_step, account.last_step, account.published_step)
            assert all(step is None or step >= 0 for step in steps)
            for each in (*board.durations(1), *board.loads(1), *board.communication(1)):
                assert each is None or 0 <= each < math.inf
            exit_ = Exit(rank=5, at=1.0, code=1)
            event = WorkerExited(at=1.0, node="n0", generation=0, exit=exit_, account=account)
            assert recorded(event) == event
    finally:
        board.close()


class Node:
    """The agent's side of one rank's frames."""

    def __init__(self, folder: Path, log: KernelLog) -> None:
        self.reported: list[object] = []
        self.worker = make_worker(folder, log)
        self.frames = RankFrames(
            "n0",
            memory=None,
            observing=Observing("n0", self.reported.append),
            host=SimpleNamespace(
                report=self.reported.append,
                spawn=lambda work: work.close(),
                account=lambda worker: RankAccount(rank=worker.rank, spawned_at=1.0),
                learn_ahead=lambda told: None,
                take_twin=lambda worker, told, fd: os.close(fd),
                refuse_twin=lambda worker, why: None,
                note_all_stepped=lambda: None,
            ),
        )
        group = Group(0, reaper=None, frames=self.frames, on_exit=print, twins=SimpleNamespace(is_forking=False))
        group.workers[0] = self.worker
        self.frames.begin(group, 2)


def test_random_frames(tmp_path, kernel_log):
    rng = random.Random(3)

    async def story() -> None:
        node = Node(tmp_path, kernel_log)
        for _ in range(3000):
            frame = {name: values(rng) for name in rng.sample(NAMES, rng.randrange(1, 4))}
            node.frames.take(node.worker, json.loads(json.dumps(frame)), [])
            await asyncio.sleep(0)
        assert node.reported
        for event in node.reported:
            sent = decode_from_peer(encode(Report(source_seq=1, event=event)))
            assert isinstance(sent, Report)
            assert getattr(sent.event, "node", "") == "n0"

    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(story())
    finally:
        logging.disable(logging.NOTSET)


def test_faults_without_end_do_not_fill_the_journal(tmp_path, kernel_log, caplog):
    node = Node(tmp_path, kernel_log)
    for _ in range(10 * MAX_TOLD):
        node.frames.take(node.worker, {"fault": {"where": "x" * 100_000, "why": "y" * 100_000}}, [])
        node.frames.take(node.worker, {"fault": 7}, [])
    faults = [event for event in node.reported if isinstance(event, RuntimeFaulted)]
    assert 0 < len(faults) <= MAX_TOLD
    assert all(len(event.where) <= MAX_TEXT and len(event.why) <= MAX_TEXT for event in faults)
    assert len(caplog.records) <= MAX_TOLD


@pytest.mark.parametrize(
    "frame",
    [
        {"modules": ["json", 3], "changed": {}, "took_s": 1.0},
        {"modules": ["json"], "changed": {"TORCH_X": 3}, "took_s": 1.0},
        {"modules": ["json"], "changed": {}, "took_s": "1"},
        {"restore_failed": {"step": "7", "source": "memory"}},
        {"restore_failed": {"step": 7, "source": "hearsay"}},
        {"size_fixed": {"world_size": 2.5, "why": "it is said"}},
        {"mark": "somewhere"},
        {"no_twin": None},
        {"memory": {"bytes": [8192]}},
    ],
)
def test_a_frame_of_other_types_is_not_acted_on(tmp_path, kernel_log, caplog, frame):
    node = Node(tmp_path, kernel_log)
    node.frames.take(node.worker, frame, [])
    assert node.reported == []
    assert "frame not understood" in caplog.text


def test_a_rank_that_writes_without_end_leaves_turns_to_others(tmp_path):
    """The node's signs of life are sent by the same loop."""
    ours, theirs = socket.socketpair()
    frame = local.pack({"fault": 1})
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            try:
                theirs.sendall(frame * 1000)
            except OSError:
                return

    async def story() -> list[int]:
        turns, seen = [], [0]

        def count(_frame: local.Frame, _fds: list[int]) -> None:
            seen[0] += 1

        channel = Channel(ours, count, lambda why: None)
        while seen[0] < 20 * MAX_FRAMES_PER_TURN:
            before = seen[0]
            await asyncio.sleep(0)
            turns.append(seen[0] - before)
        channel.close()
        return turns

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        assert max(asyncio.run(story())) <= MAX_FRAMES_PER_TURN
    finally:
        over.set()
        theirs.close()
        thread.join()


def test_descriptors_for_a_frame_that_never_comes(tmp_path):
    """Each byte of it may bring some; the agent has not so many."""
    ours, theirs = socket.socketpair()
    before = len(list(Path("/proc/self/fd").iterdir()))
    failed = []

    async def story() -> None:
        channel = Channel(ours, lambda frame, fds: None, failed.append)
        for byte in (b"\xff", b"\xff", *[b"\x00"] * 2, *[b" "] * 20):
            try:
                socket.send_fds(theirs, [byte], [theirs.fileno()] * 100)
            except OSError:
                break
            for _ in range(3):
                await asyncio.sleep(0)
        assert not channel.is_open

    asyncio.run(story())
    assert failed
    theirs.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_descriptor_that_is_no_file_holds_no_record():
    reading, writing = os.pipe()
    zero = os.open("/dev/zero", os.O_RDONLY)
    try:
        assert (_content(reading), _content(zero)) == (b"", b"")
    finally:
        for fd in (reading, writing, zero):
            os.close(fd)


def test_groups_that_a_rank_declares():
    assert declared({"groups": [["g", "t", [0, 1]]]}) == {"g": ("t", (0, 1))}
    lies = (
        7,
        None,
        [7],
        [["g", "t", [math.inf]]],
        [["g", "t", [-1]]],
        [["g", "t", [2**70]]],
        [["g", "t", range(1 << 18)]],
    )
    for lie in lies:
        assert declared({"groups": lie}) == {}, lie
