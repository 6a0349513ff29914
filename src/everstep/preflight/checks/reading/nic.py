"""Network interfaces: link, speed, MTU, counters, and traffic shapers set on them."""

import socket
import struct
from collections.abc import Iterator

from everstep.linux.nics import own_interfaces
from everstep.preflight.result import Better, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import (
    Place,
    names_in,
    not_negative,
    parts,
    read_place,
    read_places,
    text_of,
    under,
    whole,
)

_BASE = "/sys/class/net"
_COUNTERS = (
    "rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped",
    "rx_crc_errors", "rx_frame_errors", "rx_fifo_errors", "tx_fifo_errors", "rx_missed_errors", "rx_over_errors",
    "rx_length_errors", "tx_aborted_errors", "tx_carrier_errors", "tx_heartbeat_errors", "collisions", "multicast",
    "rx_nohandler",
)  # fmt: skip
_TCP = (
    ("Tcp", "RetransSegs"), ("Tcp", "InErrs"), ("Tcp", "AttemptFails"), ("Tcp", "EstabResets"), ("Tcp", "OutSegs"),
    ("Udp", "InErrors"), ("Udp", "RcvbufErrors"), ("Udp", "SndbufErrors"), ("TcpExt", "ListenOverflows"),
    ("TcpExt", "ListenDrops"), ("TcpExt", "TCPTimeouts"), ("TcpExt", "TCPLostRetransmit"), ("TcpExt", "TCPOFOQueue"),
    ("TcpExt", "TCPBacklogDrop"), ("TcpExt", "TCPMemoryPressures"), ("TcpExt", "TCPAbortOnMemory"),
)  # fmt: skip


def interfaces(root: str) -> list[str]:
    """Those that are the node's own; a container host makes and drops others all the time."""
    return sorted(own_interfaces(under(root, "/sys")))


def _is_of_software(root: str, name: str) -> bool:
    return name not in interfaces(root)


def measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    names = names_in(root, _BASE)
    if not names:
        yield unsupported("nic.count", f"{_BASE} is empty or not there")
    for name in names:
        yield from parts("nic", _configuration(root, name), counters(root, name))
    if root == "/":
        yield from parts("nic", _shapers())
    yield from parts("nic", protocols(root))


def _configuration(root: str, name: str) -> Iterator[Result]:
    base, prefix = f"{_BASE}/{name}", f"nic.{name}."
    lasting = Better.ANY if _is_of_software(root, name) else Better.SAME
    yield measured(f"{prefix}present", True, how=f"list {_BASE}", better=lasting, tolerance=0.0, device=name)
    yield from read_places(
        root,
        [
            Place(name="state", path=f"{base}/operstate", parse=whole, better=lasting),
            Place(name="mtu", path=f"{base}/mtu", unit="bytes", better=lasting),
            Place(name="speed_mbit", path=f"{base}/speed", unit="Mbit/s", parse=not_negative, better=Better.HIGHER),
            Place(name="duplex", path=f"{base}/duplex", parse=_known, better=lasting),
            Place(name="queue_length", path=f"{base}/tx_queue_len", unit="packets", better=lasting),
            Place(name="numa_node", path=f"{base}/device/numa_node", parse=not_negative, better=lasting),
            Place(name="carrier_changes", path=f"{base}/carrier_changes", unit="times", better=Better.LOWER),
        ],
        prefix=prefix,
        device=name,
    )
    yield _usable(root, name)
    yield from _changes_per_day(root, name)
    driver = under(root, f"{base}/device/driver")
    if driver.is_symlink():
        title = driver.readlink().name
        yield measured(f"{prefix}driver", title, how=f"readlink {base}/device/driver", better=lasting, device=name)
    else:
        yield unsupported(f"{prefix}driver", "a virtual interface has no device behind it", device=name)
    queues = names_in(root, f"{base}/queues")
    for way in ("rx", "tx"):
        number = sum(queue.startswith(way) for queue in queues)
        yield measured(f"{prefix}{way}_queues", number, how=f"list {base}/queues", better=lasting, device=name)


def _known(text: str) -> str | None:
    return None if text == "unknown" else text


def _usable(root: str, name: str) -> Result:
    """Switched on (IFF_UP) and yet without a link: a cable, a transceiver, a switch port."""
    flags, carrier = text_of(root, f"{_BASE}/{name}/flags"), text_of(root, f"{_BASE}/{name}/carrier")
    full = f"nic.{name}.usable"
    if not flags or not int(flags, 16) & 1:
        return unsupported(full, "the interface is switched off", device=name)
    if carrier is None or _is_of_software(root, name):
        return unsupported(full, "the link of this kind of interface says nothing", device=name)
    how = f"read {_BASE}/{name}/flags, carrier"
    return measured(full, carrier == "1", how=how, better=Better.SAME, tolerance=0.0, device=name)


