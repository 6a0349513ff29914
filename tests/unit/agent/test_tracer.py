"""The short trace of a slow rank: made beside it, ended with whatever stops it, never more than was asked for."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.agent.memory.board import Board
from everstep.agent.memory.foreign_board import find_line
from everstep.agent.processes.reaping import Reaper
from everstep.agent.tracing import files, tracer
from everstep.agent.tracing.tracer import Tracer
from everstep.linux import proc
from everstep.model.actions import TraceRank
from everstep.model.events import RankTraced
from everstep.worker.process.board import FloatCell, IntCell

TRAINING = "import time\nfor step in range(10_000): time.sleep(0.01)"
MAX_BYTES = 1 << 20


class Watch:
    """Of the rank: writes what it is told to, as its flight record."""

    def __init__(self, record: bytes = b'{"entries": []}') -> None:
        self.record = record

    async def dump(self, path: Path, limit_s: float) -> str:
        path.write_bytes(self.record)
        return ""


class Node:
    """Rank 3 of generation 2, which steps, and the tracer of its agent, which is this process."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.rank = subprocess.Popen([sys.executable, "-c", TRAINING])
        self.board = Board(1)
        self.board.reset(0, rank=3, generation=2)
        self.ints, self.floats = (memoryview(self.board._map).cast(kind) for kind in "qd")
        self.ints[IntCell.PID] = self.rank.pid
        self.watch: Any = Watch()
        self.told: list[RankTraced] = []
        self.pids: list[int] = []
        self._over = threading.Event()
        self._steps = threading.Thread(target=self._step)
        self._steps.start()

    def _step(self) -> None:
        for step in range(1_000_000):
            self.floats[FloatCell.LAST_STEP_AT] = time.time()
            self.ints[IntCell.LAST_STEP] = step
            if self._over.wait(0.05):
                return

    @property
    def group(self) -> Any:
        worker = SimpleNamespace(rank=3, local_rank=0, pid=self.rank.pid, is_alive=True, watch=self.watch)
        return SimpleNamespace(generation=2, workers={3: worker}, is_stopping=False)

    def action(self, seconds: float = 0.4, **other: int) -> TraceRank:
        given = {"generation": 2, "rank": 3, "max_bytes": MAX_BYTES, **other}
        return TraceRank(node="n0", incident="i7", seconds=seconds, why="it is slow", **given)

    def run(self, work: Callable[[Tracer], Awaitable[object]], environ: dict[str, str] | None = None) -> None:
        async def main() -> None:
            reaper = Reaper()
            asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, reaper.reap)
            made = Tracer("n0", self.run_dir, "r1", {**os.environ, **(environ or {})}, reaper, self.told.append)
            await work(made)
            while reaper._watched:
                await asyncio.sleep(0.01)
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

        asyncio.run(main())

    def close(self) -> None:
        self._over.set()
        self._steps.join()
        self.rank.kill()
        self.rank.wait()
        self.ints.release()
        self.floats.release()
        self.board.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def content(node: Node) -> dict[str, Any]:
    (told,) = node.told
    assert told.file, told.why
    data = (node.run_dir / told.file).read_bytes()
    assert len(data) == told.num_bytes
    found: dict[str, Any] = json.loads(data)
    return found


def left_over(node: Node) -> list[str]:
    """In the run directory; the removal of what is needless is not waited for by the agent."""
    for _ in range(100):
        found = sorted(path.name for path in node.run_dir.rglob("*") if path.is_file())
        if not any(name.endswith(".part") for name in found):
            break
        time.sleep(0.05)
    return found


