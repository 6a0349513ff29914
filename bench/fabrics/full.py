"""A cable that loses packets, while TCP fills cables: it is named, or it is said that it is full and cannot be told."""

import argparse
import random
import time
from collections import Counter

from everstep.fabric.locate.blame import Verdict, blame
from fabrics.bed import Clos
from fabrics.quiet import FINE_S, Counters, Watchers, running, told

CABLE = "20mbit"


def full(given: argparse.Namespace) -> None:
    with running(given.cable or CABLE, given.keep) as (bed, watchers, counters):
        assert counters is not None
        for percent in (5, 1):
            outcomes = Counter[str]()
            for seed in range(given.seeds):
                cable = random.Random(f"{percent}{seed}").choice(bed.cables)
                for way in (cable, cable[::-1]):
                    bed.lose(*way, percent)
                verdict = _judged(bed, watchers, counters, given.seconds)
                for way in (cable, cable[::-1]):
                    bed.unlose(*way)
                outcome = _outcome(verdict, cable, percent)
                outcomes[outcome] += 1
                print(f"{percent} % on {cable}: {outcome};", *told(verdict), f"{len(verdict.full)} full", flush=True)
            print(f"{percent} %: {dict(outcomes)}", flush=True)


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


def _outcome(verdict: Verdict, cable: tuple[str, str], percent: float) -> str:
    ways = {f"{one} > {other}" for one, other in (cable, cable[::-1])}
    wanted = ways | {f"{min(cable)} - {max(cable)}"}
    named = [{suspect.name for suspect in fault.suspects} for fault in (*verdict.faults, *verdict.slow)]
    if any(not names & wanted for names in named):
        return "wrong: another is named"
    if named:
        return "named"
    unjudged = [each for each in verdict.unjudged if each.link in ways]
    if len(unjudged) == len(ways):
        return "said not to be judged"
    if verdict.smallest_rate > percent / 100:
        return f"not named; it is said that less than {verdict.smallest_rate:.1%} may not be seen"
    return f"NOT SEEN: {len(unjudged)} of two ways are said not to be judged"
