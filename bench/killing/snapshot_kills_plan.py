"""Which process dies, and in which phase of a snapshot: the whole plan drawn from one seed. Pure; called by
snapshot_kills.py.

A phase is aimed at, not guaranteed: what was really hit is read from the dead process's memory (snapshot_kills_memory).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

TARGETS = ("rank", "agent", "node", "controller")
PHASES = ("copy", "publish", "backup", "persist", "restore", "step")
_WEIGHTS = {"rank": 5, "agent": 2, "node": 3, "controller": 2}
# Who can be in the middle of what: only agents receive and persist, but a rank that dies meanwhile must not spoil it.
_AIMS = {
    "rank": ("copy", "copy", "publish", "backup", "persist", "restore", "step"),
    "agent": ("copy", "publish", "backup", "persist", "restore", "step"),
    "node": ("copy", "publish", "backup", "backup", "persist", "restore", "step"),
    "controller": ("copy", "backup", "persist", "persist", "restore", "step"),
}
_GAP = (2, 6)  # steps between two kills
_GROUP_GAP = (20, 40)  # between two losses of whole groups: new machines take part in it, and get copies
_GROUP_FIRST_STEP = 60  # by then the groups have been declared, and copies lie outside of them
_RECOVERY_S = 1.2  # a kill aimed at a restore comes within so many seconds of another one


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """`pick` chooses among the living, `fraction` the moment within the phase. Both uniform in [0, 1).

    `group`: instead of one process, all nodes of this parallel group (dimension, number) are lost at once.
    """

    index: int
    target: str
    aim: str
    after_step: int
    pick: float
    fraction: float
    in_recovery_s: float | None = None
    group: tuple[str, int] | None = None
    group_ranks: tuple[int, ...] = ()

    @property
    def told(self) -> str:
        if self.group is not None:
            return f"all nodes of {self.group[0]} group {self.group[1]}, aimed at {self.aim}"
        return f"{self.target}, aimed at {self.aim}"


def plan(*, num_kills: int, seed: int, targets: Sequence[str], first_step: int, can_persist: bool) -> list[Kill]:
    rng = random.Random(seed)
    after_step, kills = first_step, []
    for index in range(1, num_kills + 1):
        target = rng.choices(targets, [_WEIGHTS[one] for one in targets])[0]
        aim = rng.choice([one for one in _AIMS[target] if can_persist or one != "persist"])
        kills.append(
            Kill(
                index=index,
                target=target,
                aim=aim,
                after_step=after_step,
                pick=rng.random(),
                fraction=rng.random(),
                in_recovery_s=rng.uniform(0, _RECOVERY_S) if aim == "restore" else None,
            )
        )
        after_step += rng.randint(*_GAP)
    return kills


def group_plan(*, shape: Sequence[int], dimensions: Sequence[str], times: int, seed: int) -> list[Kill]:
    """Every group, `times` times, in a drawn order."""
    rng = random.Random(seed)
    chosen = groups_of(shape, dimensions) * times
    rng.shuffle(chosen)
    after_step, kills = _GROUP_FIRST_STEP, []
    for index, group in enumerate(chosen, 1):
        aim = rng.choice(("copy", "publish", "backup", "step"))
        kills.append(
            Kill(
                index=index,
                target="node",
                aim=aim,
                after_step=after_step,
                pick=0.0,
                fraction=rng.random(),
                group=group,
                group_ranks=ranks_of_group(shape, dimensions, group),
            )
        )
        after_step += rng.randint(*_GROUP_GAP)
    return kills


def steps_needed(kills: Sequence[Kill]) -> int:
    """Length of a training in which every kill finds its step, and which goes on for a while after the last."""
    return (kills[-1].after_step if kills else 0) + _GROUP_GAP[1]


def ranks_of_group(shape: Sequence[int], dimensions: Sequence[str], group: tuple[str, int]) -> tuple[int, ...]:
    """The ranks of the group with this number in a mesh whose last dimension runs fastest."""
    at = dimensions.index(group[0])
    stride = 1
    for size in shape[at + 1 :]:
        stride *= size
    outer, inner = divmod(group[1], stride)
    first = outer * stride * shape[at] + inner
    return tuple(first + place * stride for place in range(shape[at]))


def groups_of(shape: Sequence[int], dimensions: Sequence[str]) -> list[tuple[str, int]]:
    """Every group of more than one rank, and of fewer than all."""
    total = 1
    for size in shape:
        total *= size
    return [
        (name, number)
        for name, size in zip(dimensions, shape, strict=True)
        if 1 < size < total
        for number in range(total // size)
    ]
