"""How nodes reach each other: over loopback, each in a network namespace of its own, or on hosts of their own."""

from everstep.engines.network.address import Address
from everstep.engines.network.loopback import Loopback
from everstep.engines.network.namespaces import Namespaces
from everstep.engines.network.protocol import Network, NetworkError, Plug

__all__ = ["Address", "Loopback", "Namespaces", "Network", "NetworkError", "Plug", "is_of_its_own", "open_network"]


def open_network(wanted: str) -> tuple[Network, tuple[str, ...]]:
    """The network, and what is to be said about the choice. Raises NetworkError, only for namespaces that were asked
    for by name."""
    if wanted == "loopback":
        return Loopback(), ()
    try:
        return Namespaces(), ()
    except NetworkError as error:
        if wanted != "auto":
            raise
        return Loopback(), (f"nodes share the machine's loopback: {error}",)


def is_of_its_own(network: Network) -> bool:
    """Nodes reach each other elsewhere than over the machine's loopback."""
    return not isinstance(network, Loopback)
