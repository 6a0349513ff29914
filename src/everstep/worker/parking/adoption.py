"""Whose child a twin is, and its end."""

import os
import time


class Ended(BaseException):
    """The socket of a twin is closed: it will not be woken."""


def is_adopted(agent: int, between: int) -> bool:
    """Wait until the process between has ended; whether the agent adopted this one, and not another process because the
    agent is gone."""
    while os.getppid() == between:
        time.sleep(0.0005)
    return os.getppid() == agent
