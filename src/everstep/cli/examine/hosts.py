"""`everstep doctor --hosts N --rdzv-endpoint HOST:PORT`, on each of the hosts: what would keep them from one run."""

import asyncio
import os
import socket
import sys

import msgspec

from everstep.errors import ConfigError
from everstep.launcher.arguments.hosts import Hosts, parse_endpoint
from everstep.launcher.reach import token as tokens
from everstep.launcher.reach.place import claim
from everstep.launcher.run import torch_version
from everstep.launcher.survey.meeting import attend, lead
from everstep.report.parts.ansi import printable, safe_json
from everstep.wire.joining import JoinToken
from everstep.wire.survey import Findings


def survey(num: int, endpoint: str, limit_s: float, *, is_json: bool) -> int:
    """1: something is wrong. Raises ConfigError, UnreachableError."""
    if num < 2 or not endpoint:
        raise ConfigError("--hosts N needs N of at least 2, and --rdzv-endpoint HOST:PORT, the same on all of them")
    host, port = parse_endpoint(endpoint)
    hosts = Hosts(num=num, host=host, port=port, reach_limit_s=limit_s)
    token = tokens.given(os.environ)
    if token is None:
        raise tokens.missing(hosts)
    sock = claim(hosts)
    found = asyncio.run(_meet(hosts, sock, token, limit_s))
    print(safe_json(msgspec.json.encode(found).decode()) if is_json else printable(render(found)))
    return 1 if found.findings else 0


async def _meet(hosts: Hosts, sock: socket.socket | None, token: JoinToken, limit_s: float) -> Findings:
    def say(text: str) -> None:
        print(f"everstep: {printable(text)}", file=sys.stderr, flush=True)

    if sock is None:
        return await attend(hosts, token, torch_version(), limit_s, say)
    say(f"waiting for {hosts.num - 1} more hosts at {hosts.endpoint}, for {limit_s:g} s at most")
    return await lead(hosts, sock, token, torch_version(), limit_s, say)


def render(found: Findings) -> str:
    """One line for each host, then what is wrong."""
    lines = []
    for each, offset in zip(found.hosts, found.offsets, strict=True):
        network = f"{each.interface or 'loopback'}{f' MTU {each.mtu}' if each.mtu is not None else ''}"
        versions = f"everstep {each.everstep}  torch {each.torch or 'none'}  Python {each.python}"
        lines.append(f"{each.host}  {each.address}  {network}  clock {offset:+.3f} s  {versions}")
    num = len(found.hosts)
    if not found.findings:
        return "\n".join(
            [*lines, f"nothing is wrong: all {num * (num - 1)} connections between {num} hosts carry data"]
        )
    return "\n".join([*lines, "", *(f"{each.what}: {each.text}" for each in found.findings)])
