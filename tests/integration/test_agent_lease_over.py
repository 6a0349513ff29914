"""A real agent and its rank, stopped for longer than the lease: when they go on, nothing that they do counts."""

import asyncio
import json
import time

from fake_controller import bench, is_alive

from everstep.engines import freezing
from everstep.errors import LeaseOverError
from everstep.model import events

TICK = """
import time
while True:
    print(time.time(), flush=True)
    time.sleep(0.02)
"""
LEASE_S = 1.7
DEADLINE_S = 20.0


async def until(condition) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


def test_after_a_freeze_the_agent_ends_its_rank_and_itself_before_anything_else(tmp_path):
    (tmp_path / "train.py").write_text(TICK)

    async def story() -> None:
        async with bench(tmp_path, "train.py", nproc=1, env={"EVERSTEP_TEMPLATE": "off"}, start=False) as made:
            made.run_dir.mkdir(exist_ok=True)
            (made.run_dir / "spec.json").write_text(json.dumps({"policy": {"node_silent_s": LEASE_S / 0.85}}))
            agent = made.start_agent()
            await made.controller.wait(events.NodeJoined)
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            pid = started.started[0].pid
            await until(lambda: made.log(0, 0).count("\n") > 3)
            freezing.freeze(agent.pid)
            await asyncio.sleep(LEASE_S + 0.8)  # the machine stands still; there is nothing to wait for
            thawed_at = time.time()
            freezing.thaw(agent.pid)
            await until(lambda: not is_alive(pid))
            await until(lambda: agent.poll() is not None)
            assert agent.returncode == LeaseOverError.exit_code
            last = float(made.log(0, 0).strip().splitlines()[-1])
            assert last < thawed_at + 1.0, "the rank was killed, not asked"
            assert [event for event in made.controller.events if event.at > thawed_at] == []

    asyncio.run(story())
