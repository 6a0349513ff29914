"""Numbers gone wrong on one rank, between two steps: one flipped bit of a parameter, or a NaN in it.

The parameter is changed behind autograd's back, as a broken memory cell would do it. Which one is said in the rank's
output. A flipped bit is in the middle of the mantissa of the largest element of the largest parameter: small enough
that training continues, large enough that the next updates do not round it away. A NaN is put where the next forward
surely meets it and takes it through all layers, so that all gradients have it: into the first parameter that is no
table of which only some rows are used.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.worker.drills import PATIENCE_S, DrillRefusal, Happened, instances_of, loaded
from everstep.worker.link.runtime import Runtime

_MANTISSA_BITS = {"torch.float64": 52, "torch.float32": 23, "torch.bfloat16": 7, "torch.float16": 10}
_INTEGERS = {8: "int64", 4: "int32", 2: "int16"}


def arm(runtime: Runtime, request: Mapping[str, Any]) -> None:
    """Raises DrillRefusal."""
    change = {"flip-bit": _flip_bit, "nan": _set_nan}[str(request["kind"])]
    if not list(_parameters()):
        raise DrillRefusal("this rank has no parameters of a floating type in its State or its optimizers")

    happened = Happened(runtime, request)
    until = time.monotonic() + PATIENCE_S

    def between_steps(step: int) -> None:
        runtime.step_hooks.remove(between_steps)
        if time.monotonic() < until:
            happened(f"after step {step}: {change(list(_parameters()))}")

    runtime.step_hooks.append(between_steps)


def spoil(how: str) -> str:
    """Change a parameter now, to another "bit" or to "nan". What was done; empty where there is no parameter."""
    found = list(_parameters())
    return {"bit": _flip_bit, "nan": _set_nan}[how](found) if found else ""


Named = tuple[str, Any, bool]
"""Name, this rank's part of the tensor, and whether each forward uses all of it."""


def _flip_bit(parameters: list[Named]) -> str:
    name, tensor, _ = max(parameters, key=lambda each: each[1].numel())
    index = _unravel(int(tensor.abs().argmax()), tuple(tensor.shape))
    bit = _MANTISSA_BITS[str(tensor.dtype)] // 2
    torch = loaded("torch")
    element = tensor[index]
    before = element.item()
    element.view(getattr(torch, _INTEGERS[tensor.element_size()])).bitwise_xor_(1 << bit)
    return f"bit {bit} of {name}{list(index)} flipped: {before!r} is now {element.item()!r}"


def _set_nan(parameters: list[Named]) -> str:
    used = [each for each in parameters if each[2]] or parameters
    name, tensor, _ = used[0]
    index = (0,) * tensor.dim()
    tensor[index] = float("nan")
    return f"{name}{list(index)} is now nan"


def _unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        position, rest = divmod(position, size)
        index.append(rest)
    return tuple(reversed(index))


def _parameters() -> Iterator[Named]:
    """Parameters of the State's modules; else of all live modules and optimizers."""
    torch = loaded("torch")
    modules = [thing for thing in _kept() if isinstance(thing, torch.nn.Module)]
    embedding = torch.nn.Embedding
    sparse = {id(m.weight) for m in instances_of(embedding)}
    seen: set[int] = set()
    named = [pair for module in modules for pair in module.named_parameters()] or _of_optimizers()
    for name, parameter in named:
        tensor = getattr(parameter, "_local_tensor", parameter).data  # of a DTensor the part that is here
        if id(parameter) in seen or not tensor.numel() or str(tensor.dtype) not in _MANTISSA_BITS:
            continue
        seen.add(id(parameter))
        yield name, tensor, id(parameter) not in sparse


def _kept() -> list[Any]:
    from everstep.worker.snapshots import state

    stepping = state._stepping() if state._stepping is not None else None
    return list(stepping._objects.values()) if stepping is not None else []


def _of_optimizers() -> list[tuple[str, Any]]:
    try:
        optimizer_type = loaded("torch.optim.optimizer").Optimizer
    except DrillRefusal:
        return []
    groups = [group for optimizer in instances_of(optimizer_type) for group in getattr(optimizer, "param_groups", [])]
    return [(f"parameter {i}", p) for i, p in enumerate(p for group in groups for p in group["params"])]
