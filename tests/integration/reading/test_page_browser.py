"""The page in a real browser: what a rank wrote is text, and a page of another origin gets nothing."""

import asyncio
import base64
import json
import sys
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

from everstep.journal.beside import paces
from everstep.journal.beside.paces import PaceRound, Paces
from everstep.web.server import listen, serve

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from fabrics.pictured import counts, job, network
from fabrics.two_tiers import two_tiers

JOURNAL = Path(__file__).parents[2] / "golden/journal.jsonl"
EVIL = '<img src=x onerror="window.hurt=1"><script>window.hurt=2</script>\x1b]0;x\x07\u202e\'"`;{{7*7}}'
TOKEN = "t0ken"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def hurt(value: object, name: str = "") -> object:
    """Every text that a user or a rank wrote, and no name by which things refer to each other."""
    if isinstance(value, dict):
        return {key: hurt(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [hurt(each, name) for each in value]
    free = ("sentence", "says", "why", "chosen", "message", "traceback", "detail", "program", "args", "host", "what")
    return f"{value} {EVIL}" if isinstance(value, str) and name in free else value


def test_what_a_rank_wrote_is_text_on_every_page_and_others_read_nothing(tmp_path):
    run = tmp_path / "hurt"
    lines = [json.dumps(hurt(json.loads(line)), separators=(",", ":")) for line in JOURNAL.read_text().splitlines()]
    job(run, "\n".join(lines) + "\n", per_s=4, title=f"dp {EVIL}")
    lab = two_tiers(leaves=2, nics=2, spines=2, bps=100e6)
    network(run / "fabric", lab, counts("leaf0:u0", [75.0] * 60) + counts(f"n1 {EVIL}:nic0", [1.0]))
    round_ = PaceRound(at=1.8e9, usual_s=1.0, compute_s=(1.0, 1.7))
    nodes = (f"n0 {EVIL}", f"n1 {EVIL}")
    paces.save(run, Paces(generation=0, num_ranks=2, num_measured=2, order=EVIL, ranks=(0, 1), nodes=nodes,
                          wait_s=(0.7, None), data_s=(None, None), rounds=(round_,) * 3))  # fmt: skip

    async def main():
        stop, sock = asyncio.Event(), listen(0)
        base = f"http://127.0.0.1:{sock.getsockname()[1]}"
        server = asyncio.create_task(serve(tmp_path, sock, TOKEN, stop))
        try:
            async with Browser() as browser:
                await look(browser, base)
        finally:
            stop.set()
            await server

    async def look(browser, base):
        await browser.open(f"{base}/?token={TOKEN}&run=hurt")
        await browser.until("location.pathname === '/runs/hurt/' && document.body.innerText.includes('4 incidents')")
        assert "token" not in await browser.run("location.href")
        assert EVIL[:20] in await browser.text()
        await browser.run("document.querySelector('#incidents a').click()")
        await browser.until("document.body.innerText.includes('What happened')")
        assert EVIL[:20] in await browser.text()
        for path in ("/fleet", "/ranks", "/traffic", "/nodes/n0", "/incidents/i1"):
            await browser.run(f"history.pushState(null, '', '/runs/hurt{path}'); dispatchEvent(new Event('popstate'))")
            await browser.until("!document.querySelector('#main').innerText.startsWith('Asking')")
            if path == "/ranks":
                await browser.until("document.body.innerText.includes('needs 70% more per step')")
                assert EVIL[:20] in await browser.text()
            if path == "/traffic":
                await browser.until("document.body.innerText.includes('links hot: leaf0:u0')")
                told = await browser.text()
                assert f"dp {EVIL[:20]}" in told
                assert f"n1 {EVIL[:20]}" in told  # its ports are of no cable that is known
                assert await browser.run("document.querySelectorAll('svg.curve').length") == 16
        await browser.open(base + "/")
        await browser.until("document.body.innerText.includes('1 run')")
        odd = "document.querySelectorAll('main img, main script, main iframe, [onerror], [onclick], base').length"
        assert await browser.run(odd) == 0
        assert await browser.run("window.hurt ?? 0") == 0
        assert browser.errors == []
        assert all(url.startswith((base, "about:", "data:")) for url in browser.requested), browser.requested
        await browser.open("data:text/html,<title>elsewhere</title>")
        await browser.until("document.title === 'elsewhere'")
        told = (
            f"fetch('{base}/api/runs', {{credentials: 'include'}}).then(a => a.text()).then(() => 'read', () => 'no')"
        )
        assert await browser.run(told) == "no"

    asyncio.run(main())


def test_a_run_and_an_incident_print_to_one_page(tmp_path):
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1/journal.jsonl").write_bytes(JOURNAL.read_bytes())

    async def main():
        stop, sock = asyncio.Event(), listen(0)
        base = f"http://127.0.0.1:{sock.getsockname()[1]}"
        server = asyncio.create_task(serve(tmp_path, sock, TOKEN, stop))
        try:
            async with Browser() as browser:
                await browser.open(f"{base}/?token={TOKEN}")
                await browser.until("document.body.innerText.includes('1 run')")
                for path, shown in (("", "4 incidents"), ("incidents/i2", "What happened"), ("fleet", "active")):
                    await browser.open(f"{base}/runs/r1/{path}")
                    await browser.until(f"document.body.innerText.includes('{shown}')")
                    pdf = await browser.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
                    assert base64.b64decode(pdf["data"]).count(b"/Type /Page\n") == 1, path
                    assert await browser.run("document.documentElement.className + document.body.style.zoom") == ""
        finally:
            stop.set()
            await server

    asyncio.run(main())
