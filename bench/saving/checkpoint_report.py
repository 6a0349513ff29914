"""The table of bench/checkpoint.py, and what has to be said with it. Pure."""

from measuring.figures import seconds, table
from saving.checkpoint_figures import Sample, median
from saving.checkpoint_peers import TO_DISK, Way

HEADINGS = (
    "way to save",
    "saves",
    "stall",
    "p95",
    "to the copy",
    "95 %",
    "adds per save",
    "whole after",
    "on disk after",
    "restore",
)


def report(title: str, entrants: list[Way], samples: dict[str, Sample], num_buffers: int) -> str:
    rows = [_row(way, samples.get(way.name)) for way in entrants]
    copies = [value for sample in samples.values() for value in sample.copies]
    steps = [value for sample in samples.values() for value in sample.steps]
    sizes = [sample.state_bytes for sample in samples.values() if sample.state_bytes]
    lines = [title, "", table(HEADINGS, rows), ""]
    if sizes:
        lines.append(
            f"State {sizes[0] / 1e6:.0f} MB per rank; a step without saves {seconds(median(steps))}; "
            f"the plain copy {seconds(median(copies))}. everstep with {num_buffers} buffers."
        )
    ours = samples.get("everstep")
    if ours is not None and ours.stalls and ours.step_s:
        share = (median(ours.stalls) or 0.0) / ours.step_s
        speed = "unknown" if ours.copy_speed is None else f"{ours.copy_speed:.0%}"
        lines.append(f"everstep: stall {share:.2%} of a step; its copy runs at {speed} of the plain copy's bandwidth.")
    lines += [f"{way.title}: absent: {way.absent}" for way in entrants if way.absent is not None]
    lines += [f"{way.title}: failed: {why}" for way in entrants for why in _failures(samples.get(way.name))]
    return "\n".join(lines)


def _failures(sample: Sample | None) -> list[str]:
    return [] if sample is None else [why.strip().splitlines()[0][:200] for why in sample.failures]


def _row(way: Way, sample: Sample | None) -> tuple[str, ...]:
    if sample is None or not sample.stalls:
        return (way.title, "absent" if way.absent is not None else "0", *["—"] * (len(HEADINGS) - 2))
    interval = sample.ratio_interval
    on_disk = sample.persisted if way.is_ours else sample.whole if way.name in TO_DISK else []
    return (
        way.title,
        str(len(sample.stalls)),
        seconds(median(sample.stalls)),
        seconds(sample.p95_s),
        "—" if sample.ratio is None else f"{sample.ratio:.3g}",
        "—" if interval is None else f"{interval[0]:.2g} to {interval[1]:.2g}",
        seconds(median(sample.effects)),
        seconds(median(sample.whole)),
        seconds(median(on_disk)),
        seconds(median(sample.restores)),
    )