def _changes_per_day(root: str, name: str) -> Iterator[Result]:
    changes = text_of(root, f"{_BASE}/{name}/carrier_changes") or ""
    uptime = (text_of(root, "/proc/uptime") or "").split()
    if changes.isdigit() and uptime and not _is_of_software(root, name):
        days = max(float(uptime[0]) / 86400, 1.0)  # a few changes while the machine starts are usual
        how = f"carrier_changes of {name} by the days since the machine started"
        yield measured(f"nic.{name}.carrier_changes_per_day", int(changes) / days, "times/day", how=how, device=name)


def counters(root: str, name: str) -> Iterator[Result]:
    """Also for `light`."""
    base, prefix = f"{_BASE}/{name}/statistics", f"nic.{name}."
    numbers: dict[str, int] = {}
    for counter in _COUNTERS:
        unit = "bytes" if counter.endswith("bytes") else "packets"
        result = read_place(
            root,
            Place(name=counter, path=f"{base}/{counter}", unit=unit, better=Better.ANY),
            prefix=prefix,
            device=name,
        )
        if isinstance(result.value, int):
            numbers[counter] = result.value
        yield result
    packets = numbers.get("rx_packets", 0) + numbers.get("tx_packets", 0)
    for title, keys in (("error_ratio", ("rx_errors", "tx_errors")), ("drop_ratio", ("rx_dropped", "tx_dropped"))):
        if packets < 10_000 or not numbers.keys() >= set(keys):
            yield unsupported(f"{prefix}{title}", "fewer than 10,000 packets so far", "ratio", device=name)
        else:
            share = sum(numbers[key] for key in keys) / packets
            yield measured(f"{prefix}{title}", share, "ratio", how=f"{' + '.join(keys)} by packets", device=name)


def protocols(root: str) -> Iterator[Result]:
    """Counters of TCP and UDP since the machine started. Also for `light`."""
    found: dict[tuple[str, str], int] = {}
    for path in ("/proc/net/snmp", "/proc/net/netstat"):
        lines = (text_of(root, path) or "").splitlines()
        for head, row in zip(lines[::2], lines[1::2], strict=False):
            group, _, keys = head.partition(":")
            for key, cell in zip(keys.split(), row.partition(":")[2].split(), strict=False):
                found[group, key] = int(cell)
    for group, key in _TCP:
        name = f"nic.{group.lower()}.{key}"
        if (group, key) in found:
            yield measured(name, found[group, key], "times", how="read /proc/net/snmp, netstat")
        else:
            yield unsupported(name, f"the kernel has no counter {group} {key}", "times")
    sent, again = found.get(("Tcp", "OutSegs")), found.get(("Tcp", "RetransSegs"))
    if sent and again is not None:
        how = "Tcp RetransSegs by OutSegs, since the machine started"
        yield measured("nic.tcp.retransmitted_ratio", again / sent, "ratio", how=how)


_RTM_GETQDISC, _RTM_NEWQDISC = 38, 36
_NLM_F_DUMP_REQUEST = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCA_KIND = 1
_SHAPERS = ("tbf", "netem", "htb", "hfsc", "cbq")


def _shapers() -> Iterator[Result]:
    """Queueing discipline at the root of each interface, as `tc qdisc` shows it, asked over netlink."""
    try:
        found = dict(_disciplines())
        interfaces = socket.if_nameindex()
    except OSError as error:
        yield unsupported("nic.discipline", f"netlink: {error.strerror or error}")
        return
    own = own_interfaces()
    for index, name in interfaces:
        kind = found.get(index, "none")
        how = "netlink RTM_GETQDISC"
        lasting = Better.ANY if name not in own else Better.SAME
        yield measured(f"nic.{name}.discipline", kind, how=how, better=lasting, device=name)
        if not name not in own:
            yield measured(f"nic.{name}.is_shaped", kind in _SHAPERS, how=how, better=lasting, device=name)


def _disciplines() -> Iterator[tuple[int, str]]:
    """(index of the interface, kind) of each root discipline. Raises OSError."""
    request = struct.pack("=IHHII BxxxiIII", 36, _RTM_GETQDISC, _NLM_F_DUMP_REQUEST, 1, 0, 0, 0, 0, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.settimeout(2.0)
        link.send(request)
        while True:
            data = link.recv(1 << 16)
            at = 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == _NLMSG_DONE or length < 16:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError(-struct.unpack_from("=i", data, at + 16)[0], "the kernel refused to list disciplines")
                if kind == _RTM_NEWQDISC:
                    yield from _discipline(data[at + 16 : at + length])
                at += (length + 3) & ~3


def _discipline(message: bytes) -> Iterator[tuple[int, str]]:
    _, index, _, parent, _ = struct.unpack_from("=BxxxiIII", message)
    if parent != 0xFFFFFFFF:  # TC_H_ROOT
        return
    at = 20
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            return
        if kind == _TCA_KIND:
            yield index, message[at + 4 : at + length].rstrip(b"\0").decode(errors="replace")
            return
        at += (length + 3) & ~3
