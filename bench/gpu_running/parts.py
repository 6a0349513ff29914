"""The parts, in the order in which they run: what everything else rests on first, what may harm the process's use of
the device last. Each has its own limit; all together have what is left of the whole."""

import dataclasses
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "gpu_parts"


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """`on_cpu`: why it has no meaning without a device; empty if it is rehearsed on the CPU."""

    name: str
    title: str
    limit_s: float
    on_cpu: str = ""

    @property
    def script(self) -> Path:
        return FOLDER / f"{self.name}.py"


PARTS = (
    Part("machine", "The machine", 40),
    Part("link", "The link between host and device", 60, "there is no link"),
    Part("snapshots", "Snapshots of each step, beside torch.distributed.checkpoint's stagers", 130),
    Part("restore", "Restore to the device", 80),
    Part("resume", "Killed and resumed: time and bits", 90),
    Part("graphs", "Captured graphs, torch.compile", 60),
    Part("digests", "Digests and silent corruption", 40),
    Part("senses", "NVML's answers and node checks", 80, "there is no device to ask for"),
    Part("overhead", "A small transformer with everything attached", 90),
    Part("two_ranks", "Two gloo ranks on one device", 60),
    Part("flight", "NCCL with one rank, its flight record", 50, "NCCL needs a device"),
    Part("hangs", "Ranks that stand still", 130),
    Part("xid", "A fault that the driver reports", 40, "there is no driver"),
)
