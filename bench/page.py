"""What the page costs: first paint, bytes over the wire, and the controller's share for ten open pages.

    python bench/page.py                          12,500 nodes, 30 days, 500 incidents
    python bench/page.py --nodes 128 --incidents 20

The run is folded from records as a controller writes them. Earlier generations have 128 ranks each, the one that runs
has one per node: 500 generations of 12,500 ranks would measure the journal's own memory. The server is the page's own
(`everstep.web`), in a process of its own; pages are read by plain connections, the first paint is Chromium's.
"""

import argparse
import asyncio
import gzip
import multiprocessing
import os
import resource
import sys
import time
from pathlib import Path
from statistics import median

import aiohttp
import msgspec
from aiohttp import web

from everstep.journal.fold import Fold
from everstep.model import actions, events
from everstep.model.facts import Checkpoint, LossPoint, RankAccount, Started
from everstep.model.record import Header, Record
from everstep.model.spec import RunSpec
from everstep.model.verdict import Blame, Confidence, Decision, Verdict
from everstep.report.parts.asked import Asked
from everstep.report.picture.overview import Overview
from everstep.web.feed import Row
from everstep.web.files import FOLDER, HEADERS, Files
from everstep.web.pages import Pages
from everstep.web.source import Moment

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/integration"))
DAY_S = 86400.0
FEW = 128
CODES = ("ES-P09", "ES-H03", "ES-M05", "ES-U01", "ES-P06")


class Run:
    """Months of a fleet as a view, and how it goes on while pages are open."""

    def __init__(self, num_nodes: int, days: float, num_incidents: int) -> None:
        self.fold = Fold(
            Header(run="r12k", everstep_version="bench", policy={"max_restarts": 10, "budget_window_s": 3600})
        )
        self.num_nodes = num_nodes
        self.seq = 0
        self.at = time.time() - days * DAY_S
        self.step, self.generation, self.loop_at = 0, 0, self.at
        spec = RunSpec(program="pretrain.py", args=("--config", "405b.toml"), num_slots=num_nodes)
        self.add(events.RunStarted(at=self.at, run="r12k", spec=spec, everstep_version="bench", policy="default"))
        for number in range(num_nodes + 60):
            name = f"gpu-{number:05}"
            self.add(events.NodeJoined(at=self.at, node=name, host=name, pid=7, rack=f"C{number // 32:03}"))
        apart_s = (days * DAY_S - 60.0) / (num_incidents + 1) - 67.0
        self.form(FEW)
        for number in range(num_incidents):
            self.train(apart_s)
            self.fail(number, num_nodes if number == num_incidents - 1 else FEW)
        self.train(apart_s)

    def add(self, event: events.Event, decided: tuple[actions.Action, ...] = (), source: str = "") -> None:
        self.seq += 1
        self.fold.add(
            Record(seq=self.seq, at=self.at, gen=self.generation, event=event, actions=decided, source=source)
        )

    def form(self, num: int) -> None:
        self.generation += 1
        resume = self.step - 1 if self.step else None
        started = tuple(
            actions.StartWorkers(why="restart", node=f"gpu-{n:05}", generation=self.generation, slot=n, num_slots=num,
                                 first_rank=n, num_ranks=1, world_size=num, store_host="h", store_port=1,
                                 resume_step=resume)
            for n in range(num)
        )  # fmt: skip
        self.add(events.StoreOpened(at=self.at, generation=self.generation, host="h", port=1), started)
        for n in range(num):
            who = (Started(rank=n, pid=9, how="twin", at=self.at),)
            self.add(events.WorkersStarted(at=self.at, node=f"gpu-{n:05}", generation=self.generation, started=who))
        self.at += 40.0
        self.num, self.first, self.loop_at = num, self.step, self.at

    def accounts(self, n: int) -> tuple[RankAccount, ...]:
        last = self.step - 1
        return (
            RankAccount(rank=n, spawned_at=self.loop_at - 40, entered_at=self.loop_at - 30, loop_at=self.loop_at,
                        restore_s=9.0, first_step=self.first, last_step=last, first_step_at=self.loop_at + 6,
                        last_step_at=self.at, published_step=last, backed_up_step=last, counts_own_steps=True),
        )  # fmt: skip

    def report(self, n: int) -> None:
        self.add(
            events.ProgressReported(
                at=self.at, node=f"gpu-{n:05}", generation=self.generation, accounts=self.accounts(n)
            )
        )

    def train(self, length_s: float) -> None:
        for _ in range(8):
            self.at += length_s / 8
            self.step += int(length_s / 8 / 6)
            for n in range(self.num):
                self.report(n)
            points = tuple(
                LossPoint(at=self.at - k, step=self.step - k, loss=2.0 + 9.0 / (1 + self.step / 9000)) for k in (9, 0)
            )
            self.add(events.LossNoted(at=self.at, generation=self.generation, rank=0, points=points))
            checkpoint = Checkpoint(
                step=self.step, path="/c", world_size=self.num, at=self.at, is_trusted=self.step % 3 > 0
            )
            gone = tuple(c.step for c in self.fold.view.kept.checkpoints[:-2])
            event = events.CheckpointCommitted(
                at=self.at, node="gpu-00000", step=self.step, checkpoint=checkpoint, dropped=gone
            )
            self.add(event)

    def fail(self, number: int, num_next: int) -> None:
        name, code, begun = f"i{number + 1}", CODES[number % len(CODES)], self.at
        node = f"gpu-{(number * 37) % self.num_nodes:05}"
        says = f"rank {number % FEW} on {node} was killed by SIGKILL; no sign of lack of memory"
        verdict = Verdict(code=code, sentence=says, blame=Blame.MACHINE, confidence=Confidence.HIGH,
                          ranks=(number % FEW,), node=node, at=begun)  # fmt: skip
        decision = Decision(
            chosen=f"restart all ranks as generation {self.generation + 1}", rule="restart-in-place", why="restart"
        )
        self.add(events.TimerFired(at=self.at, key="x"), (actions.IncidentOpened(why="", incident=name),
                 actions.Concluded(why="", incident=name, verdict=verdict, decision=decision)))  # fmt: skip
        self.at += 15.0
        self.add(events.WorkersStopped(at=self.at, node=node, generation=self.generation))
        self.step -= 3
        self.form(num_next)
        self.at += 12.0
        self.step += 1
        closed = actions.IncidentClosed(
            why="recovered", incident=name, outcome="recovered", recovered_at=self.at, lost_steps=3
        )
        for n in range(num_next):
            self.report(n)
        self.add(events.TimerFired(at=self.at, key="x"), (closed,))


