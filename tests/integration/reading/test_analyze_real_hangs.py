"""Real hangs: four gloo ranks, each class of hang made for real, dumps by torch and py-spy, the verdict by `analyze`.

Ranks form a 2x2 layout: tp groups (0,1) (2,3), dp groups (0,2) (1,3). A template process that has torch imported forks
them, so that a case takes a second instead of ten. Every rank is ended by its pid.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep.linux import proc

PROGRAM = """
import ctypes, json, os, sys, threading, time, traceback
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d
import torch.utils.data

NUM_STEPS = 6


def tell_when_old(rank, out, waits, age_s):
    # Counted as the analyzer does: from the last operation that this rank entered, which is pending if the rank waits.
    while not os.path.exists(f"{out}/at-{rank}"):
        time.sleep(0.02)
    while True:
        newest = json.loads(c10d._dump_fr_trace_json(True, False))["entries"][-1]
        if newest["retired"] != waits and time.time() - newest["time_created_ns"] / 1e9 > age_s:
            return open(f"{out}/since-{rank}", "w").close()
        time.sleep(0.05)


def dump_when_asked(rank, out):
    while not os.path.exists(out + "/GO"):
        time.sleep(0.02)
    # Stacks on rank 0 only, which never computes: each frame would wait 5 ms for the interpreter lock.
    data = c10d._dump_fr_trace_json(True, False) if rank % 2 else c10d._dump_fr_trace(True, rank == 0, False)
    name = f"{out}/fr-rank-{rank}.json" if rank % 2 else f"{out}/nccl_trace_rank_{rank}"
    with open(name + ".part", "wb") as file:
        file.write(data)
    os.rename(name + ".part", name)


class Samples(torch.utils.data.Dataset):
    def __init__(self, fifo):
        self.fifo = fifo

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.fifo and index == NUM_STEPS:
            os.open(self.fifo, os.O_RDONLY)  # nobody ever opens the other end
        return torch.ones(8)


def spin():
    count = 0
    while True:
        count += 1


def step(kind, culprit, rank, groups, x, faulty):
    world, tp, dp = groups
    at_culprit = faulty and rank == culprit
    if kind == "loop" and at_culprit:
        spin()
    if kind == "native" and at_culprit:
        ctypes.PyDLL(None).sleep(1000)
    if kind == "order" and at_culprit:
        dist.all_reduce(x)
    dist.all_reduce(x, group=tp)
    dist.all_reduce(x, group=dp)
    if kind == "skip" and at_culprit:
        while True:
            time.sleep(1000)
    if kind == "desync" and at_culprit:
        dist.broadcast(torch.ones(3), src=0)
    if kind == "shape" and faulty:  # of these sizes gloo hangs; others end the ranks with an error
        dist.all_reduce(torch.ones(5 if at_culprit else 4))
    else:
        dist.all_reduce(x)


