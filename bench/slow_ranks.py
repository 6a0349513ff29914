"""A rank becomes slow for a reason that the kernel knows: are the rank and the reason named, and is nobody evicted?

Two nodes of one rank on a core each, a standby, rounds of two seconds. A fault comes after a healthy time and is looked
for during five rounds: who was named, and does the sentence say why (the process that takes the core, the quota, the
file, the program's own sleep, who holds a lock, the link that became slow or loses packets: there both nodes are hosts
in network namespaces). A quota
is six tenths of the CPU that the rank had before; where it stops it for less than 8 % of the time, that is no slow
rank, and the run does not count. A rank that
is named while there is no fault counts as an innocent. Where the machine has more to run than CPUs, that has to be
said. Needs root (cgroups, namespaces) and two cores. Ends everything it started, also on Ctrl-C.

    python bench/slow_ranks.py [--runs 20] [--seed 1] [--kinds A,B] [--stay SECONDS] [--json FILE] [--keep DIR]

`--stay`: the fault lasts so long after it was named; what else is said of a rank then is no second fault, and counts.
"""

import argparse
import contextlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from everstep.linux import proc
from everstep.probes.rank.rivals import throttled_s
from everstep.testing.hosts import Bed
from matrix.faults_run import Journal
from matrix.slow_link import Running, lossy_link, slow_link, two_hosts
from measuring.figures import table
from measuring.launched import adopt_orphans, end_on_sigterm, launched

SCRIPT = Path(__file__).parent / "jobs" / "slow_script.py"
ROUND_S, ROUNDS = 2.0, 5
HEALTHY_ROUNDS = (8.0, 11.0)
STEPS_IN_A_ROUND = 6
"""Five whole ones, between two moments in the middle of a step."""
OVERLOAD = "more to run than CPUs"
START_LIMIT_S = 120.0
GRACE_S = 4.0
"""For the round that has begun when the fault comes, and for what is said of the last one."""
CGROUPS = Path("/sys/fs/cgroup")
BURN = "import os; os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[%d]})\nwhile True: pass"
BURNERS = 3
PERIOD_US, LEAST_QUOTA_US = 100_000, 1_000
QUOTA_SHARE = 0.6
"""Of the CPU that the rank had before. On a busy machine it gets a tenth of a core, and half a core stops nothing."""

BINDS_SHARE = 0.08
WRITE_BYTES_PER_S = 800_000


@dataclass(kw_only=True)
class Told:
    kind: str
    rank: int
    mode: str
    innocents: list[str]  # what was said before anything was wrong
    code: str = ""
    ranks: list[int]
    sentence: str = ""
    after_s: float | None = None
    has_cause: bool = False
    evicted: int = 0  # from the fault on
    evicted_early: int = 0  # before anything was wrong
    load: float = 0.0
    round_s: float = 0.0  # as measured: rounds with too few steps are joined
    overload: str = ""  # what was said of the machine
    trouble: str = ""
    later: list[str] = field(default_factory=list)  # what else was said of a rank while the fault lasted
    binds: bool = True  # the fault made the rank slower, as far as that can be told without asking Everstep

    @property
    def is_right(self) -> bool:
        return self.ranks == [self.rank] and self.has_cause


class Hurt:
    """What a fault needs to know."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self.pid = int((folder / f"pid-{rank}").read_text())
        self.words: tuple[str, ...] = ()  # one of them must be said
        self.binds = True
        self._begun, self._used_s = time.monotonic(), self._cpu_s()

    def _cpu_s(self) -> float:
        found = proc.stat(self.pid)
        return 0.0 if found is None else found.cpu_s

    @property
    def cpu_share(self) -> float:
        """Of one CPU, since it was looked at first."""
        return (self._cpu_s() - self._used_s) / (time.monotonic() - self._begun)


@contextmanager
def burner(hurt: Hurt) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", BURN % hurt.rank]) for _ in range(BURNERS)]
    hurt.words = tuple(f"(pid {process.pid})" for process in started)
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def quota(hurt: Hurt) -> Iterator[None]:
    hurt.words = ("quota", "throttled")
    quota_us = max(LEAST_QUOTA_US, round(QUOTA_SHARE * hurt.cpu_share * PERIOD_US))
    values = {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota_us}
    with _cgroup("cpu", hurt.pid, {name: str(value) for name, value in values.items()}):
        begun = time.monotonic()
        yield
        hurt.binds = (throttled_s(hurt.pid) or 0.0) >= BINDS_SHARE * (time.monotonic() - begun)


@contextmanager
def storage(hurt: Hurt) -> Iterator[None]:
    path = hurt.folder / f"written-{hurt.rank}"
    hurt.words = ("storage", "disk", path.name)
    device = path.stat().st_dev
    limit = f"{os.major(device)}:{os.minor(device)} {WRITE_BYTES_PER_S}"
    with _cgroup("blkio", hurt.pid, {"blkio.throttle.write_bps_device": limit}):
        yield


@contextmanager
def sleep(hurt: Hurt) -> Iterator[None]:
    hurt.words = ("slept", "sleep")
    marker = hurt.folder / f"sleep-{hurt.rank}"
    marker.touch()
    try:
        yield
    finally:
        marker.unlink()


# Of changing lengths: a step of 79 ms falls in with a lock that is free each 85 ms, and then hardly waits for it.
HOLD = """
import fcntl, random, sys, time
file = open(sys.argv[1], "w")
while True:
    fcntl.flock(file, fcntl.LOCK_EX)
    time.sleep(random.uniform(0.05, 0.11))
    fcntl.flock(file, fcntl.LOCK_UN)
    time.sleep(0.005)
