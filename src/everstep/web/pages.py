"""One run's pages and their JSON, for any application: the controller's below "/", `everstep ui` below "/runs/ID"."""

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator

import msgspec
from aiohttp import web

from everstep.errors import EverstepError
from everstep.journal.beside import paces
from everstep.report.handing.html import incident_html
from everstep.report.handing.markdown import incident_markdown
from everstep.report.picture.incidents import incident_page
from everstep.report.picture.nodes import node_page
from everstep.report.picture.schema import IncidentPage
from everstep.report.picture.stragglers import stragglers_page
from everstep.web.evidence import Evidence
from everstep.web.files import HEADERS, Files, packed
from everstep.web.live import Live
from everstep.web.source import Source
from everstep.web.traffic import Traffic

PAGES = ("/", "/incidents/{incident}", "/incidents/{incident}/ranks", "/fleet", "/ranks", "/traffic", "/nodes/{node}")
"""Paths of the document. What it shows there, it asks for below /api."""

HANDLERS = {
    "/api/overview": "overview",
    "/api/events": "events",
    "/api/ranks": "paces",
    "/api/traffic": "traffic",
    "/api/incidents/{incident}": "incident",
    "/api/incidents/{incident}/ranks": "ranks",
    "/api/nodes/{node}": "node",
    "/incidents/{incident}/export": "export",
    "/incidents/{incident}/markdown": "markdown",
}
"""Path -> method of `Pages`."""

_NO_PACES = (
    "no step of single ranks was measured (yet): agents report every ten seconds which collectives ranks have entered. "
    "They do not with watch_slowness = false in the policy"
)
_NO_INCIDENT = "no such incident in this run"
_INCIDENT = re.compile(r"i\d{1,9}")


class Pages:
    def __init__(self, source: Source, files: Files) -> None:
        self._source = source
        self._files = files
        self._evidence = Evidence()
        self._traffic = Traffic()
        self.live = Live(source.rows, os.urandom(4).hex())
        self.events = self.live.stream

    def routes(self) -> Iterator[web.RouteDef]:
        """For an application that has one run; its "/" is its own."""
        for path in PAGES[1:]:
            yield web.get(path, self.document)
        for path, name in HANDLERS.items():
            yield web.get(path, getattr(self, name))

    async def document(self, request: web.Request) -> web.Response:
        return self._files.answer(request, "index.html")

    async def overview(self, request: web.Request) -> web.Response:
        plain, small = await self.live.whole()
        return packed(request, plain, "application/json", HEADERS, small)

    async def _page_of(self, request: web.Request) -> tuple[str, IncidentPage | None]:
        """The run's name, and the incident."""
        view = (await self._source.now()).view
        incident = view.incidents.get(request.match_info["incident"])
        if incident is None:
            return view.run, None
        return view.run, incident_page(view, incident, self._source.overview.costs.goodput(view, None))

    async def incident(self, request: web.Request) -> web.Response:
        _, page = await self._page_of(request)
        return _missing(_NO_INCIDENT) if page is None else _json(request, page)

    async def export(self, request: web.Request) -> web.Response:
        run, page = await self._page_of(request)
        if page is None:
            return _missing(_NO_INCIDENT)
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{page.row.id}.html"'}
        return packed(request, incident_html(page, run).encode(errors="replace"), "text/html", headers)

    async def markdown(self, request: web.Request) -> web.Response:
        run, page = await self._page_of(request)
        if page is None:
            return _missing(_NO_INCIDENT)
        return packed(request, incident_markdown(page, run).encode(errors="replace"), "text/plain", HEADERS)

    async def ranks(self, request: web.Request) -> web.Response:
        name = request.match_info["incident"]
        if not _INCIDENT.fullmatch(name):
            return _missing(_NO_INCIDENT)
        moment = await self._source.now()
        folder = self._source.run_dir / "evidence" / name
        world_size = moment.view.spec.world_size if moment.view.spec is not None else 0
        groups = moment.view.kept.groups
        with contextlib.suppress(OSError):
            if not await asyncio.to_thread(folder.is_dir):
                return _missing(f"no evidence of ranks was collected for {name}: only hangs have it")
        try:
            return _json(request, await self._evidence.read(folder, world_size, groups))
        except EverstepError as error:
            return _missing(f"the evidence cannot be read: {error}")

    async def paces(self, request: web.Request) -> web.Response:
        try:
            found = await asyncio.to_thread(paces.load, self._source.run_dir)
        except EverstepError as error:
            return _missing(str(error))
        return _missing(_NO_PACES) if found is None else _json(request, stragglers_page(found))

    async def traffic(self, request: web.Request) -> web.Response:
        try:
            told = await self._traffic.read(self._source.run_dir)
        except EverstepError as error:
            return _missing(str(error))
        return packed(request, told, "application/json", HEADERS)

    async def node(self, request: web.Request) -> web.Response:
        moment = await self._source.now()
        page = node_page(moment.view, request.match_info["node"])
        return _missing("no such node in this run") if page is None else _json(request, page)


def _json(request: web.Request, value: object) -> web.Response:
    return packed(request, msgspec.json.encode(value), "application/json", HEADERS)


def _missing(why: str) -> web.Response:
    return web.Response(
        body=msgspec.json.encode({"error": why}), status=404, content_type="application/json", headers=HEADERS
    )