def main(kind, culprit, rank, out, age_s):
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    torch.set_num_threads(1)
    threading.Thread(target=dump_when_asked, args=(rank, out), daemon=True).start()
    if kind != "healthy":
        waits = rank != culprit or kind in ("desync", "shape", "order")
        threading.Thread(target=tell_when_old, args=(rank, out, waits, age_s), daemon=True).start()
    # A file and no port: nobody else can be on it.
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=4)
    tps = [dist.new_group([0, 1], group_desc="mesh_tp"), dist.new_group([2, 3], group_desc="mesh_tp")]
    dps = [dist.new_group([0, 2], group_desc="mesh_dp"), dist.new_group([1, 3], group_desc="mesh_dp")]
    groups = (None, tps[rank // 2], dps[rank % 2])
    fifo = out + "/fifo" if kind == "loader" and rank == culprit else ""
    workers = 1 if kind == "loader" else 0
    loader = iter(torch.utils.data.DataLoader(Samples(fifo), batch_size=1, num_workers=workers))
    for number in range(10_000):
        if number == NUM_STEPS - 2 or (number > NUM_STEPS and number % 50 == 0):
            print(f"step: {number} loss: {2.0 + 1 / (1 + number):.4f}", flush=True)
        faulty = number == NUM_STEPS
        if faulty:
            open(f"{out}/at-{rank}", "w").close()
            if kind == "stop" and rank == culprit:
                os.kill(os.getpid(), 19)
        x = next(loader) if number < 60 else torch.ones(8)
        step(kind, culprit, rank, groups, x.flatten(), faulty)
        if number > NUM_STEPS:
            time.sleep(0.02)
        if kind == "healthy" and number == 10 * NUM_STEPS:
            open(f"{out}/since-{rank}", "w").close()


if __name__ == "__main__":
    for line in sys.stdin:
        kind, culprit, out, age_s = line.split()
        pids = []
        for rank in range(4):
            pid = os.fork()
            if not pid:
                for stream, name in ((1, "stdout"), (2, "stderr")):
                    os.makedirs(f"{out}/logs/rank-{rank}", exist_ok=True)
                    os.dup2(os.open(f"{out}/logs/rank-{rank}/{name}.log", os.O_WRONLY | os.O_CREAT), stream)
                os.setsid()
                try:
                    main(kind, int(culprit), rank, out, float(age_s))
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(1)
            pids.append(pid)
        print(*pids, flush=True)
        sys.stdin.readline()  # all of them have been killed
        for pid in pids:
            os.waitpid(pid, 0)
        print("reaped", flush=True)
"""

DEADLINE_S = 60.0
AGE_S = 1.2  # a wait must be older than combine.SETTLED_S, or it is what every running job looks like
PY_SPY = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


class Ranks:
    """The template and the four ranks of one case."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "train.py"
        self.program.write_text(PROGRAM)
        self.template = subprocess.Popen(
            [sys.executable, "-u", str(self.program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str) -> str:
        assert self.template.stdin
        assert self.template.stdout
        self.template.stdin.write(line + "\n")
        self.template.stdin.flush()
        return self.template.stdout.readline()

    def hang(self, kind: str, culprit: int, out: Path, with_stacks: bool = True) -> None:
        """Makes the fault and takes the evidence of it into `out`."""
        out.mkdir(parents=True)
        os.mkfifo(out / "fifo")
        pids = [int(pid) for pid in self.ask(f"{kind} {culprit} {out} {AGE_S}").split()]
        try:
            self.take(kind, culprit, out, pids, with_stacks)
        except AssertionError as error:
            for path in sorted(out.glob("logs/rank-*/stderr.log")):
                error.add_note(f"{path.parent.name}: {path.read_text()}")
            raise
        finally:
            for pid in pids:
                for child in proc.children(pid):
                    end(child)
                end(pid)
            assert self.ask("killed") == "reaped\n"

    def take(self, kind: str, culprit: int, out: Path, pids: list[int], with_stacks: bool) -> None:
        silent = {culprit} if kind in ("stop", "native") else set()
        telling = [(rank, pid) for rank, pid in enumerate(pids) if rank not in silent]
        wait_for(lambda: all((out / f"at-{rank}").exists() for rank in range(4)), f"{kind}: ranks at the fault")
        wait_for(
            lambda: all((out / f"since-{rank}").exists() or is_dead(pid) for rank, pid in telling),
            f"{kind}: a hang that is old enough",
        )
        before = {pid: num_threads(pid) for pid in pids}
        (out / "GO").touch()
        wait_for(lambda: all(has_record(out, rank) or is_dead(pid) for rank, pid in telling), f"{kind}: flight records")
        # Only now: a thread that writes a record takes the interpreter lock from one that computes, until it has ended.
        wait_for(
            lambda: all(num_threads(pid) < before[pid] or is_dead(pid) for _, pid in telling), f"{kind}: writers' ends"
        )
        for rank, pid in enumerate(pids):
            shutil.copy(f"/proc/{pid}/status", out / f"status-rank-{rank}.txt")
            if with_stacks:
                for process in (pid, *proc.children(pid)):
                    dump_stack(process, out / f"stack-rank-{rank}-pid-{process}.json")

    def close(self) -> None:
        self.template.communicate()


def dump_stack(pid: int, path: Path) -> None:
    assert PY_SPY
    done = subprocess.run(
        [PY_SPY, "dump", "--json", "--nonblocking", "--pid", str(pid)], capture_output=True, timeout=20, check=False
    )
    path.write_bytes(done.stdout)
    if done.returncode:
        path.with_suffix(".err").write_bytes(done.stderr)


def num_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def has_record(out: Path, rank: int) -> bool:
    return (out / f"fr-rank-{rank}.json").exists() or (out / f"nccl_trace_rank_{rank}").exists()


def is_dead(pid: int) -> bool:
    """gloo ends some ranks with an error when sizes do not match."""
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s for {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    if PY_SPY is None:
        pytest.skip("py-spy is not installed")
    group = Ranks(tmp_path_factory.mktemp("program"))
    yield group
    group.close()


def analyze(folder: Path) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", RUN_ANALYZE, str(folder), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


RUN_ANALYZE = """
import argparse, sys
from everstep.cli.examine import analyze
parser = argparse.ArgumentParser()
analyze.add_arguments(parser)
code = analyze.run(parser.parse_args())
assert "torch" not in sys.modules
sys.exit(code)
"""

CASES = [
    ("skip", 2, "ES-H02"),
    ("desync", 1, "ES-H03"),
    ("shape", 2, "ES-H04"),
    ("order", 1, "ES-H05"),
    ("stop", 2, "ES-H01"),
    ("loop", 1, "ES-H07"),
    ("native", 3, "ES-H08"),
    ("loader", 1, "ES-H06"),
]


@pytest.mark.parametrize(("kind", "culprit", "code"), CASES)
def test_names_the_culprit_of_a_real_hang(ranks, tmp_path, kind, culprit, code):
    ranks.hang(kind, culprit, tmp_path / "evidence")
    found = analyze(tmp_path / "evidence")
    assert (found["ranks"][:1], found["code"]) == ([culprit], code), found["verdict"]
    assert str(culprit) in found["verdict"]
    if kind in ("loop", "native", "loader", "skip"):
        assert found["place"].startswith("train.py:")


def test_a_running_job_is_not_called_hung(ranks, tmp_path):
    ranks.hang("healthy", 0, tmp_path / "evidence")
    found = analyze(tmp_path / "evidence")
    assert found["code"] == "ES-H00", found["verdict"]
    assert found["ranks"] == []


@pytest.mark.parametrize(("kind", "culprit"), [("skip", 3), ("loader", 2)])
def test_flight_records_alone_name_the_rank(ranks, tmp_path, kind, culprit):
    ranks.hang(kind, culprit, tmp_path / "evidence", with_stacks=False)
    found = analyze(tmp_path / "evidence")
    assert (found["ranks"], found["code"]) == ([culprit], "ES-H02"), found["verdict"]


def test_stacks_alone_name_the_rank(ranks, tmp_path):
    ranks.hang("loop", 2, tmp_path / "evidence")
    for path in (tmp_path / "evidence").iterdir():
        if path.name.startswith(("fr-rank", "nccl_trace")):
            path.unlink()
    found = analyze(tmp_path / "evidence")
    assert (found["ranks"], found["code"]) == ([2], "ES-H07"), found["verdict"]
