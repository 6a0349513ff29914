"""Verdicts on what `quiet --keep` has kept: every ten seconds, with the counters of the last minute and of the last ten
seconds. Each has all lines of its time, as somebody has who looks a little later."""

import argparse
import bisect
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from everstep.fabric.locate.blame import blame
from everstep.fabric.locate.loads import loads_of
from everstep.fabric.locate.observations import Counted, Seen
from everstep.fabric.topology.values import Topology
from fabrics.quiet import OLDEST_S, TOPOLOGY, WINDOW_S, Tally

T = TypeVar("T", Seen, Counted)


class Kept:
    """Lines of one kind, in order."""

    def __init__(self, paths: list[Path], kind: type[T]) -> None:
        files = [
            [msgspec.json.decode(line, type=kind) for line in path.read_bytes().split(b"\n")[:-1]] for path in paths
        ]
        self.began = max(lines[0].at or 0.0 for lines in files)  # all of them: who has not begun answers nothing
        self._lines = sorted((line for lines in files for line in lines), key=lambda each: each.at or 0.0)
        self._at = [each.at or 0.0 for each in self._lines]
        self.ended = self._at[-1]

    def last(self, seconds: float, at: float) -> list[T]:
        return self._lines[bisect.bisect_right(self._at, at - seconds) : bisect.bisect_right(self._at, at)]


def judged(given: argparse.Namespace) -> None:
    topology = msgspec.json.decode((given.keep / TOPOLOGY).read_bytes(), type=Topology)
    counted = Kept(sorted(given.keep.glob("*.counted.out")), Counted)
    seen = Kept([path for path in sorted(given.keep.glob("*.out")) if ".counted." not in path.name], Seen)
    hosts = frozenset(topology.host_names())
    links = [way for c in topology.cables for way in ((c.one.node, c.other.node), (c.other.node, c.one.node))]
    began, ended = max(seen.began, counted.began) + 2 * WINDOW_S, min(seen.ended, counted.ended)
    tally = Tally()
    for number in range(given.first, int((ended - began) / WINDOW_S)):
        at = began + (number + 1) * WINDOW_S
        for seconds in (OLDEST_S, WINDOW_S):
            rows = seen.last(WINDOW_S, at)
            tally.add(blame(rows, hosts, loads_of(counted.last(seconds, at), topology), links), rows, at - began)
        if number % 30 == 29:
            sys.stderr.write(f"{at - began:.0f} s: {tally}\n")
    print(f"{ended - began:.0f} s: {tally}")
