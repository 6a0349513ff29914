"""Messages between an agent and the process that traces a rank for it: JSON, a line each, over two pipes."""

import msgspec


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The only argument of the process."""

    run_dir: str
    run: str
    rank: int
    generation: int
    line: int  # of the board
    pid: int  # as the agent knows it, whatever the rank says
    agent: int
    seconds: float
    name: str  # of the file
    flight: str  # name of the file that the rank writes its flight record to
    max_bytes: int


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Frame of the process: it wants the flight record now; or it is done."""

    wants_flight: bool = False
    num_bytes: int = 0  # of the file; 0: there is none
    seconds: float = 0.0
    why: str = ""


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's answer: it is there, or why it is not."""

    why: str
