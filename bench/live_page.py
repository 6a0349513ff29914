"""A run with five faults in a real browser: does the page say at each moment what `everstep status --json` says?

    python bench/live_page.py                     kill, hang, slow rank, NaN (a rollback), lost node; a hostile rank
    python bench/live_page.py --faults kill,hang --only faults
    python bench/live_page.py --pictures build    and what it looked like

A look at the page is right when some status of the last `--lag` seconds says the same; the longest lag that was needed
is told. Statuses are asked ten times a second, so a look that no status says is held against the journal: what the
status would have been after each of its records in that time. The last part opens a run whose rank wrote 10 MB lines,
escapes and broken UTF-8, and raises them, and asks for the page by a name that is made to lead here (DNS rebinding).
"""

import argparse
import asyncio
import collections
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/integration"))
from browser import Browser

from everstep.goodput.figures import goodput_of
from everstep.journal.fold import Fold
from everstep.journal.history import history_of
from everstep.journal.reader import read_journal
from everstep.report.asjson import status_json
from everstep.report.parts.asked import Asked

PROGRAM = """
import time
import torch, torch.distributed as dist, everstep
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(1_000_000):
    loss = model(torch.ones(4, 16)).square().mean()
    optimizer.zero_grad(); loss.backward(); time.sleep(0.05); optimizer.step()
    everstep.step(loss=loss)
"""

HOSTILE = """
import os, sys, time
evil = b"<script>window.hurt=1</script>\\x1b]0;x\\x07\\x1b[2J\\xff\\xfe\\xe2\\x80"
for fd in (1, 2):
    os.write(fd, evil + b"\\n")
    for _ in range(10):
        os.write(fd, evil * 35_000)
    os.write(fd, b"\\n")
time.sleep(40)
raise RuntimeError(evil.decode("utf-8", "surrogateescape") + "y" * 20_000)
"""

FAULTS: dict[str, dict[str, Any]] = {
    "kill": {"kind": "kill-rank", "rank": 1},
    "hang": {"kind": "python-loop", "rank": 2},
    "slow": {"kind": "slow", "rank": 1, "options": {"percent": 200, "seconds": 40}},
    "rollback": {"kind": "nan", "rank": 0},
    "lost node": {"kind": "lose-node", "node": ""},
}

LOOK = r"""(() => {
  const text = id => document.querySelector(id)?.innerText ?? '';
  const tiles = [...document.querySelectorAll('.tile')].map(t => [...t.children].map(c => c.innerText));
  const tile = name => tiles.find(t => t[0].toLowerCase() === name);
  const facts = [...document.querySelectorAll('#answer .status span')].map(s => s.innerText);
  const generation = facts.find(f => f.startsWith('generation'));
  return {status: facts[0]?.replace(/^\S+ /, '').toLowerCase(), generation: generation?.slice(11),
    now: text('#answer h1'), step: tile('step')?.[1], incidents: tile('restarts')?.[2],
    machines: tile('machines')?.[1], out: tile('machines')?.[2]};
})()"""


def said_by_page(look: dict[str, str]) -> tuple[str, ...]:
    return (look["status"], look["generation"], look["now"].lower(), look["incidents"], look["machines"], look["out"])


def said_by_status(status: dict[str, Any]) -> tuple[str, ...]:
    roles = collections.Counter(node["role"] for node in status["nodes"])
    number = status["incidents"]
    generation = "—" if status["generation"] is None else str(status["generation"])
    words = (f"{number} incident{'' if number == 1 else 's'}", f"{roles['active']} active")
    out = f"{roles['standby']} standby, {roles['out']} out"
    return (status["status"].replace("-", " "), generation, status["now"].lower(), *words, out)


