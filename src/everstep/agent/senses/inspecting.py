"""The light checks of `everstep check`, repeated while a job runs: is the node still in order?

Some milliseconds every minute, in a thread, no process started. A failed check is recorded as a warning: the node's
senses have rules of their own for what must be acted upon. What comes and goes is reported ever less often, like all
alerts. `nodes/<node>/inspection.json` has all results of the newest run. Nothing in here ever stops the agent, nor
delays its end: a check of a dead disk never returns. Started by `agent.main`.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from everstep.agent.senses.aside import aside
from everstep.linux.files import write_whole
from everstep.model import events
from everstep.model.facts import Alert
from everstep.preflight import light
from everstep.preflight.result import Judgement, Result
from everstep.probes.node.debounce import Debounce
from everstep.probes.sense import alert

FIRST_AFTER_S = 30.0
EVERY_S = 60.0
MAX_TOLD = 8
"""Bad results that one look reports; all are in the file."""

_log = logging.getLogger(__name__)


async def inspect(node: str, report: Callable[[events.Event], None], folder: Path) -> None:
    """Until cancelled."""
    before: Sequence[Result] = ()
    news = _News()
    await asyncio.sleep(FIRST_AFTER_S)
    while True:
        try:
            before = await aside(partial(_look, before, folder / "inspection.json"), "everstep-inspection")
            alerts = news.take(before, time.time())
            if alerts:
                report(events.NodeAlerted(at=time.time(), node=node, alerts=tuple(alerts)))
        except Exception:
            _log.exception("the node cannot be inspected")
        await asyncio.sleep(EVERY_S)


class _News:
    """Results that were not bad in the look before, and were not reported lately."""

    def __init__(self) -> None:
        self._bad: set[str] = set()
        # One per result: a debounce distinguishes alerts by device, and most results here have none.
        self._debounces: defaultdict[str, Debounce] = defaultdict(Debounce)

    def take(self, results: Sequence[Result], now: float) -> list[Alert]:
        bad = [result for result in results if result.verdict is Judgement.BAD]
        fresh = [result for result in bad if result.name not in self._bad]
        self._bad = {result.name for result in bad}
        due = (told for one in fresh for told in self._debounces[one.name].take(now, [_alert(one, now)]))
        return list(islice(due, MAX_TOLD))


def _look(before: Sequence[Result], path: Path) -> list[Result]:
    results = light.inspect(before)
    write_whole(path, msgspec.json.encode(results))  # one look for everybody
    return results


def _alert(result: Result, at: float) -> Alert:
    unit = f" {result.unit}" if result.unit else ""
    sentence = f"{result.name} is {result.value}{unit}: {result.why}"
    return alert("ES-M38", sentence, at=at, source="inspection", device=result.device)
