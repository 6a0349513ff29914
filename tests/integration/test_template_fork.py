"""The template: what it forks behaves like a fresh interpreter, and when it must not fork it says why."""

import asyncio
import contextlib
import json
import math
import time
from pathlib import Path

from fake_controller import Bench, bench, is_alive, kill
from lateness import Lateness

from everstep.agent import imports
from everstep.model import events

REPORT = """
import json, os, sys, random, signal, threading
import numpy
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "path0": sys.path[0], "threads": threading.active_count(),
    "numpy": int(numpy.random.randint(1 << 31)), "random": random.getrandbits(62), "cwd": os.getcwd(),
    "sid_is_pid": os.getsid(0) == os.getpid(), "env": {k: v for k, v in os.environ.items()},
    "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
    "main": sys.modules["__main__"].__file__,
    "private": [k for k in os.environ if k in ("EVERSTEP_LINK_FD", "EVERSTEP_TEMPLATE_FD", "EVERSTEP_AGENT_PID")],
}), flush=True)
"""


def write(tmp_path: Path, text: str, name: str = "train.py") -> str:
    (tmp_path / name).write_text(text)
    return name


def light_torch(tmp_path: Path) -> dict[str, str]:
    """An empty package in torch's place, for programs that do not use it: the real one takes seconds to import."""
    (tmp_path / "mods" / "torch").mkdir(parents=True, exist_ok=True)
    write(tmp_path, "", "mods/torch/__init__.py")
    return {"PYTHONPATH": str(tmp_path / "mods")}


async def run_once(made: Bench, generation: int = 0) -> list[dict]:
    await made.start_workers(generation)
    for rank in range(made.nproc):
        ended = await made.controller.wait(
            events.WorkerExited, lambda e, r=rank: e.generation == generation and e.exit.rank == r
        )
        assert ended.exit.code == 0, ended
    return [json.loads(made.log(generation, rank)) for rank in range(made.nproc)]


def test_a_forked_rank_sees_what_a_fresh_one_sees(tmp_path):
    program = write(tmp_path, REPORT)

    async def story(env: dict[str, str]) -> tuple[list[dict], set[str]]:
        async with bench(
            tmp_path / env["CASE"], str(tmp_path / program), args=("--x", "1"), env={**env, **light_torch(tmp_path)}
        ) as made:
            reports = await run_once(made)
            started = await made.controller.wait(events.WorkersStarted)
            return reports, {s.how for s in started.started}

    for case in ("fork", "fresh"):
        (tmp_path / case).mkdir()
    forked, how_forked = asyncio.run(story({"CASE": "fork"}))
    fresh, how_fresh = asyncio.run(story({"CASE": "fresh", "EVERSTEP_TEMPLATE": "off"}))
    assert (how_forked, how_fresh) == ({"template"}, {"fresh"})
    same = ("argv", "name", "file", "path0", "threads", "sid_is_pid", "sigint", "sigterm", "main", "private")
    for key in same:
        assert forked[0][key] == fresh[0][key] == forked[1][key], key
    assert forked[0]["name"] == "__main__"
    assert forked[0]["private"] == []
    assert forked[0]["cwd"] == str(tmp_path / "fork")
    assert forked[0]["numpy"] != forked[1]["numpy"]
    assert forked[0]["random"] != forked[1]["random"]
    assert set(forked[0]["env"]) == set(fresh[0]["env"]) - {"EVERSTEP_TEMPLATE"}
    torch_names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "GROUP_RANK": "0", "OMP_NUM_THREADS": "1"}
    assert torch_names.items() <= forked[0]["env"].items()
    assert "OPENBLAS_NUM_THREADS" not in forked[0]["env"]


THREADS = """
import ctypes, os, re
import numpy
a = numpy.ones((400, 400))
assert (a @ a)[0, 0] == 400.0
print(len(os.listdir("/proc/self/task")), flush=True)
"""


def test_a_users_thread_count_for_numpy_survives_the_fork(tmp_path):
    program = write(tmp_path, THREADS)

    async def story() -> list[dict]:
        async with bench(tmp_path, program, nproc=1, env={"OMP_NUM_THREADS": "2", **light_torch(tmp_path)}) as made:
            reports = await run_once(made)
            started = await made.controller.wait(events.WorkersStarted)
            assert [s.how for s in started.started] == ["template"]
            return reports

    assert asyncio.run(story()) == [2]


def test_a_killed_template_is_started_again_and_workers_do_not_notice(tmp_path):
    program = write(tmp_path, "import time\nprint('here', flush=True)\ntime.sleep(600)\n")

    async def story() -> None:
        async with bench(tmp_path, program, env=light_torch(tmp_path)) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            skip = len(made.controller.events)
            template = _template_of(made.agent.pid)
            kill(template)
            await made.controller.wait(events.TemplateReported, lambda e: e.usable, skip=skip)
            assert all(is_alive(s.pid) for s in started.started)
            await made.stop_workers(0)
            await made.start_workers(1)
            again = await made.controller.wait(events.WorkersStarted, lambda e: e.generation == 1)
            assert {s.how for s in again.started} == {"template"}

    asyncio.run(story())


THREAD_ON_IMPORT = "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\n"


