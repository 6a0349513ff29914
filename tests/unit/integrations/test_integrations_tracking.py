"""Steps, losses and restarts in TensorBoard (the real one) and W&B: no step twice, no restart without a mark."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from everstep.integrations import tracking
from everstep.integrations.trackers import MAX_AT_ONCE, TensorBoard, Wandb
from everstep.worker.digests.numbers import Numbers

WHY = "rank 1 on n0 was killed by SIGKILL; every rank holds step 5 in memory"


class Rank:
    """What of a rank's runtime is used."""

    def __init__(self, generation: int = 0, resume_step: int | None = None, *, has_state: bool = True, why: str = WHY):
        self.generation, self.resume_step, self.why = generation, resume_step, why
        self.board = SimpleNamespace(counts_own_steps=has_state)
        self.step_hooks: list = []
        self.number_hooks: list = []
        self.faults: list[str] = []

    def report_fault(self, where, why):
        self.faults.append(why)

    def tell(self, frame):
        pass

    def train(self, steps: range) -> None:
        told = Numbers(self, self.number_hooks)
        for step in steps:
            told.take(step, 10.0 - step, 1.0)
            for hook in list(self.step_hooks):
                hook(step)


@pytest.fixture
def begin_rank(monkeypatch):
    monkeypatch.setattr(tracking, "EVERY_S", 0.01)
    monkeypatch.setattr(tracking.atexit, "register", lambda function: None)

    def begun(tracker: object, rank: Rank) -> "tracking.Feed | None":
        monkeypatch.setattr(tracking, "current", lambda: rank)
        feeds: list = []
        start = tracking.Feed.start
        monkeypatch.setattr(tracking.Feed, "start", lambda feed: (feeds.append(feed), start(feed)))
        tracking.log_to(tracker)
        monkeypatch.setattr(tracking.Feed, "start", start)
        return feeds[0] if feeds else None

    return begun


def train_in(folder: Path, begin_rank, rank: Rank, steps: range) -> None:
    board = pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError)
    with board.SummaryWriter(str(folder)) as writer:
        feed = begin_rank(writer, rank)
        rank.train(steps)
        feed.close()
    assert rank.faults == []


def shown(folder: Path) -> tuple[dict[str, list[int]], list[tuple[int, str]]]:
    """As TensorBoard shows it: steps by tag, texts with their steps."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    scalars = {tag: [each.step for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    texts = [
        (each.step, each.tensor_proto.string_val[0].decode())
        for tag in found.Tags()["tensors"]
        for each in found.Tensors(tag)
    ]
    return scalars, texts


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_steps_that_are_done_again_are_in_tensorboard_once_and_the_restart_is_marked(tmp_path, begin_rank):
    train_in(tmp_path, begin_rank, Rank(), range(10))
    train_in(tmp_path, begin_rank, Rank(1, 5), range(6, 12))
    scalars, _texts = shown(tmp_path / "everstep")
    assert scalars["everstep/loss"] == scalars["everstep/grad_norm"] == list(range(12))
    assert scalars["everstep/step_seconds"] == [*range(1, 6), *range(7, 12)], "not known of a start's first step"
    for where in (tmp_path, tmp_path / "everstep"):
        (step, text), *more = shown(where)[1]
        assert (step, more) == (6, [])
        assert text.startswith("Restart 1, with step 6")
        assert WHY in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_steps_that_begin_at_0_again_get_a_run_of_their_own(tmp_path, begin_rank):
    train_in(tmp_path, begin_rank, Rank(has_state=False), range(10))
    train_in(tmp_path, begin_rank, Rank(1, has_state=False), range(3))
    assert shown(tmp_path / "everstep")[0]["everstep/loss"] == list(range(10))
    assert shown(tmp_path / "everstep-restart-1")[0]["everstep/loss"] == [0, 1, 2]
    assert "from the program's own start" in shown(tmp_path)[1][0][1]


def test_the_programs_own_curve_can_be_cut_at_the_same_step(monkeypatch):
    for rank, expected in ((None, None), (Rank(), None), (Rank(2, 7), 8), (Rank(2), None)):
        monkeypatch.setattr(tracking, "current", lambda rank=rank: rank)
        assert tracking.purge_step() == expected


class Broken:
    """A tracker of TensorBoard's form that does one thing for ever."""

    log_dir = "/nowhere"

    def __init__(self, act) -> None:
        self._act = act

    def add_text(self, *_args):
        self._act()

    add_scalar = flush = add_text


def test_a_tracker_that_raises_is_reported_once_and_left(begin_rank):
    def act():
        raise OSError("disk is full")

    rank = Rank(1, 3)
    feed = begin_rank(Broken(act), rank)
    feed._thread.join(5)
    rank.train(range(4, 9))
    assert rank.faults == ["OSError: disk is full; nothing more is logged"]
    assert rank.step_hooks == rank.number_hooks == []


