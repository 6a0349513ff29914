"""Parking: a rank begins as under torchrun, leaves a twin, and goes on from it; when it must not, it says why."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_controller import Bench, bench, is_alive, kill
from lateness import Lateness

from everstep.linux import proc
from everstep.model import events
from everstep.model.facts import Started

FACTS = """
import sys
NAMES = sorted(sys.modules)
import gc, inspect, os, signal, threading, warnings
import everstep_facts
def facts():
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "name": __name__, "file": __file__, "path0": sys.path[0],
        "depth": len(inspect.stack()), "outermost": os.path.basename(inspect.stack()[-1].filename),
        "modules": [n for n in NAMES if not n.startswith("everstep")],
        "filters": len(warnings.filters), "frozen": gc.get_freeze_count(), "threads": threading.active_count(),
        "cmdline": open("/proc/self/cmdline").read().split("\\0")[1:], "cwd": os.getcwd(),
        "leads_session": os.getsid(0) == os.getpid(), "sigint": signal.getsignal(signal.SIGINT).__name__,
        "environment": sorted(os.environ), "main": sys.modules["__main__"].__file__, "mine": everstep_facts.MINE,
        "fds": sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) < 900)[:4], "profile": profile.MINE,
        "excepthook": sys.excepthook is sys.__excepthook__, "live": sys.stdout.line_buffering,
    }
import profile
"""

TELL = FACTS + "import json\nprint(json.dumps(facts()), flush=True)\n"


def write(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return name


def light_torch(folder: Path) -> dict[str, str]:
    """A package in torch's place that costs nothing to import and has one generator, seeded as torch seeds its own."""
    write(
        folder,
        """
import random
class Generator:
    def __init__(self): self.seed()
    def initial_seed(self): return self._seed
    def seed(self): self._seed = int.from_bytes(open('/dev/urandom', 'rb').read(7)); return self._seed
    def manual_seed(self, seed): self._seed = seed
default_generator = Generator()
""",
        "mods/torch/__init__.py",
    )
    return {"PYTHONPATH": str(folder / "mods")}


def test_a_rank_begins_as_a_program_that_nobody_has_touched(tmp_path):
    write(tmp_path, "MINE = 'a module beside the script'\n", "everstep_facts.py")
    write(tmp_path, "MINE = 'not the standard library'\n", "profile.py")
    program = write(tmp_path, TELL)

    async def story() -> dict:
        async with bench(tmp_path, program, args=("--x", "1"), nproc=1) as made:
            await made.start_workers(0)
            ended = await made.controller.wait(events.WorkerExited)
            assert ended.exit.code == 0, made.log(0, 0, "stderr")
            return json.loads(made.log(0, 0))

    told = asyncio.run(story())
    env = {**os.environ, "RANK": "0"}
    plain = subprocess.run(
        [sys.executable, "-u", program, "--x", "1"], cwd=tmp_path, env=env, capture_output=True, check=True, text=True,
        start_new_session=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    expected = json.loads(plain.stdout)
    for name in set(expected) - {"environment"}:
        assert told[name] == expected[name], name
    assert "PYTHONPATH" not in set(told["environment"]) - set(expected["environment"])
    assert not [name for name in told["environment"] if name in ("EVERSTEP_LINK_FD", "EVERSTEP_AGENT_PID")]


LIVES = """
import os, sys, random, time
print("begins", flush=True)
import torch
seed = torch.default_generator.initial_seed()
drawn = random.getrandbits(62)
{before}
open("effect.txt", "a").write("x")
print(json_of := __import__("json").dumps({{
    "pid": os.getpid(), "seed": torch.default_generator.initial_seed(), "had": seed, "random": random.getrandbits(62),
    "restart": os.environ["TORCHELASTIC_RESTART_COUNT"], "started": __import__("threading").main_thread().native_id,
    "again": os.environ.get("EVERSTEP_GENERATION"), "out": os.fstat(1).st_ino,
}}), flush=True)
{after}
time.sleep(600)
"""

Check = Callable[[Bench, events.WorkersStarted], Awaitable[None]]


async def told_by(made: Bench, generation: int) -> dict:
    async with asyncio.timeout(60):
        while "{" not in (text := made.log(generation, 0)) or not text.endswith("\n"):
            await asyncio.sleep(0.02)
    lines = text.splitlines()
    assert lines[0] == "begins", "what was written before parking is written again"
    return json.loads(next(line for line in lines if line.startswith("{")))


async def twin_is_there(made: Bench) -> None:
    await made.controller.wait(events.TemplateReported, lambda e: e.usable)


async def again(made: Bench, generation: int) -> events.WorkersStarted:
    await made.stop_workers(generation - 1, grace_s=0.0)
    await made.start_workers(generation)
    return await made.controller.wait(events.WorkersStarted, lambda e: e.generation == generation)


async def again_from(made: Bench, place: str) -> tuple[int, Started]:
    """A generation that goes on from the twin of this place, and its number. On a busy machine the twin of an earlier
    place goes on as long as this one is not ready."""
    for generation in range(1, 8):
        started = (await again(made, generation)).started[0]
        assert started.how == "twin"
        if started.why == place:
            break
        await told_by(made, generation)
        await asyncio.sleep(0.5)
    assert started.why == place
    return generation, started


def lives(tmp_path: Path, check: Callable[[Bench], Awaitable[None]], *, before: str = "", after: str = "") -> None:
    program = write(tmp_path, LIVES.format(before=before, after=after))

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=light_torch(tmp_path)) as made:
            await made.start_workers(0)
            await told_by(made, 0)
            await check(made)

    asyncio.run(story())