def test_a_rank_is_traced_into_one_file(node: Node) -> None:
    node.run(lambda made: made.trace(node.action(), node.group))
    (told,) = node.told
    assert (told.node, told.rank, told.generation, told.incident) == ("n0", 3, 2, "i7")
    assert told.file == "traces/i7-gen-2-rank-3.json"
    said = {each["track"]: each for each in content(node)["otherData"]["tracks"]}
    assert said["steps"]["is"] == "measured"
    assert said["steps"]["events"] > 2
    assert said["collectives"]["why"] == "the flight record is empty"
    assert left_over(node) == ["i7-gen-2-rank-3.json"]
    assert (node.run_dir / told.file).stat().st_mode & 0o777 == 0o600


def test_it_says_where_the_file_is_on_its_host(node: Node) -> None:
    node.run(lambda made: made.trace(node.action(), node.group))
    assert node.told[0].path == str(node.run_dir / node.told[0].file)


def test_its_file_is_no_larger_than_asked_for(node: Node) -> None:
    node.run(lambda made: made.trace(node.action(max_bytes=4096), node.group))
    found = content(node)
    assert node.told[0].num_bytes <= 4096
    assert found["otherData"]["left_out"] > 0 or len(found["traceEvents"]) < 40


def test_what_stops_the_ranks_ends_it_at_once(node: Node) -> None:
    async def stopped(made: Tracer) -> None:
        work = asyncio.ensure_future(made.trace(node.action(60.0), node.group))
        while made._process is None or not children_of(made._process.pid):
            await asyncio.sleep(0.02)  # until py-spy is there too
        session = made._process.pid
        begun = time.monotonic()
        made.end("the ranks are being stopped")
        await work
        assert time.monotonic() - begun < 2.0
        for _ in range(100):
            if not in_session(session):
                break
            await asyncio.sleep(0.02)
        assert not in_session(session)

    node.run(stopped)
    assert (node.told[0].file, node.told[0].why) == ("", "the ranks are being stopped")
    assert left_over(node) == []


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def in_session(session: int) -> list[int]:
    found = []
    for pid in proc.processes():
        seen = proc.stat(pid)
        with contextlib.suppress(OSError):
            if seen is not None and seen.state != "Z" and os.getsid(pid) == session:
                found.append(pid)
    return found


def test_one_at_a_time(node: Node) -> None:
    async def two(made: Tracer) -> None:
        await asyncio.gather(*(made.trace(node.action(), node.group) for _ in range(2)))

    node.run(two)
    assert sorted(told.why for told in node.told if not told.file) == ["another rank of this node is being traced"]
    assert sum(bool(told.file) for told in node.told) == 1


def test_a_rank_that_is_not_here_is_not_traced(node: Node) -> None:
    async def none(made: Tracer) -> None:
        await made.trace(node.action(generation=1), node.group)
        await made.trace(node.action(rank=4), node.group)
        await made.trace(node.action(), None)

    node.run(none)
    assert [(told.file, told.why) for told in node.told] == [("", "it runs here no more")] * 3


def test_a_rank_cannot_have_another_process_traced(node: Node) -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINING]) as other:
        try:
            node.ints[IntCell.PID] = other.pid  # a child of this agent, and not of the rank
            node.run(lambda made: made.trace(node.action(), node.group))
        finally:
            other.kill()
    assert (node.told[0].file, node.told[0].why) == ("", "its line on the board names another process")


def test_what_a_rank_says_of_itself_does_not_stand_in_the_file(node: Node) -> None:
    node.ints[IntCell.RANK], node.ints[IntCell.GENERATION] = 7, 1 << 60
    node.run(lambda made: made.trace(node.action(), node.group))
    said = content(node)["otherData"]
    assert (said["rank"], said["generation"]) == (3, 2)


def test_a_line_that_names_a_process_of_somebody_else_is_none(node: Node) -> None:
    with find_line(os.getpid(), 3) as line:
        assert line is not None
    node.ints[IntCell.PID] = 1
    with find_line(os.getpid(), 3) as line:
        assert line is None


