"""Commands for a person to copy. A journal may be anybody's: what it calls a run, a node or an incident is one word of
one line."""

import shlex

from everstep.report.parts.ansi import printable


def command(*words: str) -> str:
    return shlex.join(("everstep", *(printable(" ".join(word.split())) for word in words)))
