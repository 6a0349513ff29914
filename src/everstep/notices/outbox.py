"""The messages to one receiver, and when: one per incident, edited where that is possible, and not too many.

Pure: it is given the time. `due` returns what to send now; `settle` takes the result.
"""

import enum
from collections import Counter, deque

import msgspec

from everstep.notices.messages import Message
from everstep.notices.settings import Receiver

EDIT_EVERY_S = 5.0
SUPERSEDED = "superseded"


class Outcome(enum.StrEnum):
    SENT = "sent"
    EDITED = "edited"
    FAILED = "failed"
    DROPPED = "dropped"  # too many


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """`handle`: of the message that is edited; None: a new one."""

    message: Message
    handle: str | None
    revision: int
    num_untold: int  # before it, that were dropped


class _Told(msgspec.Struct, kw_only=True):
    text: str = ""
    handle: str | None = None
    revision: int = 0
    at: float = 0.0
    is_given_up: bool = False


class Outbox:
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.counts: Counter[Outcome] = Counter()
        self._told: dict[str, _Told] = {}
        self._sent_at: deque[float] = deque()
        self._num_untold = 0

    def know(self, message: Message) -> None:
        """It was there before: nothing is said of it."""
        self._told[message.key] = _Told(text=message.text, is_given_up=True)

    def due(self, messages: list[Message], now: float) -> Due | None:
        """The next one to send; ask again when it is settled."""
        for message in messages:
            if message.is_drill and not self.receiver.drills:
                continue
            told = self._told.get(message.key)
            if told is None:
                if not self._is_ripe(message, now):
                    continue
                if self._is_full(now):
                    self.know(message)
                    self.counts[Outcome.DROPPED] += 1
                    self._num_untold += 1
                    continue
                return Due(message=message, handle=None, revision=1, num_untold=self._num_untold)
            if self._is_to_edit(told, message, now):
                return Due(message=message, handle=told.handle, revision=told.revision + 1, num_untold=0)
        return None

    def settle(self, due: Due, now: float, handle: str | None, *, is_sent: bool) -> None:
        """`handle`: what it can be edited by. What failed is given up: it was tried more than once."""
        is_edit = due.revision > 1
        told = self._told.setdefault(due.message.key, _Told())
        told.text, told.at, told.revision = due.message.text, now, due.revision
        if not is_edit:
            self._sent_at.append(now)
            told.handle, told.is_given_up = handle, not is_sent
            self._num_untold -= due.num_untold if is_sent else 0
        outcome = (Outcome.EDITED if is_edit else Outcome.SENT) if is_sent else Outcome.FAILED
        self.counts[outcome] += 1

    def _is_ripe(self, message: Message, now: float) -> bool:
        if message.state == SUPERSEDED:
            return False
        if self.receiver.can_edit or message.is_over or message.needs_you:
            return True
        return now - message.at >= self.receiver.wait_s

    def _is_full(self, now: float) -> bool:
        while (
            self._sent_at and not now - self.receiver.per_s < self._sent_at[0] <= now
        ):  # ... or the clock was set back
            self._sent_at.popleft()
        return len(self._sent_at) >= self.receiver.most

    def _is_to_edit(self, told: _Told, message: Message, now: float) -> bool:
        if told.is_given_up or not self.receiver.can_edit or told.text == message.text:
            return False
        return message.is_over or message.needs_you or not 0.0 <= now - told.at < EDIT_EVERY_S
