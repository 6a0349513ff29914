"""Reads pickles as torch's own pickler writes flight records: twenty times as fast as `pickled`, and as careful.

CPython's unpickler may be given a file only when nothing in it can name a class, call, claim memory that it does not
fill, or make it compute for ever. So the opcodes are checked first, all of them, by an automaton (RE2): whatever is not
of torch's dialect is left to `pickled`. The dialect: numbers of at most 8 bytes, texts, lists, dictionaries, and pairs
of what was remembered. Afterwards what is shared is looked at: only texts and flat dictionaries may be, as torch's
frames are, so that nothing can be endless once it is written out.

Called by `evidence.decode`. Pure: bytes in; data, or None where `pickled` has to look.
"""

import pickle
import re

import re2

MAX_BYTES = 8 << 20
"""A record of 2,000 operations with stacks has 0.4 MB. What a byte can cost in memory is bounded: a few hundred MiB."""

MAX_CONTAINERS = 4_000_000
MAX_TEXTS = 100_000
MAX_NEW_PAIRS = 1_000
"""Pairs made with a text that is new. Each could hold the one before, and Python hashes a pair by calling itself."""
MAX_FLAT = 16
"""Values of a dictionary that is referred to again. A frame has three."""

_PROTOCOL_2 = b"\x80\x02"
_GET = r"(?:h.|j..[\x00-\x3f]\x00)"
_PUT = r"(?:q.|r..[\x00-\x3f]\x00)"  # an index allocates what it claims
_MARKED = r"[(N\x88\x89}\]eu]"
_NUMBER = r"K.|M..|J.{4}|\x8a\x08.{8}|G.{8}"

_LATIN1 = re2.Options()
_LATIN1.encoding = re2.Options.Encoding.LATIN1
_LATIN1.dot_nl = True
_UP_TO_TEXT = re2.compile(rf"(?:{_GET}{_GET}\x86|{_MARKED}|{_NUMBER}|{_GET}|{_PUT})*".encode(), _LATIN1)
_NEW_PAIR = re.compile(rf"{_PUT}?\x86".encode(), re.S)
_LAST_PUT = re.compile(rb"(?<=u)(?:q.|r.{4})\.\Z", re.S)
"""torch memoizes the whole at its end. Nothing can refer to it there; without this it is shared by nothing. What only
looks like it is an operation cut short, which does not load."""

_TAIL = 7

_PLAIN = frozenset({str, int, float, bool, type(None)})


def loads(data: bytes) -> object | None:
    """The data of a flight record; None: it is not of torch's dialect, or not whole."""
    end = _end_of_dialect(data)
    if end is None or end < _TAIL:
        return None
    unpickler = _Unpickler(_Bytes(data[: end - _TAIL] + _LAST_PUT.sub(b".", data[end - _TAIL : end])))
    try:
        value = unpickler.load()
    except MemoryError:
        raise
    except Exception:
        return None  # `pickled` says in words what is wrong
    return value if all(map(_may_be_shared, unpickler.memo.copy().values())) else None


def _end_of_dialect(data: bytes) -> int | None:
    """Where the pickle ends, with its stop; None: not all of it is of the dialect."""
    if not data.startswith(_PROTOCOL_2) or len(data) > MAX_BYTES:
        return None
    if data.count(b"]") + data.count(b"}") > MAX_CONTAINERS:  # more than there can be of both
        return None
    at, num_texts, num_pairs = len(_PROTOCOL_2), 0, 0
    while True:
        at = _UP_TO_TEXT.match(data, at).end()
        if data[at : at + 1] != b"X":
            return at + 1 if data[at : at + 1] == b"." else None
        begin = at + 5
        at = begin + int.from_bytes(data[at + 1 : begin], "little")
        if at > len(data) or not _is_text(data[begin:at]):
            return None
        pair = _NEW_PAIR.match(data, at)
        if pair is not None:
            at = pair.end()
            num_pairs += 1
        num_texts += 1
        if num_texts > MAX_TEXTS or num_pairs > MAX_NEW_PAIRS:
            return None


def _is_text(data: bytes) -> bool:
    """CPython's unpickler would let halves of surrogates through."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_be_shared(value: object) -> bool:
    if type(value) is not dict:
        return type(value) is str
    return (
        len(value) <= MAX_FLAT and _PLAIN.issuperset(map(type, value.values())) and _PLAIN.issuperset(map(type, value))
    )


class _Unpickler(pickle.Unpickler):
    """No opcode that has passed asks for this; if one ever did, it would be refused here."""

    def find_class(self, module: str, name: str, /) -> object:
        raise pickle.UnpicklingError(f"asks for {module}.{name}")

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("asks for an object by a number")


class _Bytes:
    """A file of which all can be peeked at: a `BytesIO` cannot be, and is read opcode by opcode."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def peek(self, _size: int = -1) -> bytes:
        return self._data[self._at :] if self._at else self._data

    def read(self, size: int = -1) -> bytes:
        taken = self._data[self._at : self._at + size] if size >= 0 else self._data[self._at :]
        self._at += len(taken)
        return taken

    def readline(self) -> bytes:
        raise pickle.UnpicklingError("asks for a line")
