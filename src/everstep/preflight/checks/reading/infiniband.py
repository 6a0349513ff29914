"""InfiniBand, RoCE and EFA ports: state, rate, firmware, and every counter that the driver has."""

from collections.abc import Iterator

from everstep.linux import infiniband
from everstep.linux.infiniband import ports as list_ports
from everstep.preflight.result import Better, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import Place, names_in, parts, read_place, read_places, text_of, under, whole

_BASE = infiniband.BASE
_TRAFFIC = (
    "port_rcv_data",
    "port_xmit_data",
    "port_rcv_packets",
    "port_xmit_packets",
    "unicast",
    "multicast",
    "lifespan",
)


def measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    devices = names_in(root, _BASE)
    if not devices:
        yield unsupported("infiniband.count", f"{_BASE} is empty or not there: no RDMA device, or no driver", "devices")
        return
    yield measured(
        "infiniband.count", len(devices), "devices", how=f"list {_BASE}", better=Better.SAME, tolerance=0.0
    )  # fmt: skip
    for device in devices:
        yield from _device(root, device)
    for device, port in ports(root):
        yield from parts("infiniband", _port(root, device, port), counters(root, device, port))


def _device(root: str, device: str) -> Iterator[Result]:
    base, prefix = f"{_BASE}/{device}", f"infiniband.{device}."
    how = f"list {_BASE}"
    yield measured(f"{prefix}present", True, how=how, better=Better.SAME, tolerance=0.0, device=device)
    yield from read_places(
        root,
        [
            Place(name="firmware", path=f"{base}/fw_ver", parse=whole),
            Place(name="board", path=f"{base}/board_id", parse=whole),
            Place(name="type", path=f"{base}/hca_type", parse=whole),
            Place(name="node_type", path=f"{base}/node_type", parse=whole),
            Place(name="numa_node", path=f"{base}/device/numa_node"),
        ],
        prefix=prefix,
        device=device,
    )


def _port(root: str, device: str, port: str) -> Iterator[Result]:
    base, prefix, title = f"{_BASE}/{device}/ports/{port}", f"infiniband.{device}.{port}.", f"{device}/{port}"
    yield from read_places(
        root,
        [
            Place(name="state", path=f"{base}/state", parse=whole),
            Place(name="physical_state", path=f"{base}/phys_state", parse=whole),
            Place(
                name="rate_gbit",
                path=f"{base}/rate",
                unit="Gbit/s",
                parse=_leading,
                better=Better.HIGHER,
                tolerance=0.0,
            ),
            Place(name="link_layer", path=f"{base}/link_layer", parse=whole),
            Place(name="lid", path=f"{base}/lid", parse=whole, better=Better.ANY),
            Place(name="subnet_manager_lid", path=f"{base}/sm_lid", parse=whole),
            Place(name="capabilities", path=f"{base}/cap_mask", parse=whole),
        ],
        prefix=prefix,
        device=title,
    )
    yield state(root, device, port)


def _leading(text: str) -> float:
    return float(text.split()[0])


def state(root: str, device: str, port: str) -> Result:
    """Also for `light`."""
    path = f"{_BASE}/{device}/ports/{port}/state"
    text = text_of(root, path)
    name, title = f"infiniband.{device}.{port}.active", f"{device}/{port}"
    if text is None:
        return unsupported(name, f"{path} cannot be read", device=title)
    how = f"read {path}: {text}"
    return measured(name, text.endswith("ACTIVE"), how=how, better=Better.SAME, tolerance=0.0, device=title)


def counters(root: str, device: str, port: str) -> Iterator[Result]:
    """Also for `light`. Both folders: the standard's counters, and the vendor's."""
    for folder in ("counters", "hw_counters"):
        base = f"{_BASE}/{device}/ports/{port}/{folder}"
        for counter in names_in(root, base):
            better = Better.ANY if any(word in counter for word in _TRAFFIC) else Better.LOWER
            place = Place(name=counter, path=f"{base}/{counter}", unit="times", better=better)
            yield read_place(root, place, prefix=f"infiniband.{device}.{port}.", device=f"{device}/{port}")


def ports(root: str) -> Iterator[tuple[str, str]]:
    for port in list_ports(under(root, _BASE)):
        yield port.device, port.number
