"""Names that a peer gives and that leave the run: to a scheduler, a shell, files of other runs.

`MachineName` is a type of its own, made here only, so that the type checker finds a text of a peer that is used as
one without having been checked. A name is no list, which a scheduler would expand, has no character that means
something to a shell, and steers no terminal.
"""

import re
from typing import NewType

from everstep.errors import ConfigError

MAX_CHARS = 255
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{MAX_CHARS - 1}}}", re.ASCII)
_SHOWN_CHARS = 80

MachineName = NewType("MachineName", str)
"""Name of one machine, as `[A-Za-z0-9._-]+`."""


def is_name(text: str) -> bool:
    """Whether the text is the name of one thing: a machine, a job, a session, a code."""
    return _NAME.fullmatch(text) is not None


def machine_name(text: str) -> MachineName:
    """The text as a machine's name. Raises ConfigError where it is none."""
    if not is_name(text):
        raise ConfigError(f"not the name of a machine: {text[:_SHOWN_CHARS]!a}: letters, digits, '.', '_' and '-' only")
    return MachineName(text)


def own_machine_name(hostname: str) -> MachineName:
    """The name of this machine from the hostname that the kernel has, which may be any text: odd characters become
    '-', so that no hostname keeps a run from starting."""
    return MachineName(re.sub(r"[^A-Za-z0-9._-]", "-", hostname, flags=re.ASCII).lstrip(".-")[:MAX_CHARS] or "unnamed")
