"""What the ranks of checkpoint_script.py wrote, as figures of one way to save. Pure; called by checkpoint.py.

A training waits for its slowest rank, so a stall is the longest of all ranks. It is the time in the save call, and the
wait before the next update. Ratios are taken within a block, that is, between slices seconds apart in the same
processes; intervals come from drawing the blocks again.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from measuring.figures import interval_of_median, quantile

Records = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Sample:
    """All launches of one way to save. Lists hold one value per save, or per block."""

    stalls: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # per block: median stall to median plain copy
    copies: list[float] = field(default_factory=list)
    effects: list[float] = field(default_factory=list)  # per block: how much longer the training took, per save
    steps: list[float] = field(default_factory=list)  # without saves
    whole: list[float] = field(default_factory=list)  # from the call until it is whole where it goes
    persisted: list[float] = field(default_factory=list)  # everstep: from the order to the commit on disk
    restores: list[float] = field(default_factory=list)
    state_bytes: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, launch: Mapping[int, Records]) -> None:
        """One launch: its records by rank."""
        blocks = sorted({one["block"] for one in launch[0] if one.get("block", -1) >= 0})
        for block in blocks:
            stalls, copies = _stalls(launch, block, "save"), _stalls(launch, block, "copy")
            self.stalls += stalls
            self.copies += copies
            if stalls and copies:
                self.ratios.append(statistics.median(stalls) / statistics.median(copies))
            plain = [one["step_s"] for one in _steps(launch[0], block, "plain")]
            saving = [one["step_s"] for one in _steps(launch[0], block, "save")]
            num_saves = sum(one["save_s"] is not None for one in _steps(launch[0], block, "save"))
            self.steps += plain
            self.effects.append((sum(saving) - len(saving) * statistics.median(plain)) / num_saves)
        self.whole += _whole(launch)
        restores = [one["took_s"] for records in launch.values() for one in records if one["kind"] == "restore"]
        if len(restores) == len(launch):
            self.restores.append(max(restores))
        self.state_bytes = next(one["state_bytes"] for one in launch[0] if one["kind"] == "state")

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def ratio_interval(self) -> tuple[float, float] | None:
        return interval_of_median(self.ratios)

    @property
    def p95_s(self) -> float | None:
        return quantile(self.stalls, 0.95)

    @property
    def step_s(self) -> float | None:
        return median(self.steps)

    @property
    def copy_speed(self) -> float | None:
        """Bandwidth of the way's own copy, in shares of the plain copy's; only for what is whole when it is copied."""
        whole, copy = median(self.whole), median(self.copies)
        return None if whole is None or copy is None else copy / whole


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _steps(records: Records, block: int, name: str) -> list[Mapping[str, Any]]:
    return [one for one in records if one["kind"] == "step" and (one["block"], one["slice"]) == (block, name)]


def _stalls(launch: Mapping[int, Records], block: int, name: str) -> list[float]:
    """One for each save of the slice whose next step is in the slice as well; its wait belongs to the save."""
    ranks = [_steps(records, block, name) for records in launch.values()]
    usual = statistics.median(one["wait_s"] for records in launch.values() for one in _steps(records, block, "plain"))
    found = []
    for index in range(min(map(len, ranks)) - 1):
        if ranks[0][index]["save_s"] is not None:
            found.append(max(own[index]["save_s"] + max(0.0, own[index + 1]["wait_s"] - usual) for own in ranks))
    return found


def _whole(launch: Mapping[int, Records]) -> list[float]:
    """Until the slowest rank's part was whole. A save that only some ranks were seen to finish does not count."""
    by_save: dict[int, list[float]] = {}
    for one in _saves(launch):
        by_save.setdefault(one["save"], []).append(one["done_s"])
    return [max(times) for times in by_save.values() if len(times) == len(launch)]


def _saves(launch: Mapping[int, Records]) -> Iterable[Mapping[str, Any]]:
    for records in launch.values():
        yield from (one for one in records if one["kind"] == "save" and one["slice"] == "save" and one["block"] >= 0)
