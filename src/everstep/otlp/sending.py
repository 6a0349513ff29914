"""The official exporters, each on a thread that may hang: what became of a batch is a count.

A receiver that redirects is not followed, and of an answer a little is read.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from everstep.otlp.settings import LOGS, METRICS, TRACES

MAX_ANSWER_BYTES = 64 << 10
MAX_WAITING = 1000
"""Spans and events that wait for a receiver that does not answer; older ones are dropped."""

HUNG_S = 60.0
"""A receiver that sends a byte now and then keeps to every limit of the SDK: its thread is left alone after this."""

MAX_HUNG = 3
"""Threads of one signal that were left alone and have not ended. There are no more then until one does."""

log = logging.getLogger("everstep.otlp")


class Session(requests.Session):  # type: ignore[misc]
    """No redirects: the headers may be a key. No endless answers."""

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:  # noqa: ANN401
        answer = super().request(*args, **(kwargs | {"allow_redirects": False, "stream": True}))
        try:
            if answer.is_redirect or 300 <= answer.status_code < 400:
                raise requests.RequestException(f"answered {answer.status_code}: redirects are not followed")
            answer._content = answer.raw.read(MAX_ANSWER_BYTES)
            return answer
        finally:
            answer.close()


_EXPORTERS: dict[str, Callable[[], Any]] = {
    METRICS: lambda: OTLPMetricExporter(session=Session()),
    TRACES: lambda: OTLPSpanExporter(session=Session()),
    LOGS: lambda: OTLPLogExporter(session=Session()),
}


class Lane:
    """One signal's way out. One batch at a time; while it is under way, nothing else is begun."""

    def __init__(self, signal: str, on_count: Callable[[], None]) -> None:
        self.signal = signal
        self.counts = {"sent": 0, "failed": 0, "dropped": 0}
        self._on_count = on_count
        self._waiting: list[Any] = []
        self._exporter: Any = None
        self._under_way: _Batch | None = None
        self._hung: list[_Batch] = []

    @property
    def is_busy(self) -> bool:
        self._leave_hung()
        return self._under_way is not None or len(self._hung) >= MAX_HUNG

    @property
    def is_idle(self) -> bool:
        return not self.is_busy and not self._waiting

    def put(self, items: Sequence[Any]) -> None:
        """To be sent once."""
        self._waiting += items
        over = len(self._waiting) - MAX_WAITING
        if over > 0:
            del self._waiting[:over]
            self._count("dropped", over)

    def flush(self) -> None:
        if not self.is_busy and self._waiting:
            batch, self._waiting = self._waiting, []
            self.send(batch)

    def send(self, batch: Any) -> None:  # noqa: ANN401 - what this signal's exporter takes
        """Now, on a thread. Not while another is under way: that counts as dropped."""
        if self.is_busy:
            self._count("dropped")
            return
        self._under_way = _Batch(self.signal, batch, self._exporter)

    def give_up(self) -> None:
        """The run is over: what is not sent by now never will be."""
        self._leave_hung()
        if self._under_way is not None:
            self._under_way = None
            self._count("failed")
        if self._waiting:
            self._count("dropped", len(self._waiting))
            self._waiting = []

    def _leave_hung(self) -> None:
        """Count what has ended, and what takes too long."""
        self._hung = [batch for batch in self._hung if batch.is_sent is None]
        batch = self._under_way
        if batch is None:
            return
        if batch.is_sent is not None:
            self._under_way, self._exporter = None, batch.exporter
            self._count("sent" if batch.is_sent else "failed")
        elif time.monotonic() - batch.began > HUNG_S:
            self._under_way = self._exporter = None  # the next one has a connection of its own
            self._hung.append(batch)
            log.warning("%s were not sent: no answer within %g s", self.signal, HUNG_S)
            self._count("failed")

    def _count(self, outcome: str, number: int = 1) -> None:
        self.counts[outcome] += number
        self._on_count()


class _Batch:
    """One request, on a thread of its own."""

    def __init__(self, signal: str, items: Any, exporter: Any) -> None:  # noqa: ANN401 - the SDK's
        self.began = time.monotonic()
        self.is_sent: bool | None = None
        self.exporter = exporter
        self._signal, self._items = signal, items
        threading.Thread(target=self._export, name=f"otlp-{signal}", daemon=True).start()

    def _export(self) -> None:
        is_sent = False
        try:
            if self.exporter is None:
                self.exporter = _EXPORTERS[self._signal]()
            is_sent = self.exporter.export(self._items).name == "SUCCESS"
        except Exception as error:
            log.warning("%s were not sent: %s: %s", self._signal, type(error).__name__, error)
        finally:
            self.is_sent = is_sent
