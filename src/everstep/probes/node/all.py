"""The senses of a real node, in the order of their first look.

EVERSTEP_NODE_ROOT replaces "/" by another folder (with sys/ and proc/ in it), for drills and tests; "{node}" in it
becomes the node's id.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from everstep.probes.node.accelerators.accelerators import Accelerators
from everstep.probes.node.accelerators.amd import Amd
from everstep.probes.node.accelerators.ascend import Ascend
from everstep.probes.node.accelerators.nvml import Nvml, NvmlXids
from everstep.probes.node.clocks import ClockJumps, TimeService
from everstep.probes.node.disks import Disks, Smart
from everstep.probes.node.filesystems import Filesystems
from everstep.probes.node.infiniband import Infiniband
from everstep.probes.node.interfaces import Interfaces
from everstep.probes.node.kernel.kernel_log import LazyKernelLog
from everstep.probes.node.kernel.memory_errors import MemoryErrors
from everstep.probes.node.memory import Memory, Pressure
from everstep.probes.node.own_network import own_sys
from everstep.probes.node.processes import Processes
from everstep.probes.sense import Sense

ROOT_VARIABLE = "EVERSTEP_NODE_ROOT"
TOOL_EVERY_S = 60.0
"""A vendor's tool takes a second of CPU time; the driver's library takes microseconds."""


def standard_senses(
    environ: Mapping[str, str], *, node: str = "", written: tuple[Path, ...], rank_of: Callable[[int], int | None]
) -> list[Sense]:
    """`written`: folders that the run writes to; their filesystems are watched most closely. `rank_of`: pid -> rank."""
    root = Path(environ.get(ROOT_VARIABLE, "").replace("{node}", node) or "/")
    sys, proc = root / "sys", root / "proc"
    return [
        NvmlXids(LazyKernelLog().take),
        Accelerators(Nvml()),
        Infiniband(sys),
        Interfaces(own_sys(sys)),
        MemoryErrors(sys, proc),
        Memory(proc),
        Pressure(proc),
        Disks(sys),
        Filesystems(written, mounts=proc / "self" / "mounts"),
        ClockJumps(),
        TimeService(),
        Processes(rank_of, proc),
        Accelerators(Amd(), TOOL_EVERY_S),
        Accelerators(Ascend(), TOOL_EVERY_S),
        Smart(sys),
    ]
