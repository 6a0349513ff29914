"""Fault lines that the signatures found in logs, as plain values: this package does not know the knowledge base."""

import msgspec

from everstep.model.verdict import Blame


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """One recognised line."""

    code: str
    name: str  # the class of the fault
    title: str
    blame: Blame
    action: str
    confirm: str
    do: str = ""  # empty: what the action says
    component: str = ""
    text: str
    source: str
    line: int
    ranks: tuple[int, ...] = ()
    place: str = ""
    is_root: bool = True  # names a cause by itself; otherwise only where nothing stronger does
    is_consequence: bool = False  # of something that may not be in the logs; no training stands after it
    is_supposed: bool = False  # an exception of unknown words that ended it; party and class are guessed by its words
    is_small: bool = False  # of small weight: worth watching, and told where nothing else is
    is_cause: bool = False  # the one that the others follow from
    finished_line: int = 0  # only tore a program down that had said in this line that its training was over; 0: no
