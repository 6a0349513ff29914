"""The unauthenticated connections that keep a place when there are too many. Pure bookkeeping.

One per listening socket. Every user of the machine may connect, so places run out. All users but ours share half of
them, and each has an eighth; a new connection takes the place of the one of them that has been idle for longest. So a
crowd of idle strangers keeps out strangers, and no verb, agent or page of ours. Beyond loopback an address counts as a
user. Called at every port of ours.
"""

from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeAlias

OTHERS_SHARE = 2
EACH_SHARE = 8
MOST_OF_USER = 64
"""Places of one user of this machine, who has a few verbs and pages; an address may have a whole fleet behind it."""

_OURS = -1
_UNKNOWN = -2

Kind: TypeAlias = int | str
"""A user's number, or the address of another machine."""


class Guest(Protocol):
    is_busy: bool
    """A request of its own is being answered."""

    def abort(self) -> None: ...


class Guests:
    def __init__(self, most: int, ours: frozenset[int] = frozenset()) -> None:
        """`ours`: ids of the users that are not to be kept out."""
        self._most = max(EACH_SHARE, most)
        self._ours = ours
        self._users: dict[Guest, Kind] = {}  # in the order in which they last asked for something
        self._num_of: Counter[Kind] = Counter()

    def __len__(self) -> int:
        return len(self._users)

    def admit(self, guest: Guest, user: Kind | None) -> bool:
        """Whether it gets a place; another one may lose its own for it. `user`: None if that is not known."""
        is_ours = user in self._ours
        kind = _OURS if is_ours else _UNKNOWN if user is None else user
        if kind != _OURS and not self._has_share(kind):
            return False
        if len(self._users) >= self._most and not self._drop_idle(lambda other: other != _OURS):
            return False  # never in the place of another of ours: a fleet that comes back at once would never get in
        self._users[guest] = kind
        self._num_of[kind] += 1
        return True

    def touch(self, guest: Guest) -> None:
        """It has just asked for something."""
        if guest in self._users:
            self._users[guest] = self._users.pop(guest)

    def pass_on(self, guest: Guest, other: Guest) -> bool:
        """Give this one's place to the other; False: it has none any more."""
        if guest not in self._users:
            return False
        self._users[other] = self._users.pop(guest)
        return True

    def leave(self, guest: Guest) -> None:
        if guest in self._users:
            kind = self._users.pop(guest)
            self._num_of[kind] -= 1
            if not self._num_of[kind]:
                del self._num_of[kind]  # addresses are many

    def _has_share(self, kind: Kind) -> bool:
        """Room for one more of this other user, if need be in the place of an idle one."""
        each = self._most // (OTHERS_SHARE if kind == _UNKNOWN else EACH_SHARE)
        if isinstance(kind, int) and kind != _UNKNOWN:
            each = min(each, MOST_OF_USER)
        if self._num_of[kind] >= each and not self._drop_idle(lambda other: other == kind):
            return False
        others = len(self._users) - self._num_of[_OURS]
        return others < self._most // OTHERS_SHARE or self._drop_idle(lambda other: other != _OURS)

    def _drop_idle(self, is_meant: Callable[[Kind], bool]) -> bool:
        for guest, user in self._users.items():
            if is_meant(user) and not guest.is_busy:
                self.leave(guest)
                guest.abort()
                return True
        return False