@pytest.mark.parametrize(
    "record",
    [b"", b"[" * 200_000, b"\xff", b'{"entries": [{"record_id": "x"}]}', b"x" * (9 << 20)],
    ids=["empty", "deep", "bytes", "odd", "large"],
)
def test_what_a_rank_says_of_its_collectives_costs_that_track_only(node: Node, record: bytes) -> None:
    node.watch = Watch(record)
    node.run(lambda made: made.trace(node.action(), node.group))
    said = {each["track"]: each for each in content(node)["otherData"]["tracks"]}
    assert said["collectives"]["is"] == "unknown"
    assert said["steps"]["is"] == "measured"
    assert left_over(node) == ["i7-gen-2-rank-3.json"]


def test_a_record_that_comes_too_late_does_not_stay(node: Node) -> None:
    class Late(Watch):
        async def dump(self, path: Path, limit_s: float) -> str:
            self.path = path
            return "the rank's watch thread did not answer within 5 s"

    late = node.watch = Late()

    async def traced(made: Tracer) -> None:
        await made.trace(node.action(), node.group)
        assert left_over(node) == ["i7-gen-2-rank-3.json"]
        late.path.write_bytes(b"{}")
        made.close()

    node.run(traced)
    assert left_over(node) == ["i7-gen-2-rank-3.json"]
    said = {each["track"]: each for each in content(node)["otherData"]["tracks"]}
    assert said["collectives"]["why"] == "the rank's watch thread did not answer within 5 s"


def test_names_without_end_are_cut(node: Node) -> None:
    class Wordy(Watch):
        async def dump(self, path: Path, limit_s: float) -> str:
            entries = [
                {
                    "record_id": number,
                    "process_group": ["0", "g" * 20_000],
                    "profiling_name": "gloo:" + "a" * 20_000,
                    "collective_seq_id": number,
                    "time_created_ns": int((time.time() - number / 20) * 1e9),
                }
                for number in range(100)
            ]
            path.write_text(json.dumps({"entries": entries}))
            return ""

    node.watch = Wordy()
    node.run(lambda made: made.trace(node.action(1.0), node.group))
    said = {each["track"]: each for each in content(node)["otherData"]["tracks"]}
    assert said["collectives"]["events"] > 5
    assert node.told[0].num_bytes < 1000 * (said["collectives"]["events"] + 200)


def test_what_is_there_already_is_neither_replaced_nor_followed(node: Node) -> None:
    victim = node.run_dir / "victim"
    victim.write_text("mine")
    (node.run_dir / "traces").mkdir()
    (node.run_dir / "traces" / "i7-gen-2-rank-3.json").symlink_to(victim)
    node.run(lambda made: made.trace(node.action(), node.group))
    assert not node.told[0].file
    assert "FileExistsError" in node.told[0].why
    assert victim.read_text() == "mine"


def test_a_process_that_dies_costs_the_trace_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "_BOOT", "import os; os.kill(os.getpid(), 9)")
    node.run(lambda made: made.trace(node.action(), node.group))
    assert node.told[0].why == "its process ended before it was done"
    monkeypatch.setattr(tracer, "_BOOT", "print('{')")
    node.run(lambda made: made.trace(node.action(), node.group))
    assert "DecodeError" in node.told[1].why


def test_a_process_that_never_ends_is_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "_BOOT", "import time; time.sleep(1000)")
    monkeypatch.setattr(tracer, "START_S", 0.5)
    node.run(lambda made: made.trace(node.action(0.1), node.group))
    assert node.told[0].why == "it was not done within 0.6 s"


def test_half_a_megabyte_of_lines_is_not_listened_to(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "_BOOT", "import sys; sys.stdout.write('x' * (1 << 19))")
    node.run(lambda made: made.trace(node.action(), node.group))
    assert node.told[0].why == "its process ended before it was done"


def test_a_folder_that_is_a_link_or_cannot_be_made_costs_the_trace(node: Node, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (node.run_dir / files.FOLDER).symlink_to(elsewhere)
    node.run(lambda made: made.trace(node.action(), node.group))
    assert not node.told[0].file
    assert list(elsewhere.iterdir()) == []
