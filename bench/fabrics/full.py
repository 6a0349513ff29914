"""Faults while TCP fills cables: after how many seconds `everstep fabric blame` names them, from the lines of the last
ten seconds that `watch` and `counters` print on every node. Lines of before the fault are among them at first."""

import argparse
import random
import statistics
import time
from collections import Counter

from everstep.fabric.locate.blame import Verdict, blame
from everstep.fabric.locate.loads import loads_of
from everstep.fabric.locate.observations import Counted, Seen
from fabrics.bed import Clos
from fabrics.faults import inject, is_right
from fabrics.quiet import FINE_S, Counters, Watchers, running, told

CABLE = "20mbit"
LAST_S = 10.0
_PRINTED_S = 0.3
"""A line is there so long after its window at most."""


class Lines:
    """What watchers and counters have printed, for a while."""

    def __init__(self, watchers: Watchers, counters: Counters) -> None:
        self._watchers, self._counters = watchers, counters
        self._seen: list[Seen] = []
        self._counted: list[Counted] = []

    def read(self, oldest: float) -> None:
        self._seen = [each for each in self._seen if (each.at or 0) > oldest] + self._watchers.new()
        self._counted = [each for each in self._counted if (each.at or 0) > oldest] + self._counters.counted()

    def verdict(self, bed: Clos, at: float) -> Verdict:
        """Of the last seconds."""
        begin, end = at - LAST_S - _PRINTED_S, at - _PRINTED_S
        seen = [each for each in self._seen if begin < (each.at or 0) <= end]
        counted = [each for each in self._counted if begin < (each.at or 0) <= end]
        links = [way for cable in bed.cables for way in (cable, cable[::-1])]
        return blame(seen, frozenset(bed.hosts), loads_of(counted, self._counters.topology), links)


def full(given: argparse.Namespace) -> None:
    with running(given.cable or CABLE, given.keep, is_realtime=given.realtime) as (bed, watchers, counters):
        assert counters is not None
        lines = Lines(watchers, counters)
        for kind in given.kinds.split(","):
            outcomes, times = Counter[str](), list[int]()
            for seed in range(given.first, given.first + given.seeds):
                lines.read(time.time())
                drawn, undo = inject(kind, bed, random.Random(f"{kind}{seed}"), is_full=True)
                wanted = [names | _ways(names) for names in drawn]
                began = time.time()
                time.sleep(given.seconds + _PRINTED_S)
                undo()
                lines.read(began - LAST_S - FINE_S)
                seconds = round(given.seconds)
                last = lines.verdict(bed, began + seconds)
                after = seconds
                while (
                    after > 1
                    and is_right(kind, last, wanted)
                    and is_right(kind, lines.verdict(bed, began + after - 1), wanted)
                ):
                    after -= 1
                outcome = "right" if is_right(kind, last, wanted) else _wrong(last, wanted)
                outcomes[outcome] += 1
                times += [after] if outcome == "right" else []
                rest = f"{len(last.full)} full, {len(last.unjudged)} links not judged"
                print(f"{kind} {seed} at {began:.1f} on {drawn}: {outcome} after {after} s;", *told(last), rest,
                      flush=True)  # fmt: skip
                lines.read(time.time())
                time.sleep(max(0.0, began + given.seconds + LAST_S + 2 - time.time()))  # until it is forgotten
            took = f"named after {statistics.median(times):g} s, {max(times)} at most" if times else "never named"
            print(f"{kind}: {dict(outcomes)}, {took}", flush=True)


def _ways(names: set[str]) -> set[str]:
    """Of a cable: one way of it is the right link, where it is not known yet whether the other way loses, too."""
    cables = [name.split(" - ") for name in names if " - " in name]
    return {f"{a} > {b}" for one, other in cables for a, b in ((one, other), (other, one))}


def _wrong(verdict: Verdict, wanted: list[set[str]]) -> str:
    """Nothing said of a link that is listed as not judged is another outcome than a link that looks healthy."""
    if verdict.faults or verdict.slow:
        return "WRONG"
    unjudged = {each.link for each in verdict.unjudged}
    return "SAID NOT TO BE JUDGED" if any(names & unjudged for names in wanted) else "NOT NAMED"
