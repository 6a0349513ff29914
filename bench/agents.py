"""The controller with very many agents: real sockets, the real protocol, one report a second from each.

    python bench/agents.py [--agents 1000 4000 12500] [--seconds 30] [--deaths 1] [--json]

Starts a controller as the launcher does, and plays launcher and agents: they connect, authenticate, join,
start their eight ranks, and report the progress of all of them every second, at times spread over the second. The
agents live in one process (`bench/fleets/fleet.py`); their frames are those of the WebSocket protocol, and every
answer is decoded. The controller gets one core, and everything else the others.

The controller measures handling (`/api/health`): from the moment when its loop begins to read what has arrived until
the report is settled, that is recorded or held. `lag` is the delay of the loop itself. `record` is how long an agent
waits for the acknowledgement of a message that has to be on disk, twice a second, among all the reports. Then a rank of
one agent dies: `death` is the time until its exit is on record, `stop` and `last` until the first and the last other
agent get the order to stop their ranks, `again` until all ranks run again.
"""

import argparse
import json
import multiprocessing
import os
import resource
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from everstep.controller.record.spec_file import SECRET_NAME, SpecFile, save_json
from everstep.core.state.policy import Policy
from everstep.model.spec import RunSpec
from everstep.wire.credentials import RunSecret
from fleets.fleet import RANKS, Launcher, play

LOOK_S = 5.0
MARK_S = 0.5
FORM_TIMEOUT_S = 240.0


