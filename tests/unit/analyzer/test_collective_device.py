"""Which of NCCL's operations belongs to which entry of torch's record."""

import pytest

from everstep.analyzer.collective.device import DeviceOp, family, join


def op(func: str, queued_at: float, num_bytes: int = 1024) -> DeviceOp:
    return DeviceOp(
        comm="1",
        ordinal=0,
        func=func,
        num_bytes=num_bytes,
        queued_at=queued_at,
        begin_at=None,
        took_s=0.5,
        is_open=False,
    )


def test_each_entry_gets_its_own() -> None:
    ops = [op("AllReduce", 1.001), op("AllGather", 1.101), op("AllReduce", 1.201), op("AllReduce", 1.3, 99)]
    entries = [("all_reduce", 1024, 1.0), ("_all_gather_base", 1024, 1.1), ("all_reduce", 1024, 1.2)]
    assert join(entries, reversed(ops)) == ops[:3]


def test_a_coalesced_call_stays_without() -> None:
    """Several of one kind were queued at the end of a group: nothing says which is which."""
    entries = [("all_reduce", 1024, 1.0), ("all_reduce", 1024, 1.1), ("all_gather", 1024, 1.2)]
    ops = [op("AllReduce", 1.31), op("AllReduce", 1.32), op("AllGather", 1.33)]
    assert join(entries, ops) == [None, None, ops[2]]


def test_what_nccl_does_not_have_is_not_taken_from_another() -> None:
    entries = [("all_reduce", 1024, 1.0), ("all_reduce", 1024, 2.0)]
    assert join(entries, [op("AllReduce", 2.01)]) == [None, op("AllReduce", 2.01)]
    assert join(entries, [op("AllReduce", 0.5)]) == [None, None]
    assert join(entries, [op("Reduce", 1.01)]) == [None, None]
    assert join(entries, []) == [None, None]
    assert join([], [op("AllReduce", 1.0)]) == []


def test_unknown_names_are_not_joined() -> None:
    assert join([("frobnicate", 1024, 1.0)], [op("Frobnicate", 1.01)]) == [None]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_reduce_scatter_base", "reducescatter"),
        ("ReduceScatter", "reducescatter"),
        ("_reduce_oop", "reduce"),
        ("Reduce", "reduce"),
        ("all_reduce_barrier", "allreduce"),
        ("AlltoAll", "alltoall"),
        ("all_to_all", "alltoall"),
        ("_broadcast_oop", "broadcast"),
        ("send", ""),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert family(name) == expected
