"""Builds the topology of a plan: names, ports and cables, as if read from a file."""

from everstep.fabric.plan.clos import Plan
from everstep.fabric.topology.values import Cable, Host, Port, Switch, Topology


def build(plan: Plan) -> Topology:
    rails, bps = plan.wanted.rails, plan.wanted.bps
    width = len(str(plan.num_hosts - 1))
    names = [f"n{number:0{width}d}" for number in range(plan.num_hosts)]
    hosts = tuple(
        Host(
            name=name,
            nics=tuple(Port(node=name, name=f"nic{rail}", rail=rail, bps=bps) for rail in range(rails)),
            chips=plan.wanted.chips_per_host or rails,
        )
        for name in names
    )
    cables = [
        Cable(
            one=nic, other=Port(node=leaf(number // plan.down, nic.rail or 0), name=f"d{number % plan.down}", bps=bps)
        )
        for number, host in enumerate(hosts)
        for nic in host.nics
    ]
    switches = [
        Switch(name=leaf(group, rail), tier=1, rail=rail) for group in range(plan.num_groups) for rail in range(rails)
    ]
    if plan.num_tiers > 1:
        _add_spines(plan, switches, cables)
    if plan.num_tiers > 2:
        _add_cores(plan, switches, cables)
    return Topology(
        source=f"plan of {plan.wanted.chips} chips", hosts=hosts, switches=tuple(switches), cables=tuple(cables)
    )


def leaf(group: int, rail: int) -> str:
    return f"leaf{group}-{rail}"


def _spine(plane: int, pod: int, number: int) -> str:
    return f"spine{plane}-{pod}-{number}"


def _add_spines(plan: Plan, switches: list[Switch], cables: list[Cable]) -> None:
    for plane in range(plan.num_planes):
        for pod in range(plan.num_pods):
            switches += [Switch(name=_spine(plane, pod, number), tier=2) for number in range(plan.spines)]
    for group in range(plan.num_groups):
        pod = group // plan.groups_per_pod
        for rail in range(plan.wanted.rails):
            plane = 0 if plan.shares_spines else rail
            place = (group % plan.groups_per_pod) * (plan.wanted.rails if plan.shares_spines else 1)
            place += rail if plan.shares_spines else 0
            for port in range(plan.up):
                far = f"d{place * plan.parallel + port % plan.parallel}"
                one = Port(node=leaf(group, rail), name=f"u{port}", bps=plan.wanted.bps)
                other = Port(node=_spine(plane, pod, port // plan.parallel), name=far, bps=plan.wanted.bps)
                cables.append(Cable(one=one, other=other))


def _add_cores(plan: Plan, switches: list[Switch], cables: list[Cable]) -> None:
    """A spine's number decides its cores: the spines with that number in all pods share the same cores."""
    half = plan.wanted.radix // 2
    per_spine = half // plan.core_parallel
    for plane in range(plan.num_planes):
        switches += [Switch(name=f"core{plane}-{number}", tier=3) for number in range(plan.cores)]
        for pod in range(plan.num_pods):
            for number in range(plan.spines):
                for port in range(half):
                    core = number * per_spine + port // plan.core_parallel
                    far = f"d{pod * plan.core_parallel + port % plan.core_parallel}"
                    one = Port(node=_spine(plane, pod, number), name=f"u{port}", bps=plan.wanted.bps)
                    cables.append(Cable(one=one, other=Port(node=f"core{plane}-{core}", name=far, bps=plan.wanted.bps)))
