"""Counts of a Clos network for a number of chips, with the fewest tiers. `build` makes its topology.

The NICs with one index on all hosts are a rail. A leaf serves one rail, so a host connects to one leaf per rail; hosts
that share their leaves are a group. A spine serves all rails if it has enough ports. If not, each rail is a separate
network, and traffic changes rails inside a host.
"""

import math

import msgspec

from everstep.fabric.topology.values import FabricError

MAX_CHIPS = 1_000_000


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    chips: int
    rails: int = 8  # NICs of a host
    chips_per_host: int | None = None  # None: one NIC each
    radix: int = 64  # ports of a switch, all of one speed
    bps: float = 400e9
    oversubscription: float = 1.0  # at the leaves; above them it is always 1:1


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    wanted: Wanted
    num_hosts: int
    num_tiers: int
    shares_spines: bool  # all rails on the same spines
    down: int  # ports of a leaf to hosts
    up: int  # ports of a leaf to spines
    num_groups: int
    num_pods: int  # 1 with two tiers
    groups_per_pod: int
    spines: int  # per plane and pod
    parallel: int  # cables between a leaf and a spine
    cores: int  # per plane; 0 with two tiers
    core_parallel: int  # cables between a spine and a core

    @property
    def num_planes(self) -> int:
        """Number of networks that only the hosts connect."""
        return 1 if self.shares_spines else self.wanted.rails

    @property
    def num_leaves(self) -> int:
        return self.num_groups * self.wanted.rails

    @property
    def num_spines(self) -> int:
        return self.spines * self.num_pods * self.num_planes

    @property
    def num_cores(self) -> int:
        return self.cores * self.num_planes

    @property
    def num_switches(self) -> int:
        return self.num_leaves + self.num_spines + self.num_cores

    @property
    def host_cables(self) -> int:
        return self.num_hosts * self.wanted.rails

    @property
    def switch_cables(self) -> int:
        return self.num_leaves * self.up + (self.num_spines * (self.wanted.radix // 2) if self.cores else 0)

    @property
    def oversubscription(self) -> float:
        """The ratio that the ports give: at most the wanted one."""
        return self.down / self.up if self.up else 1.0

    @property
    def bisection_bps(self) -> float:
        """Bit/s between any two halves of the hosts, in each direction."""
        return self.num_hosts / 2 * self.wanted.rails * self.wanted.bps / max(1.0, self.oversubscription)


def plan_clos(wanted: Wanted) -> Plan:
    """Plan with the fewest tiers. Raises FabricError that names the number that does not fit."""
    _check(wanted)
    per_host = wanted.chips_per_host or wanted.rails
    num_hosts = math.ceil(wanted.chips / per_host)
    if num_hosts <= wanted.radix:  # one leaf per rail connects all hosts
        return _plan(wanted, num_hosts, num_tiers=1, shares=False, down=wanted.radix, up=0, groups=1)
    up = math.ceil(wanted.radix / (1 + wanted.oversubscription) - 1e-9)
    down = min(wanted.radix - up, math.floor(up * wanted.oversubscription + 1e-9))
    groups = math.ceil(num_hosts / down)
    if groups * wanted.rails <= wanted.radix:
        return _plan(wanted, num_hosts, num_tiers=2, shares=True, down=down, up=up, groups=groups)
    if groups <= wanted.radix:
        return _plan(wanted, num_hosts, num_tiers=2, shares=False, down=down, up=up, groups=groups)
    per_pod = wanted.radix // 2
    if math.ceil(groups / per_pod) > wanted.radix:
        most = down * per_pod * wanted.radix * per_host
        raise FabricError(
            f"--chips {wanted.chips}: three tiers of {wanted.radix} ports hold {most}; use a larger --radix"
        )
    return _plan(wanted, num_hosts, num_tiers=3, shares=False, down=down, up=up, groups=groups)


def _check(wanted: Wanted) -> None:
    if not 1 <= wanted.chips <= MAX_CHIPS:
        raise FabricError(f"--chips {wanted.chips}: must be between 1 and {MAX_CHIPS}")
    if not 1 <= wanted.rails <= 64:
        raise FabricError(f"--rails {wanted.rails}: must be between 1 and 64")
    if wanted.chips_per_host is not None and not 1 <= wanted.chips_per_host <= 1024:
        raise FabricError(f"--chips-per-host {wanted.chips_per_host}: must be between 1 and 1024")
    if not 4 <= wanted.radix <= 1024 or wanted.radix % 2:
        raise FabricError(f"--radix {wanted.radix}: must be an even number between 4 and 1024")
    if not 1 <= wanted.oversubscription <= wanted.radix - 1:
        raise FabricError(
            f"--oversubscription {wanted.oversubscription:g}:1: must be between 1:1 and {wanted.radix - 1}:1"
        )


def _plan(wanted: Wanted, num_hosts: int, *, num_tiers: int, shares: bool, down: int, up: int, groups: int) -> Plan:
    half = wanted.radix // 2
    pods = math.ceil(groups / half) if num_tiers == 3 else 1
    per_pod = math.ceil(groups / pods)
    below = wanted.radix if num_tiers == 2 else half  # ports of a spine for leaves
    leaves = per_pod * (wanted.rails if shares else 1)
    parallel = _most_parallel(up, below // leaves) if num_tiers > 1 else 0
    core_parallel = _most_parallel(half, wanted.radix // pods) if num_tiers == 3 else 0
    spines = up // parallel if parallel else 0
    return Plan(
        wanted=wanted,
        num_hosts=num_hosts,
        num_tiers=num_tiers,
        shares_spines=shares,
        down=down,
        up=up,
        num_groups=groups,
        num_pods=pods,
        groups_per_pod=per_pod,
        spines=spines,
        parallel=parallel,
        cores=spines * (half // core_parallel) if core_parallel else 0,
        core_parallel=core_parallel,
    )


def _most_parallel(up: int, most: int) -> int:
    """Cables per pair of switches: as many as fit, for fewer switches, and the same number for each."""
    return max(each for each in range(1, max(1, most) + 1) if up % each == 0)
