"""A stranger's account attacks a run of two hosts and its pages, while ranks are killed. Needs root: makes the account.

    python bench/attack.py --seconds 600 --quiet 200

Ranks are killed every few seconds in three phases: quiet, attacked, quiet again. Shown for each: the median time from a
kill to the first new step of all ranks, the memory of everstep's own processes (launchers, controller, agents, stores,
pages: what is theirs, without libraries and without the ranks), and what the run's directories took per kill, without
the ranks' output. Then what the stranger could do or read, and whether anything of the run's secrets is in it. The
attacker has a nice value of 19: what a user costs who only computes is the scheduler's business.

Attacked: idle crowds, garbage, half requests, wrong tokens, big frames and slow readers at every port of the run that
everstep listens on; fake agents, fake hosts, foreign pages; signals; /proc, /dev/shm and the run directory read;
modules and links planted; the shared temporary directory full.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from everstep.journal.reader import read_journal
from everstep.model.events import WorkersStarted
from everstep.model.record import Record
from measuring.figures import table
from measuring.launched import end_on_sigterm

USER = "everstep-stranger"
HERE = Path(__file__).parent
TRAIN = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
print("begin", dist.get_rank(), flush=True)
for step in range(10_000_000):
    model(torch.ones(8, 64)).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    print("step", step, time.time(), flush=True)
    time.sleep(0.05)
"""
STEP = re.compile(rb"step \d+ (\d+\.\d+)")


