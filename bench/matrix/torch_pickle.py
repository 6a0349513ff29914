"""Pickles as torch's own pickler writes flight records: every text once, shared frames once, nothing else remembered.

Python's `pickle.dumps` gives other bytes for the same data: it remembers each list and dictionary. For benches and
tests that need files as a job leaves them.
"""

import struct


class TorchPickler:
    """Writes one value. Texts and values of `shared` (by identity) are written once and referred to afterwards."""

    def __init__(self, shared: frozenset[int] = frozenset()) -> None:
        self._shared = shared
        self._texts: dict[str, int] = {}
        self._objects: dict[int, int] = {}
        self._lists: dict[int, bytes] = {}
        self._num = 0
        self._parts: list[bytes] = []

    def dumps(self, value: object) -> bytes:
        self._parts = [b"\x80\x02"]
        self._write(value)
        self._parts.append(b".")
        return b"".join(self._parts)

    def _write(self, value: object) -> None:
        parts = self._parts
        if isinstance(value, str):
            parts.append(_get(self._texts[value]) if value in self._texts else self._new_text(value))
        elif value is None:
            parts.append(b"N")
        elif isinstance(value, bool):
            parts.append(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            parts.append(_integer(value))
        elif isinstance(value, float):
            parts.append(b"G" + struct.pack(">d", value))
        elif id(value) in self._objects:
            parts.append(_get(self._objects[id(value)]))
        elif id(value) in self._lists:
            parts.append(self._lists[id(value)])
        else:
            self._write_container(value)

    def _write_container(self, value: object) -> None:
        parts = self._parts
        if isinstance(value, dict):
            parts.append(b"}(")
            for key, inner in value.items():
                self._write(key)
                self._write(inner)
            parts.append(b"u")
        elif isinstance(value, tuple):
            assert len(value) == 2, "torch's records hold pairs only"
            self._write(value[0])
            self._write(value[1])
            parts.append(b"\x86")
        elif isinstance(value, list):
            parts.append(b"](")
            for inner in value:
                self._write(inner)
            parts.append(b"e")
        else:
            raise TypeError(f"a flight record holds no {type(value).__name__}")
        if id(value) in self._shared:
            if isinstance(value, list):  # torch writes a list of frames each time, and its frames once
                self._lists[id(value)] = b"](" + b"".join(_get(self._objects[id(inner)]) for inner in value) + b"e"
            else:
                self._objects[id(value)] = self._num
                parts.append(self._put())

    def _new_text(self, value: str) -> bytes:
        content = value.encode()
        self._texts[value] = self._num
        return b"X" + struct.pack("<I", len(content)) + content + self._put()

    def _put(self) -> bytes:
        index = self._num
        self._num += 1
        return b"q%c" % index if index < 256 else b"r" + struct.pack("<I", index)


def _get(index: int) -> bytes:
    return b"h%c" % index if index < 256 else b"j" + struct.pack("<I", index)


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K%c" % value
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)
