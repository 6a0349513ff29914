"""Cables that lose packets while TCP fills cables: they are named, or it is said that nothing can be told of them."""

import argparse
import random
import time
from collections import Counter

from everstep.fabric.locate.blame import Verdict, blame
from fabrics.bed import Clos
from fabrics.quiet import FINE_S, Counters, Watchers, running, told

CABLE = "20mbit"
FAULTS = {"loss-5": (5,), "loss-1": (1,), "two": (5, 1)}
"""Percent of packets that each of the cables loses, both ways."""


def full(given: argparse.Namespace) -> None:
    with running(given.cable or CABLE, given.keep) as (bed, watchers, counters):
        assert counters is not None
        for kind in (each for each in FAULTS if each in given.kinds.split(",")):
            outcomes = Counter[str]()
            for seed in range(given.seeds):
                drawn = random.Random(f"{kind}{seed}").sample(bed.cables, len(FAULTS[kind]))
                faults = dict(zip(drawn, FAULTS[kind], strict=True))
                for cable, percent in faults.items():
                    bed.lose(*cable, percent)
                    bed.lose(*cable[::-1], percent)
                verdict = _judged(bed, watchers, counters, given.seconds)
                for cable in faults:
                    bed.unlose(*cable)
                    bed.unlose(*cable[::-1])
                outcome = _outcome(verdict, faults)
                outcomes[outcome] += 1
                rest = f"{len(verdict.full)} full, {len(verdict.unjudged)} links not judged"
                print(f"{kind} on {faults}: {outcome};", *told(verdict), rest, flush=True)
            print(f"{kind}: {dict(outcomes)}", flush=True)


def _judged(bed: Clos, watchers: Watchers, counters: Counters, seconds: float) -> Verdict:
    """Of windows that lie within the fault."""
    time.sleep(2 * FINE_S)
    watchers.new()
    counters.forget()
    time.sleep(seconds)
    seen = watchers.new()
    time.sleep(2 * FINE_S)
    links = [way for cable in bed.cables for way in (cable, cable[::-1])]
    return blame(seen, frozenset(bed.hosts), counters.loads(), links)


def _names(cable: tuple[str, str]) -> set[str]:
    return {f"{one} > {other}" for one, other in (cable, cable[::-1])} | {f"{min(cable)} - {max(cable)}"}


def _outcome(verdict: Verdict, faults: dict[tuple[str, str], int]) -> str:
    """Nothing else may be named, and what is not named has to be said not to be judged, or to be below the limit."""
    named = [{suspect.name for suspect in fault.suspects} for fault in (*verdict.faults, *verdict.slow)]
    wanted = set[str]().union(*map(_names, faults))
    if any(not names & wanted for names in named):
        return "wrong: another is named"
    said = {_said(verdict, cable, percent, named) for cable, percent in faults.items()}
    return "; ".join(sorted(said))


def _said(verdict: Verdict, cable: tuple[str, str], percent: int, named: list[set[str]]) -> str:
    if any(names & _names(cable) for names in named):
        return "named"
    unjudged = sum(each.link in _names(cable) for each in verdict.unjudged)
    if unjudged == 2:
        return "said not to be judged"
    if verdict.smallest_rate > percent / 100:
        return f"not named; it is said that less than {verdict.smallest_rate:.1%} may not be seen"
    return f"NOT SEEN: {unjudged} of two ways are said not to be judged"