def test_a_rank_goes_on_from_its_twin_with_entropy_of_its_own(tmp_path):
    async def check(made: Bench) -> None:
        await told_by(made, 0)
        await twin_is_there(made)
        first, started = await again_from(made, "open at train.py:8")
        seen = [await told_by(made, first - 1)]
        for generation in (first, first + 1):
            if generation > first:
                started = (await again(made, generation)).started[0]
            assert (started.how, started.why) == ("twin", "open at train.py:8")
            seen.append(await told_by(made, generation))
            assert seen[-1]["pid"] == started.pid == seen[-1]["started"]
            assert seen[-1]["restart"] == seen[-1]["again"] == str(generation)
        for name in ("pid", "seed", "random", "out"):
            assert len({each[name] for each in seen}) == 3, name
        assert len({each["had"] for each in seen}) == 1, "the lines before are not run again"
        assert (tmp_path / "effect.txt").read_text() == "x" * (first + 2), "the effect itself is"

    lives(tmp_path, check)


DRAWS = {
    "uuid": ("import uuid", "uuid.uuid4().hex"),
    "secrets": ("import secrets", "secrets.token_hex()"),
    "urandom": ("from os import urandom", "urandom(8).hex()"),
    "own generator": ("OWN = random.Random()", "OWN.random()"),
    "system's generator": ("", "random.SystemRandom().random()"),
    "numpy's": ("import numpy", "numpy.random.default_rng().random()"),
    "in a module of its own": ("import own", "own.TOKEN"),
}


def test_what_it_draws_before_anything_else_is_drawn_anew(tmp_path):
    """Where a new start would draw other numbers, a rank that comes back does. Seven ways, in ranks of one node."""
    write(tmp_path, "import uuid\nTOKEN = uuid.uuid4().hex\n", "own.py")
    ways = [f"    {n}: ({given!r}, {drawn!r})," for n, (given, drawn) in enumerate(DRAWS.values())]
    text = DRAWN.format(ways="\n".join(ways))
    program = write(tmp_path, text)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=len(DRAWS), env=light_torch(tmp_path)) as made:
            await made.start_workers(0)
            seen = [[await line_of(made, generation, rank) for rank in range(len(DRAWS))] for generation in (0,)]
            await twin_is_there(made)
            started = (await again(made, 1)).started
            assert {each.how for each in started} == {"twin"}
            assert all("entropy" in each.why for each in started), [each.why for each in started]
            seen.append([await line_of(made, 1, rank) for rank in range(len(DRAWS))])
            for name, first, second in zip(DRAWS, *seen, strict=True):
                assert first[0] != second[0], name
                assert first[1] == second[1] == "True", f"{name}: nothing of ours is left in its way"

    asyncio.run(story())


