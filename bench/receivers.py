"""Receivers of notices that hang, fail, redirect, dribble, fork or are gone: do they cost a run anything but a count?

    python bench/receivers.py [--kills 4] [--pairs 2]

A training of two ranks whose ranks are killed again and again, in turn without receivers and with one of every kind of
fault (web hook, Slack, e-mail, command, OpenTelemetry) beside four that work. Compared: from the kill to the end of the
incident, and the step time. Then: what was counted, what arrived, which processes are left when the notifier has ended.
As root the name server of all of them is one that never answers (in a mount namespace of the run's own); torch asks it
for the name of each peer, so a recovery takes 10 s longer, with receivers and without. --names leaves it as it is.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/integration"))
from odd_receivers import OddReceiver, keys_of
from real_run import processes_of

from everstep.journal.reader import Cursor
from everstep.model.actions import IncidentClosed
from everstep.model.events import WorkersStarted
from everstep.model.record import Record

HOOKS = ("fine", "hangs", "dribbles", "closes", "endless", "500", "redirects")
CHATS = ("fine", "hangs", "garbage", "500")
MAILS = ("mail", "hangs", "closes", "mail-refuses", "mail-endless", "mail-dribbles")
SIGNALS = {"METRICS": "hangs", "TRACES": "endless", "LOGS": "dribbles"}
DEAF = "127.0.0.77"
GONE_S = 60.0
"""After the run: the notifier lingers for 20 s."""

PROGRAM = """
import sys, time
import torch, torch.distributed as dist, everstep
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
state = everstep.State(model=model, optimizer=optimizer)
with open(sys.argv[1] + str(dist.get_rank()), "a", buffering=1) as log:
    for step in state.steps(1_000_000):
        model(torch.ones(8, 64)).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
        everstep.step(loss=1.0); time.sleep(0.02)
        log.write(f"{time.time()}\\n")
"""

COMMANDS = {
    "command-fine": "cat >> $0.told",
    "command-fails": "exit 3",
    "command-never": "setsid sh -c 'sleep 600 & sleep 600'",
    "command-forks": "(setsid sh -c 'while :; do setsid sleep 600 & sleep 0.1; done' &)",
}


def tables(folder: Path, stack: ExitStack) -> tuple[list[dict[str, object]], dict[str, OddReceiver]]:
    """[[notices]] of every kind, and the receivers behind them by name."""
    made: dict[str, OddReceiver] = {}
    found: list[dict[str, object]] = []

    def add(name: str, kind: str, odd: str, **more: object) -> None:
        made[name] = stack.enter_context(OddReceiver(odd))
        found.append({"kind": kind, "name": name, **more})

    for odd in HOOKS:
        add(f"hook-{odd}", "webhook", odd)
        found[-1]["url"] = made[f"hook-{odd}"].url
    for odd in CHATS:
        add(f"chat-{odd}", "slack", odd, token="t", channel="c")
        found[-1]["api"] = made[f"chat-{odd}"].url
    for odd in MAILS:
        add(f"mail-{odd}", "email", odd, host="localhost", security="none", sender="a@b.c", to=["d@e.f"])
        found[-1]["port"] = made[f"mail-{odd}"].port
    found += [
        {"kind": "webhook", "name": "hook-gone", "url": "http://127.0.0.1:9/x"},
        *({"kind": "webhook", "name": f"hook-no-name-{k}", "url": f"http://nowhere-{k}.invalid/x"} for k in range(4)),
        {"kind": "email", "name": "mail-no-name", "host": "nowhere.invalid", "sender": "a@b.c", "to": ["d@e.f"]},
        {"kind": "command", "name": "command-none", "argv": ["/no/such/program"]},
    ]
    for name, text in COMMANDS.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        found.append({"kind": "command", "name": name, "argv": [str(path)]})
    return found, made


def toml(found: list[dict[str, object]]) -> str:
    return "\n".join("[[notices]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in each.items()) for each in found)


class Job:
    def __init__(self, folder: Path, name: str, config: str, environ: dict[str, str], *, deaf: bool) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.run_dir = self.folder / "run"
        (self.folder / "train.py").write_text(PROGRAM)
        (self.folder / "run.toml").write_text(config)
        command = [sys.executable, "-m", "everstep", "run", "--nproc-per-node", "2", "--max-restarts", "1000",
                   "--config", str(self.folder / "run.toml"), "--run-dir", str(self.run_dir),
                   str(self.folder / "train.py"), str(self.folder / "log")]  # fmt: skip
        if deaf:
            (self.folder / "resolv.conf").write_text(f"nameserver {DEAF}\n")
            mount = f'mount --bind {self.folder}/resolv.conf /etc/resolv.conf && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", mount, "sh", *command]
        environ = {**os.environ, "EVERSTEP_HOME": str(self.folder / "home"), **environ}
        self._said = (self.folder / "said").open("wb")
        self.process = subprocess.Popen(command, stdout=self._said, stderr=self._said, env=environ)
        self._cursor = Cursor(self.run_dir / "journal.jsonl")
        self._ranks: dict[int, dict[int, int]] = {}
        self.closed: list[IncidentClosed] = []

    def read(self) -> None:
        if (self.run_dir / "journal.jsonl").exists():
            for entry in self._cursor.read():
                if isinstance(entry, Record):
                    if isinstance(entry.event, WorkersStarted):
                        found = self._ranks.setdefault(entry.event.generation, {})
                        found |= {each.rank: each.pid for each in entry.event.started}
                    self.closed += [each for each in entry.actions if isinstance(each, IncidentClosed)]

    def until(self, is_so: object, limit_s: float = 180.0) -> None:
        end = time.monotonic() + limit_s
        while not is_so():  # type: ignore[operator]
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"not in time:\n{(self.folder / 'said').read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
            self.read()

    def steps(self) -> int:
        with contextlib.suppress(OSError):
            return min((self.folder / f"log{rank}").read_text().count("\n") for rank in (0, 1))
        return 0

    def kill(self, rng: random.Random) -> float:
        """From the kill to the end of its incident, in seconds."""
        steps = self.steps()
        self.until(lambda: self.steps() > steps + 40)
        number = len(self.closed)
        begun = time.time()
        os.kill(self._ranks[max(self._ranks)][rng.choice((0, 1))], signal.SIGKILL)
        self.until(lambda: len(self.closed) > number)
        return (self.closed[number].recovered_at or time.time()) - begun

    def step_s(self) -> float:
        times = [float(line) for line in (self.folder / "log0").read_text().split()]
        return median(b - a for a, b in pairwise(times) if b - a < 1.0)

    def end(self) -> float:
        """How long its processes were there after it, with what its notifier had started."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        begun = time.monotonic()
        while (left := processes_of(self.run_dir)) and time.monotonic() - begun < GONE_S:
            time.sleep(0.1)
        self.left = len(left)
        self._said.close()
        return time.monotonic() - begun


