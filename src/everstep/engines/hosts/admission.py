"""Whether a host fits the run. Pure: from the run's shape, the hosts that are there and the one that asks; a sentence,
or "" for yes."""

import re
from collections.abc import Sequence

import msgspec

from everstep.model.names import is_name
from everstep.wire.joining import Join

_SHOWN_CHARS = 80
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9:.%_-]{0,254}", re.ASCII)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What all hosts of the run have in common."""

    num_hosts: int
    num_standby: int
    nproc: int
    program: str
    everstep_version: str
    torch_version: str


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A host that is in the run already; also one that is away while its node may still run."""

    session: str
    host: str
    node_rank: int | None


def objection(shape: Shape, known: Sequence[Known], join: Join) -> str:
    """A host that was connected before fits as it did then."""
    if any(each.session == join.session for each in known):
        return ""
    return _odd(join) or _differs(shape, join) or _no_place(shape, known, join)


def _odd(join: Join) -> str:
    """What is odd about the names and the address that a host gives; "" if nothing. They are shown to users and sent to
    the scheduler."""
    if not is_name(join.host):
        return f"a host gives {_shown(join.host)!r} for its name: not a name"
    named = {
        "its session": join.session,
        "the scheduler's node": join.scheduler_node,
        "the scheduler's job": join.scheduler_job,
    }
    for what, name in named.items():
        if name and not is_name(name):
            return f"a host gives {_shown(name)!r} for {what}: not a name"
    if _ADDRESS.fullmatch(join.address) is None:
        return f"{_shown(join.host)} gives {_shown(join.address)!r} for its address: not one"
    return ""


def _differs(shape: Shape, join: Join) -> str:
    who = _shown(join.host)
    if join.everstep_version != shape.everstep_version:
        return (
            f"{who} has everstep {_shown(join.everstep_version)}, this run everstep {shape.everstep_version}: install "
            "the same on all hosts"
        )
    if join.torch_version != shape.torch_version:
        return (
            f"{who} has torch {_shown(join.torch_version) or '(none)'}, this run torch {shape.torch_version}: install "
            "the same on all hosts"
        )
    if join.num_hosts is not None and join.num_hosts != shape.num_hosts:
        return f"--nnodes is {join.num_hosts} on {who} and {shape.num_hosts} in this run: give all hosts the same"
    if join.nproc is not None and join.nproc != shape.nproc:
        return f"--nproc-per-node is {join.nproc} on {who} and {shape.nproc} in this run: give all hosts the same"
    if join.program and join.program != shape.program:
        return f"{who} would run {_shown(join.program)}, this run is of {shape.program}: start the same on all hosts"
    return ""


def _no_place(shape: Shape, known: Sequence[Known], join: Join) -> str:
    who = _shown(join.host)
    if join.node_rank is not None:
        if not 0 <= join.node_rank < shape.num_hosts:
            return f"{who} has --node-rank {join.node_rank}: must be 0 to {shape.num_hosts - 1}"
        for other in known:
            if other.node_rank == join.node_rank:
                return (
                    f"{who} has --node-rank {join.node_rank}, and so has {_shown(other.host)}, which came first: give "
                    "each host another one, or none"
                )
    if len(known) >= shape.num_hosts + shape.num_standby:
        standbys = f" and {shape.num_standby} standby" if shape.num_standby else ""
        return (
            f"the run has its {shape.num_hosts} hosts{standbys}, and no place for {who}; --standby S on the first host "
            "lets S more wait"
        )
    return ""


def _shown(text: str) -> str:
    """A stranger's text, printable and short."""
    return "".join(each if each.isprintable() else "?" for each in text[:_SHOWN_CHARS])
