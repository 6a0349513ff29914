"""A network of two tiers in which every leaf has one cable to every spine."""

from everstep.fabric.topology.values import Cable, Host, Port, Switch, Topology


def two_tiers(leaves: int, nics: int, spines: int, bps: float = 1e9) -> Topology:
    """One rail; every leaf on every spine."""
    nics_of = [Port(node=f"n{n}", name="nic0", rail=0, bps=bps) for n in range(leaves * nics)]
    hosts = tuple(Host(name=nic.node, nics=(nic,)) for nic in nics_of)
    cables = [Cable(one=host.nics[0], other=Port(node=f"leaf{n // nics}", name=f"d{n % nics}", bps=bps))
              for n, host in enumerate(hosts)]  # fmt: skip
    cables += [Cable(one=Port(node=f"leaf{leaf}", name=f"u{spine}", bps=bps),
                     other=Port(node=f"spine{spine}", name=f"d{leaf}", bps=bps))
               for leaf in range(leaves) for spine in range(spines)]  # fmt: skip
    switches = [Switch(name=f"leaf{n}") for n in range(leaves)] + [Switch(name=f"spine{n}") for n in range(spines)]
    return Topology(source="lab", hosts=hosts, switches=tuple(switches), cables=tuple(cables))
