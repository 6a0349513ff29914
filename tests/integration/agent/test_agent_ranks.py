"""The agent and its ranks: starting, ends of every kind, stopping. Real processes, real signals."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

from fake_controller import DEADLINE_S, bench, is_alive, kill, wait_gone
from lateness import Lateness

from everstep.model import events
from everstep.model.actions import Finish
from everstep.model.spec import Launch

FRESH = {"EVERSTEP_TWINS": "off"}  # these programs are not about what comes back


def write(tmp_path: Path, text: str, name: str = "train.py") -> str:
    (tmp_path / name).write_text(text)
    return name


def run_to_exit(tmp_path: Path, text: str, **options) -> tuple[events.WorkerExited, str, str]:
    """One rank, until it ends by itself."""
    program = options.pop("program", None) or write(tmp_path, text)

    async def story() -> tuple[events.WorkerExited, str, str]:
        async with bench(tmp_path, program, nproc=1, env=FRESH, **options) as made:
            await made.start_workers(0)
            ended = await made.controller.wait(events.WorkerExited)
            return ended, made.log(0, 0), made.log(0, 0, "stderr")

    return asyncio.run(story())


def test_hello_and_joined_come_first(tmp_path):
    async def story() -> None:
        async with bench(tmp_path, write(tmp_path, "pass"), env=FRESH) as made:
            hello = made.controller.hellos[0]
            assert (hello.role, hello.name) == ("agent", "n0")
            first, second = made.controller.events[0], await made.controller.wait(events.TemplateReported)
            assert isinstance(first, events.NodeJoined)
            assert (first.generation, first.stopped, first.held) == (-1, True, ())
            assert not second.usable
            assert second.why == "EVERSTEP_TWINS=off"

    asyncio.run(story())


DDP = """
import time, uncompiled, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10_000):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.005)
"""


def test_a_killed_rank_is_reported_and_the_next_generation_trains(tmp_path):
    program = write(tmp_path, DDP)

    async def all_stepped(made, generation: int) -> None:
        for rank in range(2):
            await made.controller.wait(
                events.MarksReported,
                lambda e, r=rank: (
                    e.generation == generation and any(a.rank == r and a.first_step is not None for a in e.accounts)
                ),
            )

    async def story() -> None:
        async with bench(tmp_path, program) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            await all_stepped(made, 0)
            killed_at = time.time()
            with Lateness() as late:
                kill(started.started[1].pid)
                ended = await made.controller.wait(events.WorkerExited, lambda e: e.exit.rank == 1)
            assert made.controller.when(ended) - killed_at < 2 + late.seconds
            assert (ended.exit.signal, ended.exit.stopped_by_us, ended.exit.oom) == (signal.SIGKILL, False, None)
            account = ended.account
            marks = [account.spawned_at, account.entered_at, account.rendezvous_begun_at]
            marks += [account.rendezvous_done_at, account.first_step_at, account.last_step_at, account.ended_at]
            assert marks == sorted(marks)
            assert account.first_step == 0
            assert not account.counts_own_steps
            stopped = await made.stop_workers(0)
            assert {a.rank for a in stopped.accounts} == {0, 1}
            assert all(a.ended_at is not None for a in stopped.accounts)
            await made.start_workers(1)
            await all_stepped(made, 1)
            again = await made.controller.wait(events.WorkersStarted, lambda e: e.generation == 1)
            assert {s.how for s in again.started} == {"twin"}

    asyncio.run(story())


def test_an_uncaught_exception_reaches_the_incident(tmp_path):
    text = "import json\ndef f():\n    return json.loads('{')\nprint('before')\nf()\n"
    ended, out, err = run_to_exit(tmp_path, text)
    error = ended.exit.error
    assert ended.exit.code == 1
    assert (error.kind, error.place) == ("JSONDecodeError", "train.py:3")
    assert error.message.startswith("Expecting property name")
    assert out == "before\n"
    assert error.traceback == err, "what is reported is what the user saw"
    first_frame = re.search(r'File "(.*?)"', err)
    assert first_frame[1] == str(tmp_path / "train.py"), "no frame of ours"
    assert ended.exit.last_output.endswith("(char 1)")


def test_a_message_that_is_not_unicode_keeps_nothing_from_being_told(tmp_path):
    ended, _, _ = run_to_exit(tmp_path, 'open(b"caf\\xe9.txt")\n')
    assert (ended.exit.code, ended.exit.error.kind) == (1, "FileNotFoundError")
    assert "caf\\xe9.txt" in ended.exit.error.message
    ended, _, _ = run_to_exit(tmp_path, 'raise ValueError("caf\\udce9.txt")\n')
    assert (ended.exit.error.kind, ended.exit.error.message) == ("ValueError", "caf\\udce9.txt")


def test_torchs_own_report_is_honoured(tmp_path):
    text = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    raise KeyError('labels')\nmain()\n"
    )
    ended, _, _ = run_to_exit(tmp_path, text)
    error = ended.exit.error
    assert (error.kind, error.message, error.place) == ("KeyError", "'labels'", "train.py:4")
    raw = json.loads((tmp_path / "run/errors/gen-0/rank-0.json").read_text())
    assert "everstep" not in raw


def test_exit_codes_are_the_programs_own(tmp_path):
    ended, _, err = run_to_exit(tmp_path, "import sys; sys.exit(3)")
    assert (ended.exit.code, ended.exit.error, err) == (3, None, "")
    ended, _, err = run_to_exit(tmp_path, "raise SystemExit('no more')")
    assert (ended.exit.code, ended.exit.error, err) == (1, None, "no more\n")
    ended, out, _ = run_to_exit(tmp_path, "import atexit; atexit.register(print, 'last')")
    assert (ended.exit.code, out) == (0, "last\n")


def test_keyboard_interrupt_ends_like_pythons(tmp_path):
    ended, _, err = run_to_exit(tmp_path, "raise KeyboardInterrupt")
    assert ended.exit.signal == signal.SIGINT
    assert err.splitlines().count("KeyboardInterrupt") == 1


def test_a_syntax_error_is_the_users(tmp_path):
    ended, _, err = run_to_exit(tmp_path, "x = 1\ndef (:\n")
    assert (ended.exit.code, ended.exit.error.kind, ended.exit.error.place) == (1, "SyntaxError", "train.py:2")
    assert err.startswith('  File "')


def test_a_missing_script_says_so(tmp_path):
    ended, _, err = run_to_exit(tmp_path, "", program="nowhere.py")
    assert (ended.exit.code, ended.exit.error) == (2, None), "the interpreter says it itself, as under torchrun"
    assert "can't open file" in ended.exit.last_output
    assert "can't open file" in err
    assert "nowhere.py" in err


def test_module_path_and_command_launches(tmp_path):
    (tmp_path / "pkg").mkdir()
    text = "import sys, os; print(sys.argv[1:], __name__, __package__, os.environ['RANK'])"
    write(tmp_path, text, "pkg/__init__.py")
    write(tmp_path, text, "pkg/tool.py")
    _, out, _ = run_to_exit(tmp_path, "", program="pkg.tool", launch=Launch.MODULE, args=("-m", "x"))
    assert out.splitlines()[-1] == "['-m', 'x'] __main__ pkg 0"
    _, out, _ = run_to_exit(tmp_path, "", program="pkg/tool.py", launch=Launch.RUN_PATH, args=("y",))
    assert out.splitlines()[-1] == "['y'] __main__  0"
    ended, out, _ = run_to_exit(
        tmp_path,
        "",
        program="sh",
        launch=Launch.COMMAND,
        args=("-c", "echo rank $RANK; ls /proc/self/fd | wc -l; exit 7"),
    )
    assert (ended.exit.code, out.splitlines()[-2:]) == (7, ["rank 0", "4"])
    ended, _, _ = run_to_exit(tmp_path, "", program="no-such-tool", launch=Launch.COMMAND)
    assert (ended.exit.code, ended.exit.error.kind) == (127, "ProgramNotFound")


SPAWN = """
import multiprocessing, pickle, sys
class Thing:
    pass