class Watch:
    """Statuses as they come, and whether what the page says is one of them."""

    def __init__(self, base: str, token: str, session: aiohttp.ClientSession) -> None:
        self._base, self._headers, self._session = base, {"Authorization": f"Bearer {token}"}, session
        self.seen: collections.deque[tuple[float, tuple[str, ...], int]] = collections.deque()
        self.right, self.wrong, self.lag_s = 0, [], 0.0
        self.unseen: list[tuple[dict[str, str], tuple[str, ...], int, float]] = []  # held against the journal later

    async def status(self) -> dict[str, Any]:
        async with self._session.get(f"{self._base}/api/status", headers=self._headers) as answer:
            return msgspec.json.decode(await answer.read())

    async def follow(self) -> None:
        while True:
            status = await self.status()
            self.seen.append(
                (time.monotonic(), said_by_status(status), -1 if status["step"] is None else status["step"])
            )
            await asyncio.sleep(0.1)

    def judge(self, look: dict[str, str], at: float, most_s: float) -> None:
        page, step = said_by_page(look), int(look["step"].replace(",", "")) if look["step"][:1].isdigit() else -1
        lags = [at - when for when, said, _ in self.seen if said == page and at - when <= most_s]
        steps = [known for when, _, known in self.seen if at - most_s <= when]
        if lags and steps and min(steps) <= step <= max(steps):
            self.right += 1
            self.lag_s = max(self.lag_s, max(0.0, min(lags)))
        else:
            self.unseen.append((look, self.seen[-1][1], step, time.time()))

    def judge_by_journal(self, journal: Path, most_s: float) -> int:
        """How many of the looks that no status said are what a record made true."""
        reading = read_journal(journal)
        fold, said = Fold(reading.header), []
        for entry in reading.entries:
            fold.add(entry)
            if any(at - most_s <= entry.at <= at for *_, at in self.unseen):
                asked = Asked(at=entry.at, controller_pid=1)
                status = status_json(fold.view, goodput_of(history_of(fold.view, entry.at)), asked)
                said.append((entry.at, said_by_status(status), -1 if status["step"] is None else status["step"]))
        for look, status, step, at in self.unseen:
            page = said_by_page(look)
            steps = [known for when, _, known in said if at - most_s <= when <= at]
            if any(at - most_s <= when <= at and words == page for when, words, _ in said) and step <= max(steps):
                self.right += 1
            else:
                self.wrong.append((look, status))
        return len(self.unseen) - len(self.wrong)


async def watch(browser: Browser, watching: Watch, seconds: float, lag_s: float, until: Any = None) -> None:  # noqa: ANN401
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        look = await browser.run(LOOK)
        at = time.monotonic()
        await asyncio.sleep(0.15)  # a status of the same moment
        if look["status"] and look["step"]:
            watching.judge(look, at + 0.15, lag_s)
        if until is not None and await until():
            return
        await asyncio.sleep(0.3)


async def five_faults(folder: Path, given: argparse.Namespace) -> None:
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "everstep", "run", "--local-nodes", "2", "--standby", "1", "--nproc-per-node", "2",
               "--run-dir", str(folder / "run"), str(folder / "train.py")]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(folder / "said").open("wb"))
    try:
        base, token, key = await reach(folder / "run")
        async with aiohttp.ClientSession() as session, Browser() as browser:
            watching = Watch(base, token, session)
            following = asyncio.create_task(watching.follow())
            await browser.open(f"{base}/?token={token}")
            await browser.until("document.querySelectorAll('.tile').length")
            await until_running(watching)
            await watch(browser, watching, 5, given.lag)
            for name in given.faults.split(","):
                await fault(browser, watching, session, base, key, name, FAULTS[name], given)
            following.cancel()
            by_journal = watching.judge_by_journal(folder / "run/journal.jsonl", given.lag)
            print(f"looks that say what a status of the last {given.lag:g} s said: {watching.right} of "
                  f"{watching.right + len(watching.wrong)} ({by_journal} of them by the journal); longest lag "
                  f"{watching.lag_s:.2f} s; errors in the page: "
                  f"{browser.errors or 'none'}")  # fmt: skip
            for look, status in watching.wrong[:3]:
                print("  not the same:", look, status)
            await pictures(browser, given, "run")
        shown = subprocess.run([sys.executable, "-m", "everstep", "status", "--json", "--run-dir", str(folder / "run")],
                               capture_output=True, check=True).stdout  # fmt: skip
        print("incidents by the command:", msgspec.json.decode(shown)["incidents"])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


