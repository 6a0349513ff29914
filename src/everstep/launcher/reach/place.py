"""Whether this host owns the endpoint: then it runs the controller, and all hosts meet here."""

import errno
import ipaddress
import socket

from everstep.errors import ConfigError, PortInUseError
from everstep.launcher.arguments.hosts import Hosts

_LOOPBACK_NAMES = ("localhost", "ip6-localhost")
_BACKLOG = 128


def claim(hosts: Hosts) -> socket.socket | None:
    """The listening socket at the endpoint; None: another host has the address, or another process of this one the
    port. Raises ConfigError, PortInUseError."""
    for address in addresses(hosts.host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, hosts.port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                return None
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue
            raise PortInUseError(f"{hosts.said_by}: port {hosts.port} on {address}: {error.strerror}") from error
        if ipaddress.ip_address(address).is_loopback and not _means_loopback(hosts.host):
            sock.close()
            raise ConfigError(
                f"{hosts.said_by}: {hosts.host} is {address} on this host (/etc/hosts), so no other host can reach it."
                " Nothing was started. Give the address of an interface in its place"
            )
        return sock
    return None


def addresses(name: str) -> list[str]:
    """IPv4 first; empty when the name is not known."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return []
    return sorted(found, key=lambda each: (":" in each, each))


def interface_of(address: str) -> str:
    """The name of the interface that has this address; empty: not known, or loopback. Collectives must not go over
    another one, and a host's own name often leads to loopback."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(sock, 0x8915, struct.pack("256s", name[:15].encode()))  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address and name != "lo":
                return name
    return ""


def _means_loopback(name: str) -> bool:
    if name.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
