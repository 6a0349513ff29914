"""Processes that read ahead change nothing but the time: whatever becomes of them, the folder says the same."""

import json
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import pytest

from everstep.evidence import ahead
from everstep.evidence.ahead import LEAST_FILES, Ahead
from everstep.evidence.folder import read_folder

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from matrix.flights import make_guilty
from matrix.torch_pickle import TorchPickler

NOW = 1_795_266_560.0
NUM = 3


CAUGHT = "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=3)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Records in torch's pickle and in Python's, JSON, logs of one rank and of many, and what nobody can read."""
    made = make_guilty(3)
    ranks = sorted(made.records)
    for number in range(60):
        rank = ranks[number % len(ranks)]
        place = tmp_path / f"gen-{number // len(ranks)}"
        place.mkdir(exist_ok=True)
        record = made.records[rank]
        data = TorchPickler().dumps(record) if number % 5 else pickle.dumps(record, 2)
        (place / f"fr_rank_{rank}.pkl").write_bytes(data if number % 11 else data[:-40])
    (tmp_path / "gen-1" / f"fr_rank_{ranks[0]}.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "rank-0.log").write_text("step 3 loss 3.5\n")
    (tmp_path / "gen-2" / "all.log").write_text(f"[rank3]: step 7\n{CAUGHT}")
    (tmp_path / "rank-1.json").write_text(json.dumps(made.records[ranks[1]]))
    return tmp_path


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def test_the_same_as_without(folder):
    before = children()
    alone = read_folder(folder, NOW)
    assert read_folder(folder, NOW, num_ahead=NUM) == alone
    assert [each.rank for each in alone.case.ranks if each.flight is not None]
    assert alone.unreadable
    assert children() == before


def taken(folder: Path) -> list[bool]:
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    with Ahead(folder, paths, NUM) as helpers:
        return [(helpers.log(path) if path.endswith(".log") else helpers.record(path)) is not None for path in paths]


def test_most_records_are_taken(folder):
    assert sum(taken(folder)) > 40


def test_logs_are_taken_and_say_the_same(tmp_path):
    for rank in range(LEAST_FILES):
        (tmp_path / f"rank-{rank}.log").write_text(f"step {rank} loss nan\nworld_size=50\nlast words\n")
    (tmp_path / "all.log").write_text(f"[rank3]: step 7\n{CAUGHT}")
    assert all(taken(tmp_path))
    alone, read = read_folder(tmp_path, NOW), read_folder(tmp_path, NOW, num_ahead=NUM)
    assert str(read) == str(alone), "by its words, for a NaN equals nothing"
    assert [(work.rank, work.seq) for work in read.case.claims.works] == [(2, 9)]
    assert read.case.claims.world_size == 50
    assert read.case.ranks[4].last_step == 4
    assert len(read.points) == LEAST_FILES


@pytest.mark.slow
@pytest.mark.parametrize("does", ["ends", "is killed", "loops", "raises", "needs memory", "says nonsense", "is silent"])
def test_what_becomes_of_them_costs_nothing_but_time(folder, monkeypatch, does):
    alone, before = read_folder(folder, NOW), children()
    real = ahead._read

    def read(place: int, root: Path, path: str) -> object:
        if "gen-2" not in path:
            return real(place, root, path)
        if does == "ends":
            os._exit(0)
        if does == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if does == "loops":
            any(False for _ in iter(int, 1))
        if does == "needs memory":
            bytearray(4 << 30)
        if does == "says nonsense":
            for out in range(3, 64):
                try:
                    os.write(out, b"\x05\x00\x00\x00nonsense")
                except OSError:
                    continue
        if does == "is silent":
            time.sleep(60)
        raise ValueError(does)

    monkeypatch.setattr(ahead, "_read", read)
    monkeypatch.setattr(ahead, "FILE_CPU_S", 0.2)
    monkeypatch.setattr(ahead, "WAIT_S", 1.0 if does == "is silent" else 30.0)
    assert read_folder(folder, NOW, num_ahead=NUM) == alone
    assert children() == before
    assert sum(taken(folder)) >= 7, "what was said before it happened is used"


def test_few_files_are_read_without(tmp_path):
    before = children()
    with Ahead(tmp_path, ["a"] * 3) as helpers:
        assert children() == before
        assert helpers.record("a") is helpers.log("a") is None


def test_ranks_that_many_records_list_are_one_tuple(folder):
    case = read_folder(folder, NOW, num_ahead=NUM).case
    worlds = [each.flight.world for each in case.ranks if each.flight is not None]
    assert len(worlds) > 2
    assert len({id(world) for world in worlds}) <= 2  # one of those read ahead, one of the others
