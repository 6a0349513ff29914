"""The name of this machine, and its kind: nodes of one kind are compared with each other.

The kind is made of what does not go missing: the product's name and the CPU, never counts of devices. With seven of
eight GPUs a node is still of its kind.
"""

import platform
import socket

from everstep.model.names import own_machine_name
from everstep.preflight.sources import keyed, text_of


def node_name() -> str:
    return own_machine_name(socket.gethostname())


def machine_kind(root: str = "/") -> str:
    dmi = "/sys/devices/virtual/dmi/id"
    parts = [text_of(root, f"{dmi}/sys_vendor"), text_of(root, f"{dmi}/product_name")]
    processor = keyed(text_of(root, "/proc/cpuinfo") or "").get("model name") or platform.processor()
    named = [part for part in parts if part and "to be filled" not in part.lower()]
    return ", ".join([*named, processor or "unknown CPU", platform.machine()])
