"""What a rank imports after `import torch`, its twin has imported by the time it is needed: whichever one that is."""

import asyncio

from fake_controller import bench

from everstep.model import events

PROGRAM = """
import json, os, sys, time
import torch
life = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(json.dumps({"had": "torch._dynamo" in sys.modules, "life": life}), flush=True)
open("effect.txt", "a").write("x")  # the last moment: a twin is left here, or would be
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
while True:
    optimizer.step()
    time.sleep(0.02)
"""

NUM_TRIES = 5


def test_a_twin_that_is_true_of_one_generation_only_is_not_the_one_that_is_made_ready(tmp_path):
    """The program asks which generation this is before its optimizer imports what takes a second."""
    (tmp_path / "train.py").write_text(PROGRAM)

    async def story() -> None:
        async with bench(tmp_path, "train.py", nproc=1) as made:
            await made.start_workers(0)
            await made.controller.wait(events.MarksReported, has_stepped)
            for generation in range(1, NUM_TRIES):
                await asyncio.sleep(3.0)  # the import
                await made.stop_workers(generation - 1, grace_s=0.0)
                await made.start_workers(generation)
                started = await made.controller.wait(
                    events.WorkersStarted, lambda e, generation=generation: e.generation == generation
                )
                assert started.started[0].how == "twin"
                if '"had": true' in await told_by(made, generation):
                    return
            raise AssertionError("no twin has imported what its rank imports")

    asyncio.run(story())


def has_stepped(event: events.MarksReported) -> bool:
    return any(account.first_step is not None for account in event.accounts)


async def told_by(made, generation: int) -> str:
    async with asyncio.timeout(60):
        while "}\n" not in (text := made.log(generation, 0)):
            await asyncio.sleep(0.02)
    return text
