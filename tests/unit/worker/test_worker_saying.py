"""Lines for people: a stderr that takes nothing stops nobody, and a program's own signal handler is heard."""

import io
import os
import signal
import sys

import pytest

from everstep.worker.process.saying import say


class Odd:
    def __init__(self, act) -> None:
        self.write = act
        self.flush = lambda: None


def refuse(_text):
    raise OSError(9, "Bad file descriptor")


def test_a_line_goes_to_stderr(capfd):
    say("no snapshot of step 1")
    assert capfd.readouterr() == ("", "everstep: no snapshot of step 1\n")


CLOSED = io.StringIO()
CLOSED.close()


@pytest.mark.parametrize("stream", [None, Odd(refuse), Odd(None), CLOSED])
def test_a_stderr_that_takes_nothing_stops_nobody(monkeypatch, capfd, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    say("no snapshot of step 1")
    assert capfd.readouterr().out == ""


def test_what_a_signal_handler_of_the_program_raises_is_the_programs(monkeypatch):
    def handler(*_):
        raise TimeoutError("the program's own limit")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        monkeypatch.setattr(sys, "stderr", Odd(lambda text: os.kill(os.getpid(), signal.SIGUSR1)))
        with pytest.raises(TimeoutError, match="the program's own limit"):
            say("no snapshot of step 1")
    finally:
        signal.signal(signal.SIGUSR1, before)
