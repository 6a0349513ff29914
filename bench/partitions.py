"""The network between the hosts that vote on a controller is split, and whole again after a while.

    python bench/partitions.py [--only halves,minority,majority,mute,deaf] [--rounds 1] [--silent 3.5] [--away 20]

Three hosts train and three wait, each in namespaces of its own (`bench/hosts.py`); needs root. Printed: who acts
meanwhile, the longest time in which no rank did a step, what each side said, and what became of the first host's ranks.
"""

import argparse
import itertools
import os
import tempfile
import time
from pathlib import Path

from everstep.testing.hosts import Bed, Host
from hosts import STEP, WAITING_S, Job

KINDS = {
    "halves": "the first host and those that train | those that wait",
    "minority": "the first host and one that waits | four",
    "majority": "the first host, one that trains, two that wait | two, one of which trains",
    "mute": "nobody hears the first host, which hears all",
    "deaf": "the first host hears nobody, and is heard by all",
}


def sides(job: Job, kind: str) -> tuple[list[Host], list[Host]]:
    first = job.hosts[0]
    training = [
        host for host in {id(h): h for h in map(job.place_of, range(job.num_ranks))}.values() if host is not first
    ]
    waiting = [host for host in job.hosts if host is not first and host not in training]
    if kind == "halves":
        return [first, *training], waiting
    if kind == "minority":
        return [first, waiting[0]], [*training, *waiting[1:]]
    if kind == "majority":
        return [first, training[0], *waiting[1:]], [training[1], waiting[0]]
    return [first], [*training, *waiting]


def split(kind: str, one: list[Host], other: list[Host]) -> None:
    for here in one:
        for there in other:
            if kind != "deaf":
                there.deafen(here)
            if kind != "mute":
                here.deafen(there)


class Watching(Job):
    def place_of(self, rank: int) -> Host:
        """Also the first host."""
        node = self.node_of(rank)
        is_first = (self.hosts[0].folder / "home/runs/latest/nodes" / node / "credentials.json").exists()
        return self.hosts[0] if is_first else self.host_of(rank)

    def all_steps(self) -> list[float]:
        """When any rank has done one, as any host knows it."""
        found = []
        for host in self.hosts:
            for path in host.folder.glob("home/*/*/logs/gen-*/rank-*/stdout.log"):
                found += [
                    float(m[2]) for line in path.read_text(errors="replace").splitlines() if (m := STEP.fullmatch(line))
                ]
        return sorted(set(found))


def measure(kind: str, silent_s: float, away_s: float) -> None:
    with Bed() as bed, tempfile.TemporaryDirectory() as folder:
        job = Watching(bed, Path(folder), 3, 3, silent_s)
        job.until("training", lambda: job.generation() >= 0 and job.all_stepped(job.generation(), 20))
        job.until(
            "voters", lambda: "the journal is kept by" in _log(job) and _log(job).splitlines()[-1].count(",") >= 5
        )
        time.sleep(WAITING_S)
        one, other = sides(job, kind)
        before = job.generation()
        at = time.time()
        split(kind, one, other)
        time.sleep(away_s)
        healed = time.time()
        for host in job.hosts:
            host.heal()
        time.sleep(away_s)
        found = job.successor()
        first_run = job.run_dir
        if found is not None:
            job.run_dir = found[0]
            acts = f"{found[1] - at:.2f} s later {next(h.name for h in job.hosts if h.folder in found[0].parents)} acts"
        else:
            acts = "nobody else acts"
        job.until("all ranks step", lambda: job.all_stepped(job.generation(), 5))
        steps = [each for each in job.all_steps() if at - 1 < each]
        gap = max(after - earlier for earlier, after in itertools.pairwise(steps))
        own = [
            m
            for path in first_run.glob("logs/gen-*/rank-0/stdout.log")
            for m in _whens(path)
            if at + silent_s < m < healed
        ]
        code = job.processes[0].poll()
        print(f"{kind}: {KINDS[kind]}; load {os.getloadavg()[0]:.0f}", flush=True)
        print(
            f"  {acts}; generations {before} -> {job.generation()}; longest time without a step {gap:.2f} s", flush=True
        )
        state = "still runs" if code is None else f"ended with {code}"
        print(f"  first host: {state}; {len(own)} steps of its rank in the split after {silent_s:g} s", flush=True)
        for host in job.hosts:
            for line in (job.folder / f"{host.name}.err").read_text(errors="replace").splitlines():
                if line.startswith("everstep:") and any(word in line for word in ("controller", "heard of", "join at")):
                    print(f"    {host.name}  {line.removeprefix('everstep: ')}", flush=True)


def _log(job: Job) -> str:
    path = job.run_dir / "launcher.log"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(line for line in lines if "the journal is kept by" in line)


def _whens(path: Path) -> list[float]:
    return [float(m[2]) for line in path.read_text(errors="replace").splitlines() if (m := STEP.fullmatch(line))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--silent", type=float, default=3.5, help="policy node_silent_s")
    parser.add_argument("--away", type=float, default=20.0, help="seconds of the split")
    given = parser.parse_args()
    for kind in given.only.split(","):
        for _ in range(given.rounds):
            measure(kind, given.silent, given.away)


if __name__ == "__main__":
    main()
