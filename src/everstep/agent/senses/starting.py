"""Starts the node's senses without delaying the node: the kernel log is opened at once, everything else is imported
later.

A node often starts in the middle of a recovery, where each tenth of a second counts, and the known signatures take
longer than that to import. A failure here is logged; the node continues without senses. Called by `agent.main`.
"""

import asyncio
import importlib
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from everstep.agent.senses.aside import aside
from everstep.agent.senses.hurry import Hurry
from everstep.model import events
from everstep.probes.node.kernel.kernel_lines import KernelLines, path_for
from everstep.probes.sense import UnsupportedError

SWITCH = "EVERSTEP_SENSING"
START_AFTER_S = 1.0

_log = logging.getLogger(__name__)


async def sense(
    node: str,
    report: Callable[[events.Event], None],
    *,
    run_dir: Path,
    home: Path,
    rank_of: Callable[[int], int | None],
    hurry: Hurry | None = None,
) -> None:
    """Until cancelled. Never ends by itself, because the agent would end with it."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
        _log.info("the node does not watch itself: %s", SWITCH)
        await asyncio.Event().wait()
    opened: KernelLines | None = None
    try:
        path = path_for(node, os.environ)
        opened = _open(path)
        await asyncio.sleep(START_AFTER_S)
        # Not one of the loop's own threads: the end of the agent would wait for it, for seconds on a busy machine.
        module = await aside(partial(importlib.import_module, "everstep.agent.senses.sensing"), "everstep-import")
        sensing = module.standard_sensing(
            node, report, run_dir=run_dir, home=home, rank_of=rank_of, kernel_log=path, opened=opened, hurry=hurry
        )
        opened = None
        await sensing.run()
    except Exception:
        _log.exception("the node cannot watch itself")
        await asyncio.Event().wait()
    finally:
        if opened is not None:
            opened.close()


def _open(path: str) -> KernelLines | None:
    """The kernel log. None: the listener tries again later, and logs why not."""
    try:
        return KernelLines(path)
    except UnsupportedError:
        return None
