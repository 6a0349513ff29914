"""Asks accelerate's or DeepSpeed's own code what it would start. It runs in a process of its own, as its launcher does:
importing torch takes a second, and may open devices."""

import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from everstep.errors import ConfigError
from everstep.launcher.foreign.line import Line


class Ended(SystemExit):
    """The launcher has said what there is to say: its help, or that it does not know a flag."""


def ask(name: str, args: Sequence[str]) -> Line:
    """`name`: accelerate or deepspeed. What it prints goes to stderr. Raises ConfigError when it refuses, and Ended."""
    reading, writing = os.pipe()
    module = f"everstep.launcher.foreign.answers.{name}"
    command = [sys.executable, "-P", "-m", module, str(writing), *args]
    try:
        process = subprocess.Popen(command, stdout=2, pass_fds=(writing,))
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read()
    code = process.wait()
    if not said:
        if code in (0, 2):
            raise Ended(code)
        raise ConfigError(f"{name}'s launcher ended with {code} before it started anything; see above")
    line = msgspec.json.decode(said, type=Line)
    if line.refused:
        raise ConfigError(f"{line.launcher}: {line.refused.rstrip('.')}. Nothing was started")
    return line
