"""A real Prometheus scrapes real runs: does each alert fire where it should, and none in a healthy one?

    python bench/alerts.py [--seconds 120]
    python bench/alerts.py --runs idle,waiting,late,slow-disk,full-disk --seconds 150      some of the rest, as root
    python bench/alerts.py --runs healthy,waiting,old-disk --seconds 480                   what takes long
    python bench/alerts.py --runs slow --seconds 150

Times of the rules (for, ranges, thresholds in seconds) are divided by 20, or nobody would wait for them; the conditions
are real: a controller that is stopped again and again, a disk whose `fdatasync` takes 1.5 s (strace), one that is full.
At the end the dashboards' queries that no run answered are told.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RULES = Path(__file__).parents[1] / "monitoring/prometheus/everstep.rules.yml"
FASTER = 20.0
_UNITS = {"m": 60.0, "h": 3600.0, "s": 1.0}

SLOW = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist, everstep
dist.init_process_group("gloo")
state = everstep.State(model=torch.nn.Linear(8, 8))
for step in state.steps(1_000_000):
    time.sleep(0.3 if dist.get_rank() == 1 and Path(sys.argv[1]).exists() else 0.1)
    dist.all_reduce(torch.ones(8))
    everstep.step(loss=1.0)
"""

IDLE = """
import sys, time
from pathlib import Path
import torch, everstep
state = everstep.State(model=torch.nn.Linear(8, 8))
for step in state.steps(1_000_000):
    everstep.step(loss=1.0); time.sleep(0.1)
    if Path(sys.argv[1]).exists():
        with everstep.phase("lunch"):  # of no kind that there is: a fault of our own, swallowed
            pass
        with everstep.paused("somebody looks"):
            time.sleep(3600)
"""

WAITING = """
import socket, sys, time
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(2)); time.sleep(0.1)
    if Path(sys.argv[1]).exists() and dist.get_rank() == 0:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # a service that does not answer: it may yet
            socket.create_connection(silent.getsockname()).recv(1)
"""

PROGRAM = """
import sys, time
import torch, everstep
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(1_000_000):
    model(torch.ones(2, 8)).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
    everstep.step(loss=1.0); time.sleep(0.1)
"""


