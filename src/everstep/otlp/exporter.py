"""Follows a run's journal for OpenTelemetry: metrics now and then, spans and events when there are any.

It only reads, so nothing that happens here reaches training. What was over before it began is not told again.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from opentelemetry.sdk.resources import Resource

from everstep.journal.beside.secrets import secret_values
from everstep.journal.runs import RunDir
from everstep.journal.view import RunView
from everstep.metrics.of_controller import Ourselves, add_controller
from everstep.metrics.of_run import WINDOWS, Shares, add_run
from everstep.metrics.rising import Rising
from everstep.metrics.samples import Samples
from everstep.notices.counts import OTLP, load_counts, save_counts
from everstep.notices.following import Following
from everstep.notices.messages import messages_of
from everstep.otlp import converting
from everstep.otlp.sending import Lane
from everstep.otlp.settings import LOGS, METRICS, TRACES, every_s, signals
from everstep.report.handing.masking import Mask
from everstep.report.picture.costs import Costs

LOOK_S = 1.0
LINGER_S = 15.0
"""After the run's end: what is still to be told gets so long."""


class Exporter:
    """`is_alone()`: the parent is gone."""

    def __init__(self, run_dir: RunDir, environ: Mapping[str, str], is_alone: Callable[[], bool]) -> None:
        self._run_dir, self._environ = run_dir, environ
        self._following = Following(run_dir, is_alone)
        self._lanes = {signal: Lane(signal, self._save) for signal in signals(environ)}
        self._every_s = every_s(environ)
        self._costs, self._rising = Costs(), Rising()
        self._told: set[str] = set()
        self._states: dict[str, str] = {}
        self._resource: Resource | None = None

    async def run(self) -> None:
        """Run until the run is over, or the parent is gone, and everything is exported."""
        self._know()
        metrics_at = time.monotonic()
        ends_at: float | None = None
        while True:
            view, now = self._following.view(), time.monotonic()
            if view is not None:
                self._tell(view)
                if now >= metrics_at and ends_at is None:
                    metrics_at = now + self._every_s
                    self._tell_metrics(view)
            if ends_at is None and self._following.is_over():
                ends_at = now + LINGER_S
                await self._last_metrics(view, ends_at)
            for lane in self._lanes.values():
                lane.flush()
            if ends_at is not None and (now > ends_at or all(lane.is_idle for lane in self._lanes.values())):
                break
            await asyncio.sleep(LOOK_S)
        for lane in self._lanes.values():
            lane.give_up()
        self._save()

    def _know(self) -> None:
        """Mark the incidents that are already over, so that they are not exported as news."""
        view = self._following.view()
        for incident in view.incidents.values() if view is not None else ():
            if not incident.is_open:
                self._told.add(incident.id)
                self._states[incident.id] = incident.outcome or ""

    def _tell(self, view: RunView) -> None:
        resource = self._resource_of(view)
        if TRACES in self._lanes:
            for incident in view.incidents.values():
                if not incident.is_open and incident.id not in self._told:
                    self._told.add(incident.id)
                    self._lanes[TRACES].put(converting.spans_of(view, incident, resource))
        if LOGS in self._lanes:
            news = [each for each in messages_of(view) if self._states.get(each.key) != each.state]
            for message in news:
                self._states[message.key] = message.state
                text = Mask(secret_values(self._run_dir.path, self._environ))(message.text)
                self._lanes[LOGS].put([converting.event_of(message, text, resource)])

    def _tell_metrics(self, view: RunView) -> None:
        if METRICS not in self._lanes:
            return
        at, samples = time.time(), Samples()
        ratios = self._costs.ratios(view, at, WINDOWS)
        goodput = self._costs.goodput(view, at)
        add_run(samples, view, at, Shares(goodput=goodput, ratios=ratios, rising=self._rising))
        add_controller(samples, Ourselves(notices=load_counts(self._run_dir.path)))
        since = view.started_at if view.started_at is not None else at
        self._lanes[METRICS].send(converting.metrics_data(samples, self._resource_of(view), since, at))

    async def _last_metrics(self, view: RunView | None, ends_at: float) -> None:
        """How it ended, after what is still under way."""
        while METRICS in self._lanes and self._lanes[METRICS].is_busy and time.monotonic() < ends_at:
            await asyncio.sleep(0.1)
        if view is not None:
            self._tell_metrics(view)

    def _resource_of(self, view: RunView) -> Resource:
        if self._resource is None:
            named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "everstep"}
            self._resource = Resource.create({**named, "everstep.run": view.run})
        return self._resource

    def _save(self) -> None:
        counts = {f"otlp-{lane.signal}": lane.counts for lane in self._lanes.values()}
        save_counts(self._run_dir.path, {name: dict(found) for name, found in counts.items()}, OTLP)
