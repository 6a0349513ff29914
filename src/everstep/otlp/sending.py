"""The official exporters, each on a thread that may hang: what became of a batch is a count.

A receiver that redirects is not followed, and of an answer a little is read.
"""

import logging
import threading
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
        self._exporter: Any = None
        self._waiting: list[Any] = []
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

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
        if self._waiting and not self.is_busy:
            batch, self._waiting = self._waiting, []
            self.send(batch)

    def send(self, batch: Any) -> None:  # noqa: ANN401 - what this signal's exporter takes
        """Now, on a thread. Not while another is under way: that counts as dropped."""
        if self.is_busy:
            self._count("dropped")
            return
        self._thread = threading.Thread(target=self._export, args=(batch,), name=f"otlp-{self.signal}", daemon=True)
        self._thread.start()

    def _export(self, batch: Any) -> None:  # noqa: ANN401
        try:
            if self._exporter is None:
                self._exporter = _EXPORTERS[self.signal]()
            is_sent = self._exporter.export(batch).name == "SUCCESS"
        except Exception as error:
            log.warning("%s were not sent: %s: %s", self.signal, type(error).__name__, error)
            is_sent = False
        self._count("sent" if is_sent else "failed")

    def _count(self, outcome: str, number: int = 1) -> None:
        self.counts[outcome] += number
        self._on_count()
