"""NCCL's topology XML (`NCCL_TOPO_DUMP_FILE`): the NICs of one host, their speeds, and its GPUs."""

from xml.etree.ElementTree import Element

from everstep.fabric.topology.values import FabricError, Host, Port, Topology, check_whole

_MBIT = 1e6


def read_system(root: Element, source: str, host: str) -> Topology:
    """`host`: name of the host, which the file does not contain. Raises FabricError."""
    if root.tag != "system":
        raise FabricError(f"{source}: XML, but not of NCCL: the root is {root.tag[:40]!r}, not 'system'")
    nets = root.findall(".//net")
    named: dict[str, tuple[int, Element]] = {}
    for net in nets:
        name = net.get("name") or f"net{net.get('dev', len(named))}"
        if name in named:
            raise FabricError(f"{source}: duplicate NIC: {host}:{name}")
        named[name] = (_number(net.get("dev"), len(named)), net)
    nics = tuple(
        Port(node=host, name=name, rail=rail, bps=_speed(net))
        for name, (rail, net) in sorted(named.items(), key=lambda each: each[1][0])
    )
    chips = len(root.findall(".//gpu")) or len([pci for pci in root.iter("pci") if _is_gpu(pci)])
    if not nics and not chips:
        raise FabricError(f"{source}: neither a NIC nor a GPU in it")
    return check_whole(Topology(source=source, hosts=(Host(name=host, nics=nics, chips=chips or None),)))


def _is_gpu(pci: Element) -> bool:
    return (pci.get("class") or "").lower().startswith("0x0302")


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else otherwise


def _speed(net: Element) -> float | None:
    """`speed` is in Mbit/s; 0 and negative values are NCCL's unknown."""
    try:
        speed = float(net.get("speed") or "")
    except ValueError:
        return None
    return speed * _MBIT if 0 < speed < 1e8 else None