DRAWN = """
import os, random, sys, time
REAL = type(os.getpid)
import torch
given, drawn = {{
{ways}
}}[int(os.environ["LOCAL_RANK"])]
exec(given)
drawn = eval(drawn)
code = random.Random.seed.__code__.co_filename
print(drawn, type(os.urandom) is REAL and type(random._urandom) is REAL and "parking" not in code, flush=True)
time.sleep(600)
"""


async def line_of(made: Bench, generation: int, rank: int) -> list[str]:
    async with asyncio.timeout(60):
        while not made.log(generation, rank).endswith("\n"):
            await asyncio.sleep(0.02)
    return made.log(generation, rank).split()


def test_what_the_program_seeds_stays_seeded(tmp_path):
    async def check(made: Bench) -> None:
        before = await told_by(made, 0)
        await twin_is_there(made)
        assert (await again(made, 1)).started[0].how == "twin"
        after = await told_by(made, 1)
        assert (after["seed"], after["random"]) == (before["seed"], before["random"]) == (7, before["random"])

    lives(tmp_path, check, before="random.seed(3); torch.default_generator.manual_seed(7)")


STALE = {
    "appeared": ("print(os.path.exists('newest.pt'))", "newest.pt", ""),
    "listed": ("print(os.listdir('saved'))", "saved/1", ""),
    "read": ("print(open('config.txt').read())", "config.txt", "22"),
    "code": ("import own", "own.py", "X = 22222"),
    "asked": ("print(os.environ['TORCHELASTIC_RESTART_COUNT'])", "unrelated.txt", ""),
}


@pytest.mark.parametrize("case", STALE)
def test_a_twin_that_would_go_another_way_today_is_not_used(tmp_path, case):
    """The twin from before the question may be: it asks again."""
    before, changed, text = STALE[case]
    (tmp_path / "saved").mkdir()
    write(tmp_path, "1", "config.txt")
    write(tmp_path, "X = 1", "own.py")

    async def check(made: Bench) -> None:
        await twin_is_there(made)
        await asyncio.sleep(0.5)  # both twins have told of themselves
        write(tmp_path, text, changed)
        started = (await again(made, 1)).started[0]
        assert (started.how, started.why) == ("twin", "after import torch at train.py:4")
        await told_by(made, 1)

    lives(tmp_path, check, before=before)


THREAD = "import threading; t = threading.Thread(target=lambda: print('in thread', flush=True)); t.start(); t.join()"


def test_a_program_that_starts_a_thread_is_parked_before_it(tmp_path):
    async def check(made: Bench) -> None:
        await twin_is_there(made)
        generation, _started = await again_from(made, "start of a thread at train.py:7")
        await told_by(made, generation)
        assert "in thread" in made.log(generation, 0)

    lives(tmp_path, check, before=THREAD)


FIRST_EFFECTS = {
    "executor": "from concurrent.futures import ThreadPoolExecutor as P; print(list(P(2).map(abs, [-1])), flush=True)",
    "log file": "import logging; logging.basicConfig(filename='own.log'); logging.warning('first')",
    "late log file": (
        "import logging; logging.root.addHandler(logging.FileHandler('own.log', delay=True)); logging.warning('first')"
    ),
}


@pytest.mark.parametrize("case", FIRST_EFFECTS)
def test_no_twin_is_left_in_the_middle_of_what_handles_forks_itself(tmp_path, case):
    """It would wait for ever for a lock that it holds, or find that lock released when it goes on."""

    async def check(made: Bench) -> None:
        await twin_is_there(made)
        for generation in (1, 2):
            started = (await again(made, generation)).started[0]
            assert (started.how, started.why) == ("twin", "after import torch at train.py:4")
            await told_by(made, generation)

    lives(tmp_path, check, before=FIRST_EFFECTS[case])


