"""A real browser, driven over its own debugging port: no driver has to be installed. Tests without one are skipped."""

import asyncio
import base64
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, Self

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """`async with Browser() as browser:` has one page."""

    def __init__(
        self, width: int = 1280, height: int = 800, *, dark: bool = False, arguments: tuple[str, ...] = ()
    ) -> None:
        self._size = width, height
        self._dark = dark
        self._arguments = arguments
        self._number = 0
        self.errors: list[str] = []  # uncaught, or refused by the content policy
        self.requested: list[str] = []

    async def __aenter__(self) -> Self:
        assert CHROMIUM is not None
        self._folder = tempfile.TemporaryDirectory(prefix="everstep-browser-", ignore_cleanup_errors=True)
        self._process = await asyncio.create_subprocess_exec(
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
            f"--user-data-dir={self._folder.name}", *self._arguments, "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        announced = Path(self._folder.name) / "DevToolsActivePort"
        while not announced.exists() or not announced.read_text().strip():
            assert self._process.returncode is None, "the browser ended"
            await asyncio.sleep(0.05)
        port = announced.read_text().split()[0]
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json") as answer:
            target = next(each for each in await answer.json() if each["type"] == "page")
        self._socket = await self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.create_task(self._read())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        width, height = self._size
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.set_dark(self._dark)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        await self._session.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._folder.cleanup()

    async def set_dark(self, dark: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        self._number += 1
        answer = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(60):
            return await answer

    async def open(self, address: str) -> None:
        await self.call("Page.navigate", url=address)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def until(self, script: str, limit_s: float = 60.0) -> Any:
        """Wait until an expression is true."""
        async with asyncio.timeout(limit_s):
            while True:
                with contextlib.suppress(AssertionError):
                    if value := await self.run(script):
                        return value
                await asyncio.sleep(0.05)

    async def text(self) -> str:
        return str(await self.run("document.body ? document.body.innerText : ''"))

    async def picture(self, path: Path, *, full: bool = True) -> None:
        clip = {}
        if full:
            size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full, **clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                waiting = self._waiting.pop(told["id"], None)
                if waiting is not None and not waiting.done():
                    if "error" in told:
                        waiting.set_exception(AssertionError(str(told["error"])))
                    else:
                        waiting.set_result(told["result"])
            elif told["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(told["params"]["exceptionDetails"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["source"] == "security":
                self.errors.append(told["params"]["entry"]["text"])
            elif told["method"] == "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])
