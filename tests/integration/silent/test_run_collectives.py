"""`everstep collectives` of a real run of a plain program: times like its own stopwatch, and the rank that is late."""

import json
import signal
import subprocess
import sys

from real_run import Launcher

from everstep.journal.beside import collectives

CONFIG = "[policy]\nslow_round_s = 1\n"

PLAIN = """
import json, sys, time
import uncompiled
import uncompiled, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, took, tensor = dist.get_rank(), [], torch.ones(1 << 18)
with open(f"{sys.argv[1]}/{rank}", "w", buffering=1) as told:
    while True:
        dist.barrier()
        time.sleep(0.02 + 0.03 * rank)
        begun = time.perf_counter()
        dist.all_reduce(tensor)
        told.write(f"{time.perf_counter() - begun}\\n")
"""


def test_a_plain_program_is_timed_and_its_late_rank_is_named(launcher: Launcher, tmp_path):
    config = launcher.script(CONFIG, "everstep.toml")
    flags = ("--config", config, "--nproc-per-node", 2)
    run = launcher.start(*flags, launcher.script(PLAIN), tmp_path, env={"TORCH_FR_BUFFER_SIZE": "64"})

    def reduced():
        table = collectives.load(run.run_dir)
        rows = [row for group in table.groups for row in group.rows] if table is not None else []
        return next((row for row in rows if row.op == "all_reduce" and row.history), None)

    row = run.until("a round in the table", reduced)
    assert row.num_bytes == 1 << 20
    assert row.last[0][0] == 1, row  # rank 1 sleeps longer before each
    stopwatch = [sorted(map(float, (tmp_path / str(rank)).read_text().split()[:-1])) for rank in (0, 1)]
    assert row.mean_s.value is not None
    least, most = (sum(times[i] for times in stopwatch) / 2 for i in (0, -1))
    assert least <= row.mean_s.value <= most
    command = [sys.executable, "-m", "everstep", "collectives", str(run.run_dir)]
    said = subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=60)
    assert json.loads(said.stdout)["late"][-1]["rank"] == 1
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
