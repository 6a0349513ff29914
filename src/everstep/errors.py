"""Errors that reach a person. Each message says what happened, to what, what was done, and what to do.

EverstepError                 1
├── ConfigError               2   the user's settings: key, value, allowed values
├── UnreachableError          3   a controller, store or node cannot be reached
├── JournalError              4   corrupt, newer schema, not writable, disk full
├── RunLockedError            5   another controller owns the run directory
├── PortInUseError            6
├── SnapshotError             7   a snapshot cannot be used: world size changed, damaged
├── WireError                 8   a peer speaks another protocol, or garbage
└── LeaseOverError            9   an agent: the lease of its node is over, so it ended its ranks

Codes of a run itself (docs/exit-codes.md): 0 succeeded, 10 gave up, 11 failed in mode observe or advise, 128 + signal
stopped by that signal. `everstep run` ends with torchrun's codes instead, unless asked for these.
"""


class EverstepError(Exception):
    """Base: catch it to turn anything of ours into a message. `exit_code` is what the command ends with."""

    exit_code = 1


class ConfigError(EverstepError):
    exit_code = 2


class UnreachableError(EverstepError):
    exit_code = 3


class JournalError(EverstepError):
    exit_code = 4


class RunLockedError(EverstepError):
    exit_code = 5


class PortInUseError(EverstepError):
    exit_code = 6


class SnapshotError(EverstepError):
    exit_code = 7


class WireError(EverstepError):
    exit_code = 8


class LeaseOverError(EverstepError):
    exit_code = 9


EXIT_GAVE_UP = 10
EXIT_NOT_ALLOWED_TO_ACT = 11