async def fault(browser: Browser, watching: Watch, session: aiohttp.ClientSession, base: str, key: str, name: str,
                drill: dict[str, Any], given: argparse.Namespace) -> None:  # fmt: skip
    status = await watching.status()
    before, begun = status["incidents"], time.monotonic()
    if "node" in drill:
        drill = drill | {"node": next(node["node"] for node in reversed(status["nodes"]) if node["role"] == "active")}
    async with session.post(f"{base}/api/drill", headers={"Authorization": f"Bearer {key}"}, json=drill) as answer:
        asked = await answer.json()

    async def is_over() -> bool:
        status = await watching.status()
        return status["incidents"] > before and status["incident"] is None and status["status"] == "running"

    right, wrong = watching.right, len(watching.unseen)
    await watch(browser, watching, given.seconds, given.lag, is_over)
    await watch(browser, watching, 4, given.lag)
    status = await watching.status()
    print(f"{name:<10} {asked}  {watching.right - right} looks right, {len(watching.unseen) - wrong} not yet; "
          f"{status['incidents'] - before} incidents, {time.monotonic() - begun:.0f} s, now {status['status']}",
          flush=True)  # fmt: skip


async def hostile(folder: Path, given: argparse.Namespace) -> None:
    (folder / "evil.py").write_text(HOSTILE)
    command = [sys.executable, "-m", "everstep", "run", "--max-restarts", "0", "--run-dir", str(folder / "evil"),
               str(folder / "evil.py")]  # fmt: skip
    with (folder / "shown").open("wb") as shown:
        process = subprocess.Popen(command, stdout=shown, stderr=shown)
    base, token, _ = await reach(folder / "evil")
    port = base.rpartition(":")[2]
    async with Browser(arguments=("--host-resolver-rules=MAP evil.test 127.0.0.1",)) as browser:
        await browser.open(f"http://evil.test:{port}/?token={token}")
        await browser.until("document.body && document.body.innerText.length")
        print("by a rebound name:", (await browser.text())[:80])
        fetched = f"fetch('http://evil.test:{port}/api/overview').then(a => a.status, () => 'failed')"
        print("  and its data:", await browser.run(fetched))
    await asyncio.to_thread(process.wait, 120)
    ui = subprocess.Popen([sys.executable, "-m", "everstep", "ui", str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        address = ""
        while "http" not in address:
            address = ui.stdout.readline()
        async with Browser() as browser:
            await browser.open(f"{address.strip()}&run=evil")
            await browser.until("document.querySelectorAll('#incidents a').length")
            await browser.run("document.querySelector('#incidents a').click()")
            await browser.until("document.body.innerText.includes('What happened')")
            text = await browser.text()
            odd = await browser.run("[window.hurt ?? 0, document.querySelectorAll('main script, main img').length]")
            print(f"hostile rank: {odd} (hurt, elements made), {len(text)} characters shown, "
                  f"errors: {browser.errors or 'none'}")  # fmt: skip
            await pictures(browser, given, "hostile")
    finally:
        ui.terminate()
        ui.wait(10)


async def pictures(browser: Browser, given: argparse.Namespace, name: str) -> None:
    if given.pictures:
        Path(given.pictures).mkdir(parents=True, exist_ok=True)
        for dark in (False, True):
            await browser.set_dark(dark)
            await browser.picture(Path(given.pictures) / f"{name}-{'dark' if dark else 'light'}.png")


async def reach(run_dir: Path) -> tuple[str, str, str]:
    """The address, the token to read and the one to act."""
    address = run_dir / "controller.json"
    async with asyncio.timeout(60):
        while not address.exists():
            await asyncio.sleep(0.1)
    port = msgspec.json.decode(address.read_bytes())["port"]
    return f"http://127.0.0.1:{port}", *((run_dir / name).read_text().strip() for name in ("token-read", "token"))


async def until_running(watching: Watch) -> None:
    async with asyncio.timeout(120):
        while (await watching.status())["step"] is None:
            await asyncio.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=75.0, help="a fault gets so long")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--lag", type=float, default=3.0, help="a page may be so old")
    parser.add_argument("--pictures", help="a folder for pictures")
    parser.add_argument("--only", choices=("faults", "hostile"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-live-") as name:
        os.environ["EVERSTEP_HOME"] = f"{name}/home"
        if given.only != "hostile":
            asyncio.run(five_faults(Path(name), given))
        if given.only != "faults":
            asyncio.run(hostile(Path(name), given))


if __name__ == "__main__":
    main()
