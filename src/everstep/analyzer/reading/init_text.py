"""NCCL's lines on the initialisation of communicators: who began it, and who came to its end. Pure.

    n1:41:51 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4 cudaDev 0 busId 19000 commId 0xa1 - Init START

A communicator stands until all its ranks have begun. Who never began waits elsewhere, or met at another address; who
began and did not end has a path to a peer that does not work.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from everstep.analyzer.observations.claims import Kind, Named
from everstep.analyzer.observations.words import fold, ranks_text, verb

_LINE = re.compile(
    r"\[\d{1,3}\] \w{4} INFO \w{0,8}Comm(?:Init|Split)\w{0,20} comm 0x[0-9a-fA-F]{1,16} rank (\d{1,7}) n[rR]anks "
    r"(\d{1,7}) cudaDev (\d{1,3}) .{0,120}?commId (0x[0-9a-fA-F]{1,20}) - Init (START|COMPLETE)"
)
_MAX_COMMUNICATORS = 4096


@dataclass(slots=True)
class _Communicator:
    sizes: set[int] = field(default_factory=set)  # what its ranks say that it has
    begun: dict[int, str] = field(default_factory=dict)  # rank -> its device
    ended: set[int] = field(default_factory=set)


class InitText:
    """Feed it lines in order."""

    def __init__(self) -> None:
        self._known: defaultdict[str, _Communicator] = defaultdict(_Communicator)

    def line(self, line: str) -> None:
        found = _LINE.search(line)
        if found is None or (found[4] not in self._known and len(self._known) >= _MAX_COMMUNICATORS):
            return
        communicator, rank = self._known[found[4]], int(found[1])
        communicator.sizes.add(int(found[2]))
        if found[5] == "START":
            communicator.begun[rank] = found[3]
        else:
            communicator.ended.add(rank)

    def named(self) -> tuple[Named, ...]:
        """The communicators that stand; nothing where all that began came to the end."""
        open_ = {name: each for name, each in self._known.items() if each.begun.keys() - each.ended}
        apart = _two_meetings(open_)
        if apart:
            return (_named((), apart),)
        return tuple(
            said
            for name, each in list(open_.items())[:64]
            if (said := _of_one(name, each, len(each.begun))) is not None
        )


def _of_one(name: str, communicator: _Communicator, num_begun: int) -> Named | None:
    if len(communicator.sizes) > 1:
        listed = " and ".join(map(str, sorted(communicator.sizes)))
        return _named((), f"the ranks of communicator {name} disagree how many they are: {listed}")
    size = next(iter(communicator.sizes))
    open_ = sorted(communicator.begun.keys() - communicator.ended)
    absent = tuple(rank for rank in range(min(size, 200_000)) if rank not in communicator.begun)
    if communicator.ended:
        devices = {communicator.begun[rank] for rank in open_}
        shared = (
            f"; all of them are device {devices.pop()} of their node" if len(devices) == 1 and len(open_) > 1 else ""
        )
        done = tuple(sorted(communicator.ended))
        says = f"began the initialisation of communicator {name} and did not end it, {ranks_text(done)} did{shared}"
        return _named(tuple(open_), says, done)
    if absent and num_begun > 1:
        says = f"did not begin the initialisation of communicator {name}, in which {ranks_text(open_)} "
        return _named(absent, f"{says}{verb(open_, 'waits', 'wait')}", tuple(open_))
    who = f"{num_begun} of {size} ranks ({fold(open_)})"
    return _named((), f"{who} began the initialisation of communicator {name}, and no rank ended it")


def _two_meetings(open_: dict[str, _Communicator]) -> str:
    """Two communicators of one size that lack each other's ranks: one job that met at two addresses."""
    listed = [(name, each) for name, each in open_.items() if not each.ended and len(each.sizes) == 1][:64]
    for number, (name, one) in enumerate(listed):
        for other_name, other in listed[number + 1 :]:
            size = next(iter(one.sizes))
            is_whole = one.sizes == other.sizes and len(one.begun) + len(other.begun) == size
            if is_whole and not one.begun.keys() & other.begun.keys():
                here, there = f"{ranks_text(one.begun)} met in communicator {name}", ranks_text(other.begun)
                why = f"each waits for {size} ranks: their addresses of the rendezvous differ"
                return f"{here} and {there} in {other_name}, and {why}"
    return ""


def _named(ranks: tuple[int, ...], says: str, others: tuple[int, ...] = ()) -> Named:
    return Named(source="NCCL's init", kind=Kind.INIT, ranks=ranks, says=says, others=others, is_sure=False)
