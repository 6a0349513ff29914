"""The page of `everstep fabric place`."""

from everstep.fabric.placement.cost import Cost
from everstep.fabric.placement.place import Placement
from everstep.fabric.readers.hostlist import compress
from everstep.report.parts.layout import field, text_of
from everstep.report.parts.units import count

_SHOWN = 16


def placement_page(source: str, placement: Placement) -> str:
    hosts = placement.hosts
    lines = [f"{source}: {count(len(hosts))} hosts", ""]
    lines += _row("hosts", compress(list(hosts)))
    order = ", ".join(hosts[:_SHOWN]) + (f", ... {hosts[-1]}" if len(hosts) > _SHOWN else "")
    lines += _row("order", order)
    lines += _row("fullest link", f"{placement.cost.bottleneck:.4g}: {_quality(placement)}")
    lines += _row("Slurm's tree", _beside(placement.cost, placement.slurm))
    if placement.speed_up is not None:
        lines += _row(
            "speed-up", f"{placement.speed_up:.2f} against Slurm's tree, NICs included, if only the network counts"
        )
    if placement.is_assumed:
        lines += _row("assumed", "no oversubscription: the file does not say how fast the cables are")
    return text_of(lines)


def _quality(placement: Placement) -> str:
    if placement.is_optimal:
        return "no placement has less"
    return f"the best found; no placement has less than {placement.bound:.4g}"


def _beside(ours: Cost, slurm: Cost) -> str:
    if slurm.bottleneck == ours.bottleneck:
        more = slurm.crossing - ours.crossing
        return "as good" if more <= 0 else f"as full, and {more / max(ours.crossing, 1e-12):.0%} more leaves groups"
    times = "" if ours.bottleneck == 0 else f", {slurm.bottleneck / ours.bottleneck:.2f} times as full"
    return f"{slurm.bottleneck:.4g}{times}"


def _row(name: str, text: str) -> list[str]:
    return field(name, text, width=15)