"""


@contextmanager
def lock(hurt: Hurt) -> Iterator[None]:
    """Another process holds the lock of a file most of the time. Who that is only the kernel says: EVERSTEP_EBPF=on."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(hurt.folder / f"lock-{hurt.rank}")])
    hurt.words = (f"(pid {holder.pid})",)
    try:
        yield
    finally:
        holder.kill()
        holder.wait()


@contextmanager
def _cgroup(controller: str, pid: int, values: dict[str, str]) -> Iterator[None]:
    own = _cgroup_of(controller, pid)
    group = own / f"everstep-bench-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in values.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with contextlib.suppress(OSError):
            for left in (group / "cgroup.procs").read_text().split():
                (own / "cgroup.procs").write_text(left)
        group.rmdir()


def _cgroup_of(controller: str, pid: int) -> Path:
    """Where the rank is; ours lies below it, so that nothing else changes for it."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return CGROUPS / controller / path.lstrip("/")
    raise RuntimeError(f"there is no cgroup controller {controller} (version 1)")


KINDS: dict[str, Callable[[Hurt], AbstractContextManager[None]]] = {
    "burner": burner,
    "link": lambda hurt: contextlib.nullcontext(),  # of hosts of its own: see `run`
    "loss": lambda hurt: contextlib.nullcontext(),  # the same
    "lock": lock,
    "quota": quota,
    "sleep": sleep,
    "storage": storage,
}


def run(kind: str, rng: random.Random, folder: Path, stay_s: float) -> Told:
    rank, mode, healthy_rounds = rng.randrange(2), rng.choice(("plain", "state")), rng.uniform(*HEALTHY_ROUNDS)
    told = Told(kind=kind, rank=rank, mode=mode, innocents=[], ranks=[], load=os.getloadavg()[0])
    (folder / "everstep.toml").write_text(f"[policy]\nslow_round_s = {ROUND_S}\n")
    env = {"EVERSTEP_HOME": str(folder / "home"), "EVERSTEP_BENCH_DIR": str(folder)}
    env |= {"OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "128"}
    if kind in ("link", "loss"):
        spoil = slow_link if kind == "link" else lossy_link
        with Bed() as bed, two_hosts(bed, folder, env, mode) as running:
            return _hurt(running, told, folder, healthy_rounds, lambda hurt: spoil(bed, hurt, rng), stay_s)
    where = ["--run-dir", str(folder / "run"), "--config", str(folder / "everstep.toml")]
    nodes = ["--local-nodes", "2", "--standby", "1", "--nproc-per-node", "1"]
    command = [sys.executable, "-m", "everstep", "run", *where, *nodes, str(SCRIPT), mode]
    with launched(command, env=os.environ | env, output=folder / "output") as running:
        return _hurt(running, told, folder, healthy_rounds, KINDS[kind], stay_s)


def _hurt(
    running: Running,
    told: Told,
    folder: Path,
    healthy_rounds: float,
    cause: Callable[[Hurt], AbstractContextManager[None]],
    stay_s: float,
) -> Told:
    journal = Journal(folder / "run" / "journal.jsonl")
    if not _until(lambda: "step 20\n" in running.last_output(4000), START_LIMIT_S, running):
        told.trouble = f"did not start: {running.last_output(600)}"
        return told
    hurt = Hurt(folder, told.rank)
    begun, first_step = time.monotonic(), _last_step(running)
    _until(lambda: False, 4 * ROUND_S, running)
    step_s = (time.monotonic() - begun) / max(1, _last_step(running) - first_step)
    # A round has five steps at least: where steps are long, rounds are joined until there are.
    told.round_s = ROUND_S * math.ceil(STEPS_IN_A_ROUND * step_s / ROUND_S)
    _until(lambda: False, healthy_rounds * told.round_s - 4 * ROUND_S, running)
    journal.read()
    early = [event["verdict"] for event in journal.events("AnomalyFound")]
    told.innocents = [verdict["sentence"] for verdict in early if verdict["ranks"]]
    known, began = len(early), time.monotonic()
    told.evicted_early = len(journal.actions("EvictNode"))  # a standby, say, that was silent on a busy machine
    with cause(hurt):

        def is_named() -> bool:
            journal.read()
            found = [event["verdict"] for event in journal.events("AnomalyFound")[known:]]
            for verdict in found:
                _note(told, verdict, hurt, time.monotonic() - began)
            return told.is_right

        if _until(is_named, ROUNDS * told.round_s + GRACE_S, running):
            num_known = len(journal.events("AnomalyFound"))
            _until(lambda: False, stay_s, running)
            journal.read()
            more = [event["verdict"] for event in journal.events("AnomalyFound")[num_known:]]
            told.later = [verdict["sentence"] for verdict in more if verdict["ranks"]]
    told.binds = hurt.binds
    told.evicted = len(journal.actions("EvictNode")) - told.evicted_early
    every = [event["verdict"]["sentence"] for event in journal.events("AnomalyFound")]
    told.overload = next((sentence for sentence in every if OVERLOAD in sentence), "")
    return told


def _last_step(running: Running) -> int:
    lines = [line for line in running.last_output(4000).splitlines() if line.startswith("step ")]
    return int(lines[-1].split()[1]) if lines else 0


def _note(told: Told, verdict: dict[str, object], hurt: Hurt, after_s: float) -> None:
    if told.is_right:
        return
    ranks = verdict["ranks"]
    told.code, told.ranks = str(verdict["code"]), list(ranks) if isinstance(ranks, list) else []
    told.sentence, told.after_s = str(verdict["sentence"]), after_s
    told.has_cause = any(word in json.dumps(verdict) for word in hurt.words)


def _until(condition: Callable[[], bool], limit_s: float, running: Running) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and running.exit_code() is None:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="A,B")
    parser.add_argument("--stay", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a line for each run is added here")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave journals and logs here")
    args = parser.parse_args(argv)
    adopt_orphans()
    end_on_sigterm()
    rng, kinds, results = random.Random(args.seed), args.kinds.split(","), []
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        for number in range(args.runs):
            with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
                folder = Path(scratch)
                if args.keep:
                    folder = args.keep / f"{args.seed}-{number}"
                    folder.mkdir(parents=True)
                told = run(kinds[number % len(kinds)], rng, folder, args.stay)
            results.append(told)
            print(f"{told.kind:8} {told.mode:6} {_line(told)}", flush=True)
            if args.json:
                with args.json.open("a") as stream:
                    stream.write(json.dumps(asdict(told)) + "\n")
    print(_report(results, kinds))
    return 0


def _line(told: Told) -> str:
    if told.trouble:
        return told.trouble
    rank = "rank right" if told.ranks == [told.rank] else f"rank {told.ranks or 'none'}, was {told.rank}"
    cause = "cause named" if told.has_cause else "cause NOT named"
    after = "-" if told.after_s is None else f"{told.after_s:.1f} s"
    early = f"; before the fault: {told.innocents}" if told.innocents else ""
    early += f"; evicted before the fault: {told.evicted_early}" if told.evicted_early else ""
    early += f"; and later: {told.later}" if told.later else ""
    early += "" if told.binds else "; the fault did not bind"
    early += f"; load {told.load:.0f}, rounds of {told.round_s:.0f} s{', overload said' * bool(told.overload)}"
    return f"{told.code or 'nothing'}  {rank}, {cause}, {after}, evicted {told.evicted}: {told.sentence[:160]}{early}"


def _report(results: Sequence[Told], kinds: Sequence[str]) -> str:
    rows = []
    for kind in kinds:
        of_kind = [told for told in results if told.kind == kind and not told.trouble and told.binds]
        right_ranks = sum(told.ranks == [told.rank] for told in of_kind)
        causes = sum(told.is_right for told in of_kind)
        innocents = sum(len(told.innocents) for told in of_kind)
        only_overload = sum(bool(told.overload) and not told.ranks for told in of_kind)
        later = sum(len(told.later) for told in of_kind)
        rows.append([kind, str(len(of_kind)), str(right_ranks), str(causes), str(only_overload), str(innocents),
                     str(later), str(sum(told.evicted for told in of_kind)),
                     str(sum(told.evicted_early for told in of_kind))])  # fmt: skip
    heads = ["cause", "runs", "rank", "rank and cause", "only overload", "said while healthy", "said later", "evicted",
             "evicted while healthy"]  # fmt: skip
    return table(heads, rows)


if __name__ == "__main__":
    sys.exit(main())
