"""State of the link to another node, from this node's own probes and their echoes. Pure: the caller passes times.

A link without any answer so far is unknown: a firewall looks like that. A link is dead if nothing has come back for
some seconds, and good again after several answers in a row. A single source port can fail: switches choose the path by
it.
"""

from collections import deque

import msgspec

from everstep.model.facts import LinkSeen, LinkState

LATE_S = 1.0
"""An echo that takes longer is late: an agent may wait this long for a CPU."""

DEAD_S = 2.0
"""A link is dead if no probe was answered for this long, and `DEAD_PROBES` were not."""

DEAD_PROBES = 4
"""Least number of unanswered probes, each older than `LATE_S`, for a dead link."""

BACK = 2
"""Answers in a row, per source port, that make a dead link good again."""

WINDOW_S = 10.0
"""Time over which losses are counted."""

LOSSY_PROBES = 20
LOSSY_LOST = 3
LOSSY_SHARE = 0.05
"""Fewer losses than these are normal."""

_HEARD_S = 1.5


class _Sent(msgspec.Struct):
    number: int
    port: int
    at: float
    is_answered: bool = False


class Standing:
    """State of the link to one other node."""

    def __init__(self, to: str, num_ports: int) -> None:
        self.to = to
        self._num_ports = num_ports
        self._number = 0
        self._sent: deque[_Sent] = deque()
        self._answered = [0] * num_ports  # answers so far, by source port
        self._state, self._since = LinkState.UNKNOWN, 0.0

    def send(self, now: float) -> tuple[int, int]:
        """Count a probe that is sent now. Returns its number and the index of its source port."""
        self._number += 1
        port = self._number % self._num_ports
        self._sent.append(_Sent(self._number, port, now))
        while self._sent[0].at < now - WINDOW_S - LATE_S:
            self._sent.popleft()
        return self._number, port

    def answer(self, number: int) -> None:
        """Count an answer, each once. Answers to unknown or forgotten probes are ignored."""
        first = self._sent[0].number if self._sent else 0
        place = number - first
        if self._sent and 0 <= place < len(self._sent) and not self._sent[place].is_answered:
            self._sent[place].is_answered = True
            self._answered[self._sent[place].port] += 1

    def look(self, now: float, heard_at: float | None) -> LinkSeen:
        """Judge the link. `heard_at`: when the last probe of the other node came."""
        settled = [probe for probe in self._sent if probe.is_answered or now - probe.at >= LATE_S]
        lost = sum(not probe.is_answered for probe in settled)
        state, since, dead_ports = self._judge(settled, lost, now)
        if state is not self._state:
            self._state, self._since = state, since
        return LinkSeen(
            to=self.to,
            state=state,
            for_s=max(0.0, now - self._since),
            sent=len(settled),
            lost=lost,
            hears=heard_at is not None and now - heard_at < _HEARD_S,
            ports=self._num_ports,
            dead_ports=dead_ports,
        )

    def _judge(self, settled: list[_Sent], lost: int, now: float) -> tuple[LinkState, float, int]:
        if not any(self._answered):
            return LinkState.UNKNOWN, now, 0
        silent = _trailing(settled, is_answered=False)
        if len(silent) >= DEAD_PROBES and now - silent[-1].at >= DEAD_S:
            return LinkState.DEAD, silent[-1].at, self._num_ports
        if self._state is LinkState.DEAD and len(_trailing(settled, is_answered=True)) < BACK * self._num_ports:
            return LinkState.DEAD, self._since, self._num_ports
        dead = [found for port in range(self._num_ports) if (found := self._silence_of(settled, port, now)) is not None]
        if dead:
            return LinkState.PARTIAL, min(dead), len(dead)
        if len(settled) >= LOSSY_PROBES and lost >= max(LOSSY_LOST, LOSSY_SHARE * len(settled)):
            first = next(probe.at for probe in settled if not probe.is_answered)
            return LinkState.LOSSY, first, 0
        return LinkState.GOOD, now, 0

    def _silence_of(self, settled: list[_Sent], port: int, now: float) -> float | None:
        """Since when this port has had no answers, if it had some before. None: it has answers, or never had any."""
        own = [probe for probe in settled if probe.port == port]
        silent = _trailing(own, is_answered=False)
        is_dead = self._answered[port] > 0 and len(silent) >= DEAD_PROBES and now - silent[-1].at >= DEAD_S
        return silent[-1].at if is_dead else None


def _trailing(probes: list[_Sent], *, is_answered: bool) -> list[_Sent]:
    """The newest probes in a row with this `is_answered`, newest first."""
    found = []
    for probe in reversed(probes):
        if probe.is_answered is not is_answered:
            break
        found.append(probe)
    return found