class Source:
    def __init__(self, run: Run) -> None:
        self.overview = Overview()
        self.run = run
        self.run_dir = Path("/nonexistent")
        self.looks: list[float] = []

    async def now(self) -> Moment:
        return Moment(view=self.run.fold.view, asked=Asked(at=time.time(), controller_pid=os.getpid()))

    async def rows(self) -> dict[str, Row]:
        begun = time.thread_time()
        for _ in self.overview.settle(self.run.fold.view):
            await asyncio.sleep(0)
        moment = await self.now()
        rows = self.overview.rows(moment.view, moment.asked)
        self.looks.append(time.thread_time() - begun)
        return rows


def serve(port: int, given: argparse.Namespace, told: "multiprocessing.Queue[float]") -> None:
    async def main() -> None:
        begun = time.thread_time()
        run = Run(given.nodes, given.days, given.incidents)
        source, files = Source(run), Files()
        pages = Pages(source, files)
        app = web.Application()
        app.router.add_get("/", pages.document)
        app.router.add_get("/static/{name}", lambda request: _file(files, request))
        app.router.add_get("/cost", lambda _: _cost(source))
        app.router.add_routes(list(pages.routes()))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        told.put(time.thread_time() - begun)
        n = 0
        while True:  # the job goes on: 100 reports a second, as many as a controller records
            await asyncio.sleep(1.0)
            if given.still:
                continue
            run.at, run.step = time.time(), run.step + (n % 6 == 0)
            for k in range(100):
                run.report((n * 100 + k) % run.num)
            n += 1

    asyncio.run(main())


async def _file(files: Files, request: web.Request) -> web.Response:
    return files.answer(request, request.match_info["name"])


async def _cost(source: Source) -> web.Response:
    used = resource.getrusage(resource.RUSAGE_SELF)
    looks = [round(1000 * s, 1) for s in source.looks]
    body = {"cpu_s": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss >> 10, "looks_ms": looks}
    return web.Response(body=msgspec.json.encode(body), headers=HEADERS)


