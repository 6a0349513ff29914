"""Reads pickles that hold plain data (torch's flight-recorder dumps), and can do nothing else.

This is not a restricted `pickle.Unpickler`: it is a machine that only knows the opcodes for numbers, strings, lists,
tuples and dictionaries. There is no opcode in it that names a class, calls, or builds an object, so a hostile file has
nothing to ask for. CPython's unpickler would also allocate what a length or a memo index claims before reading it; here
every length is checked against the bytes that are there, and the number of operations is bounded.

Called by the readers of evidence. Pure: bytes in, data or UnreadableError out.
"""

import struct
from collections.abc import Callable
from typing import TypeVar

MAX_OPERATIONS = 4_000_000
"""A dump of 2,000 records (torch's default buffer) with stacks takes some 600,000. It bounds time and memory: no
operation makes more than one small object, so no file costs more than a few hundred MiB and a few seconds. What is
shared may be endless once it is written out: `bounds` before anybody walks it."""

MAX_INT_BYTES = 16
"""Nanoseconds need 8. Python would happily build an integer of a gigabyte."""


class UnreadableError(ValueError):
    """The bytes are not what they should be. The text says what is wrong, for a person."""


_T = TypeVar("_T")


class _Machine:
    """One reading. `stack` and `memo` as in the pickle protocol."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise UnreadableError(
                f"cut off: {count} bytes wanted at offset {self.at}, {len(self.data) - self.at} are left"
            )
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def pop_mark(self) -> list[object]:
        if not self.marks:
            raise UnreadableError(f"no mark on the stack at offset {self.at}")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop(self) -> object:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise UnreadableError(f"stack is empty at offset {self.at}")
        return self.stack.pop()

    def top(self, kind: type[_T]) -> _T:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise UnreadableError(f"no {kind.__name__} to fill at offset {self.at}")
        return self.stack[-1]


def loads(data: bytes, max_operations: int = MAX_OPERATIONS) -> object:
    """The data in a pickle. Raises UnreadableError, and nothing else."""
    machine = _Machine(data)
    for _ in range(max_operations):
        opcode = machine.take(1)[0]
        if opcode == 0x2E:  # STOP
            if len(machine.stack) != 1:
                raise UnreadableError(f"ends with {len(machine.stack)} values instead of one")
            return machine.stack[0]
        action = _ACTIONS.get(opcode)
        if action is None:
            raise UnreadableError(_refusal(opcode, machine.at - 1))
        action(machine)
    raise UnreadableError(f"more than {max_operations:,} operations: not a dump of one rank")


_FORBIDDEN = {
    ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("i"): "INST", ord("o"): "OBJ", 0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX", ord("b"): "BUILD", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", ord("P"): "PERSID",
    ord("Q"): "BINPERSID", 0x97: "NEXT_BUFFER",
}  # fmt: skip


def _refusal(opcode: int, offset: int) -> str:
    name = _FORBIDDEN.get(opcode)
    if name:
        return f"pickle asks for code (opcode {name} at offset {offset}); refused, nothing of it was run"
    return f"not a pickle of plain data: opcode 0x{opcode:02x} at offset {offset}"


def _text(machine: _Machine, length: int) -> None:
    machine.stack.append(machine.take(length).decode("utf-8", "replace"))


def _long(machine: _Machine, length: int) -> None:
    if not 0 <= length <= MAX_INT_BYTES:
        raise UnreadableError(f"integer of {length} bytes at offset {machine.at}")
    machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))


def _set_items(machine: _Machine, items: list[object]) -> None:
    target = machine.top(dict)
    if len(items) % 2:
        raise UnreadableError(f"key without a value at offset {machine.at}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Only text: hashing a tuple of shared tuples can take for ever, and integers can be chosen to collide.
        if not isinstance(key, str):
            raise UnreadableError(f"dictionary key of type {type(key).__name__} at offset {machine.at}")
        target[key] = value


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def make(machine: _Machine) -> None:
        machine.stack.append(tuple(reversed([machine.pop() for _ in range(count)])))

    return make


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _appends(machine: _Machine) -> None:
    items = machine.pop_mark()
    machine.top(list).extend(items)


def _set_item(machine: _Machine) -> None:
    value = machine.pop()
    key = machine.pop()
    _set_items(machine, [key, value])


def _put(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.top(object)


def _get(machine: _Machine, index: int) -> None:
    try:
        machine.stack.append(machine.memo[index])
    except KeyError:
        raise UnreadableError(f"reference to value {index} that was never stored, at offset {machine.at}") from None


def _protocol(machine: _Machine) -> None:
    version = machine.number("<B")
    if version > 5:
        raise UnreadableError(f"pickle protocol {version} is newer than any that is known (5)")


def _frame(machine: _Machine) -> None:
    machine.take(8)  # a length that only matters to a stream


def _mark(machine: _Machine) -> None:
    machine.marks.append(len(machine.stack))


_ACTIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("("): _mark,
    ord("N"): lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    ord("K"): lambda m: m.stack.append(m.take(1)[0]),
    ord("M"): lambda m: m.stack.append(m.number("<H")),
    ord("J"): lambda m: m.stack.append(m.number("<i")),
    0x8A: lambda m: _long(m, m.take(1)[0]),
    0x8B: lambda m: _long(m, m.number("<i")),
    ord("G"): lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
    ord("X"): lambda m: _text(m, m.number("<I")),
    0x8C: lambda m: _text(m, m.take(1)[0]),
    0x8D: lambda m: _text(m, m.number("<Q")),
    ord("]"): lambda m: m.stack.append([]),
    ord("}"): lambda m: m.stack.append({}),
    ord(")"): lambda m: m.stack.append(()),
    ord("l"): lambda m: m.stack.append(m.pop_mark()),
    ord("t"): lambda m: m.stack.append(tuple(m.pop_mark())),
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): lambda m: _set_items(m, m.pop_mark()),
    ord("q"): lambda m: _put(m, m.take(1)[0]),
    ord("r"): lambda m: _put(m, m.number("<I")),
    0x94: lambda m: _put(m, len(m.memo)),
    ord("h"): lambda m: _get(m, m.take(1)[0]),
    ord("j"): lambda m: _get(m, m.number("<I")),
}
