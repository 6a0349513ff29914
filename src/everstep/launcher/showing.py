"""The part of the ranks' output that this terminal shows, from the settings and the run's specification."""

import os
from pathlib import Path

from everstep.launcher.arguments.settings import Settings
from everstep.launcher.output.output import OutputTail
from everstep.launcher.output.shown import DEFAULT_TEMPLATE, Shown
from everstep.launcher.output.terminal import Terminal
from everstep.model.spec import STDERR, STDOUT, RunSpec


def shown(settings: Settings | None, spec: RunSpec, run_dir: Path) -> Shown:
    """`settings`: None for a host that has none."""
    return Shown(
        log_dir=run_dir / "logs",
        nproc_per_node=spec.nproc_per_node,
        world_size=spec.world_size,
        role=spec.role,
        template=(settings.prefix if settings is not None else "")
        or os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
        or DEFAULT_TEMPLATE,
        redirects=spec.redirects,
        tee=spec.tee,
        only=spec.shown_local_ranks,
        filters=settings.filters if settings is not None else {},
        published=spec.published_logs,
    )


def tails_of(shown: Shown, terminal: Terminal, *, is_one: bool) -> tuple[OutputTail, ...]:
    """One per place that takes output: where stdout and stderr are the same, what comes first is shown first."""
    groups = ((STDOUT, STDERR),) if is_one else ((STDOUT,), (STDERR,))
    return tuple(OutputTail(shown, terminal.write, streams) for streams in groups)
