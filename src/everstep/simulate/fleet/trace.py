"""A published trace of faults of real machines to the faults of a simulated fleet. Pure: bytes in, values out.

The form is that of InfiniteHBD's `fault_trace.json` (github.com/stepfun-ai/InfiniteHBD-Trace): a list of
{node_id, event_time in days, event_type "fault_start" | "fault_end", fault_type {Level, Class, Desc}}.
"""

import math
from random import Random
from typing import Any

import msgspec

from everstep.errors import ConfigError
from everstep.simulate.fleet.faults import Cause, Mix, Sign, Stays
from everstep.simulate.fleet.setup import DAY_S, Strike

NUM_NODES = 400
"""Servers of the published trace; it only lists those that had a fault."""


class Kind(msgspec.Struct, frozen=True):
    Class: str = ""
    Desc: str = ""


class Line(msgspec.Struct, frozen=True):
    node_id: str
    event_time: float  # days
    event_type: str
    fault_type: Kind = Kind()


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """`faults`: (server, day, cause, seconds until it was repaired or None), in order."""

    num_nodes: int
    days: float
    mix: Mix
    faults: tuple[tuple[int, float, int, float | None], ...]


def read_trace(data: bytes, num_nodes: int = NUM_NODES) -> Trace:
    """Raises ConfigError."""
    try:
        lines = sorted(msgspec.json.decode(data, type=list[Line]), key=lambda line: line.event_time)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a fault trace: {error}") from error
    starts = [line for line in lines if line.event_type == "fault_start"]
    if not starts:
        raise ConfigError("not a fault trace: no fault begins in it")
    servers = {name: number for number, name in enumerate(dict.fromkeys(line.node_id for line in starts))}
    num_nodes = max(num_nodes, len(servers))
    names = list(dict.fromkeys(line.fault_type.Desc for line in starts))
    begin, days = lines[0].event_time, lines[-1].event_time - lines[0].event_time
    counts = {name: sum(line.fault_type.Desc == name for line in starts) for name in names}
    causes = tuple(_cause(name, counts[name]) for name in names)
    rate = len(starts) / num_nodes / days if days > 0 else 0.0
    mix = Mix(
        name="trace", source=f"a trace of {num_nodes} machines over {days:.0f} days", per_node_day=rate, causes=causes
    )
    faults = tuple(
        (servers[line.node_id], line.event_time - begin, names.index(line.fault_type.Desc), _repair_s(line, lines))
        for line in starts
    )
    return Trace(num_nodes=num_nodes, days=days, mix=mix, faults=faults)


def strikes_of(trace: Trace, num_nodes: int, days: float, dice: Random) -> tuple[Strike, ...]:
    """For a fleet of another size: copies of the trace side by side, each begun at another day and repeated."""
    strikes: list[Strike] = []
    for copy in range(math.ceil(num_nodes / trace.num_nodes)):
        offset = dice.uniform(0, trace.days)
        order = dice.sample(range(trace.num_nodes), trace.num_nodes)
        for again in range(math.ceil(days / trace.days) + 1):
            for server, day, cause, repair_s in trace.faults:
                node, at = copy * trace.num_nodes + order[server], day - offset + again * trace.days
                if node < num_nodes and 0 <= at < days:
                    strikes.append(Strike(at_s=at * DAY_S, cause=cause, node=node, repair_s=repair_s))
    return tuple(sorted(strikes, key=lambda strike: strike.at_s))


def _repair_s(start: Line, lines: list[Line]) -> float | None:
    ends = [e.event_time for e in lines if e.event_type == "fault_end" and e.node_id == start.node_id]
    after = [at for at in ends if at >= start.event_time]
    return (min(after) - start.event_time) * DAY_S if after else None


def _cause(name: str, count: int) -> Cause:
    """The cause for a description in the trace; an unexplained one is a rank that dies without a message."""
    told: tuple[tuple[str, dict[str, Any]], ...] = (
        ("Silent Data", {"sign": Sign.WRONG}),
        ("Link Down", {"sign": Sign.ALERT, "code": "ES-M10", "action": "DRAIN_AND_RESTART_NODE"}),
        ("Server down", {"sign": Sign.LOST}),
        ("Kernel Panic", {"sign": Sign.LOST}),
        ("Power Supply Failure", {"sign": Sign.LOST}),
        ("Unknown", {"sign": Sign.EXIT}),
        ("Offline", {"sign": Sign.LOST}),
    )
    shows: dict[str, Any] = {"sign": Sign.ALERT, "code": "ES-G79", "action": "REBOOT_NODE"}
    shows = next((how for word, how in told if word in name), shows)
    return Cause(name=name, count=count, stays=Stays.MACHINE, **shows)