async def measure(port: int, given: argparse.Namespace) -> None:
    base = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)) as session:
        begun = time.monotonic()
        async with session.get(base + "/api/overview", headers={"Accept-Encoding": "gzip"}) as answer:
            data = await answer.read()
        print(f"overview, first look      {time.monotonic() - begun:6.2f} s   {len(data) / 1024:6.0f} KiB compressed, "
              f"{len(gzip.decompress(data)) / 1024:.0f} KiB plain")  # fmt: skip
        whole = len(data)
        for name in sorted(path.name for path in FOLDER.iterdir() if path.name not in ("runs.js", "runs.html")):
            async with session.get(f"{base}/static/{name}", headers={"Accept-Encoding": "gzip"}) as answer:
                whole += len(await answer.read())
        print(f"everything for a first paint          {whole / 1024:6.0f} KiB over the wire   (limit 200)")
        await asyncio.sleep(5)
        await first_paint(base)
        idle = await cpu(session, base, given.seconds)
        readers = [asyncio.create_task(read(session, base)) for _ in range(10)]
        await asyncio.sleep(5)
        busy = await cpu(session, base, given.seconds)
        told = [reader.result() if reader.done() else None for reader in readers]
        assert told == [None] * 10, "all ten pages are still open"
        print(f"controller's process      {100 * idle:6.2f} % of a core with no page, {100 * busy:.2f} % with ten: "
              f"{100 * (busy - idle):.2f} % for the pages   (limit 1)")  # fmt: skip
        async with session.get(base + "/cost") as answer:
            cost = msgspec.json.decode(await answer.read())
        first, *later = cost["looks_ms"]
        print(f"a look                    first {first:.0f} ms, in slices; then median {median(later):.0f} ms of CPU,")
        print(f"                          longest {max(later):.0f} ms; {len(later)} looks; {cost['mib']} MiB")
        for reader in readers:
            reader.cancel()


async def read(session: aiohttp.ClientSession, base: str) -> None:
    async with session.get(base + "/api/events") as answer:
        async for _ in answer.content.iter_any():
            pass


async def cpu(session: aiohttp.ClientSession, base: str, seconds: float) -> float:
    async def used() -> float:
        async with session.get(base + "/cost") as answer:
            return float(msgspec.json.decode(await answer.read())["cpu_s"])

    before, begun = await used(), time.monotonic()
    await asyncio.sleep(seconds)
    return (await used() - before) / (time.monotonic() - begun)


async def first_paint(base: str) -> None:
    from browser import CHROMIUM, Browser

    if CHROMIUM is None:
        print("first paint               not measured: no chromium here")
        return
    async with Browser() as browser:
        for _ in range(3):
            await browser.open(base + "/")
            await browser.until(
                "document.querySelectorAll('#lanes path').length && document.querySelector('#fleet canvas') ? 1 : 0"
            )
            painted = await browser.run(
                "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(Math.round("
                "performance.getEntriesByType('paint').find(p => p.name === 'first-contentful-paint').startTime))))) "
            )
            drawn = await browser.run("Math.round(performance.now())")
            print(
                f"first paint               {painted} ms; lanes and map there after at most {drawn} ms   (limit 1000)"
            )
        frames = await browser.run(FRAMES)
        print(f"moving over the time axis {frames:.0f} frames/s   (limit 30)")
        print("errors in the page       ", browser.errors or "none")


FRAMES = """new Promise(done => {
  const svg = document.querySelector('.lanes'), box = svg.getBoundingClientRect();
  let n = 0, begun = null;
  const tick = at => {
    begun ??= at; n++;
    const place = {clientX: box.left + 90 + (7 * n) % 1000, clientY: box.top + 9, bubbles: true};
    svg.dispatchEvent(new PointerEvent('pointermove', place));
    at - begun < 2000 ? requestAnimationFrame(tick) : done(n / ((at - begun) / 1000));
  };
  requestAnimationFrame(tick);
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--incidents", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement of the CPU")
    parser.add_argument("--port", type=int, default=18787)
    parser.add_argument("--still", action="store_true", help="nothing is reported meanwhile")
    given = parser.parse_args()
    told = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(given.port, given, told), daemon=True)
    server.start()
    print(
        f"{given.nodes:,} nodes, {given.days:g} days, {given.incidents} incidents, folded in {told.get():.1f} s of CPU"
    )
    try:
        asyncio.run(measure(given.port, given))
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
