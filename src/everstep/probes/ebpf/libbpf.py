"""Loads and attaches a compiled eBPF object through the distribution's libbpf, by ctypes: no compiler, no extension.

Everything depends on file descriptors of this process: when it ends, in whatever way, the kernel detaches all of it.
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

LIBRARY = "libbpf.so.1"
_BATCH = 256
"""Entries per call; no bucket of a map has as many."""

_P, _I, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_PRINT = ctypes.CFUNCTYPE(_I, _I, _P, _P)
_FUNCTIONS = {
    "bpf_object__open_file": (_P, (_S, _P)),
    "bpf_object__load": (_I, (_P,)),
    "bpf_object__close": (None, (_P,)),
    "bpf_object__find_map_by_name": (_P, (_P, _S)),
    "bpf_object__next_program": (_P, (_P, _P)),
    "bpf_program__attach": (_P, (_P,)),
    "bpf_link__destroy": (_I, (_P,)),
    "bpf_program__name": (_S, (_P,)),
    "bpf_map__key_size": (ctypes.c_uint32, (_P,)),
    "bpf_map__value_size": (ctypes.c_uint32, (_P,)),
    "bpf_map__fd": (_I, (_P,)),
    "bpf_map_update_elem": (_I, (_I, _P, _P, ctypes.c_uint64)),
    "bpf_map_lookup_and_delete_batch": (_I, (_I, _P, _P, _P, _P, _P, _P)),
}


class BpfError(Exception):
    """The kernel or the library refused. The text names the action, the object and the reason."""


class Library:
    """libbpf, if this machine has it."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY, use_errno=True)
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(self._library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise BpfError(f"{LIBRARY} is missing: {error}; install the package libbpf1 (or libbpf)") from None
        self._silent = _PRINT(lambda level, text, arguments: 0)  # else libbpf prints to stderr
        self._library.libbpf_set_print(self._silent)

    def call(self, name: str, *arguments: object) -> int:
        """Call a function that returns a negative number and sets errno on failure. Raises OSError."""
        code: int = getattr(self._library, name)(*arguments)
        if code < 0:
            number = ctypes.get_errno() or -code
            raise OSError(number, os.strerror(number))
        return code

    def find(self, name: str, *arguments: object) -> int:
        """Call a function that returns a pointer, or null and sets errno. Raises OSError."""
        pointer: int | None = getattr(self._library, name)(*arguments)
        if not pointer:
            number = ctypes.get_errno() or errno.ENOENT
            raise OSError(number, os.strerror(number))
        return pointer

    def name_of(self, program: int) -> str:
        name: bytes = self._library.bpf_program__name(program)
        return name.decode()

    def next_program(self, loaded: int, before: int | None) -> int | None:
        program: int | None = self._library.bpf_object__next_program(loaded, before)
        return program

    def close(self, loaded: int) -> None:
        self._library.bpf_object__close(loaded)


class Map:
    """One map of a loaded object. Keys and values are bytes; no value is larger than `value_bytes`."""

    def __init__(self, library: Library, fd: int, key_bytes: int, value_bytes: int) -> None:
        self._library, self._fd = library, fd
        self._key_bytes, self._value_bytes = key_bytes, value_bytes

    def put(self, key: bytes, value: bytes) -> None:
        """Raises OSError: E2BIG if the map is full."""
        self._library.call("bpf_map_update_elem", self._fd, key, value, 0)

    def drain(self) -> Iterator[tuple[bytes, bytes]]:
        """Take all entries out: two system calls for hundreds, of a hash map. Raises OSError."""
        keys = ctypes.create_string_buffer(_BATCH * self._key_bytes)
        values = ctypes.create_string_buffer(_BATCH * self._value_bytes)
        begin, end, count = None, ctypes.c_uint64(), ctypes.c_uint32()  # place in the map, as a number
        is_last = False
        while not is_last:
            count.value = _BATCH
            arguments = begin, ctypes.byref(end), keys, values, ctypes.byref(count), None
            try:
                self._library.call("bpf_map_lookup_and_delete_batch", self._fd, *arguments)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
                is_last = True  # the buffers still hold the last entries
            yield from zip(
                _parts(keys, self._key_bytes, count.value), _parts(values, self._value_bytes, count.value), strict=True
            )
            begin = ctypes.byref(ctypes.c_uint64(end.value))


def _parts(buffer: "ctypes.Array[ctypes.c_char]", size: int, count: int) -> Iterator[bytes]:
    data = ctypes.string_at(buffer, count * size)
    return (data[at : at + size] for at in range(0, count * size, size))


class Loaded:
    """An object in the kernel, with all of its programs attached."""

    def __init__(self, library: Library, path: Path) -> None:
        """Raises BpfError; then nothing of the object remains in the kernel."""
        self._library = library
        self._links: list[int] = []
        try:
            self._object = library.find("bpf_object__open_file", os.fsencode(path), None)
        except OSError as error:
            raise BpfError(f"open {path.name}: {error.strerror}") from None
        try:
            self._attach(path)
        except BaseException:
            self.close()
            raise

    def _attach(self, path: Path) -> None:
        try:
            self._library.call("bpf_object__load", self._object)
        except OSError as error:
            raise BpfError(f"load {path.name}: {error.strerror}") from None
        program = self._library.next_program(self._object, None)
        while program:
            try:
                self._links.append(self._library.find("bpf_program__attach", program))
            except OSError as error:
                name = self._library.name_of(program)
                raise BpfError(f"attach {name} of {path.name}: {error.strerror}") from None
            program = self._library.next_program(self._object, program)

    def close(self) -> None:
        """Detach and unload. Do not use its maps afterwards."""
        for link in self._links:
            self._library.call("bpf_link__destroy", link)
        self._links.clear()
        self._library.close(self._object)

    def map(self, name: str, key_bytes: int, value_bytes: int) -> Map:
        """Raises BpfError if the object has no such map, or its entries have other sizes."""
        try:
            found = self._library.find("bpf_object__find_map_by_name", self._object, name.encode())
            sizes = tuple(self._library.call(f"bpf_map__{part}_size", found) for part in ("key", "value"))
            if sizes != (key_bytes, value_bytes):
                raise BpfError(f"map {name}: entries of {sizes} bytes, not {(key_bytes, value_bytes)}")
            return Map(self._library, self._library.call("bpf_map__fd", found), key_bytes, value_bytes)
        except OSError as error:
            raise BpfError(f"map {name}: {error.strerror}") from None
