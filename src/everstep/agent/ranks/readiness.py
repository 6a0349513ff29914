"""What this node prepares before it is asked for ranks: twins that have imported what ranks import, and spares.

Nothing of it is needed: without it ranks start cold. It keeps out of the way while a generation is formed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from everstep.agent.processes import ahead
from everstep.agent.processes.ahead import Ahead
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.bequest import Bequest
from everstep.agent.ranks.starting import Home, Starter
from everstep.agent.ranks.twins import NO_TWIN, Twins
from everstep.agent.ranks.warden import Warden
from everstep.errors import EverstepError
from everstep.model import events
from everstep.model.spec import RunSpec

QUIET_S = 0.3
"""After the last rank's first step, before twins import what ranks have imported since: not during recovery."""
SPARES_S = 1.0
"""A node that has got no ranks so long after it has joined is a standby."""

_log = logging.getLogger(__name__)


class Readiness:
    def __init__(
        self,
        node: str,
        home: Home,
        reaper: Reaper,
        warden: Warden,
        *,
        report: Callable[[events.Event], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        bequest: Bequest | None = None,
    ) -> None:
        self._node, self._home, self._report, self._spawn = node, home, report, spawn
        self.tell_session = warden.tell_session
        self._bequest = bequest or Bequest(None, warden)
        self.note_idle = self._bequest.show
        self.twins = Twins(reaper, self)
        self._spec: RunSpec | None = None
        self._starter: Starter | None = None
        self._had_ranks = False
        self._park_timer: asyncio.TimerHandle | None = None
        self._spare_timer: asyncio.TimerHandle | None = None
        self._told: tuple[bool, str] | None = None
        for local_rank, twin in self._bequest.take():
            self.twins.adopt(local_rank, twin)

    def begin(self, spec: RunSpec, starter: Starter) -> None:
        """The run is known."""
        self._spec, self._starter = spec, starter
        self.note_news()
        if spec.num_standby:  # without any, one that waits is only a slow beginning
            self._spare_timer = asyncio.get_running_loop().call_later(SPARES_S, self._start_spares)

    def close(self) -> None:
        self.pause()
        if self._spare_timer is not None:
            self._spare_timer.cancel()

    def pause(self) -> None:
        """A generation is started or stopped now."""
        self._had_ranks = True
        if self._park_timer is not None:
            self._park_timer.cancel()
            self._park_timer = None

    def note_all_stepped(self) -> None:
        """Every rank here has done its first step."""
        if self._spec is not None and self._starter is not None and not self._starter.why_cold():
            self._keep(None)  # whether the next run of this program needs an early twin
        self.pause()
        self._park_timer = asyncio.get_running_loop().call_later(QUIET_S, self._on_quiet)

    def learn(self, told: Ahead) -> None:
        """What a rank imports, as it says."""
        if self.twins.learn(told):
            ahead.write(ahead.path_in(self._home.run_dir), told)

    def _on_quiet(self) -> None:
        self._park_timer = None
        self._spawn(self._make_ready())

    async def _make_ready(self) -> None:
        await self.twins.import_ahead()
        await self.twins.fork_ahead()

    def _start_spares(self) -> None:
        """Start warm spares while this node waits and has had no ranks."""
        if self._had_ranks or self._starter is None:
            return
        for local_rank in range(self._home.nproc):
            try:
                self._starter.start_spare(local_rank, self._home.run_dir / "nodes" / self._node)
            except (EverstepError, OSError) as error:
                _log.warning("no spare for local rank %d: %s", local_rank, error)
        self._spawn(self._warm_spares())

    async def _warm_spares(self) -> None:
        """When some other node knows what ranks import later, spares import it ahead."""
        while not self._had_ranks:
            await asyncio.sleep(SPARES_S)
            told = ahead.read(ahead.path_in(self._home.run_dir))
            if told is not None:
                self.twins.learn(told)
                await self._make_ready()

    def note_news(self) -> None:
        """Report whether ranks of this node could continue from twins."""
        if self._starter is None:
            return
        why = self._starter.why_cold() or next(filter(None, map(self.twins.why_not, range(self._home.nproc))), "")
        event = events.TemplateReported(
            at=time.time(), node=self._node, usable=not why, why=why, num_modules=self.twins.num_modules
        )
        if why != NO_TWIN and (event.usable, event.why) != self._told:
            self._told = event.usable, event.why
            self._report(event)

    def note_proven(self, told: Ahead) -> None:
        """Importing it ahead went well: the next run of this program may count on it."""
        if self._spec is not None and ahead.SHARED in told.modules:
            self._keep(told)

    def _keep(self, told: Ahead | None) -> None:
        """Keep what ranks import on record. `told`: as just reported; None: as it is known."""
        assert self._spec is not None
        path = ahead.cache_path(self._home.home, self._spec.program)
        known = ahead.read(path)
        before, twins = known or Ahead(), self.twins
        now = msgspec.structs.replace(
            told or before,
            is_late=twins.are_late(self._home.nproc),
            was_stale=before.was_stale or twins.was_stale,
        )
        if now != known:
            ahead.write(path, now)
