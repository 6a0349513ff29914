"""The agent's link: nothing reported is lost or doubled, whatever happens to the connection or the controller."""

import asyncio

from fake_controller import DEADLINE_S, FakeController, bench, is_alive

from everstep.model import events
from everstep.wire.codec import encode
from everstep.wire.messages import Ack

FRESH = {"EVERSTEP_TWINS": "off"}
TICK = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"


def write(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    return "train.py"


def test_training_goes_on_without_a_controller_and_nothing_is_lost(tmp_path):
    program = write(
        tmp_path, "import time, sys\ntime.sleep(600 if __import__('os').environ['RANK'] == '0' else 1.0)\nsys.exit(9)\n"
    )

    async def story() -> None:
        async with bench(tmp_path, program, env=FRESH) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            port, controller = made.controller.port, made.controller
            await controller.stop()
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while is_alive(started.started[1].pid):  # rank 1 ends while nobody listens
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.02)
            assert is_alive(started.started[0].pid)
            await controller.start(port)
            ended = await controller.wait(events.WorkerExited)
            assert (ended.exit.rank, ended.exit.code) == (1, 9)
            joined = [e for e in controller.events if isinstance(e, events.NodeJoined)]
            again = await controller.wait(events.NodeJoined, skip=controller.events.index(joined[0]) + 1)
            assert (again.generation, again.stopped) == (0, False)
            assert len(controller.hellos) == 2

    asyncio.run(story())


def test_unacknowledged_reports_are_sent_again(tmp_path):
    program = write(tmp_path, TICK)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=FRESH) as made:
            controller = made.controller
            await controller.wait(events.NodeJoined)
            controller.ack = False  # takes reports off the wire, and forgets them: a controller about to die
            await made.start_workers(0)
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while "ready" not in made.log(0, 0):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.02)
            assert not [e for e in controller.events if isinstance(e, events.WorkersStarted)]
            controller.ack = True
            await controller.drop_connections()
            await controller.wait(events.WorkersStarted)
            marked = await controller.wait(events.MarksReported)
            assert marked.accounts[0].entered_at is not None

    asyncio.run(story())


def test_garbage_ends_the_connection_not_the_agent(tmp_path):
    program = write(tmp_path, TICK)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=FRESH) as made:
            controller = made.controller
            await made.start_workers(0)
            started = await controller.wait(events.WorkersStarted)
            for garbage in (b"", b"\xff" * 100, b"\x81\xa1m\xa5Nones", encode(Ack(source_seq=0))[:-1]):
                skip = len(controller.events)
                await controller.send_raw(garbage)
                await controller.wait(events.NodeJoined, skip=skip)
            assert is_alive(started.started[0].pid)
            assert made.agent.poll() is None
            await controller.send_raw(encode(Ack(source_seq=10**9)))  # more than was ever sent: nothing to forget
            stopped = await made.stop_workers(0)
            assert len(stopped.exits) == 1

    asyncio.run(story())


def test_a_rejected_agent_ends_with_the_reason(tmp_path):
    program = write(tmp_path, TICK)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=FRESH, start=False) as made:
            made.controller.reject = "protocol 1 is not spoken here"
            agent = made.start_agent()
            assert await asyncio.to_thread(agent.wait, DEADLINE_S) == 8
            assert "protocol 1 is not spoken here" in made.agent_log()

    asyncio.run(story())


def test_the_agent_waits_for_a_controller_that_is_late(tmp_path):
    program = write(tmp_path, TICK)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=FRESH, start=False) as made:
            controller: FakeController = made.controller
            port = controller.port
            await controller.stop()
            made.start_agent()
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while "link to the controller" not in (made.agent_log() if _has_log(made) else ""):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.02)
            await controller.start(port)
            await controller.wait(events.NodeJoined)

    asyncio.run(story())


def _has_log(made) -> bool:
    return (made.run_dir / "nodes/n0/agent.log").exists()
