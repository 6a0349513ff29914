"""A rank that downloads without using a processor is alive; one whose transfer stops is silent. A real agent."""

import asyncio

from fake_controller import bench

from everstep.model import events, observations
from everstep.model.actions import StartWorkers
from everstep.model.facts import Signals

DOWNLOADS = """
import socket, sys, time
from everstep.worker.link.runtime import current
current().start_watch()
for step in range(20):
    current().step_done(step)
    time.sleep(0.02)
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as link:
    while link.recv(1 << 20):
        pass
"""
CHUNK = bytes(1 << 16)
EVERY_S = 0.2


def test_a_download_is_a_sign_of_life_until_it_stops(tmp_path):
    (tmp_path / "train.py").write_text(DOWNLOADS)
    is_sending = asyncio.Event()

    is_over = asyncio.Event()

    async def send(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while is_sending.is_set():
            writer.write(CHUNK)
            await writer.drain()
            await asyncio.sleep(EVERY_S)
        await is_over.wait()  # open, and nothing comes any more
        writer.close()

    async def story() -> None:
        is_sending.set()
        server = await asyncio.start_server(send, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        env = {"EVERSTEP_TWINS": "off", "EVERSTEP_PY_SPY": "off"}
        async with bench(tmp_path, "train.py", nproc=1, args=(str(port),), env=env, watch_hangs=True) as made:
            start = StartWorkers(
                why="test", node="n0", generation=0, slot=0, first_rank=0, num_ranks=1, world_size=1, num_slots=1,
                store_host="127.0.0.1", store_port=1, resume_step=None,
            )  # fmt: skip
            await made.controller.send(start)

            async def seen(accept) -> tuple[Signals, float]:
                event = await made.controller.wait(observations.SignalsReported, lambda e: accept(e.signals[0], e.at))
                return event.signals[0], event.at

            def is_quiet(s: Signals, at: float) -> bool:
                return s.last_step == 19 and at - s.last_step_at > 5

            alive, _ = await seen(is_quiet)
            assert alive.device_s < 2.0, alive
            assert alive.stack_s is None, "its stack stays because it waits for bytes, and they come"
            is_sending.clear()
            silent, _ = await seen(lambda s, at: is_quiet(s, at) and s.device_s > 3.0)
            assert silent.state == "S"
            is_over.set()
            await made.controller.wait(events.WorkerExited)  # the end of the file
        server.close()

    asyncio.run(story())
