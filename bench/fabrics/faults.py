"""Faults of the bed, each at a place that is drawn, and whether a verdict names exactly them."""

import random
import threading
from collections.abc import Callable, Sequence

from everstep.fabric.locate.blame import Fault, Verdict
from fabrics.bed import Clos
from fabrics.quiet import across, end

KINDS = ("loss-1", "loss-5", "dead", "slow", "choked", "nic", "one-way", "flapping", "blackhole", "two")


def _draw_cable(bed: Clos, draw: random.Random, *, of_host: bool = False) -> tuple[str, str]:
    cable = draw.choice([c for c in bed.cables if (c[0] in bed.leaf_of) == of_host])
    return cable if draw.random() < 0.5 else (cable[1], cable[0])


def _lossy(bed: Clos, ways: list[tuple[str, str]], percent: float) -> Callable[[], None]:
    for one, other in ways:
        bed.lose(one, other, percent)
    return lambda: [bed.unlose(one, other) for one, other in ways] and None


def _flapping(bed: Clos, ways: list[tuple[str, str]]) -> Callable[[], None]:
    """Both ways gone for 0.7 s, back for 0.7 s, again and again."""
    over = threading.Event()

    def flap() -> None:
        while not over.wait(0.7):
            undo = _lossy(bed, ways, 100)
            over.wait(0.7)
            undo()

    thread = threading.Thread(target=flap)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return end


def _slow(bed: Clos, way: tuple[str, str], rate: str, *, is_busy: bool) -> Callable[[], None]:
    bed.slow(*way, rate)
    load = across(bed, way, mbit=1.0) if is_busy else []

    def undo() -> None:
        end(load)
        bed.unslow(*way)

    return undo


def inject(
    kind: str, bed: Clos, draw: random.Random, *, is_full: bool = False
) -> tuple[list[set[str]], Callable[[], None]]:
    """What has to be named: one name of each set. And what undoes it. `is_full`: cables have traffic already."""
    way = _draw_cable(bed, draw)
    back = (way[1], way[0])
    cable = {f"{min(way)} - {max(way)}"}
    if kind in ("loss-1", "loss-5"):
        return [cable], _lossy(bed, [way, back], {"loss-1": 1, "loss-5": 5}[kind])
    if kind == "flapping":
        return [cable], _flapping(bed, [way, back])
    if kind == "dead":
        return [cable], _lossy(bed, [way, back], 100)
    if kind == "one-way":
        return [{f"{way[0]} > {way[1]}"}], _lossy(bed, [way], 5)
    if kind == "blackhole":
        return [{f"{way[0]} > {way[1]}"}], _lossy(bed, [way], 100)
    if kind in ("slow", "choked"):
        rate = {"slow": "1mbit", "choked": "60kbit"}[kind]  # the probes alone fill a choked one
        return [{f"{way[0]} > {way[1]}"}], _slow(bed, way, rate, is_busy=kind == "slow" and not is_full)
    near = _draw_cable(bed, draw, of_host=True)
    host = near[0] if near[0] in bed.leaf_of else near[1]
    if kind == "nic":
        return [{host, f"{min(near)} - {max(near)}"}], _lossy(bed, [near, (near[1], near[0])], 5)
    other = _draw_cable(bed, draw)
    while {*other} == {*way}:
        other = _draw_cable(bed, draw)
    if kind == "both":
        ends = (way, other)
        undos = [_lossy(bed, [each, each[::-1]], percent) for each, percent in zip(ends, (5, 1), strict=True)]
        return [{f"{min(each)} - {max(each)}"} for each in ends], lambda: [undo() for undo in undos] and None
    return [{f"{a} > {b}"} for a, b in (way, other)], _lossy(bed, [way, other], 5)


def is_right(kind: str, verdict: Verdict, wanted: list[set[str]]) -> bool:
    """Nothing else may be named beside, as lossy or as slow. A slow link may be called either: its full queue loses
    packets, and where the queue is long, probes have timed out before they come."""
    lossy, slow = verdict.faults, verdict.slow
    is_either = kind in ("slow", "choked") and not _are(lossy, wanted)
    asked, beside = (slow, lossy) if is_either else (lossy, slow)
    named = [{suspect.name for suspect in fault.suspects} for fault in beside]
    return _are(asked, wanted) and all(any(names & each for each in wanted) for names in named)


def names(faults: Sequence[Fault]) -> list[list[object]]:
    return [[*(suspect.name for suspect in fault.suspects), round(fault.rate, 3)] for fault in faults]


def _are(faults: Sequence[Fault], wanted: list[set[str]]) -> bool:
    found = [{suspect.name for suspect in fault.suspects} for fault in faults]
    return len(found) == len(wanted) and all(any(names & each for each in found) for names in wanted)