def test_a_learned_module_that_starts_a_thread_is_left_out(tmp_path):
    program = write(tmp_path, "print('fine', flush=True)\n")
    env = light_torch(tmp_path)
    write(tmp_path, THREAD_ON_IMPORT, "mods/threading_plugin.py")
    write(tmp_path, "", "mods/harmless_plugin.py")
    cache = imports.cache_path(tmp_path / "home", program)
    learned = imports.ImportList(modules=["threading_plugin", "harmless_plugin"])
    imports.save(cache, learned)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=env) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            assert [s.how for s in started.started] == ["template"]

    asyncio.run(story())
    kept = imports.load(cache)
    assert "2 threads" in kept.excluded["threading_plugin"]
    assert "harmless_plugin" not in kept.excluded


def test_an_unusable_template_is_explained_and_ranks_start_fresh(tmp_path):
    program = write(tmp_path, "print('fine', flush=True)\n")
    (tmp_path / "mods" / "torch").mkdir(parents=True)
    write(tmp_path, THREAD_ON_IMPORT, "mods/torch/__init__.py")

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env={"PYTHONPATH": str(tmp_path / "mods")}) as made:
            told = await made.controller.wait(events.TemplateReported)
            assert not told.usable
            assert "importing torch: the process has 2 threads" in told.why
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            assert [(s.how, s.why) for s in started.started] == [("fresh", told.why)]
            ended = await made.controller.wait(events.WorkerExited)
            assert ended.exit.code == 0

    asyncio.run(story())


def test_a_module_that_crashes_the_template_is_left_out(tmp_path):
    program = write(tmp_path, "print('fine', flush=True)\n")
    env = light_torch(tmp_path)
    write(tmp_path, "import os\nos.kill(os.getpid(), 11)\n", "mods/crashing_plugin.py")
    cache = imports.cache_path(tmp_path / "home", program)
    imports.save(cache, imports.ImportList(modules=["crashing_plugin"]))

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=env) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            assert [s.how for s in started.started] == ["template"]

    asyncio.run(story())
    assert "signal 11" in imports.load(cache).excluded["crashing_plugin"]


LEARN = """
import torch, zipapp, mailbox, own_part
m = torch.nn.Linear(2, 2)
o = torch.optim.SGD(m.parameters(), lr=0.1)
import time
while True:
    m(torch.ones(1, 2)).sum().backward(); o.step(); time.sleep(0.01)
"""


def test_imports_are_learned_but_never_the_users_own(tmp_path):
    program = write(tmp_path, LEARN)
    write(tmp_path, "", "own_part.py")

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1) as made:
            await made.controller.wait(events.TemplateReported)
            skip = len(made.controller.events)
            await made.start_workers(0)
            news = await made.controller.wait(events.TemplateReported, skip=skip)
            assert news.usable

    asyncio.run(story())
    learned = imports.load(imports.cache_path(tmp_path / "home", program)).modules
    assert {"zipapp", "mailbox"} <= set(learned)
    assert not {"own_part", "__main__"} & set(learned)
    assert not [name for name in learned if name.startswith("everstep")]


def test_parked_workers_end_with_the_agent(tmp_path):
    program = write(tmp_path, "pass\n")

    async def story() -> None:
        async with bench(tmp_path, program, env=light_torch(tmp_path)) as made:
            await made.controller.wait(events.TemplateReported)
            agent = made.agent.pid

            async with asyncio.timeout(60):
                while len(_children(agent)) < 4:  # the template, the warden and two that are parked
                    await asyncio.sleep(0.01)
            family = _children(agent)
            kill(agent)
            made.agent.wait()
            await _until_gone(family, 1.0)

    asyncio.run(story())


async def _until_gone(pids: list[int], limit_s: float) -> None:
    began = time.monotonic()
    with Lateness() as late:
        while left := [pid for pid in pids if is_alive(pid)]:
            assert time.monotonic() - began < limit_s + late.seconds, left
            await asyncio.sleep(0.01)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _template_of(agent: int) -> int:
    """The oldest process with that command line; those that it forked have it too."""
    return min(_templates(agent), key=_start_time)


def _templates(agent: int) -> list[int]:
    return [pid for pid in _children(agent) if "template_main" in _read(pid, "cmdline")]


def _start_time(pid: int) -> float:
    stat = _read(pid, "stat")
    return float(stat.rsplit(")", 1)[1].split()[19]) if stat else math.inf


def _read(pid: int, name: str) -> str:
    """Nothing of a process that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""


COMPILED = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
@torch.compile(backend="eager")
def step():
    optimizer.step()
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    step()
"""


def test_a_compiled_optimizer_step_is_counted_and_not_disturbed(tmp_path):
    program = write(tmp_path, COMPILED)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1) as made:
            await made.start_workers(0)
            ended = await made.controller.wait(events.WorkerExited)
            assert ended.exit.code == 0
            assert ended.account.last_step == 2
            assert "Dynamo does not know" not in made.log(0, 0, "stderr")

    asyncio.run(story())


def test_any_parked_worker_can_die_at_any_moment(tmp_path):
    """Parked workers killed while they wait, are forked, or are being given their rank: every start still works."""
    program = write(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")

    async def story() -> None:
        async with bench(tmp_path, program, env=light_torch(tmp_path)) as made:
            await made.controller.wait(events.TemplateReported)
            for generation in range(4):
                template = _template_of(made.agent.pid)
                for pid in _templates(made.agent.pid):
                    if pid != template:
                        kill(pid)
                await made.start_workers(generation)
                await made.controller.wait(events.WorkersStarted, lambda e, g=generation: e.generation == g)
                stopped = await made.stop_workers(generation)
                gone = [
                    e
                    for e in made.controller.events
                    if isinstance(e, events.WorkerExited) and e.generation == generation
                ]
                assert len(stopped.exits) + len(gone) == 2

    asyncio.run(story())