def turn(folder: Path, name: str, *, odd: bool, given: argparse.Namespace, deaf: bool) -> tuple[list[float], float]:
    with ExitStack() as stack:
        found, made = tables(folder, stack) if odd else ([], {})
        environ = {"OTEL_EXPORTER_OTLP_TIMEOUT": "5", "OTEL_METRIC_EXPORT_INTERVAL": "5000"} if odd else {}
        for signal_name, kind in SIGNALS.items() if odd else ():
            made[f"otlp-{signal_name}"] = stack.enter_context(OddReceiver(kind))
            environ[f"OTEL_EXPORTER_OTLP_{signal_name}_ENDPOINT"] = made[f"otlp-{signal_name}"].url
        job = Job(folder, name, toml(found), environ, deaf=deaf)
        job.until(lambda: job.steps() > 20)
        rng = random.Random(given.seed)
        took = [job.kill(rng) for _ in range(given.kills)]
        after_s = job.end()
        if odd:
            told(job, made, after_s, given.kills)
        return took, job.step_s()


def told(job: Job, made: dict[str, OddReceiver], after_s: float, kills: int) -> None:
    counts = json.loads((job.run_dir / "notices.json").read_text())
    missing = [name for name, count in counts.items() if sum(count.values()) < kills]
    print(f"  {len(counts)} receivers of {kills} incidents; not each counted: {missing or 'none'}")
    for name, count in sorted(counts.items()):
        print(f"    {name:<18} {', '.join(f'{number} {outcome}' for outcome, number in sorted(count.items()))}")
    otlp = job.run_dir / "otlp.json"
    print(f"  otlp: {otlp.read_text() if otlp.exists() else 'not installed'}")
    print(f"  arrived: {len(keys_of(made['hook-fine']))} at the web hook, {len(made['mail-mail'].got)} mails; "
          f"{job.left} processes left {after_s:.0f} s after the run")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--names", action="store_true", help="leave the name server as it is")
    given = parser.parse_args()
    deaf = os.geteuid() == 0 and not given.names
    took: dict[bool, list[float]] = {False: [], True: []}
    steps: dict[bool, list[float]] = {False: [], True: []}
    with (
        tempfile.TemporaryDirectory(prefix="everstep-receivers-") as name,
        socket.socket(type=socket.SOCK_DGRAM) as dns,
    ):
        if deaf:
            dns.bind((DEAF, 53))  # and never read
        for number in range(2 * given.pairs):
            odd = number % 2 == (number // 2) % 2  # ABBA: what drifts counts for both
            found, step_s = turn(Path(name), f"turn-{number}", odd=odd, given=given, deaf=deaf)
            took[odd] += found
            steps[odd].append(step_s)
            says = "with receivers" if odd else "without"
            print(f"{says:<15} recovered in {', '.join(f'{s:.2f}' for s in found)} s; step {1000 * step_s:.1f} ms",
                  flush=True)  # fmt: skip
    with_, without, times = median(took[True]), median(took[False]), median(steps[True]) / median(steps[False])
    print(f"recovery, median of {len(took[True])}: {with_:.3f} s with, {without:.3f} s without ({with_ / without:.2f} "
          f"times); step time {times:.3f} times; load {os.getloadavg()[0]:.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
