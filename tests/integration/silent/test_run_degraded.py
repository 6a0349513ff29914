"""Our own probes fail, and a hang is still seen, blamed on the right rank and recovered; what failed is in the verdict.

Four real gloo ranks each time. py-spy is missing, or not permitted; the flight record of the hung rank never comes,
because its watch thread is stopped with it, or waits for the interpreter lock.
"""

import json
import signal

import pytest
from real_run import Launcher

from everstep.model.actions import Concluded
from everstep.model.events import EvidenceCollected, RuntimeFaulted
from everstep.model.verdict import Verdict

STEPS = """
import sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
state = everstep.State(model=model)
for step in state.steps(100_000):
    time.sleep(0.09)
    dist.all_reduce(torch.ones(8))
    if dist.get_rank() == 0:
        print("step", step, flush=True)
"""
DENIED = """#!/bin/sh
echo "Error: Permission Denied: Try running again with elevated permissions by going 'sudo env \\"PATH=$PATH\\" !!'" >&2
exit 1
"""
CASES = {
    "missing": ("python-loop", "ES-H07", "sampler"),
    "not permitted": ("native-call", "ES-H08", "signal"),
    "gives nothing": ("stop", "ES-H01", ""),
}


def py_spy(launcher: Launcher, how: str) -> str:
    if how == "missing":
        return "off"
    stub = launcher.script(DENIED if how == "not permitted" else "#!/bin/sh\nexec sleep 100\n", "py-spy")
    stub.chmod(0o755)
    return str(stub)


def says(verdict: Verdict, source: str) -> str:
    return " | ".join(f"{each.rank}: {each.says}" for each in verdict.evidence if each.source == source)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("how", CASES)
def test_a_hang_without_py_spy(launcher: Launcher, how: str):
    kind, code, source = CASES[how]
    config = launcher.script("[policy]\nwatch_hangs = true\n", "everstep.toml")
    env = {"EVERSTEP_PY_SPY": py_spy(launcher, how)}
    run = launcher.start("--config", config, "--nproc-per-node", 4, launcher.script(STEPS), env=env)
    log = run.run_dir / "logs/gen-0/rank-0/stdout.log"
    run.until("step 40", lambda: log.exists() and "step 40\n" in log.read_text())
    result = run.drill(kind, 2)
    assert result.passed, (result, run.story())
    assert result.detect_s is not None
    assert result.detect_s < 6.0
    verdict = run.actions(Concluded)[-1].verdict
    assert (verdict.code, verdict.ranks) == (code, (2,)), verdict
    why = {"missing": "switched off", "not permitted": "Permission Denied", "gives nothing": "gave nothing within"}[how]
    assert why in says(verdict, "missing"), verdict
    (answer, *_) = run.events(EvidenceCollected)
    envelope = json.loads((run.run_dir / answer.gathered[2].file).read_bytes())
    assert envelope["stack_source"] == source
    if not source:  # the signal itself ends some native calls, and then the record comes after all
        assert "flight record: the rank's watch thread did not answer" in says(verdict, "missing")
    if source:
        assert "train.py" in verdict.place or "worker/drills/drill.py" in str(envelope["stacks"]), verdict
    else:
        assert "state T" in says(verdict, "kernel")
    assert not run.events(RuntimeFaulted)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
