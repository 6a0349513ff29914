"""What the node's senses cost: processor time of a real agent with and without them, in steady state.

    python bench/sensing.py [--seconds 60]

A run of one rank that only sleeps; the agent's own time is read from /proc before and after. Unsupported senses cost
nothing here and little elsewhere: on a node with GPUs and many ports run it there.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTLE_S = 20.0
"""Every sense has looked once, and the signatures are loaded."""


def cpu_s(pid: int) -> float:
    """Of all threads of a process, ended ones too, in nanoseconds: its own clock (MAKE_PROCESS_CPUCLOCK of Linux)."""
    return time.clock_gettime((~pid << 3) | 2)


def agent_of(home: Path) -> int:
    """The pid of the run's agent, once its rank has started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for folder in Path("/proc").iterdir():
            try:
                line = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
                if b"everstep.agent" in line and str(home).encode() in line and b"template" not in line:
                    return int(folder.name)
            except OSError:
                continue
        time.sleep(0.1)
    raise SystemExit("no agent came up")


def measure(*, senses: bool, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "sleep.py").write_text("import time\ntime.sleep(3600)\n")
        env = {**os.environ, "EVERSTEP_HOME": str(home), "EVERSTEP_TWINS": "off"}
        env["EVERSTEP_SENSING"] = "on" if senses else "off"
        run = subprocess.Popen(
            [sys.executable, "-m", "everstep", "run", "--nproc-per-node", "1", str(home / "sleep.py")],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            pid = agent_of(home)
            time.sleep(SETTLE_S)
            before, begun = cpu_s(pid), time.monotonic()
            time.sleep(seconds)
            used, passed = cpu_s(pid) - before, time.monotonic() - begun
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(30)
    return {"percent_of_a_core": 100 * used / passed, "resident_mib": resident / (1 << 20)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    figures = {name: measure(senses=on, seconds=given.seconds) for name, on in (("without", False), ("with", True))}
    difference = figures["with"]["percent_of_a_core"] - figures["without"]["percent_of_a_core"]
    print(json.dumps({**figures, "senses_percent_of_a_core": difference}, indent=2))


if __name__ == "__main__":
    main()
