"""A look at a rank that lent the interpreter lock for that moment is not the last word."""

import pytest

from everstep.probes.rank.stack import is_undecided

LOOP = {"name": "loop", "filename": "/home/u/train.py", "short_filename": "train.py", "line": 7}
WAITS = {
    "name": "all_reduce",
    "filename": "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
    "short_filename": "torch/distributed/distributed_c10d.py",
    "line": 9,
}


def threads(active, owns_gil, other_active=False, frame=LOOP):
    main = {"thread_name": "MainThread", "active": active, "owns_gil": owns_gil, "frames": [frame]}
    other = {"thread_name": "pool", "active": other_active, "owns_gil": False, "frames": [LOOP]}
    return [{"pid": 7, "thread_id": n} | thread for n, thread in enumerate((other, main))]


@pytest.mark.parametrize(
    ("seen", "is_open"),
    [
        (threads(active=True, owns_gil=True), False),  # runs Python
        (threads(active=True, owns_gil=False), True),  # native code, or Python that lent the lock
        (threads(active=False, owns_gil=True), False),  # a native call that keeps the lock
        (threads(active=False, owns_gil=False), False),  # waits, and nobody else could have the lock
        (threads(active=False, owns_gil=False, other_active=True), True),  # waits, maybe for the lock
        (threads(active=False, owns_gil=False, other_active=True, frame=WAITS), False),
        ([], False),
        ([{"nonsense": 1}], False),
    ],
)
def test_whether_a_look_leaves_open_what_the_rank_does(seen, is_open):
    assert is_undecided(seen) is is_open
