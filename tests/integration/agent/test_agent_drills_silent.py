"""Silent faults on request: that each of them really happens in a real rank, and that nothing is left behind."""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_controller import Bench, bench, is_alive

from everstep.linux import proc
from everstep.model import events
from everstep.model.actions import Inject

DEADLINE_S = 60.0

STEPS = """
import json, sys, time
import uncompiled, torch, torch.distributed as dist
from everstep.worker.link.runtime import current
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # nothing but a fault changes the parameters
print("ready", flush=True)
ended_at = time.monotonic()
while True:
    time.sleep(0.02)
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    began_at = time.monotonic()
    rest_s = began_at - ended_at
    optimizer.step()  # at its end a drill sleeps
    ended_at = time.monotonic()
    bits = [p.detach().reshape(-1).view(torch.int32).tolist() for p in model.parameters()]
    told = {"at": ended_at, "rest_s": rest_s, "optimizer_s": ended_at - began_at, "loss": loss.item()}
    print(json.dumps(told | {"bits": sum(bits, []), "armed": bool(current().step_hooks)}), flush=True)
"""
SLOW_S = 3.0

LOADER = """
import os, time
import torch

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000_000
    def __getitem__(self, index):
        return torch.ones(2)

if __name__ == "__main__":
    {context}
    batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=1, num_workers=2))
    next(batches)
    print("ready", flush=True)
    while not os.path.exists("END"):
        next(batches)
        print("batch", flush=True)
        time.sleep(0.01)
"""
NO_LOADER = (
    "from everstep.worker.link.runtime import current; current()\n"  # as torch does when it is imported
    "import time\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.01)\n    print('batch', flush=True)\n"
)


class Job:
    def __init__(self, made: Bench, pid: int) -> None:
        self.made = made
        self.pid = pid

    async def drill(self, kind: str, options: dict[str, float | str] | None = None, name: str = "d1") -> None:
        action = Inject(why="test", drill=name, kind=kind, node="n0", rank=0, generation=0, options=options or {})
        await self.made.controller.send(action)

    async def refused(self, kind: str) -> str:
        await self.drill(kind)
        return (await self.made.controller.wait(events.DrillFailed)).why

    async def until(self, what: str, condition) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}\n{self.made.log(0, 0)[-500:]}\n{self.said()}"
            await asyncio.sleep(0.01)

    def said(self) -> str:
        return self.made.log(0, 0, "stderr")

    def steps(self) -> list[dict]:
        lines = self.made.log(0, 0).splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]


@contextlib.asynccontextmanager
async def job(tmp_path: Path, program: str) -> AsyncIterator[Job]:
    (tmp_path / "train.py").write_text(program)
    async with bench(tmp_path, "train.py", nproc=1, env={"EVERSTEP_TWINS": "off"}) as made:
        await made.start_workers(0)
        started = await made.controller.wait(events.WorkersStarted)
        made_job = Job(made, started.started[0].pid)
        await made_job.until("ready", lambda: "ready" in made.log(0, 0))
        yield made_job


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def test_numbers_and_time_go_wrong_as_asked(tmp_path):
    """One rank, three faults one after the other: slow, one flipped bit, NaN."""

    async def story() -> None:
        async with job(tmp_path, STEPS) as made:
            await made.until("steps", lambda: len(made.steps()) > 20)
            await made.drill("slow", {"percent": 200.0, "seconds": SLOW_S}, "d1")
            await made.until("slow", lambda: "take 200 % longer" in made.said())
            await made.until("steps after them", lambda: len(_ratios(made.steps())[2]) > 10)
            await made.drill("flip-bit", name="d2")
            await made.until("a flipped bit", lambda: "flipped" in made.said())
            flipped_at = len(made.steps())
            await made.until("a step after it", lambda: len(made.steps()) > flipped_at + 2)
            await made.drill("nan", name="d3")
            await made.until("nan", lambda: "is now nan" in made.said())
            await made.until("a loss that is none", lambda: made.steps()[-1]["loss"] != made.steps()[-1]["loss"])
            _check(made.steps())

    asyncio.run(story())


