"""`everstep ui`: the pages of recorded runs, on loopback, for users with the printed link. It only reads.

/                       all runs of the directory
/runs/ID/...            one of them: the same pages and JSON as at the controller's port
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from everstep.errors import ConfigError, EverstepError
from everstep.goodput.figures import goodput_of
from everstep.journal.history import history_of
from everstep.journal.pages import Pages as JournalPages
from everstep.report.asjson import status_json
from everstep.web import browsers
from everstep.web.files import HEADERS, LOCKED, Files, packed
from everstep.web.garbage import garbage_log
from everstep.web.library import Library
from everstep.web.pages import HANDLERS, PAGES, Pages
from everstep.web.recorded import Recorded
from everstep.web.visitors import IDLE_S, Visitors

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_OPEN = 32
"""Runs of which the journal is kept in memory; the one that was opened longest ago makes room."""

LIST_EVERY_S = 1.0


class Ui:
    def __init__(self, folder: Path, token: str) -> None:
        self.visitors = Visitors()
        self._library = Library(folder)
        self._token = token
        self._files = Files()
        self._open: dict[str, Pages] = {}
        self._sources: dict[str, Recorded] = {}
        self._listing = asyncio.Lock()
        self._listed: tuple[float, bytes] | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=4096, middlewares=[self._guard])
        app.router.add_get("/", self._runs_page)
        app.router.add_get("/api/runs", self._runs)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/runs/{run}/api/journal", self._journal)
        app.router.add_get("/runs/{run}/api/status", self._status)
        for path, name in HANDLERS.items():
            app.router.add_get("/runs/{run}" + path, self._of_run(name))
        for path in PAGES:
            app.router.add_get("/runs/{run}" + path, self._of_run("document"))
        app.on_shutdown.append(self._close)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        with self.visitors.answering(request):
            return await self._answer(request, handler)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if why := browsers.why_foreign(request):
                return _error(403, why)
        except ValueError:
            return _error(400, "a header that cannot be understood")
        if request.method not in ("GET", "HEAD"):
            return _error(405, "everstep ui only reads")
        has_link = request.path == "/" and _is(request.query.get("token", ""), self._token)
        cookie = request.cookies.get(browsers.cookie_name(request), "")
        bearer = request.headers.get("Authorization", "")
        if not (has_link or _is(cookie, self._token) or _is(bearer, f"Bearer {self._token}")):
            return web.Response(status=401, text=LOCKED, content_type="text/html", headers=HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return _error(error.status, error.reason)
        except EverstepError as error:
            return _error(500, str(error))
        if has_link:
            browsers.admit(request, response, self._token)
        return response

    def _of_run(self, name: str) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            pages = self._pages(request.match_info["run"])
            if pages is None:
                return _error(404, "no such run in this directory")
            answer: web.StreamResponse = await getattr(pages, name)(request)
            return answer

        return handle

    def _pages(self, run: str) -> Pages | None:
        pages = self._open.get(run)
        if pages is None:
            run_dir = self._library.find(run)
            if run_dir is None:
                return None
            self._sources[run] = Recorded(run_dir)
            pages = self._open[run] = Pages(self._sources[run], self._files)
            for other in list(self._open)[:-MAX_OPEN]:
                self._open.pop(other).live.close()
                del self._sources[other]
        return pages

    async def _runs_page(self, request: web.Request) -> web.Response:
        return self._files.answer(request, "runs.html")

    async def _file(self, request: web.Request) -> web.Response:
        return self._files.answer(request, request.match_info["name"])

    async def _runs(self, request: web.Request) -> web.Response:
        async with self._listing:
            if self._listed is None or time.monotonic() > self._listed[0]:
                rows = await asyncio.to_thread(self._library.rows)
                every_s = 0.0 if self._library.is_behind else LIST_EVERY_S
                self._listed = time.monotonic() + every_s, msgspec.json.encode({"runs": rows, "at": time.time()})
        return packed(request, self._listed[1], "application/json", HEADERS)

    async def _status(self, request: web.Request) -> web.Response:
        if self._pages(request.match_info["run"]) is None:
            return _error(404, "no such run in this directory")
        moment = await self._sources[request.match_info["run"]].now()
        is_live = moment.asked.has_controller and not moment.view.is_over
        goodput = goodput_of(history_of(moment.view, moment.asked.at if is_live else None))
        return packed(request, msgspec.json.encode(status_json(moment.view, goodput, moment.asked)), _JSON, HEADERS)

    async def _journal(self, request: web.Request) -> web.Response:
        run_dir = self._library.find(request.match_info["run"])
        after = request.query.get("after", "0")
        if run_dir is None or not (after.isascii() and after.isdecimal()) or len(after) > 18:
            return _error(400 if run_dir else 404, "after must be a record's number, of a run that is there")
        self._pages(request.match_info["run"])
        moment = await self._sources[request.match_info["run"]].now()
        last = moment.view.last_seq
        records = await asyncio.to_thread(JournalPages(run_dir.journal).read, int(after), last)
        return packed(request, msgspec.json.encode({"records": records, "last": last}), _JSON, HEADERS)

    async def _close(self, _: web.Application) -> None:
        for pages in self._open.values():
            pages.live.close()


_JSON = "application/json"


def _is(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode(errors="replace"), wanted.encode())


def _error(status: int, why: str) -> web.Response:
    body: Any = msgspec.json.encode({"error": why})
    return web.Response(body=body, status=status, content_type=_JSON, headers=HEADERS)


def listen(port: int) -> socket.socket:
    """On loopback alone. Raises ConfigError."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen(64)  # from now on a browser waits, and is not refused
    except (OSError, OverflowError) as error:
        sock.close()
        raise ConfigError(f"cannot listen on 127.0.0.1:{port}: {error}. Choose another with --port") from error
    return sock


async def serve(folder: Path, sock: socket.socket, token: str, stop: asyncio.Event) -> None:
    """Until `stop` is set."""
    os.set_blocking(sock.fileno(), False)
    ui = Ui(folder, token)
    runner = web.AppRunner(
        ui.app(),
        access_log=None,
        handle_signals=False,
        shutdown_timeout=0.5,
        keepalive_timeout=IDLE_S,
        logger=garbage_log("everstep.web", lambda _: None),
    )
    await runner.setup()
    ui.visitors.make_http = runner.server
    server = await asyncio.get_running_loop().create_server(ui.visitors, sock=sock)
    try:
        await stop.wait()
    finally:
        server.close()
        await runner.cleanup()
        ui.visitors.owners.close()


def new_token() -> str:
    return secrets.token_urlsafe(24)
