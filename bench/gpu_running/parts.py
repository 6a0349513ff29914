"""The parts, in the order in which they run: first what all else rests on, last what may take the time of others.
Each has its own limit; all together have what is left of the whole."""

import dataclasses
import math
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "gpu_parts"


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """`on_cpu`: why it has no meaning without a device; empty if it is rehearsed on the CPU. `of`: the part whose
    script it is. Of the states that are asked for it gets those from `least_gb` up to below `most_gb`."""

    name: str
    title: str
    limit_s: float
    on_cpu: str = ""
    of: str = ""
    least_gb: float = 0.0
    most_gb: float = math.inf

    @property
    def script(self) -> Path:
        return FOLDER / f"{self.of or self.name}.py"


_LARGE_GB = 8.0
"""From here on a state takes a minute to get memory for: it comes last."""

PARTS = (
    Part("machine", "The machine", 40),
    Part("link", "The link between host and device", 60, "there is no link"),
    Part("snapshots", "Snapshots of each step, beside torch.distributed.checkpoint's stagers", 90, most_gb=_LARGE_GB),
    Part("restore", "Restore to the device", 80, most_gb=_LARGE_GB),
    Part("resume", "Killed and resumed: time and bits", 60),
    Part("graphs", "Captured graphs, torch.compile", 60),
    Part("digests", "Digests and silent corruption", 40),
    Part("senses", "NVML's answers and node checks", 60, "there is no device to ask for"),
    Part("two_ranks", "Two gloo ranks on one device", 50),
    Part("flight", "NCCL with one rank, its flight record", 40, "NCCL needs a device"),
    Part("nccl_ranks", "NCCL with four ranks on one device, our plug-in in it", 200, "NCCL needs a device"),
    Part("plain", "Programs without State, killed, beside torchrun", 300, "NCCL needs a device"),
    Part("overhead", "A small transformer with everything attached", 110),
    Part("xid", "A fault that the driver reports", 40, "there is no driver"),
    Part("hangs", "Ranks that stand still", 110),
    Part("large", "Snapshots of a large state", 110, of="snapshots", least_gb=_LARGE_GB),
)
