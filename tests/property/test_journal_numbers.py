"""One number of a foreign journal is as large as a number can be: reading it takes no more time and memory for it."""

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_readers import journal

GOLDEN = Path(__file__).parents[1] / "golden" / "journal.jsonl"
HUGE = 10**12
MAX_CPU_S = 5
MAX_BYTES = 4 << 30
"""Address space; the test itself, with torch, has 1 GiB."""

Place = tuple[str | int, ...]


def numbers_in(value: Any, place: Place = ()) -> Iterator[Place]:
    """Of lists, in the first element."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from numbers_in(each, (*place, key))
    elif isinstance(value, list):
        for number, each in enumerate(value[:1]):
            yield from numbers_in(each, (*place, number))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield place


def distinct_numbers(records: list[Any]) -> list[tuple[int, Place]]:
    """Where they are: which record, and where in it. One of each kind of record and field."""
    found: dict[tuple[str, Place], int] = {}
    for number, record in enumerate(records):
        kind = str([value.get("type") for value in record.values() if isinstance(value, dict)])
        for place in numbers_in(record):
            found.setdefault((kind, place), number)
    return [(number, place) for (_, place), number in found.items()]


def with_number(line: str, place: Place, value: int) -> str:
    record = holder = json.loads(line)
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return json.dumps(record)


def ends_in_time(data: bytes) -> bool:
    """Reading it, in a process of its own with limits."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
            journal(data)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("part", range(4))
def test_no_number_makes_a_reader_slow_or_large(part: int):
    lines = GOLDEN.read_text().splitlines()
    places = distinct_numbers([json.loads(line) for line in lines])
    assert len(places) > 50
    slow = []
    for number, place in places[part::4]:
        changed = [*lines[:number], with_number(lines[number], place, HUGE), *lines[number + 1 :]]
        if not ends_in_time("\n".join(changed).encode() + b"\n"):
            slow.append((number, place))
    assert not slow