SAVES = """
import functools, signal, sys, time
def save(*_):
    open("saved", "w").write("x")
    sys.exit(143)
class Saver:
    def save(self, *_): save()
    __call__ = save
def ends(*_): sys.exit(143)
def marks(*_): marked.append(True)
marked = []
{install}
step = 0
try:
    while not marked:
        print("step", step, flush=True)
        step += 1
        time.sleep(0.02)
finally:
    if {is_late}: save()
"""
HANDLERS = {
    "function": ("signal.signal(signal.SIGTERM, save)", False),
    "method": ("signal.signal(signal.SIGTERM, Saver().save)", False),
    "object": ("signal.signal(signal.SIGTERM, Saver())", False),
    "partial": ("signal.signal(signal.SIGTERM, functools.partial(save, 1))", False),
    "raises": ("signal.signal(signal.SIGTERM, ends)", True),
    "marks": ("signal.signal(signal.SIGTERM, marks)", True),
    "interrupt": ("signal.signal(signal.SIGTERM, signal.default_int_handler)", True),
}
"""What the program does at SIGTERM, and whether it saves after its handler has returned or raised. Of one that returned
nothing shows later; where the signal was ours the agent knows."""


@pytest.mark.parametrize(
    ("handler", "whose"),
    [
        *((handler, "ours") for handler in ("function", "raises", "marks", "interrupt")),
        *((handler, "a stranger's") for handler in HANDLERS if handler != "marks"),
    ],
)
def test_what_a_rank_does_because_of_a_signal_is_not_done_again_by_the_next_one(tmp_path, handler, whose):
    """Its first effect is to save, and it ends. Whoever went on from there would end as well, again and again."""
    install, is_late = HANDLERS[handler]
    program = write(tmp_path, SAVES.format(install=install, is_late=is_late))

    async def steps(made: Bench, generation: int, number: int) -> None:
        async with asyncio.timeout(60):
            while f"step {number}\n" not in made.log(generation, 0):
                await asyncio.sleep(0.02)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1) as made:
            await made.start_workers(0)
            await steps(made, 0, 20)
            if whose != "ours":
                started = (await made.controller.wait(events.WorkersStarted)).started[0]
                os.kill(started.pid, signal.SIGTERM)
                await made.controller.wait(events.WorkerExited)
            await made.stop_workers(0, grace_s=30.0)
            assert (tmp_path / "saved").exists()
            last = made.log(0, 0).count("step")
            await made.start_workers(1)
            await steps(made, 1, last + 20)

    asyncio.run(story())


DIES = """
import sys
def hook(*_):
    open("crash.log", "w").write("x")
sys.excepthook = hook
print("begins", flush=True)
raise MemoryError("for once")
"""


def test_no_twin_is_left_by_a_rank_that_dies(tmp_path):
    """Its first effect is what its own hook writes of its end."""
    program = write(tmp_path, DIES)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1) as made:
            await made.start_workers(0)
            await made.controller.wait(events.WorkerExited)
            assert (tmp_path / "crash.log").exists()
            assert (await again(made, 1)).started[0].how == "fresh"

    asyncio.run(story())


LOCKS = "import multiprocessing as mp; lock = mp.Lock(); mine = mp.RLock(); mine.acquire(); mine.acquire()"
ACQUIRES = "mine.release(); mine.release(); print('has it', lock.acquire(timeout=20), mine.acquire(), flush=True)"


def test_a_lock_that_the_dead_rank_held_is_free_in_the_one_that_goes_on(tmp_path):
    """And one that the program held where it was parked is still its own."""

    async def check(made: Bench) -> None:
        await twin_is_there(made)
        assert (await again(made, 1)).started[0].how == "twin"
        await told_by(made, 1)
        async with asyncio.timeout(60):
            while "has it True True" not in made.log(1, 0):
                await asyncio.sleep(0.02)

    lives(tmp_path, check, before=LOCKS, after=ACQUIRES)


def test_a_dead_twin_costs_warmth_and_is_explained(tmp_path):
    async def check(made: Bench) -> None:
        await twin_is_there(made)
        rank = (await told_by(made, 0))["pid"]
        for pid in _twins(made, {rank}):
            kill(pid)
        async with asyncio.timeout(60):
            while _twins(made, {rank}):
                await asyncio.sleep(0.02)
        started = (await again(made, 1)).started[0]
        assert started.how == "fresh"
        assert "signal 9" in started.why or "closed by the other side" in started.why
        await told_by(made, 1)

    lives(tmp_path, check)


