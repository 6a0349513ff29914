"""Receivers of notices that hang, dribble and fork, on a real run: a count each, and nothing that outlives it."""

import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from odd_receivers import OddReceiver, keys_of
from real_run import UNTIL_HIT, Launcher, describe, processes_of

from everstep.model.actions import IncidentClosed
from everstep.notices.notifier import LINGER_S

FORKS = """#!/bin/sh
cat > /dev/null
(setsid sh -c 'sleep 600 & exec sleep 600' &)
setsid sh -c 'while :; do setsid sleep 600 & sleep 0.2; done' &
"""
NEVER = "#!/bin/sh\nsetsid sh -c 'sleep 600 & sleep 600'\n"


def program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def config(folder: Path, receivers: list[dict[str, object]]) -> Path:
    path = folder / "notices.toml"
    tables = ["[[notices]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in each.items())
              for each in receivers]  # fmt: skip
    path.write_text("\n".join(tables))
    return path


@pytest.mark.slow
def test_odd_receivers_cost_a_count_and_nothing_of_them_outlives_the_run(launcher: Launcher, tmp_path: Path):
    kinds = ("fine", "hangs", "dribbles", "mail-dribbles", "mail-dribbles")
    with ExitStack() as stack:
        fine, hangs, dribbles, *mails = (stack.enter_context(OddReceiver(kind)) for kind in kinds)
        hooks = {"fine": fine, "hangs": hangs, "dribbles": dribbles}
        told = [{"kind": "webhook", "name": name, "url": each.url, "limit_s": 2} for name, each in hooks.items()]
        told += [{"kind": "email", "name": f"mail-{k}", "host": "localhost", "port": each.port, "security": "none",
                  "sender": "a@b.c", "to": ["d@e.f"], "limit_s": 2} for k, each in enumerate(mails)]  # fmt: skip
        told += [{"kind": "command", "name": name, "argv": [program(tmp_path, name, text)], "limit_s": 2}
                 for name, text in (("forks", FORKS), ("never", NEVER))]  # fmt: skip
        argv = launcher.loop(150)
        run = launcher.start("--config", config(tmp_path, told), "--max-restarts", 3, *argv, UNTIL_HIT)
        run.until_step(3)
        os.kill(run.rank_pid(1), signal.SIGKILL)
        run.until("the end of the incident", lambda: run.actions(IncidentClosed))
        began = time.monotonic()
        assert run.wait() == 0, run.story()
        while left := processes_of(run.run_dir):
            assert time.monotonic() - began < LINGER_S + 60.0, f"left: {[describe(pid) for pid in left]}"
            time.sleep(0.1)
        counts = json.loads((run.run_dir / "notices.json").read_text())
        assert counts.pop("fine") == {"sent": 1}
        assert keys_of(fine) == ["i1"]
        assert counts.pop("forks") == {"sent": 1}
        assert set(counts) == {"hangs", "dribbles", "mail-0", "mail-1", "never"}
        assert all(count == {"failed": 1} for count in counts.values()), counts
        assert "left running" not in run.err(), "what a command left is no rank's"
