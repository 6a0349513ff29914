"""A tree of switches, as schedulers describe a network: the hosts and the switches below each switch.

Such a description has no number of cables between two switches and no speeds: both stay unknown.
"""

from collections.abc import Mapping

import msgspec

from everstep.fabric.topology.graph import tiers_of_tree
from everstep.fabric.topology.values import Cable, FabricError, Host, Port, Switch, Topology, check_whole

MAX_NAMES = 2_000_000
"""Limit for all lists of a file together."""

MAX_LEVELS = 64


class Tree(msgspec.Struct, kw_only=True):
    source: str
    children: dict[str, list[str]] = msgspec.field(default_factory=dict)  # switch -> switches below it
    hosts: dict[str, list[str]] = msgspec.field(default_factory=dict)  # switch -> hosts on it
    labels: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)  # of switches
    domains: dict[str, str] = msgspec.field(default_factory=dict)  # host -> accelerator domain
    num_names: int = 0

    def add(self, switch: str, *, children: list[str], hosts: list[str]) -> None:
        """Raises FabricError for a duplicate switch, and for too many names."""
        if switch in self.children:
            raise FabricError(f"{self.source}: duplicate name: {switch}: two switches")
        self.num_names += 1 + len(children) + len(hosts)
        if self.num_names > MAX_NAMES:
            raise FabricError(f"{self.source}: more than {MAX_NAMES} names")
        self.children[switch] = children
        self.hosts[switch] = hosts

    def topology(self) -> Topology:
        """Raises FabricError for a cycle, a switch without a description, or a host on two switches."""
        known = {child for below in self.children.values() for child in below} - self.children.keys()
        if known:
            raise FabricError(f"{self.source}: unknown switch: {min(known)}: it is below another, and not described")
        tiers = tiers_of_tree(self.source, dict(self.children))
        cables = [_cable(switch, child) for switch, below in self.children.items() for child in below]
        place: dict[str, str] = {}
        for switch, hosts in self.hosts.items():
            for host in hosts:
                if host in place:
                    raise FabricError(f"{self.source}: duplicate name: {host}: on {place[host]} and on {switch}")
                place[host] = switch
                cables.append(_cable(switch, host))
        return check_whole(
            Topology(
                source=self.source,
                hosts=tuple(Host(name=name, domain=self.domains.get(name)) for name in place),
                switches=tuple(
                    Switch(name=name, tier=tiers[name], labels=self.labels.get(name, {})) for name in self.children
                ),
                cables=tuple(cables),
            )
        )


def _cable(switch: str, below: str) -> Cable:
    return Cable(one=Port(node=below), other=Port(node=switch))


def tree_of(source: str, paths: Mapping[str, tuple[str, ...]], domains: Mapping[str, str] | None = None) -> Tree:
    """Build a tree from node labels. `paths`: for each host its groups, the closest first. If one group name occurs
    below two groups, the names of the groups above it distinguish the two switches. Hosts without a group are left out.
    Raises FabricError."""
    deep = next((host for host, path in paths.items() if len(path) > MAX_LEVELS), None)
    if deep is not None:
        raise FabricError(f"{source}: {deep[:80]!r}: more than {MAX_LEVELS} levels of groups")
    tree = Tree(source=source, domains=dict(domains or {}))
    plain = _names(paths)
    joined: set[tuple[str, str]] = set()
    for host, path in paths.items():
        for depth in range(len(path)):
            name = plain[path[depth:]]
            if name not in tree.children:
                tree.add(name, children=[], hosts=[])
            if depth and (pair := (plain[path[depth - 1 :]], name)) not in joined:
                joined.add(pair)
                tree.children[name].append(pair[0])
        if path:
            tree.hosts[plain[path]].append(host)
    return tree


def _names(paths: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Suffix of a path -> name of the switch: the group's own name, unless another suffix or a host has it."""
    suffixes = list(dict.fromkeys(path[depth:] for path in paths.values() for depth in range(len(path))))
    owners: dict[str, int] = {}
    for suffix in suffixes:
        owners[suffix[0]] = owners.get(suffix[0], 0) + 1
    taken = set(paths)
    return {
        suffix: suffix[0] if owners[suffix[0]] == 1 and suffix[0] not in taken else "/".join(reversed(suffix))
        for suffix in suffixes
    }