class Watched:
    """The controller's process, seen from outside."""

    def __init__(self, run_dir: Path, pid: int, port: int) -> None:
        self._journal = run_dir / "journal.jsonl"
        self._pid = pid
        self._port = port
        token = RunSecret((run_dir / SECRET_NAME).read_text(), "bench").api_token("read")
        self._headers = {"Authorization": f"Bearer {token}"}

    def health(self) -> dict[str, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/api/health", headers=self._headers)
        with urllib.request.urlopen(request, timeout=60) as got:
            found: dict[str, Any] = json.load(got)
        return found

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

    def journal_mb(self) -> float:
        return self._journal.stat().st_size / 1e6


Pipe = Connection


def measure(num_agents: int, seconds: float, deaths: int) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    others = set(cores[1:]) or set(cores)
    spec = RunSpec(program="train.py", num_slots=num_agents, nproc_per_node=RANKS)
    with tempfile.TemporaryDirectory(prefix="everstep-agents-") as folder, socket.create_server(("127.0.0.1", 0)) as at:
        run_dir, secret_text, port = Path(folder), secrets.token_hex(32), at.getsockname()[1]
        (run_dir / SECRET_NAME).write_text(secret_text)
        policy = Policy(node_timeout_s=600.0, start_timeout_s=600.0, node_silent_s=120.0)
        save_json(run_dir / "spec.json", SpecFile(run="bench", spec=spec, policy=policy))
        argv = [sys.executable, "-m", "everstep.controller", "--run-dir", folder, "--listen-fd", str(at.fileno())]
        controller = subprocess.Popen(
            argv, pass_fds=(at.fileno(),), preexec_fn=lambda: os.sched_setaffinity(0, {cores[0]})
        )
        os.sched_setaffinity(0, others)
        mine, theirs = multiprocessing.Pipe()
        fleet = multiprocessing.Process(target=play, args=(num_agents, secret_text, port, theirs, others))
        try:
            launcher = Launcher(RunSecret(secret_text, "bench").credentials("launcher", "launcher-1"), port)
            threading.Thread(target=launcher.play, daemon=True).start()
            seen = Watched(run_dir, controller.pid, port)
            row: dict[str, Any] = {"agents": num_agents, "load": os.getloadavg()[0]}
            begun = time.monotonic()
            fleet.start()
            row["joined_s"] = formed(mine, num_agents, FORM_TIMEOUT_S)
            row["forming_s"] = time.monotonic() - begun
            row["forming_lag_ms"] = 1e3 * seen.health()["loop_lags"]["worst_s"]
            print(f"{num_agents} agents: all ranks run after {row['forming_s']:.1f} s", file=sys.stderr)
            row |= watch(seen, seconds, mine)
            for number in range(deaths):
                row |= die(mine, num_agents, number)
                row["death_lag_ms"] = 1e3 * seen.health()["loop_lags"]["worst_s"]
            return row
        finally:
            mine.close()
            controller.kill()
            controller.wait()
            if fleet.pid is not None:
                fleet.kill()
                fleet.join()
            os.sched_setaffinity(0, set(cores))


def formed(pipe: "Pipe[Any, Any]", num_agents: int, timeout_s: float) -> float:
    """When the last one was connected, once all have started their ranks."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pipe.send(("progress",))
        _, num_started, connected_s = pipe.recv()
        if num_started >= num_agents:
            return float(connected_s)
        time.sleep(0.2)
    raise SystemExit(f"not all of {num_agents} agents started their ranks within {timeout_s:.0f} s")


def watch(seen: Watched, seconds: float, pipe: "Pipe[Any, Any]") -> dict[str, Any]:
    time.sleep(5.0)  # what the forming left behind
    pipe.send(("clear",))
    begun, cpu_s, journal_mb, number = time.monotonic(), seen.cpu_s(), seen.journal_mb(), 0
    looks, rss, looked = [], [seen.rss_mb()], begun
    while time.monotonic() - begun < seconds:
        time.sleep(MARK_S)
        pipe.send(("mark", number))
        number += 1
        if time.monotonic() - looked >= LOOK_S:
            looked = time.monotonic()
            looks.append(seen.health())
            rss.append(seen.rss_mb())
    took_s, used_s = time.monotonic() - begun, seen.cpu_s() - cpu_s
    pipe.send(("figures",))
    fleet = pipe.recv()
    waits, handling = fleet["answered"], [look["handling"] for look in looks]
    lags = [look["loop_lags"] for look in looks[-1:]]
    return {
        "seconds": took_s,
        "reports_per_s": fleet["sent"] / took_s,
        "us_per_report": 1e6 * used_s / max(1, fleet["sent"]),
        "handling_median_ms": 1e3 * statistics.median(each["median_s"] for each in handling),
        "handling_p99_ms": 1e3 * statistics.median(each["p99_s"] for each in handling),
        "handling_p99_worst_ms": 1e3 * max(each["p99_s"] for each in handling),
        "lag_median_ms": 1e3 * lags[0]["median_s"],
        "lag_p99_ms": 1e3 * lags[0]["p99_s"],
        "lag_worst_ms": 1e3 * lags[0]["worst_s"],
        "record_median_ms": 1e3 * waits[len(waits) // 2] if waits else None,
        "record_p99_ms": 1e3 * waits[int(0.99 * (len(waits) - 1))] if waits else None,
        "cpu_share": used_s / took_s,
        "fleet_us_per_report": 1e6 * fleet["cpu_s"] / max(1, fleet["sent"]),
        "fleet_late_p99_ms": 1e3 * fleet["late_p99_s"],
        "rss_mb": rss,
        "journal_mb_per_min": 60 * (seen.journal_mb() - journal_mb) / took_s,
        "dropped": looks[-1]["dropped"],
    }


def die(pipe: "Pipe[Any, Any]", num_agents: int, number: int) -> dict[str, Any]:
    pipe.send(("clear",))
    pipe.send(("die", 17 * (number + 1)))
    begun = time.monotonic()
    while time.monotonic() - begun < FORM_TIMEOUT_S:
        time.sleep(0.1)
        pipe.send(("recovery",))
        num_started, num_stopped, first_s, last_s = pipe.recv()
        if num_started >= num_agents:
            break
    again_s = time.monotonic() - begun
    pipe.send(("figures",))
    told = pipe.recv()["answered"]
    return {
        "told_ms": 1e3 * told[-1] if told else None,
        "stops": num_stopped,
        "first_stop_ms": 1e3 * first_s if first_s else None,
        "last_stop_ms": 1e3 * last_s if last_s else None,
        "again_s": again_s,
    }


COLUMNS = {
    "agents": ("agents", "{:,}"),
    "reports_per_s": ("reports/s", "{:,.0f}"),
    "us_per_report": ("CPU each", "{:.0f} us"),
    "cpu_share": ("core", "{:.0%}"),
    "handling_median_ms": ("handled in", "{:.2f} ms"),
    "handling_p99_ms": ("p99", "{:.1f} ms"),
    "lag_median_ms": ("lag", "{:.1f} ms"),
    "lag_p99_ms": ("p99", "{:.0f} ms"),
    "lag_worst_ms": ("worst", "{:.0f} ms"),
    "record_median_ms": ("record", "{:.0f} ms"),
    "record_p99_ms": ("p99", "{:.0f} ms"),
    "journal_mb_per_min": ("journal", "{:.1f} MB/min"),
    "fleet_us_per_report": ("fleet", "{:.0f} us"),
    "joined_s": ("joined", "{:.1f} s"),
    "forming_s": ("run", "{:.1f} s"),
    "told_ms": ("death", "{:,.0f} ms"),
    "first_stop_ms": ("stop", "{:,.0f} ms"),
    "last_stop_ms": ("last", "{:,.0f} ms"),
    "again_s": ("again", "{:.1f} s"),
}


def render(rows: list[dict[str, Any]]) -> str:
    lines = [[title for title, _ in COLUMNS.values()]]
    lines += [
        [form.format(row[name]) if row.get(name) is not None else "-" for name, (_, form) in COLUMNS.items()]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    for row in rows:
        rss = ", ".join(f"{mb:,.0f}" for mb in row["rss_mb"])
        text.append(f"{row['agents']:,} agents: load {row['load']:.1f}, memory {rss} MB, dropped {row['dropped']}")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[1_000, 4_000, 12_500])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--deaths", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    multiprocessing.set_start_method("spawn")
    if hard < max(given.agents) + 200:
        parser.error(f"{max(given.agents)} agents need as many open files, and {hard} are allowed (ulimit -Hn)")
    rows = [measure(num_agents, given.seconds, given.deaths) for num_agents in given.agents]
    print(json.dumps(rows) if given.json else render(rows))


if __name__ == "__main__":
    main()
