"""Pictures of every page, light and dark, of runs that are over, in a real browser (Debian's Chromium).

    python bench/pictures.py RUNS_DIR RUN INCIDENT OUT

Writes OUT/page-{runs,run,incident,ranks,paces,traffic,fleet,node}{,-dark}.webp. Nothing judges them: look at each.
"""

import argparse
import asyncio
import base64
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/integration"))
from browser import Browser

from everstep.web.server import listen, serve

TOKEN = "t0ken"
QUALITY = 40
SETTLE_S = 1.0


async def shoot(browser: Browser, path: Path) -> None:
    await browser.until("!/Asking|Reading what/.test(document.body.innerText)")
    await asyncio.sleep(SETTLE_S)  # plots are drawn after the text
    size = (await browser.call("Page.getLayoutMetrics"))["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 1000), "scale": 1}
    shot = await browser.call(
        "Page.captureScreenshot", format="webp", quality=QUALITY, captureBeyondViewport=True, clip=clip
    )
    path.write_bytes(base64.b64decode(shot["data"]))
    print(f"{path}  {path.stat().st_size >> 10} KiB")


async def take(given: argparse.Namespace) -> None:
    stop, sock = asyncio.Event(), listen(0)
    base = f"http://127.0.0.1:{sock.getsockname()[1]}"
    server = asyncio.create_task(serve(given.folder.absolute(), sock, TOKEN, stop))
    run = f"{base}/runs/{given.run}"
    pages = {
        "runs": f"{base}/",
        "run": f"{run}/",
        "incident": f"{run}/incidents/{given.incident}",
        "ranks": f"{run}/incidents/{given.incident}/ranks",
        "paces": f"{run}/ranks",
        "traffic": f"{run}/traffic",
        "fleet": f"{run}/fleet",
        "node": f"{run}/nodes/n0",
    }
    try:
        for is_dark in (False, True):
            async with Browser(height=400, dark=is_dark) as browser:
                await browser.open(f"{base}/?token={TOKEN}")
                await browser.until("document.body.innerText.includes('run')")
                for name, address in pages.items():
                    await browser.open(address)
                    await asyncio.sleep(SETTLE_S)
                    await shoot(browser, given.out / f"page-{name}{'-dark' if is_dark else ''}.webp")
                if browser.errors:
                    print("errors in the page:", *browser.errors, sep="\n  ")
    finally:
        stop.set()
        await server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("run")
    parser.add_argument("incident")
    parser.add_argument("out", type=Path)
    asyncio.run(take(parser.parse_args()))