def faster(text: str) -> str:
    """The rules with all of their times divided."""

    def shorter(match: re.Match[str]) -> str:
        return f"{match[1]}{max(1, round(float(match[2]) * _UNITS[match[3]] / FASTER))}s{match[4]}"

    text = re.sub(r"(for: )(\d+)([smh])()", shorter, text)
    text = re.sub(r"(\[|offset )(\d+)([smh])(\]?)", shorter, text)
    return re.sub(r"(_seconds(?:\{[^}]*\})? > )(\d{3,})", lambda m: m[1] + str(max(1, int(m[2]) // int(FASTER))), text)


class Run:
    def __init__(self, folder: Path, name: str, *options: str, config: str = "", program: str = PROGRAM,
                 at: Path | None = None) -> None:  # fmt: skip
        self.name, self.dir, self.flag = name, (at or folder) / name, folder / f"{name}.flag"
        (folder / f"{name}.py").write_text(program)
        if config:
            (folder / f"{name}.toml").write_text(config)
            options = ("--config", str(folder / f"{name}.toml"), *options)
        with (folder / f"{name}.txt").open("wb") as said:
            command = [sys.executable, "-m", "everstep", "run", *options, "--run-dir", str(self.dir)]
            self.process = subprocess.Popen(
                [*command, str(folder / f"{name}.py"), str(self.flag)], stdout=said, stderr=said
            )
        address = self.dir / "controller.json"
        while not address.exists():
            time.sleep(0.2)
        self.port = json.loads(address.read_text())["port"]
        self.pid = json.loads(address.read_text())["pid"]
        self.names = {name, json.loads((self.dir / "spec.json").read_text())["run"]}
        self.token = (self.dir / "token").read_text().strip()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method="POST" if body else "GET")
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, json.dumps(body).encode() if body else None) as answer:
            return json.load(answer)

    def until(self, is_so: Any, limit_s: float = 90.0) -> dict[str, Any]:  # noqa: ANN401
        end = time.monotonic() + limit_s
        while True:
            status = self.ask("/api/status")
            if is_so(status) or time.monotonic() > end:
                return dict(status)
            time.sleep(0.5)

    def drill(self, **drill: Any) -> None:  # noqa: ANN401
        before = self.ask("/api/status")["incidents"]
        self.ask("/api/drill", drill)
        self.until(lambda s: s["incidents"] > before and s["status"] in ("running", "waiting-for-approval"))

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


class Prometheus:
    def __init__(self, folder: Path, runs: list[Run]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "rules.yml").write_text(faster(RULES.read_text()))
        jobs = [{"job_name": run.name, "authorization": {"credentials_file": str(run.dir / "token-read")},
                 "relabel_configs": [{"target_label": "job", "replacement": "everstep"},
                                     {"target_label": "bench", "replacement": run.name}],
                 "static_configs": [{"targets": [f"127.0.0.1:{run.port}"]}]} for run in runs]  # fmt: skip
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                  "rule_files": [str(folder / "rules.yml")], "scrape_configs": jobs}  # fmt: skip
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=subprocess.DEVNULL,
            stderr=(folder / "prometheus.txt").open("wb"))  # fmt: skip

    def query(self, expression: str) -> list[dict[str, Any]]:
        address = f"http://127.0.0.1:{self.port}/api/v1/query?query={urllib.request.quote(expression)}"
        try:
            with urllib.request.urlopen(address) as answer:
                return list(json.load(answer)["data"]["result"])
        except OSError:
            return []

    def fired(self, run: Run) -> set[str]:
        """With labels of the run, or of its target where the expression kept them."""
        found = self.query('max_over_time(ALERTS{alertstate="firing"}[1h])')
        mine = [
            each["metric"] for each in found if {each["metric"].get("bench"), each["metric"].get("run")} & run.names
        ]
        return {metric["alertname"] for metric in mine}

    def names(self, run: Run) -> set[str]:
        found = self.query(f'group by (__name__) ({{bench="{run.name}",__name__=~"everstep_.*"}})')
        return {each["metric"]["__name__"] for each in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long runs are watched")
    parser.add_argument("--runs", default="healthy,hurt,asking")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-alerts-") as name:
        os.environ["EVERSTEP_HOME"] = f"{name}/home"
        watch(Path(name), given)


def watch(folder: Path, given: argparse.Namespace) -> None:
    small, checkpoints = folder / "small", folder / "checkpoints"
    hook = '[[notices]]\nkind = "webhook"\nname = "gone"\nurl = "http://127.0.0.1:9/x"\ndrills = true\n'
    made = {
        "healthy": lambda: Run(folder, "healthy", "--local-nodes", "2", "--standby", "1"),
        "hurt": lambda: Run(folder, "hurt", "--local-nodes", "2", "--standby", "1", config=hook),
        "asking": lambda: Run(folder, "asking", "--mode", "advise"),
        "idle": lambda: Run(folder, "idle", program=IDLE),
        "waiting": lambda: Run(folder, "waiting", "--nproc-per-node", "2", program=WAITING),
        "slow": lambda: Run(folder, "slow", "--local-nodes", "3", program=SLOW),
        "old-disk": lambda: Run(
            folder, "old-disk", "--checkpoint-dir", str(checkpoints / "steps"), "--checkpoint-every", "2s"
        ),
        "late": lambda: Run(folder, "late"),
        "slow-disk": lambda: Run(folder, "slow-disk"),
        "full-disk": lambda: Run(folder, "full-disk", at=small),
    }
    names = given.runs.split(",")
    with small_disks({"full-disk": small, "old-disk": checkpoints}, names):
        runs = {name: made[name]() for name in names}
        prometheus = Prometheus(folder, list(runs.values()))
        try:
            look(runs, prometheus, given)
        finally:
            end_all(runs, prometheus, checkpoints)


@contextlib.contextmanager
def small_disks(places: dict[str, Path], names: list[str]) -> Iterator[None]:
    made = [place for name, place in places.items() if name in names]
    try:
        for place in made:
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "everstep-alerts", str(place)], check=True)
        yield
    finally:
        for place in made:
            if place.is_mount():
                subprocess.run(["umount", str(place)], check=True)


