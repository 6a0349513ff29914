"""The controller's HTTP side: status, health, journal, metrics, the page, and the three things one may ask for.

Everything needs a token: reading the one, acting the other. A request becomes an event on the same queue as all others:
nothing here changes the state. Documented in docs/api.md.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from everstep.controller.answering import send
from everstep.controller.draining import drain_alert, named, what_follows
from everstep.controller.loop import Controller
from everstep.controller.metrics import Metrics
from everstep.controller.page import RunSource
from everstep.controller.peers.peers import Handling, Input
from everstep.core.faults.drills import KINDS as DRILL_KINDS
from everstep.core.faults.tracing import MAX_ASKED_S
from everstep.errors import JournalError
from everstep.goodput.figures import Goodput, goodput_of
from everstep.journal.beside.variables import save_values
from everstep.journal.history import history_of
from everstep.journal.pages import Pages
from everstep.model.events import (
    DrillRequested,
    Event,
    EvidenceRequested,
    NodeAlerted,
    ProposalApproved,
    RestartRequested,
    StopRequested,
    TraceRequested,
    UpdateRequested,
)
from everstep.report.asjson import status_json
from everstep.report.parts.asked import Asked
from everstep.version import __version__
from everstep.web import browsers
from everstep.web.files import HEADERS, LOCKED, Files
from everstep.web.pages import Pages as WebPages
from everstep.wire.strangers.rejections import printable

MAX_BODY_BYTES = 64 << 10
JOURNALS_AT_ONCE = 2
JOURNALS_WAITING = 32
"""Requests for pages of the journal. Each has at most a page in memory, until it is sent; more are turned away."""

BODY_S = 15.0
"""From the headers of a request to the end of its body."""

RECORD_TIMEOUT_S = 10.0
"""How long a POST waits for its event to be on record; longer means that the journal cannot be written."""

LAG_PERIOD_S = 0.1
LAGS_KEPT = 600
"""A minute."""

_HEADER = "'Authorization: Bearer <content of RUN_DIR/{}>'"

log = logging.getLogger("everstep.controller")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DrillBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    kind: str
    rank: int | None = None
    node: str | None = None
    options: dict[str, float | str] = {}


class TraceBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    rank: int
    seconds: float


class ApproveBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    incident: str
    by: str = ""


class RestartBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    by: str = ""


class DrainBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    node: str
    why: str = ""
    by: str = ""
    is_undone: bool = False


class UpdateBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    source: str = ""
    code: str = ""
    root: str = ""
    args: tuple[str, ...] | None = None
    env: dict[str, str] = {}
    is_urgent: bool = False
    by: str = ""
    why: str = ""


class StopBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    why: str = "stopped through the API"
    signal: int = 15


class Api:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._lag_seconds: float | None = None
        self._lags = Handling(LAGS_KEPT)
        self._num_drills = 0  # asked for, not yet on record
        self._num_updates = 0  # the same
        self._pages = Pages(controller.ledger.journal.path)
        self._pages_lock = asyncio.Lock()
        self._journals = asyncio.Semaphore(JOURNALS_AT_ONCE)
        self._num_journals = 0
        self._files = Files()
        source = RunSource(controller)
        self._web = WebPages(source, self._files)
        self._figures = Metrics(controller, source.overview.costs)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_routes(list(self._web.routes()))
        app.router.add_get("/api/status", self._status)
        app.router.add_get("/api/health", self._health)
        app.router.add_get("/api/journal", self._journal)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/api/drill", self._drill)
        app.router.add_post("/api/doctor", self._doctor)
        app.router.add_post("/api/trace", self._trace)
        app.router.add_post("/api/approve", self._approve)
        app.router.add_post("/api/restart", self._restart)
        app.router.add_post("/api/drain", self._drain)
        app.router.add_post("/api/update", self._update)
        app.router.add_post("/api/stop", self._stop)
        app.on_shutdown.append(self._close_pages)
        return app

    async def measure_lag(self) -> None:
        """How much later than asked the loop gets round to a timer; runs until cancelled."""
        while True:
            begun = time.monotonic()
            await asyncio.sleep(LAG_PERIOD_S)
            self._lag_seconds = max(0.0, time.monotonic() - begun - LAG_PERIOD_S)
            self._lags.note(self._lag_seconds)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = self._controller.gate.answering.get(request.transport) if request.transport else None
        if connection is not None:
            connection.begin_answer()
        try:
            response = await self._answer(request, handler)
            if not response.prepared and not await send(request, response):
                self._controller.gate.rejections.note("silence", f"{request.remote} did not read its answer")
            return response
        finally:
            if connection is not None:
                connection.end_answer()

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refusal = await self._refusal(request)
        except ValueError as error:  # unreadable headers; anyone may send them, so the log must not grow with each
            self._controller.gate.rejections.note("garbage", f"headers of {request.remote}: {error}")
            return _error(400, "the headers cannot be read")
        try:
            if refusal is not None:
                refusal.force_close()  # a client without a token gets one request per connection
                return refusal
            return await handler(request)
        except web.HTTPException as error:  # of the router: no such path
            return _error(error.status, error.reason)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("a request for %s failed", printable(request.path[:60]))
            return _error(500, "a fault of the controller's own; its log has it")

    async def _refusal(self, request: web.Request) -> web.Response | None:
        """None: it may have what it asks for."""
        gate = self._controller.gate
        if why := browsers.why_foreign(request):
            await gate.note_stranger(f"{request.remote} sent {why}")
            return _error(403, why)
        if request.method in ("GET", "HEAD"):
            if not gate.may_read(request):
                await gate.note_stranger(f"{request.remote} asked for {request.path[:60]!r}")
                if request.path == "/":
                    return web.Response(status=401, text=LOCKED, content_type="text/html", headers=HEADERS)
                return _error(401, f"needs a token: {_HEADER.format('token-read')}")
        elif not gate.may_act(request):
            await gate.note_stranger(f"{request.remote} sent {request.method[:10]!r} {request.path[:60]!r}")
            return _error(401, f"needs the run's token: {_HEADER.format('token')}")
        return None

    async def _page(self, request: web.Request) -> web.Response:
        response = await self._web.document(request)
        if self._controller.gate.has_link(request):
            self._controller.gate.admit_browser(request, response)
        return response

    async def _file(self, request: web.Request) -> web.Response:
        return self._files.answer(request, request.match_info["name"])

    async def _close_pages(self, _: web.Application) -> None:
        self._web.live.close()

    async def _status(self, _: web.Request) -> web.Response:
        """Serve the JSON that `everstep status --json` prints."""
        asked = Asked(at=time.time(), controller_pid=os.getpid())
        return _json(status_json(self._controller.ledger.fold.view, self._goodput(asked.at), asked))

    async def _health(self, _: web.Request) -> web.Response:
        """How the controller itself is; 503 when it cannot decide."""
        controller = self._controller
        health = {
            "everstep_version": __version__,
            "journal_writable": controller.unwritable_since is None,
            "unwritable_since": controller.unwritable_since,
            "peers": controller.peers.names,
            "queued": controller.queue.qsize(),
            "dropped": self._dropped(),
            "replay_mismatches": controller.ledger.num_mismatches,
            "unknown_records": len(controller.ledger.journal.unknown),
            "loop_lag_s": self._lag_seconds,
            "loop_lags": self._lags.figures(),
            "handling": controller.peers.handling.figures(),
        }
        return _json(health, status=200 if controller.unwritable_since is None else 503)

    async def _journal(self, request: web.Request) -> web.Response:
        try:
            after = int(request.query.get("after", "0"))
        except ValueError:
            return _error(400, "after must be a record's number")
        if self._num_journals >= JOURNALS_AT_ONCE + JOURNALS_WAITING:
            return _error(503, f"{self._num_journals} others ask for the journal; ask again later")
        self._num_journals += 1
        try:
            async with self._journals:
                if request.transport is None:  # gone while it waited
                    return _error(503, "no client is there to read it")
                response = await self._page_of_journal(after)
                if not await send(request, response):  # within its turn: so few answers are in memory at a time
                    self._controller.gate.rejections.note("silence", f"{request.remote} did not read the journal")
                return response
        finally:
            self._num_journals -= 1

    async def _page_of_journal(self, after: int) -> web.Response:
        last = self._controller.ledger.journal.seq
        try:
            async with self._pages_lock:
                records = await asyncio.to_thread(self._pages.read, after, last)
        except JournalError as error:
            return _error(500, str(error))
        return _json({"records": records, "last": last})

    async def _metrics(self, request: web.Request) -> web.Response:
        body, kind = await self._figures.body(request.headers.get("Accept", ""), self._dropped(), self._lag_seconds)
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _drill(self, request: web.Request) -> web.Response:
        body = await _body(request, DrillBody)
        if isinstance(body, web.Response):
            return body
        if body.kind not in DRILL_KINDS:
            return _error(400, f"no drill {body.kind!r}; there are: {', '.join(DRILL_KINDS)}")
        self._num_drills += 1
        try:
            drill = f"d{len(self._controller.ledger.fold.view.drills) + self._num_drills}"
            event = DrillRequested(
                at=time.time(), drill=drill, kind=body.kind, rank=body.rank, node=body.node, options=body.options
            )
            return await self._take(event, {"drill": drill})
        finally:
            self._num_drills -= 1

    async def _doctor(self, request: web.Request) -> web.Response:
        name = f"e{self._controller.ledger.journal.seq + 1}"
        uneven = [
            {"code": share.code, "share": share.share, "verdict": share.sentence, "ranks": list(share.ranks)}
            for share in self._controller.detectors.slowness.shares().found
        ]
        turned_away = dict(self._controller.gate.rejections.counts)
        answer = {"request": name, "turned_away": turned_away, "uneven": uneven}
        return await self._take(EvidenceRequested(at=time.time(), request=name), answer)

    async def _trace(self, request: web.Request) -> web.Response:
        body = await _body(request, TraceBody)
        if isinstance(body, web.Response):
            return body
        if not 0.1 <= body.seconds <= MAX_ASKED_S:
            return _error(400, f"a trace lasts 0.1 to {MAX_ASKED_S:g} s")
        name = f"t{self._controller.ledger.journal.seq + 1}"
        event = TraceRequested(at=time.time(), request=name, rank=body.rank, seconds=body.seconds)
        return await self._take(event, {"request": name})

    async def _approve(self, request: web.Request) -> web.Response:
        body = await _body(request, ApproveBody)
        if isinstance(body, web.Response):
            return body
        incident = self._controller.ledger.state.incident
        if incident is None or incident.id != body.incident:
            return _error(409, f"incident {body.incident} is not open; open: {incident.id if incident else 'none'}")
        event = ProposalApproved(at=time.time(), incident=body.incident, by=body.by)
        return await self._take(event, {"incident": body.incident})

    async def _restart(self, request: web.Request) -> web.Response:
        """Restart a job that stands still now instead of later."""
        body = await _body(request, RestartBody)
        if isinstance(body, web.Response):
            return body
        standing = self._controller.ledger.state.standstill
        if standing is None:
            return _error(409, "the job does not stand still: nothing to restart; `everstep stop` ends it")
        event = RestartRequested(at=time.time(), by=body.by)
        return await self._take(event, {"incident": standing.incident.id})

    async def _drain(self, request: web.Request) -> web.Response:
        """Drain a node: it is left for a standby at the next step; or undo that."""
        body = await _body(request, DrainBody)
        if isinstance(body, web.Response):
            return body
        state = self._controller.ledger.state
        try:
            member = named(state, body.node)
            told = drain_alert(state, member, why=body.why, by=body.by, is_undone=body.is_undone, at=time.time())
        except ValueError as error:
            return _error(409, str(error))
        follows = what_follows(state, member, is_undone=body.is_undone)
        event = NodeAlerted(at=told.at, node=member.node, alerts=(told,))
        return await self._take(event, {"node": member.node, "host": member.host, "follows": follows})

    async def _update(self, request: web.Request) -> web.Response:
        body = await _body(request, UpdateBody)
        if isinstance(body, web.Response):
            return body
        if body.code and not self._controller.holds_code(body.code):
            return _error(
                400, f"{body.code} is not below the run's directory of code: `everstep update` copies it there"
            )
        self._num_updates += 1
        try:
            version = f"v{len(self._controller.ledger.fold.view.updates) + self._num_updates}"
            asked = msgspec.structs.asdict(body)
            values = asked.pop("env")
            try:
                if values:
                    save_values(self._controller.ledger.journal.path.parent, version, values)
            except OSError as error:
                return _error(503, f"the values of its variables cannot be kept: {error}")
            variables = dict.fromkeys(values, version)
            event = UpdateRequested(at=time.time(), version=version, variables=variables, **asked)
            return await self._take(event, {"version": version})
        finally:
            self._num_updates -= 1

    async def _stop(self, request: web.Request) -> web.Response:
        body = await _body(request, StopBody)
        if isinstance(body, web.Response):
            return body
        return await self._take(StopRequested(at=time.time(), why=body.why, signal=body.signal), {})

    async def _take(self, event: Event, answer: dict[str, Any]) -> web.Response:
        """Put the event on the queue and wait until it is on record."""
        if self._controller.unwritable_since is not None:
            return _error(503, "the journal cannot be written; nothing can be decided until it can")
        settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(recorded: bool) -> None:
            if not settled.done():
                settled.set_result(recorded)

        try:
            async with asyncio.timeout(RECORD_TIMEOUT_S):
                await self._controller.queue.put(Input(event=event, settled=settle))
                recorded = await settled
        except TimeoutError:
            return _error(503, f"not on record after {RECORD_TIMEOUT_S:.0f} s; it will be done when its turn comes")
        if not recorded:
            return _error(409, "the run is over")
        return _json({**answer, "seq": self._controller.ledger.journal.seq})

    def _goodput(self, at: float) -> Goodput:
        return goodput_of(history_of(self._controller.ledger.fold.view, at))

    def _dropped(self) -> dict[str, int]:
        return dict(self._controller.dropped + self._controller.gate.rejections.counts)


async def _body(request: web.Request, kind: type[Any]) -> Any:  # noqa: ANN401
    """The decoded body, or the answer that says what is wrong with it."""
    with contextlib.suppress(web.HTTPRequestEntityTooLarge):
        try:
            async with asyncio.timeout(BODY_S):
                data = await request.read()
        except TimeoutError:
            return _error(408, f"the body did not come within {BODY_S:.0f} s")
        try:
            return msgspec.json.decode(data or b"{}", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _error(400, f"the body is not what is expected: {error}")
    return _error(413, f"at most {MAX_BODY_BYTES} bytes")


def _json(value: object, status: int = 200) -> web.Response:
    headers = {"Server": f"everstep/{__version__}", "Cache-Control": "no-store"}
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _error(status: int, why: str) -> web.Response:
    return _json({"error": why}, status)
