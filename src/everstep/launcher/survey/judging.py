"""Findings that would keep these hosts from becoming one run, in sentences. Pure."""

import ipaddress
from collections.abc import Callable, Mapping, Sequence

from everstep.wire.survey import Facts, Finding

MAX_CLOCK_S = 1.0
"""Times of different hosts are compared in incidents and in the record; nothing is decided by them."""

LARGE = "large packets"
"""In a reason why a host is not reached: small ones get there."""

_PORTS = "Ranks and snapshots connect between all pairs of hosts on free ports: open them"
_SIZE = "Give the interfaces the smallest MTU of the path, or let the ICMP messages through that say it"


def judge(
    hosts: Sequence[Facts], offsets: Sequence[float], unreached: Mapping[tuple[int, int], str], num: int
) -> list[Finding]:
    """`unreached`: from the one host to the other one, by their places: why. `num`: how many hosts there should be."""
    return [
        *_missing(hosts, num),
        *_unreached(hosts, unreached),
        *_names(hosts),
        *_differing(hosts, "everstep", lambda each: each.everstep),
        *_differing(hosts, "torch", lambda each: each.torch),
        *_differing(hosts, "Python", lambda each: each.python),
        *_mtus(hosts),
        *_clocks(hosts, offsets),
    ]


def _missing(hosts: Sequence[Facts], num: int) -> list[Finding]:
    if len(hosts) >= num:
        return []
    came = ", ".join(each.host for each in hosts)
    text = f"{len(hosts)} of {num} hosts came: {came}. Start the same command on the others, with the same endpoint"
    return [Finding(what="missing", hosts=tuple(each.host for each in hosts), text=text)]


def _unreached(hosts: Sequence[Facts], unreached: Mapping[tuple[int, int], str]) -> list[Finding]:
    found = []
    for (one, other), why in sorted(unreached.items()):
        a, b = hosts[one], hosts[other]
        is_size = LARGE in why
        do = _SIZE if is_size else _PORTS
        text = f"{a.host} cannot reach {b.host} at {b.address}: {why}. {do}"
        found.append(Finding(what="mtu" if is_size else "port", hosts=(a.host, b.host), text=text))
    return found


def _names(hosts: Sequence[Facts]) -> list[Finding]:
    found = []
    for each in hosts:
        if _is_loopback(each.address) or not each.named or not all(map(_is_loopback, each.named)):
            continue
        text = (
            f"the name {each.host} leads to {each.named[0]} on that host (/etc/hosts): gloo and NCCL may listen where "
            f"no other host reaches them. Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME{_to(each)}, or mend /etc/hosts"
        )
        found.append(Finding(what="name", hosts=(each.host,), text=text))
    names = [each.host for each in hosts]
    for name in sorted({each for each in names if names.count(each) > 1}):
        text = f"{names.count(name)} hosts are called {name}: incidents and the memory of machines take them for one"
        found.append(Finding(what="name", hosts=(name,), text=text))
    return found


def _to(facts: Facts) -> str:
    return f" to {facts.interface}" if facts.interface else ""


def _differing(hosts: Sequence[Facts], what: str, of: Callable[[Facts], str]) -> list[Finding]:
    by_version: dict[str, list[str]] = {}
    for each in hosts:
        by_version.setdefault(of(each) or "none", []).append(each.host)
    if len(by_version) < 2:
        return []
    text = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(by_version.items()))
    why = "install the same on all hosts" + ("; a host that differs is refused" if what != "Python" else "")
    return [Finding(what="version", hosts=tuple(each.host for each in hosts), text=f"{what} differs: {text}: {why}")]


def _mtus(hosts: Sequence[Facts]) -> list[Finding]:
    by_mtu: dict[int, list[str]] = {}
    for each in hosts:
        if each.mtu is not None and not _is_loopback(each.address):
            by_mtu.setdefault(each.mtu, []).append(f"{each.host} ({each.interface})")
    if len(by_mtu) < 2:
        return []
    text = "; ".join(f"{mtu} on {', '.join(names)}" for mtu, names in sorted(by_mtu.items()))
    what = f"MTU differs: {text}: large packets may be lost without a word. Give all interfaces the same"
    return [Finding(what="mtu", hosts=tuple(each.host for each in hosts), text=what)]


def _clocks(hosts: Sequence[Facts], offsets: Sequence[float]) -> list[Finding]:
    found = []
    for each, offset in zip(hosts, offsets, strict=True):
        if abs(offset) > MAX_CLOCK_S:
            text = (
                f"the clock of {each.host} is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} that of "
                f"{hosts[0].host}: the order of events in incidents will be wrong. Start NTP or chrony"
            )
            found.append(Finding(what="clock", hosts=(each.host,), text=text))
    return found


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