def _ratios(steps: list[dict]) -> tuple[list[float], list[float], list[float]]:
    """How long the end of each step took, as a share of what steps take without it: before, during and after the drill.

    Both are measured at about the same time, so how busy the machine is does not count."""
    ratios = [
        step["optimizer_s"] / statistics.median(each["rest_s"] for each in steps[max(0, i - 14) : i + 1])
        for i, step in enumerate(steps)
    ]
    armed = next((i for i, step in enumerate(steps) if step["armed"]), len(steps))
    if armed == len(steps):
        return ratios[1:], [], []
    # It began between the steps `armed - 1` and `armed`, and the first of its steps has no length yet.
    over = [i for i, step in enumerate(steps) if step["at"] > steps[armed]["at"] + SLOW_S]
    slow = [i for i in range(armed + 2, len(steps)) if steps[i]["at"] < steps[armed - 1]["at"] + SLOW_S]
    return ratios[1:armed], [ratios[i] for i in slow], [ratios[i] for i in over[1:]]


def _check(steps: list[dict]) -> None:
    before, slow, after = (statistics.median(ratios) for ratios in _ratios(steps))
    assert before < 0.5
    assert 1.5 < slow < 3.0, (before, slow)
    assert after < 0.5, (before, after)
    distinct = list(dict.fromkeys(tuple(step["bits"]) for step in steps))
    assert len(distinct) == 3, "before, after the flipped bit, after the NaN"
    flips = [(a ^ b) & 0xFFFFFFFF for a, b in zip(distinct[0], distinct[1], strict=True)]
    assert sum(flip.bit_count() for flip in flips) == 1
    assert max(flips) < 1 << 23, "in the mantissa"
    assert sum(a != b for a, b in zip(distinct[1], distinct[2], strict=True)) == 1


@pytest.mark.parametrize("end", ["stop", "kill-rank", "kill-agent"])
def test_loader_processes_sleep_uninterruptibly_and_nothing_of_them_is_left(tmp_path, end):
    async def story() -> None:
        async with job(tmp_path, LOADER.format(context="")) as made:
            loaders = proc.children(made.pid)
            await made.drill("blocked-loader")
            await made.until("two in state D", lambda: [state(pid) for pid in proc.children(made.pid)] == ["D", "D"])
            waiting = [child for pid in loaders for child in proc.children(pid)]
            assert len(waiting) == 2
            if end == "stop":
                await made.made.stop_workers(0, grace_s=0.1)
            elif end == "kill-rank":
                os.kill(made.pid, signal.SIGKILL)
            else:
                made.made.agent.kill()
                await asyncio.to_thread(made.made.agent.wait, DEADLINE_S)
            await made.until("nothing left", lambda: not any(map(is_alive, [made.pid, *loaders, *waiting])))

    asyncio.run(story())


def test_a_rank_without_loaders_sleeps_itself_and_can_be_ended(tmp_path):
    async def story() -> None:
        async with job(tmp_path, NO_LOADER) as made:
            await made.drill("blocked-loader")
            await made.until("state D", lambda: state(made.pid) == "D")
            waiting = proc.children(made.pid)
            os.kill(made.pid, signal.SIGTERM)  # is not heard in there
            assert state(made.pid) == "D"
            stopped = await made.made.stop_workers(0, grace_s=0.1)
            assert (stopped.num_killed, stopped.exits[0].signal) == (1, signal.SIGKILL)
            await made.until("nothing left", lambda: not any(map(is_alive, [made.pid, *waiting])))

    asyncio.run(story())


def test_loaders_that_cannot_be_reached_are_said(tmp_path):
    async def story() -> None:
        program = LOADER.format(context='torch.multiprocessing.set_start_method("spawn")')
        async with job(tmp_path, program) as made:
            assert "was not forked" in await made.refused("blocked-loader")
            assert is_alive(made.pid)
            (tmp_path / "END").touch()  # semaphores of spawned loaders are only taken away by an orderly end
            ended = await made.made.controller.wait(events.WorkerExited)
            assert ended.exit.succeeded, made.said()

    asyncio.run(story())


REFUSALS = [
    ("skip-collective", NO_LOADER, "has not imported torch.distributed"),
    ("opposite-order", STEPS, "no two process groups"),
    ("flip-bit", NO_LOADER, "has not imported torch"),
    ("nan", "import time, torch\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)\n", "no parameters"),
]


@pytest.mark.parametrize(("kind", "program", "why"), REFUSALS)
def test_what_cannot_be_caused_is_refused_with_the_reason(tmp_path, kind, program, why):
    async def story() -> None:
        async with job(tmp_path, program) as made:
            assert why in await made.refused(kind)
            assert is_alive(made.pid)
            num_lines = len(made.made.log(0, 0))
            if program in (STEPS, NO_LOADER):
                await made.until("that it goes on", lambda: len(made.made.log(0, 0)) > num_lines)

    asyncio.run(story())