def work(x):
    return x + 1, type(Thing()).__module__
if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Thing())).__class__ is Thing
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(work, (1,)))
"""


def test_pickling_and_spawn_work_in_main(tmp_path):
    ended, out, err = run_to_exit(tmp_path, SPAWN)
    assert (ended.exit.code, out, err) == (0, "(2, '__mp_main__')\n", "")


def test_users_files_named_like_ours_do_no_harm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the launcher, and so the agent, runs
    write(tmp_path, "raise RuntimeError('imported')", "socket.py")
    write(tmp_path, "raise RuntimeError('imported')", "json.py")
    ended, out, _ = run_to_exit(tmp_path, "print('fine')")
    assert (ended.exit.code, out) == (0, "fine\n")


NEVER_ENDING = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("not now", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


async def gone_soon(pids: list[int]) -> None:
    began = time.monotonic()
    with Lateness() as late:
        left = await asyncio.to_thread(wait_gone, lambda: [p for p in pids if is_alive(p)], 20.0)
        assert time.monotonic() - began - late.seconds < 5
    assert left == []


async def until(condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    program = write(tmp_path, NEVER_ENDING)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=FRESH) as made:
            took_s = []
            for generation in range(3):  # the best of three, on a busy machine
                took_s.append(await killed_after_the_grace(made, generation))
                if took_s[-1] < 2:
                    break
            assert 0.5 <= min(took_s) < 2

    async def killed_after_the_grace(made, generation: int) -> float:
        await made.start_workers(generation)
        await made.controller.wait(events.WorkersStarted, lambda e: e.generation == generation)
        await until(lambda: "ready" in made.log(generation, 0), "the program runs")
        began = time.monotonic()
        stopped = await made.stop_workers(generation, grace_s=0.5)
        took_s = time.monotonic() - began
        assert stopped.num_killed == 1
        assert [(e.signal, e.stopped_by_us, e.oom) for e in stopped.exits] == [(9, True, None)]
        assert "not now" in made.log(generation, 0)
        again = await made.stop_workers(generation)
        assert again.exits == stopped.exits
        return took_s

    asyncio.run(story())


def test_a_stopped_process_is_ended_at_once(tmp_path):
    program = write(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")

    async def story() -> None:
        async with bench(tmp_path, program, nproc=2, env=FRESH) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            await until(lambda: "ready" in made.log(0, 0) + made.log(0, 1), "both run")
            os.kill(started.started[0].pid, signal.SIGSTOP)
            began = time.monotonic()
            with Lateness() as late:
                stopped = await made.stop_workers(0, grace_s=30)
                assert time.monotonic() - began - late.seconds < 10, "the grace of 30 s is not waited for"
            assert stopped.num_killed == 0

    asyncio.run(story())


RAISES_AND_LINGERS = """
import atexit, time
atexit.register(time.sleep, 600)
raise ValueError("my own fault")
"""


def test_a_rank_that_had_raised_before_the_stop_keeps_its_fault(tmp_path):
    program = write(tmp_path, RAISES_AND_LINGERS)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=FRESH) as made:
            await made.start_workers(0)
            await made.controller.wait(events.WorkersStarted)
            report = made.run_dir / "errors/gen-0/rank-0.json"
            await until(report.exists, "it raised")
            stopped = await made.stop_workers(0)
            (ended,) = stopped.exits
            assert not ended.stopped_by_us
            assert (ended.signal, ended.error.message) == (signal.SIGTERM, "my own fault")

    asyncio.run(story())


FAMILY = """
import multiprocessing, os, subprocess, sys, time
def child():
    if os.environ.get("OWN_SESSION"):
        os.setsid()
    time.sleep(600)