def look(runs: dict[str, Run], prometheus: Prometheus, given: argparse.Namespace) -> None:
    """Make each condition true, wait, and tell what fired."""
    for run in runs.values():
        run.until(lambda s, run=run: (s["step"] or 0) > 5 or (run.name == "waiting" and s["status"] == "running"))
    begun = time.monotonic()
    if "asking" in runs:
        runs["asking"].drill(kind="kill-rank", rank=0)
    if "hurt" in runs:
        hurt(runs["hurt"])
    for name, run in runs.items():
        HARM.get(name, lambda _: None)(run)
    time.sleep(max(8.0, given.seconds - (time.monotonic() - begun)))
    for run in runs.values():
        told = ", ".join(sorted(prometheus.fired(run))) or "none"
        print(f"{run.name:<8} {len(prometheus.names(run))} series names, {time.monotonic() - begun:.0f} s: {told}")
    if "asking" in runs:
        runs["asking"].end()
        time.sleep(6)
        print(f"asking   when it is over: {', '.join(sorted(prometheus.fired(runs['asking'])))}")
    unanswered(prometheus, time.monotonic() - begun)


def end_all(runs: dict[str, Run], prometheus: Prometheus, checkpoints: Path) -> None:
    prometheus.process.terminate()
    prometheus.process.wait(30)
    for helper in HELPERS:
        helper.terminate()
        helper.wait(30)
    for run in runs.values():
        if run.process.poll() is None:
            for place in (run.dir, checkpoints):
                (place / "filler").unlink(missing_ok=True)
            with contextlib.suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGCONT)
            run.end()


def hurt(run: Run) -> None:
    """Four kills, both nodes lost one after the other, a receiver of notices that is gone, a stranger."""
    for _ in range(4):
        run.drill(kind="kill-rank", rank=0)
    for _ in range(2):
        nodes = run.ask("/api/status")["nodes"]
        run.drill(kind="lose-node", node=next(node["node"] for node in nodes if node["role"] == "active"))
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{run.port}/api/status")


HELPERS: list[subprocess.Popen[bytes]] = []

STOPS = """
import os, signal, sys, time
while True:
    os.kill(int(sys.argv[1]), signal.SIGSTOP); time.sleep(1.4)
    os.kill(int(sys.argv[1]), signal.SIGCONT); time.sleep(0.3)
"""


def set_flag(run: Run) -> None:
    run.flag.touch()


def stop_again_and_again(run: Run) -> None:
    """As on a machine on which the controller gets no CPU."""
    HELPERS.append(subprocess.Popen([sys.executable, "-c", STOPS, str(run.pid)]))


def slow_down_disk(run: Run) -> None:
    inject = "inject=fdatasync:delay_enter=1500000"
    command = ["strace", "-f", "-p", str(run.pid), "-e", "trace=fdatasync", "-e", inject, "-o", "/dev/null"]
    HELPERS.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))


def fill_disk(run: Run) -> None:
    fill(run.dir)


def fill_checkpoints(run: Run) -> None:
    time.sleep(6.0)  # one is there, and grows old
    fill(run.dir.parent / "checkpoints")


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


HARM: dict[str, Any] = {
    "idle": set_flag,
    "waiting": set_flag,
    "slow": set_flag,
    "old-disk": fill_checkpoints,
    "late": stop_again_and_again,
    "slow-disk": slow_down_disk,
    "full-disk": fill_disk,
}


def unanswered(prometheus: Prometheus, seconds: float) -> None:
    """The dashboards' queries, each asked over the whole time of the runs."""
    boards = [json.loads(path.read_text()) for path in sorted(RULES.parents[1].glob("grafana/*.json"))]
    asked = [t["expr"].replace("$run", ".*") for b in boards for p in b["panels"] for t in p.get("targets", ())]
    found = [each for each in asked if not prometheus.query(f"last_over_time(({each})[{int(seconds) + 60}s:1s])")]
    print(f"dashboards: {len(asked) - len(found)} of {len(asked)} queries answer; not: {found or 'none'}")


if __name__ == "__main__":
    main()