def test_twins_end_with_the_agent(tmp_path):
    async def check(made: Bench) -> None:
        await twin_is_there(made)
        assert made.agent is not None
        family = proc.children(made.agent.pid)
        assert len(family) >= 3, "the warden, the rank and its twin"
        kill(made.agent.pid)
        made.agent.wait()
        began = time.monotonic()
        with Lateness() as late:
            while left := [pid for pid in family if is_alive(pid)]:
                assert time.monotonic() - began < 5.0 + late.seconds, left
                await asyncio.sleep(0.01)

    lives(tmp_path, check)


LIES = """
import _socket, os, time
from everstep.worker.parking import begin
link = _socket.socket(fileno=begin.process.link_fd)
for pid in (os.getpid(), 1, os.getppid(), 999999, -1):
    for _ in range(20):
        ours, theirs = _socket.socketpair()
        told = b'{"twin":{"stage":"a lie","out":-1,"err":-1,"reads":0}}'
        rights = theirs.fileno().to_bytes(4, "little")
        link.sendmsg([len(told).to_bytes(4, "little") + told], [(1, 1, rights)])
        here = b'{"is":"here","pid":%d,"num_modules":1}' % pid
        try:
            os.write(ours.fileno(), len(here).to_bytes(4, "little") + here)
        except OSError:
            pass
        theirs.close()
print("lied", flush=True)
time.sleep(600)
"""


def test_a_rank_that_lies_of_twins_harms_nobody(tmp_path):
    """It can name neither its agent nor a stranger to be ended, nor fill the agent with sockets."""
    program = write(tmp_path, LIES)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1) as made:
            await made.start_workers(0)
            async with asyncio.timeout(60):
                while "lied" not in made.log(0, 0):
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            assert made.agent is not None
            assert made.agent.poll() is None
            assert len(list(Path(f"/proc/{made.agent.pid}/fd").iterdir())) < 100
            started = (await again(made, 1)).started[0]
            assert started.how == "fresh"

    asyncio.run(story())


@pytest.mark.parametrize(
    "question",
    [
        "os.environ['RANK']",
        "os.environb[b'RANK'].decode()",
        "[os.environ.get(n) for n in sorted(os.environ) if n == 'RANK'][0]",
        "[v for n, v in os.environ.items() if n == 'RANK'][0]",
        "dict(os.environ)['RANK']",
        "os.environ.copy()['RANK']",
    ],
)
def test_a_standby_has_spares_that_wait_for_who_they_are(tmp_path, question):
    text = f"import os, time\nimport torch\nprint('begins', flush=True)\nrank = {question}\n"
    program = write(tmp_path, text + "print('{}', rank, flush=True)\ntime.sleep(600)\n")

    async def story() -> None:
        async with bench(tmp_path, program, nproc=2, env=light_torch(tmp_path), num_standby=1) as made:
            await made.controller.wait(events.TemplateReported, lambda e: e.usable)
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            assert [s.how for s in started.started] == ["twin", "twin"]
            async with asyncio.timeout(60):
                while any(made.log(0, rank).count("\n") < 2 for rank in range(2)):
                    await asyncio.sleep(0.02)
            assert [made.log(0, rank) for rank in range(2)] == [f"begins\n{{}} {rank}\n" for rank in range(2)]

    asyncio.run(story())


def test_without_twins_ranks_start_fresh_and_say_so(tmp_path):
    program = write(tmp_path, "print('fine', flush=True)\n")

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env={"EVERSTEP_TWINS": "off"}) as made:
            told = await made.controller.wait(events.TemplateReported)
            assert (told.usable, told.why) == (False, "EVERSTEP_TWINS=off")
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            assert [(s.how, s.why) for s in started.started] == [("fresh", told.why)]

    asyncio.run(story())


def _twins(made: Bench, ranks: set[int]) -> list[int]:
    assert made.agent is not None
    own = [pid for pid in proc.children(made.agent.pid) if pid not in ranks]
    return [pid for pid in own if b"train.py" in _command_of(pid)]


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended, and the agent has taken its end
        return b""
