"""Exit codes of `everstep run`: torchrun's codes, or everstep's own, which tell more causes apart.

torchrun has three: 0, 2 for a command line that its parser refuses, 1 for everything else, also for a signal. Scripts
and schedulers test for them, so they are the default. The journal always holds everstep's.
"""

from collections.abc import Mapping

from everstep.errors import ConfigError

STYLES = ("torchrun", "everstep")
VARIABLE = "EVERSTEP_EXIT_CODES"


def style_of(flag: str | None, environ: Mapping[str, str]) -> str:
    """Raises ConfigError naming the styles."""
    chosen = flag or environ.get(VARIABLE) or STYLES[0]
    if chosen not in STYLES:
        raise ConfigError(f"--exit-codes {chosen!r}: must be {' or '.join(STYLES)}")
    return chosen


def shown(code: int, style: str) -> int:
    """Return the code that the process exits with, for a code of ours."""
    return code if style == "everstep" else min(code, 1)
