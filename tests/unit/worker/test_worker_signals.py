"""Exceptions that a program's signal handler raises while our code happens to run."""

import functools
import signal
from collections.abc import Callable, Iterator

import pytest

from everstep.worker.process.signals import came_from_signal


class Stop(Exception):
    pass


class Handler:
    def __call__(self, number: int, frame: object) -> None:
        raise Stop

    def method(self, number: int, frame: object) -> None:
        raise Stop


class Inherits(Handler):
    pass


def function(number: int, frame: object) -> None:
    raise Stop


def calls_another(number: int, frame: object) -> None:
    function(number, frame)


def with_more(more: str, number: int, frame: object) -> None:
    raise Stop


@pytest.fixture
def own_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize(
    "handler",
    [
        function,
        calls_another,
        Handler().method,
        Handler(),
        Inherits(),
        functools.partial(with_more, "x"),
        functools.partial(Handler()),
    ],
    ids=["function", "calls-another", "method", "object", "inherits", "partial", "partial-of-object"],
)
@pytest.mark.usefixtures("own_handler")
def test_what_a_handler_raises_is_the_programs(handler: Callable[[int, object], None]):
    signal.signal(signal.SIGUSR2, handler)
    with pytest.raises(Stop) as raised:
        signal.raise_signal(signal.SIGUSR2)
    assert came_from_signal(raised.value)


def test_what_our_code_raises_is_not():
    with pytest.raises(Stop) as raised:
        raise_stop()
    assert not came_from_signal(raised.value)


def raise_stop() -> None:
    raise Stop