def test_a_tracker_that_hangs_costs_training_nothing(begin_rank, monkeypatch):
    monkeypatch.setattr(tracking, "MAX_WAITING", 100)
    monkeypatch.setattr(tracking, "LAST_WORDS_S", 0.01)
    go = threading.Event()
    rank = Rank(1, 3)
    feed = begin_rank(Broken(go.wait), rank)
    rank.train(range(4, 5004))
    feed.close()
    go.set()
    assert rank.faults == ["the tracker is too slow: more than 100 steps wait; dropped"]


def test_a_signal_handler_that_tells_a_step_meanwhile_does_not_wait_for_itself(begin_rank):
    rank = Rank()
    feed = begin_rank(Broken(lambda: None), rank)
    before = signal.signal(signal.SIGUSR1, lambda *_: feed.stepped(1))
    try:
        with feed._lock:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0)
    finally:
        signal.signal(signal.SIGUSR1, before)
        feed.close()


def test_secrets_and_lines_do_not_reach_the_tracker(monkeypatch):
    monkeypatch.setenv("STORE_TOKEN", "correct-horse")
    why = tracking._shown("boom\n# correct-horse https://u:p@h/ <script>")
    assert why == "boom # *** https://***@h/ <script>"
    texts = []
    writer = SimpleNamespace(log_dir="", add_text=lambda *args: texts.append(args), flush=lambda: None)
    TensorBoard(writer, Rank()).mark(3, "Restart 1", why, 1)
    assert texts == [("everstep/restarts", f"Restart 1. Why:\n\n    {why}", 3)], "an indented block is not interpreted"


def test_of_many_steps_a_part_is_written_and_the_newest_is_among_them():
    steps = []
    own = SimpleNamespace(add_scalar=lambda _tag, _value, step: steps.append(step), flush=lambda: None)
    board = TensorBoard(SimpleNamespace(), Rank())
    board._own = own
    board.write({step: {"loss": 1.0} for step in range(1000)})
    assert steps == sorted(steps)
    assert steps[-1] == 999
    assert len(steps) <= 2 * MAX_AT_ONCE


def test_something_else_and_nothing(begin_rank):
    rank = Rank()
    assert begin_rank(None, rank) is None
    assert rank.faults == []
    assert begin_rank([], rank) is None
    assert rank.faults == ["log_to(builtins.list): neither a SummaryWriter nor a wandb run; nothing is logged"]


class WandbRun:
    """A wandb run as its reference describes it: what is logged without `commit` waits for the row that commits."""

    def __init__(self) -> None:
        self.metrics: list = []
        self.rows: list[dict] = []
        self.summary: dict = {}
        self._row: dict = {}

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, data, *, commit=True):
        self._row |= data
        if commit:
            self.rows.append(self._row)
            self._row = {}


def test_wandb_rows_are_completed_by_the_program_alone(begin_rank, monkeypatch):
    monkeypatch.setattr(tracking, "EVERY_S", 60.0)
    run, rank = WandbRun(), Rank(1, 5)
    feed = begin_rank(run, rank)
    rank.train(range(6, 9))
    feed.close()
    assert run.rows == []
    run.log({"loss": 1.0})
    row = run.rows[0]
    assert {name: row[name] for name in ("loss", "everstep/step", "everstep/loss", "everstep/generation")} == {
        "loss": 1.0,
        "everstep/step": 8,
        "everstep/loss": 2.0,
        "everstep/generation": 1,
    }
    assert row["everstep/restart"] == run.summary["everstep/last_restart"] == f"Restart 1, with step 6. Why: {WHY}"
    assert run.metrics == [("everstep/step", None), ("everstep/*", "everstep/step")]
    assert rank.faults == []


@pytest.mark.soak  # it starts a service of its own, which a busy machine keeps waiting
def test_the_real_wandb_keeps_the_programs_steps(monkeypatch, tmp_path):
    """Offline, where it is installed: no row of the program is dropped, and ours are in them."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=str(tmp_path), project="p") as run:
        sink = Wandb(run)
        sink.mark(6, "Restart 1, with step 6", WHY, 1)
        for step in (6, 7, 8):
            sink.write({step: {"loss": float(step)}})
            run.log({"loss": 1.0}, step=step * 10)
        assert run.step == 80
    rows = [(row["_step"], row.get("loss"), row.get("everstep/step")) for row in _rows(tmp_path)]
    assert rows == [(0, None, 6), (60, 1, 7), (70, 1, 8), (80, 1, None)]


def _rows(folder: Path) -> list[dict]:
    """Of the file that W&B keeps offline: LevelDB's log format."""
    import struct

    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, found = path.read_bytes(), 7, []
    while at + 7 <= len(data):
        _crc, size, kind = struct.unpack_from("<IHB", data, at)
        assert kind == 1, "a record in one piece"
        record = wandb_internal_pb2.Record.FromString(data[at + 7 : at + 7 + size])
        at += 7 + size
        if record.HasField("history"):
            items = record.history.item
            found.append({("/".join(each.nested_key) or each.key): json.loads(each.value_json) for each in items})
    return found
