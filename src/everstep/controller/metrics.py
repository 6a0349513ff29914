"""/metrics: the run's view and the controller's own figures, gathered for `everstep.metrics`."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from everstep.analyzer.observations.records import RankTiming
from everstep.controller.loop import Controller
from everstep.linux.regular import read_regular
from everstep.metrics.of_controller import Ourselves, add_controller
from everstep.metrics.of_run import WINDOWS, Shares, add_run
from everstep.metrics.rising import Rising
from everstep.metrics.samples import Samples
from everstep.notices.counts import load_counts
from everstep.report.picture.costs import Costs

SENSES_EVERY_S = 30.0
_MAX_SENSES = 1 << 20


class Metrics:
    """The metrics of one controller. `costs`: the page's, which caches what cannot change any more."""

    def __init__(self, controller: Controller, costs: Costs) -> None:
        self._controller = controller
        self._costs, self._rising = costs, Rising()
        self._senses: tuple[float, dict[str, dict[str, str]]] = float("-inf"), {}

    async def body(self, accept: str, dropped: Mapping[str, int], lag_seconds: float | None) -> tuple[bytes, str]:
        """(body, content type). Rendering is expensive for a fleet, and touches no state of the loop."""
        from everstep.metrics.exposition import render  # only runs that are scraped pay for the import

        controller, view, samples = self._controller, self._controller.ledger.fold.view, Samples()
        at = time.time()
        run_dir = controller.ledger.journal.path.parent
        goodput = self._costs.goodput(view, at)
        ratios = self._costs.ratios(view, at, WINDOWS)
        add_run(samples, view, at, Shares(goodput=goodput, ratios=ratios, rising=self._rising))
        node_of = {} if view.generation is None else view.generation.node_of
        ourselves = Ourselves(
            dropped=dict(dropped),
            notices=await asyncio.to_thread(load_counts, run_dir),
            silent_s=controller.silence.silent_s,
            step_ratios=step_ratios(controller.detectors.slowness.newest_round, node_of),
            senses=await self._senses_of(run_dir, list(view.nodes)),
            append_seconds=controller.append_seconds,
            lag_seconds=lag_seconds,
            is_writable=controller.unwritable_since is None,
        )
        add_controller(samples, ourselves)
        return await asyncio.to_thread(render, samples, accept)

    async def _senses_of(self, run_dir: Path, nodes: list[str]) -> dict[str, dict[str, str]]:
        at, known = self._senses
        if time.monotonic() - at > SENSES_EVERY_S:
            known = await asyncio.to_thread(_read_senses, run_dir, nodes)
            self._senses = time.monotonic(), known
        return known


def step_ratios(timings: Sequence[RankTiming], node_of: Mapping[int, str]) -> dict[str, float]:
    """Per node, the time per step of its slowest rank, against the median of all ranks."""
    usual = statistics.median(timing.compute_s for timing in timings) if timings else 0.0
    found: dict[str, float] = {}
    for timing in timings:
        node = node_of.get(timing.rank)
        if node is not None and usual > 0.0:
            found[node] = max(found.get(node, 0.0), timing.compute_s / usual)
    return found


def _read_senses(run_dir: Path, nodes: list[str]) -> dict[str, dict[str, str]]:
    """The senses of the nodes whose agents write into this directory."""
    found = {}
    for node in nodes:
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            data = read_regular(run_dir / "nodes" / node / "senses.json", _MAX_SENSES)
            found[node] = msgspec.json.decode(data, type=dict[str, str])
    return found
