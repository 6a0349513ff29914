"""Calls senses when they are due, in one thread; a look that hangs costs that thread and nothing else.

A file below a dead disk, or a driver that holds its lock, can stop a thread for ever. So the thread is a daemon, is
watched from outside, and is replaced by one that leaves the hung sense out until its look returns. Owned by
`agent.senses.sensing`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from everstep.agent.senses.ears import be_nice
from everstep.model.facts import Alert
from everstep.probes.sense import Sense, UnsupportedError, alert

LOOK_LIMIT_S = 30.0
"""Vendors' tools take seconds. Longer: the sense hangs."""
UNSUPPORTED_AGAIN_S = 600.0
"""For what never worked: a driver may be loaded later. What worked before is asked again at its own cadence."""
FAILED_AGAIN_S = 300.0
FIRST_AFTER_S = 2.0
"""Not while the node is part of a recovery."""
SPREAD_S = 0.3
"""Between the first looks of two senses."""

_log = logging.getLogger(__name__)


class Rounds:
    """`hear` gets alerts, `say` a sense's state ("" works, else why not); both are called in the thread."""

    def __init__(
        self,
        senses: Sequence[Sense],
        *,
        hear: Callable[[list[Alert]], None],
        say: Callable[[str, str], None],
        look_limit_s: float = LOOK_LIMIT_S,
        first_after_s: float = FIRST_AFTER_S,
    ) -> None:
        self._hear = hear
        self._say = say
        self._look_limit_s = look_limit_s
        self._changed = threading.Condition()
        begin = time.monotonic() + first_after_s
        self._due: dict[Sense, float] = {sense: begin + SPREAD_S * i for i, sense in enumerate(senses)}
        self._looking: tuple[Sense, float] | None = None
        self._life = 0  # number of the thread that counts; an older one was given up
        self._is_closed = False
        self._failed: set[str] = set()
        self._worked: set[str] = set()

    def start(self) -> None:
        with self._changed:
            self._life += 1
            life = self._life
        threading.Thread(target=self._run, args=(life,), name=f"everstep-senses-{life}", daemon=True).start()

    def close(self) -> None:
        """The thread ends after the look that is under way; senses that rest are closed now."""
        with self._changed:
            self._is_closed = True
            resting = list(self._due)
            self._due.clear()
            self._changed.notify_all()
        for sense in resting:
            _close(sense)

    def replace_if_hung(self) -> None:
        """Give up the thread whose look takes too long."""
        with self._changed:
            looking = self._looking
            if looking is None or time.monotonic() - looking[1] < self._look_limit_s:
                return
            self._looking = None
        name = looking[0].name
        self._say(name, f"hangs: no answer for {self._look_limit_s:g} s")
        what = f"the sense {name} hangs: what it asks has not answered for {self._look_limit_s:g} s"
        self._hear([alert("ES-M37", what, at=time.time(), source=name, device=name)])
        self.start()

    def _run(self, life: int) -> None:
        be_nice()
        while True:
            sense = self._next(life)
            if sense is None:
                return
            pause_s = self._look(sense)
            with self._changed:
                if self._is_closed:
                    break
                self._due[sense] = time.monotonic() + pause_s
                self._changed.notify_all()
                if self._life != life:
                    return  # another thread took over meanwhile, and has this sense back now
                self._looking = None
        _close(sense)

    def _next(self, life: int) -> Sense | None:
        """Waits for the sense that is due first, and takes it out. None: this thread is to end."""
        with self._changed:
            while not self._is_closed and self._life == life:
                now = time.monotonic()
                first = min(self._due, key=self._due.__getitem__, default=None)
                if first is None:
                    self._changed.wait()
                elif self._due[first] > now:
                    self._changed.wait(self._due[first] - now)
                else:
                    del self._due[first]
                    self._looking = (first, now)
                    return first
        return None

    def _look(self, sense: Sense) -> float:
        """One look; seconds until the next."""
        try:
            alerts = sense.look(time.time())
        except UnsupportedError as error:
            self._say(sense.name, f"unsupported: {error}")
            return sense.every_s if sense.name in self._worked else max(sense.every_s, UNSUPPORTED_AGAIN_S)
        except Exception as error:
            if sense.name not in self._failed:
                self._failed.add(sense.name)
                _log.exception("sense %s failed; logged once", sense.name)
            self._say(sense.name, f"failed: {type(error).__name__}: {error}")
            return max(sense.every_s, FAILED_AGAIN_S)
        self._say(sense.name, "")
        self._worked.add(sense.name)
        if alerts:
            self._hear(alerts)
        return sense.every_s


def _close(sense: Sense) -> None:
    try:
        sense.close()
    except Exception:
        _log.exception("closing sense %s", sense.name)
