"""How much an operation moves, as nccl-tests counts it. Pure.

Bytes are those of the whole buffer: of an all-gather its output, of a reduce-scatter its input. Bus bandwidth is what
each link carries if the operation is a ring; it can be compared between groups of different size.
"""

from collections.abc import Sequence

_WIDTHS = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "UInt16": 2, "Int": 4, "UInt32": 4,
    "Float": 4, "ComplexHalf": 4, "Long": 8, "UInt64": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip

_OF_OUTPUT = ("all_gather", "gather")
_SHARED = ("all_gather", "reduce_scatter", "all_to_all")

Sizes = Sequence[Sequence[int]]


def num_bytes(op: str, inputs: Sizes, input_types: Sequence[str], outputs: Sizes, output_types: Sequence[str]) -> int:
    """Return the bytes of the whole buffer; -1 where a size or a type is not known. An operation without tensors
    (barrier) has 0."""
    if op.lstrip("_").startswith(_OF_OUTPUT) and outputs:
        return _sum(outputs, output_types)
    return _sum(inputs, input_types)


def _sum(sizes: Sizes, types: Sequence[str]) -> int:
    if len(types) != len(sizes):
        return -1
    total = 0
    for shape, name in zip(sizes, types, strict=True):
        width = 1 if name.startswith("Float8") else _WIDTHS.get(name, -1)
        if width < 0 or any(length < 0 for length in shape):
            return -1
        for length in shape:
            width *= length
        total += width
    return total


def bus_share(op: str, num_ranks: int) -> float | None:
    """Bus bandwidth by algorithm bandwidth; None where nccl-tests has no rule."""
    name = op.lstrip("_")
    if num_ranks < 1:
        return None
    if name.startswith(("all_reduce", "allreduce")):
        return 2 * (num_ranks - 1) / num_ranks
    if name.startswith(_SHARED):
        return (num_ranks - 1) / num_ranks
    return 1.0 if name.startswith(("broadcast", "reduce", "gather", "scatter")) else None
