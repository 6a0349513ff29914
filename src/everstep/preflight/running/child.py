"""The process that runs the checks, one after another. Started by the runner: `python -m` this module.

A check that hangs or crashes takes only this process with it. Results leave at once, line by line, so nothing that was
measured before is lost. Standard output of libraries goes to standard error.
"""

import os
import signal
import sys
import time
from typing import BinaryIO

import msgspec

from everstep.preflight.registry import BY_NAME
from everstep.preflight.result import Doing
from everstep.preflight.running.processes import end_with
from everstep.preflight.running.spoken import Begun, Busy, Ended, Found, Line, Request
from everstep.preflight.settings import Settings


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner hears Ctrl-C and ends us
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    end_with(request.parent)
    speech = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    with speech:
        for name in request.checks:
            _run(speech, name, request.settings)
    return 0


def _run(speech: BinaryIO, name: str, settings: Settings) -> None:
    _say(speech, Begun(check=name))
    begun = time.monotonic()
    error = ""
    try:
        for item in BY_NAME[name].load_measure()(settings):
            _say(speech, Busy(what=item.what) if isinstance(item, Doing) else Found(result=item))
    except BrokenPipeError:
        raise
    except Exception as raised:  # one broken check must not end the others
        error = f"{type(raised).__name__}: {raised}"
    _say(speech, Ended(check=name, took_s=time.monotonic() - begun, error=error))


def _say(speech: BinaryIO, line: Line) -> None:
    speech.write(msgspec.json.encode(line) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
