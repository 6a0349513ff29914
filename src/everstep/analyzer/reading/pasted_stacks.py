"""Python stacks in the middle of other text: `py-spy dump` and `faulthandler` as people paste them, of several ranks.

Whose stack it is, is read from the tag of its lines, from a heading just above ("rank 3", "==> stack-rank-3.txt <=="),
or from the command line of the process. Pure, and linear in the text.
"""

import re
from collections.abc import Sequence

import msgspec

from everstep.analyzer.observations.records import ProcessStack
from everstep.analyzer.reading import stacks
from everstep.analyzer.reading.lines import Lines
from everstep.analyzer.reading.pickled import UnreadableError

MAX_BLOCKS = 10_000
_ABOVE = 4
"""A heading stands so few lines above its stack."""

_TAG = re.compile(r"^\s{0,8}\[(?:default(\d{1,7})\]:|[rR]ank ?(\d{1,7})\]:? ?)")  # torchrun's has no space behind it
_HEADING = re.compile(r"(?<!local )(?<!node )\b(?:global[ _]?)?rank[ _:=#-]{0,2}(\d{1,7})\b", re.I)
_COMMAND = re.compile(r"--rank[ =](\d{1,7})\b|\bRANK=(\d{1,7})\b")
_LOCAL = re.compile(r"--local[_-]rank[ =](\d{1,7})\b")
"""On one machine it is the rank. Where two processes have the same, they are of two machines."""
_NUMBERED = re.compile(r"Process \d{1,9}:")
_PY_SPY = re.compile(r"^Process (\d{1,9}): ?")
_FAULT = re.compile(r"^(Current thread|Thread) 0x([0-9a-fA-F]{1,16})(?: \[[^\]]{0,40}\])? \(most recent call first\):")
_FAULT_FRAME = re.compile(r'^  File "([^"]{1,400})", line (\d{1,9}) in (.{1,200})$')


class Found(msgspec.Struct, frozen=True, kw_only=True):
    owned: tuple[tuple[int, ProcessStack], ...] = ()  # stacks with their ranks
    unowned: tuple[ProcessStack, ...] = ()  # of py-spy, where nothing says which rank it is


def find(log: Lines | Sequence[str], rank: int | None) -> Found:
    """`rank`: of the file, if its name says so."""
    log = log if isinstance(log, Lines) else Lines(log)
    if not log.has("most recent call first") and not _NUMBERED.search(log.text):
        return Found()
    lines = log.lines
    untagged = [_untagged(line) for line in lines]
    found: list[tuple[int, ProcessStack]] = []
    local: list[tuple[int, list[ProcessStack]]] = []
    unowned: list[ProcessStack] = []
    position = 0
    while position < len(lines) and len(found) + len(local) + len(unowned) < MAX_BLOCKS:
        text = untagged[position][1]
        if _PY_SPY.match(text):
            end = _end_of_py_spy(untagged, position)
            block = [line for _, line in untagged[position:end]]
        elif _FAULT.match(text):
            end = _end_of_fault(untagged, position)
            block = _as_py_spy([line for _, line in untagged[position:end]], len(found) + 1)
        else:
            position += 1
            continue
        owner = rank if rank is not None else _owner(lines, untagged, position)
        if owner is not None:
            found += [(owner, process) for process in _read(block)]
        elif command := _LOCAL.search(text):
            local.append((int(command[1]), _read(block)))
        elif _PY_SPY.match(text):
            unowned += _read(block)
        position = end
    if len({number for number, _ in local}) == len(local):
        found += [(number, process) for number, read in local for process in read]
    else:
        unowned += [process for _, read in local for process in read]
    return Found(owned=tuple(found), unowned=tuple(unowned))


def _untagged(line: str) -> tuple[int | None, str]:
    tag = _TAG.match(line[:40])
    return (int(tag[1] or tag[2]), line[tag.end() :]) if tag else (None, line)


def _end_of_py_spy(lines: Sequence[tuple[int | None, str]], begin: int) -> int:
    """Up to the next process, or the first line that no dump has."""
    tag = lines[begin][0]
    for position in range(begin + 1, len(lines)):
        of, text = lines[position]
        is_part = not text.strip() or text.startswith(("Thread ", "    ", "Python v", "Parent Process"))
        if of != tag or not is_part:
            return position
    return len(lines)


def _end_of_fault(lines: Sequence[tuple[int | None, str]], begin: int) -> int:
    tag = lines[begin][0]
    for position in range(begin + 1, len(lines)):
        of, text = lines[position]
        if of != tag or not (not text.strip() or text.startswith("  ") or _FAULT.match(text)):
            return position
    return len(lines)


def _as_py_spy(block: Sequence[str], number: int) -> list[str]:
    """faulthandler's form in py-spy's. The thread that it calls current, or else the last one, is the main thread."""
    heads = [position for position, line in enumerate(block) if _FAULT.match(line)]
    current = next((p for p in heads if block[p].startswith("Current")), heads[-1])
    out = [f"Process {number}: faulthandler"]
    for position, line in enumerate(block):
        if head := _FAULT.match(line):
            name = "MainThread" if position == current else f"thread {head[2]}"
            out.append(f'Thread 0x{head[2]} (idle): "{name}"')
        elif frame := _FAULT_FRAME.match(line):
            out.append(f"    {frame[3]} ({frame[1]}:{frame[2]})")
    return out


def _owner(lines: Sequence[str], untagged: Sequence[tuple[int | None, str]], position: int) -> int | None:
    tag, text = untagged[position]
    if tag is not None:
        return tag
    if command := _COMMAND.search(text):
        return int(command[1] or command[2])
    for above in reversed(range(max(0, position - _ABOVE), position)):
        named = {int(number) for number in _HEADING.findall(lines[above][:200])}
        if named:
            return named.pop() if len(named) == 1 else None  # of several, none is the one
        if lines[above].startswith("    "):
            return None  # frames of another stack
    return None


def _read(block: Sequence[str]) -> list[ProcessStack]:
    try:
        return stacks.from_text("\n".join(block))
    except UnreadableError:
        return []
