"""The node's senses at work: each at its own cadence, what they notice debounced and reported as `NodeAlerted`.

Nothing of this ever stops the agent. A sense that fails is marked as failed, said once in the log and tried again
later; one that hangs (a dead disk, a driver that does not answer) costs its thread, which is replaced.
`nodes/<node>/senses.json` says which senses work and why others do not. Started by `agent.senses.starting`.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from everstep.agent.senses.ears import Ears
from everstep.agent.senses.hurry import Hurry
from everstep.agent.senses.latest_file import LatestFile
from everstep.agent.senses.rounds import FIRST_AFTER_S, LOOK_LIMIT_S, Rounds
from everstep.knowledge.review import ReviewQueue
from everstep.model import events
from everstep.model.facts import Alert
from everstep.probes.node.all import standard_senses
from everstep.probes.node.debounce import EXPLAINS_S, Debounce
from everstep.probes.node.kernel.kernel_lines import KernelLines
from everstep.probes.sense import Sense

TEND_S = 5.0
"""How often hung senses are looked for. Not a cadence of any sense."""

_log = logging.getLogger(__name__)


class Sensing:
    """Owns the threads. `report` is only called in the event loop."""

    def __init__(
        self,
        node: str,
        report: Callable[[events.Event], None],
        *,
        senses: Sequence[Sense],
        rank_of: Callable[[int], int | None] = lambda pid: None,
        kernel_log: str | None = None,
        opened: KernelLines | None = None,
        hurry: Hurry | None = None,
        state_file: Path | None = None,
        queue: ReviewQueue | None = None,
        look_limit_s: float = LOOK_LIMIT_S,
        first_after_s: float = FIRST_AFTER_S,
    ) -> None:
        """`kernel_log`: None for a node that is not to listen to it."""
        self._node = node
        self._report = report
        self.rank_of = rank_of
        self._state_file = LatestFile(state_file) if state_file is not None else None
        self._debounce = Debounce()
        self._states: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurry = hurry
        self._rounds = Rounds(
            senses, hear=self.hear, say=self.say, look_limit_s=look_limit_s, first_after_s=first_after_s
        )
        self._ears: Ears | None = None
        if kernel_log is not None:
            self._ears = Ears(kernel_log, self, queue=queue, opened=opened, hurry=hurry)

    @property
    def states(self) -> Mapping[str, str]:
        """Sense to "" when it works, else the reason why it cannot answer."""
        return dict(self._states)

    async def run(self) -> None:
        """Until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            if self._ears is not None:
                self._ears.start()
            self._rounds.start()
            while True:
                await asyncio.sleep(TEND_S)
                self._rounds.replace_if_hung()
                self._pass_on([])
        except Exception:
            _log.exception("sensing failed; the node continues without it")
            await asyncio.Event().wait()  # to end would end the agent
        finally:
            self.close()

    def close(self) -> None:
        """Nothing is reported after this."""
        self._loop = None
        if self._ears is not None:
            self._ears.close()
            self._ears = None
        self._rounds.close()

    def hear(self, alerts: list[Alert]) -> None:
        self._in_loop(lambda: self._pass_on(alerts))

    def say(self, sense: str, why: str) -> None:
        self._in_loop(lambda: self._note(sense, why))

    def _in_loop(self, call: Callable[[], None]) -> None:
        """From any thread."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop was closed between the two lines
            return

    def _pass_on(self, alerts: list[Alert]) -> None:
        if self._loop is None:
            return
        try:
            has_died = self._hurry is not None and self._hurry.was_rung_within(EXPLAINS_S)
            told = self._debounce.take(time.time(), alerts, has_died=has_died)
            if told:
                self._report(events.NodeAlerted(at=time.time(), node=self._node, alerts=tuple(told)))
        except Exception:
            _log.exception("an alert could not be reported: %s", alerts)

    def _note(self, sense: str, why: str) -> None:
        if self._states.get(sense) == why:
            return
        if why or sense in self._states:
            _log.info("sense %s: %s", sense, why or "works again")
        self._states[sense] = why
        if self._state_file is not None:
            self._state_file.put(json.dumps(dict(sorted(self._states.items())), indent=1) + "\n")


def standard_sensing(
    node: str,
    report: Callable[[events.Event], None],
    *,
    run_dir: Path,
    home: Path,
    rank_of: Callable[[int], int | None],
    kernel_log: str,
    opened: KernelLines | None,
    hurry: Hurry | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Sensing:
    """The senses of a real node."""
    return Sensing(
        node,
        report,
        senses=standard_senses(environ, node=node, written=(run_dir, home), rank_of=rank_of),
        rank_of=rank_of,
        kernel_log=kernel_log,
        opened=opened,
        hurry=hurry,
        state_file=run_dir / "nodes" / node / "senses.json",
        queue=ReviewQueue(home / "kb" / "unknown.jsonl"),
    )
