"""Gaps: what a State does not keep although a step changes it, in words for the person who wrote the State."""

import dataclasses
import enum
from collections.abc import Iterable, Sequence

MAX_NAMED = 4

INSTEAD = {
    "deepspeed": "Write everstep.integrations.deepspeed.state_of(engine, ...)",
    "megatron": "Write everstep.integrations.megatron.state_of(model, optimizer, scheduler, ...)",
}
"""By package of an object in play: the line that keeps all of it."""


class Kind(enum.StrEnum):
    OPTIMIZER = "optimizer"
    STEPPED = "parameters stepped by"
    MODULE = "module"
    COPY = "copy of weights"
    SCHEDULER = "scheduler"
    SCALER = "gradient scaler"
    GENERATOR = "random generator"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One object of the program. `num_bytes`: of the tensors of it that are not packed."""

    kind: Kind
    name: str  # the path at which the program has it; the class, where none was found
    class_name: str
    num_tensors: int = 0
    num_bytes: int = 0

    def __str__(self) -> str:
        what = self.class_name if self.name == self.class_name else f"{self.name} ({self.class_name})"
        if not self.num_tensors:
            return f"the {self.kind.value} {what}"
        tensors = "1 tensor" if self.num_tensors == 1 else f"{self.num_tensors} tensors"
        return f"the {self.kind.value} {what}: {tensors}, {_size(self.num_bytes)}"


def sentence(gaps: Sequence[Gap], packages: Iterable[str]) -> str:
    """`packages`: top-level packages of the classes in play."""
    names = tuple(f"{gap.name}{sign}" for gap in gaps for sign in ".[")
    gaps = [gap for gap in gaps if gap.kind is not Kind.SCHEDULER or not gap.name.startswith(names)]  # parts of another
    named = "; ".join(map(str, gaps[:MAX_NAMED]))
    more = f"; and {len(gaps) - MAX_NAMED} more" if len(gaps) > MAX_NAMED else ""
    lines = [INSTEAD[package] for package in sorted(set(packages)) if package in INSTEAD]
    return f"each step changes what State does not keep: {named}{more}. {lines[0] if lines else _advice(gaps)}"


def _advice(gaps: Sequence[Gap]) -> str:
    given = [f"{_keyword(gap.name)}={gap.name}" for gap in gaps[:MAX_NAMED] if gap.kind is not Kind.STEPPED]
    lines = [f"Write State(..., {', '.join(given)})"] if given else []
    if any(gap.kind is Kind.STEPPED for gap in gaps):
        lines.append("Give State an object whose state_dict has the tensors that the optimizer steps")
    return ". ".join(lines)


def _keyword(name: str) -> str:
    last = name.rpartition(".")[2].strip("_")
    return last.lower() if last.isidentifier() else "other"


def _size(num_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} bytes"