if __name__ == "__main__":
    kids = [multiprocessing.get_context("fork").Process(target=child) for _ in range(2)]
    for kid in kids:
        kid.start()
    tool = subprocess.Popen(["sleep", "600"], env={})
    print(*(kid.pid for kid in kids), tool.pid, flush=True)
    time.sleep(600)
"""


def family_of(made, generation: int = 0, rank: int = 0) -> list[int]:
    return [int(word) for word in made.log(generation, rank).split()]


def test_children_of_a_killed_rank_end_with_it(tmp_path):
    program = write(tmp_path, FAMILY)

    async def story(own_session: bool) -> None:
        env = {**FRESH, **({"OWN_SESSION": "1"} if own_session else {})}
        folder = tmp_path / str(own_session)
        folder.mkdir()
        async with bench(folder, str(tmp_path / program), nproc=1, env=env) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            await until(lambda: made.log(0, 0).endswith("\n"), "children run")
            family = family_of(made)
            assert len(family) == 3
            kill(started.started[0].pid)
            await made.controller.wait(events.WorkerExited)
            await gone_soon(family)

    asyncio.run(story(own_session=False))
    asyncio.run(story(own_session=True))


def test_nothing_survives_a_killed_agent(tmp_path):
    program = write(tmp_path, FAMILY)

    async def story() -> None:
        env = {**FRESH, "OWN_SESSION": "1"}
        async with bench(tmp_path, program, nproc=2, env=env) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            await until(lambda: all(made.log(0, r).endswith("\n") for r in (0, 1)), "children run")
            everybody = [s.pid for s in started.started] + family_of(made, rank=0) + family_of(made, rank=1)
            kill(made.agent.pid)
            made.agent.wait()
            await gone_soon(everybody)

    asyncio.run(story())


def test_sigterm_and_finish_end_the_agent_and_its_ranks(tmp_path):
    program = write(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")

    async def story(finish: bool) -> None:
        folder = tmp_path / str(finish)
        folder.mkdir()
        async with bench(folder, str(tmp_path / program), nproc=1, env=FRESH) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            if finish:
                await made.controller.send(Finish(why="test", outcome="stopped", exit_code=0))
            else:
                made.agent.terminate()
            assert await asyncio.to_thread(made.agent.wait, DEADLINE_S) == 0
            assert not is_alive(started.started[0].pid)

    asyncio.run(story(finish=True))
    asyncio.run(story(finish=False))


def test_commands_are_idempotent_and_fenced(tmp_path):
    program = write(tmp_path, "import time\ntime.sleep(600)\n")

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=FRESH) as made:
            await made.start_workers(3)
            first = await made.controller.wait(events.WorkersStarted)
            skip = len(made.controller.events)
            await made.start_workers(3)
            assert await made.controller.wait(events.WorkersStarted, skip=skip) == first
            await made.start_workers(2)
            skip = len(made.controller.events)
            await made.start_workers(4)  # the controller has given generation 3 up
            second = await made.controller.wait(events.WorkersStarted, skip=skip)
            assert second.generation == 4
            assert not is_alive(first.started[0].pid)
            stopped = await made.stop_workers(9)  # never started here, and not to be any more
            assert (stopped.exits, stopped.accounts) == ((), ())
            assert not is_alive(second.started[0].pid)
            skip = len(made.controller.events)
            await made.start_workers(9)
            await made.controller.wait(events.WorkersStopped, lambda e: e.generation == 9, skip=skip)
            assert "StartWorkers of generation 2 dropped" in made.agent_log()

    asyncio.run(story())


def test_a_rank_whose_folder_cannot_be_made_runs_and_its_output_is_there_when_it_can(tmp_path):
    """As on a full disk: nothing of ours that cannot be written keeps a rank from its work."""
    program = write(tmp_path, "print('written', flush=True); import time; time.sleep(600)")

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=FRESH) as made:
            (made.run_dir / "logs").write_text("in the way")
            await made.start_workers(0)
            await made.controller.wait(events.WorkersStarted)
            (made.run_dir / "logs").unlink()
            log = made.run_dir / "logs" / "gen-0" / "rank-0" / "stdout.log"
            async with asyncio.timeout(60):
                while not log.exists() or log.read_text() != "written\n":
                    await asyncio.sleep(0.02)

    asyncio.run(story())


def test_an_interpreter_that_is_not_there_is_a_failed_start(tmp_path):
    program = write(tmp_path, "pass")

    async def story() -> None:
        env = {**FRESH, "PYTHON_EXEC": str(tmp_path / "no-python")}
        async with bench(tmp_path, program, nproc=1, env=env) as made:
            await made.start_workers(0)
            failed = await made.controller.wait(events.WorkersFailedToStart)
            assert failed.generation == 0
            assert "no-python" in failed.why

    asyncio.run(story())


def test_python_exec_is_honoured(tmp_path):
    wrapper = tmp_path / "python-in-a-wrapper"
    wrapper.write_text(f'#!/bin/sh\nexport WRAPPED=yes\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    program = write(
        tmp_path, "import os; print(os.getenv('WRAPPED'), open('/proc/self/environ').read().count('WRAPPED=yes'))"
    )

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env={"PYTHON_EXEC": str(wrapper)}) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            assert [s.how for s in started.started] == ["fresh"]
            ended = await made.controller.wait(events.WorkerExited)
            assert (ended.exit.code, made.log(0, 0).split()[1]) == (0, "1")

    asyncio.run(story())
