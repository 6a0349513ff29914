"""How many hosts must have something, or agree. Pure.

A record counts when half of the voters have it, the controller's own host included; a successor needs more than half.
The two sets always overlap: half and more than half have a host in common. So with two hosts the controller needs no
other host, and has no successor; the tie of an even number goes to the host that has the controller.
"""

from collections.abc import Iterable

MAX_VOTERS = 7
"""The journal goes to so many hosts, the controller's own included. More would not survive more in practice."""


def to_commit(num_voters: int) -> int:
    return (num_voters + 1) // 2


def to_elect(num_voters: int) -> int:
    return num_voters // 2 + 1


def reached_by(values: Iterable[float], num: int) -> float:
    """The highest value that `num` of them have reached; minus infinity when there are not so many."""
    found = sorted(values, reverse=True)
    return found[num - 1] if 0 < num <= len(found) else float("-inf")