class Run:
    """Two hosts of one run, as processes of this machine, and the pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.port = _free_port()
        self.token = os.urandom(16).hex()
        (folder / "train.py").write_text(TRAIN)
        work = folder / "shared/work"
        self.started = [self._start("first", work, "--run-dir", str(self.run_dir)), self._start("second", work)]
        self.until(lambda: self.steps(0) is not None, "the first step")
        self.started.append(self._spawn("ui", ["ui", "--run-dir", str(self.run_dir)], work))

    def _start(self, name: str, cwd: Path, *more: str) -> "subprocess.Popen[bytes]":
        shape = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--max-restarts", "100000"]
        began = self._spawn(name, ["run", *shape, *more, str(self.folder / "train.py")], cwd)
        self.until(lambda: b"waiting for" in self.said("first"), "the endpoint")
        return began

    def _spawn(self, name: str, arguments: list[str], cwd: Path) -> "subprocess.Popen[bytes]":
        environ = {
            **os.environ,
            "EVERSTEP_HOME": str(self.folder / f"home-{name}"),
            "EVERSTEP_JOIN_TOKEN": self.token,
            "TMPDIR": str(self.folder / "shared/tmp"),
            "OMP_NUM_THREADS": "1",
        }
        out = os.open(self.folder / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        command = [sys.executable, "-P", "-m", "everstep.cli.main", *arguments]
        try:
            return subprocess.Popen(command, cwd=cwd, env=environ, stdout=out, stderr=out)
        finally:
            os.close(out)

    def said(self, name: str) -> bytes:
        return (self.folder / f"{name}.out").read_bytes()

    def until(self, is_so: Callable[[], object], what: str, limit_s: float = 120.0) -> None:
        ends_at = time.monotonic() + limit_s
        while not is_so():
            if time.monotonic() > ends_at or any(each.poll() is not None for each in getattr(self, "started", [])):
                raise SystemExit(f"{what} did not come:\n{self.said('first').decode()[-2000:]}")
            time.sleep(0.005)

    def generation(self) -> int:
        return max((int(path.name[4:]) for path in (self.run_dir / "logs").glob("gen-*")), default=-1)

    def steps(self, generation: int) -> float | None:
        """When all ranks had done a step of this generation, by their own clocks."""
        found = []
        for rank in (0, 1):
            try:
                first = STEP.search((self.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log").read_bytes())
            except OSError:
                return None
            if first is None:
                return None
            found.append(float(first[1]))
        return max(found)

    def pids(self) -> list[tuple[int, str]]:
        """Everything that was started, with its arguments."""
        parents, found = {}, []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents.setdefault(int(fields[1]), []).append(int(entry.name))
                except OSError:
                    continue
        left = [each.pid for each in self.started]
        while left:
            pid = left.pop()
            left += parents.get(pid, [])
            try:
                found.append(
                    (pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                )
            except OSError:
                continue
        return found

    def ranks(self) -> list[int]:
        """Their process ids in the newest generation, as the journal has them."""
        started: dict[int, int] = {}
        generation = self.generation()
        for record in read_journal(self.run_dir / "journal.jsonl").entries:
            event = record.event if isinstance(record, Record) else None
            if isinstance(event, WorkersStarted) and event.generation == generation:
                started |= {each.rank: each.pid for each in event.started}
        return [started[rank] for rank in sorted(started)]

    def memory_mib(self) -> dict[str, float]:
        """Of everstep's own processes, by module: not the ranks, nor what is parked for them. What they hold
        themselves: of a library that ranks have mapped too, a share grows whenever a rank dies."""
        held: dict[str, float] = {}
        for pid, command in self.pids():
            if "train.py" in command and "everstep.cli.main" not in command:
                continue
            if "template" in command or "twin" in command:
                continue
            try:
                found = re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
            except OSError:
                continue
            name = re.search(r"everstep\.([\w.]+)(?: (ui|run)\b)?", command)
            module = command[:40] if name is None else " ".join(filter(None, name.groups()))
            held[module] = held.get(module, 0.0) + sum(map(int, found)) / 1024
        return held

    def disk_kib(self) -> float:
        total = 0
        for top in (self.run_dir, *self.folder.glob("home-*")):
            for path in top.rglob("*"):
                if path.is_file() and not path.is_symlink() and not path.name.startswith(("stdout", "stderr")):
                    total += path.stat().st_blocks * 512
        return total / 1024

    def ports(self) -> list[int]:
        """On which everstep's own processes listen: not PyTorch's store, nor what ranks open for each other."""
        inodes = {}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                inodes[fields[9]] = int(fields[1].rpartition(":")[2], 16)
        found = set()
        for pid, command in self.pids():
            if "train.py" in command and "everstep.cli.main" not in command:
                continue
            if "store" in command or "torch" in command:
                continue
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    inode = re.fullmatch(r"socket:\[(\d+)\]", str(fd.readlink()))
                except OSError:
                    continue
                if inode is not None and inode[1] in inodes:
                    found.add(inodes[inode[1]])
        return sorted(found)

    def end(self) -> None:
        for each in reversed(self.started):
            each.send_signal(signal.SIGTERM)
            try:
                each.wait(60)
            except subprocess.TimeoutExpired:
                each.kill()


def phase(run: Run, seconds: float, every_s: float) -> dict[str, object]:
    """Kill a rank, wait until all step again, rest."""
    until, waits, memory, victim = time.monotonic() + seconds, [], dict[str, float](), 0
    disk, unplanned = run.disk_kib(), 0
    expected = run.generation()
    while time.monotonic() < until:
        unplanned += run.generation() - expected
        before = run.generation()
        ranks = run.ranks()
        if not ranks:
            time.sleep(0.1)
            continue
        victim += 1
        killed_at = time.time()
        os.kill(ranks[victim % len(ranks)], signal.SIGKILL)
        run.until(lambda before=before: run.generation() > before and run.steps(run.generation()), "a recovery")
        stepped = run.steps(run.generation())
        assert stepped is not None
        waits.append(stepped - killed_at)
        expected = before + 1
        ends_at = time.monotonic() + every_s
        while time.monotonic() < ends_at:
            memory = max(memory, run.memory_mib(), key=lambda held: sum(held.values()))
            time.sleep(0.5)
    unplanned += run.generation() - expected
    return {
        "kills": len(waits),
        "median_s": statistics.median(waits),
        "worst_s": max(waits),
        "unplanned": unplanned,
        "memory_mib": sum(memory.values()),
        "disk_kib_per_kill": (run.disk_kib() - disk) / len(waits),
        "memory_of": {name: round(mib, 1) for name, mib in sorted(memory.items())},
        "waits": [round(each, 3) for each in waits],
    }


def attack(run: Run, given: argparse.Namespace) -> tuple[dict[str, object], dict[str, object]]:
    out = run.folder / "shared/stranger.json"
    for name in (out, Path(f"{out}.read"), out.with_suffix(".ran")):
        name.touch()
        shutil.chown(name, USER)
    ports = [str(port) for port in (run.ports() if not given.all_ports else [])]
    program = run.folder / "shared/stranger.py"
    program.write_bytes((HERE / "programs/stranger.py").read_bytes())
    command = [
        "nice",
        "-n",
        "19",
        given.python,
        str(program),
        str(given.seconds),
        str(program.parent),
        str(out),
        *ports,
    ]
    attacker = subprocess.Popen(command, user=USER, group=USER, extra_groups=[], cwd=run.folder / "shared")
    try:
        found = phase(run, given.seconds, given.every)
        attacker.wait(120)
    finally:
        attacker.kill()
    said = json.loads(out.read_text())
    seen = Path(f"{out}.read").read_bytes()
    secrets = {name: (run.run_dir / name).read_text().strip() for name in ("secret", "token", "token-read")}
    secrets["join token"] = run.token
    said["secrets seen"] = [name for name, value in secrets.items() if value.encode() in seen]
    said["bytes read"] = len(seen)
    said["code run"] = out.with_suffix(".ran").read_text().split()
    return found, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--quiet", type=float, default=200.0)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between a recovery and the next kill")
    parser.add_argument("--all-ports", action="store_true", help="also those of PyTorch's store and of the ranks")
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter that every user may start")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    end_on_sigterm()
    subprocess.run(["useradd", "--system", "--no-create-home", USER], check=True)
    folder = Path(tempfile.mkdtemp(prefix="everstep-attack-"))
    folder.chmod(0o755)
    for name in ("shared/work", "shared/tmp"):
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o1777)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=1777", "none", str(folder / "shared/tmp")], check=True)
    run: Run | None = None
    try:
        run = Run(folder)
        found: dict[str, object] = {"quiet": phase(run, given.quiet / 2, given.every)}
        found["attacked"], stranger = attack(run, given)
        found["quiet again"] = phase(run, given.quiet / 2, given.every)
        found["stranger"] = stranger
        found["logs_kib"] = {n: (run.run_dir / n).stat().st_size >> 10 for n in ("launcher.log", "controller.log")}
        found["ui printed"] = len(run.said("ui"))
        found["evictions"] = (run.run_dir / "journal.jsonl").read_text().count('"EvictNode"')
    finally:
        if run is not None:
            run.end()
        subprocess.run(["umount", str(folder / "shared/tmp")], check=False)
        subprocess.run(["userdel", USER], check=True)
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    print(_text(found))
    return 0


def _text(found: dict[str, object]) -> str:
    rows = []
    for name in ("quiet", "attacked", "quiet again"):
        one = found[name]
        assert isinstance(one, dict)
        rows.append(
            [name, *(f"{value:.2f}" if isinstance(value, float) else str(value) for value in list(one.values())[:6])]
        )
    head = ["", "kills", "median s", "worst s", "unplanned", "memory MiB", "disk KiB/kill"]
    rest = [f"memory, {name}: {found[name]['memory_of']}" for name in ("quiet", "attacked", "quiet again")]
    rest += [f"{key}: {found[key]}" for key in found if key not in ("quiet", "attacked", "quiet again")]
    return "\n".join([table(head, rows), "", *rest])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
