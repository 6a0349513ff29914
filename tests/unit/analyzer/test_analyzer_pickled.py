"""The pickle machine: reads what torch writes, and nothing that could do anything."""

import os
import pickle
import struct
import time

import pytest

from everstep.analyzer.reading.pickled import UnreadableError, loads

DATA = {
    "version": "2.10",
    "entries": [{"a": 1, "b": -5, "c": 1 << 40, "d": "text", "e": None, "f": True, "g": 1.5, "h": ("x", [1, 2], ())}],
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_plain_data_as_pickle_does(protocol):
    assert loads(pickle.dumps(DATA, protocol)) == DATA


class Gadget:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("module", ["os", "posix", "builtins", "subprocess"])
def test_gadgets_are_refused_and_not_run(tmp_path, protocol, module):
    target = tmp_path / "was-run"
    data = pickle.dumps({"entries": [Gadget(os.system, (f"touch {target}",))]}, protocol)
    data = data.replace(b"posix", module.encode())
    with pytest.raises(UnreadableError):
        loads(data)
    assert not target.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x02",
        b"\x80\xff.",
        b".",
        b"N",
        b"NN.",
        b"\x80\x02(.",
        b"\x80\x02u.",
        b"\x80\x02}NNs.",
        b"\x80\x02](a.",
        b"\x80\x02h\x00.",
        b"\x80\x02q\x00.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40),  # BINBYTES8
        b"\x80\x02X" + struct.pack("<I", 0xFFFFFFFF),
        b"\x80\x02\x8b" + struct.pack("<i", -1),
        b"\x80\x02\x8b" + struct.pack("<i", 1 << 30),
        b"\x80\x02Nr" + struct.pack("<I", 0xFFFFFFFF) + b"0",  # LONG_BINPUT: CPython grows its memo to it
        b"\x80\x02}]K\x01s.",  # list as a key
        b"\x80\x04\x93.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02\x85.",
        b"\x80\x02e.",
        b"(t",
    ],
)
def test_garbage_is_refused_in_words(data):
    with pytest.raises(UnreadableError) as raised:
        loads(data)
    assert len(str(raised.value)) > 10


def test_every_cut_of_a_dump_is_refused():
    data = pickle.dumps(DATA, 2)
    for length in range(len(data)):
        with pytest.raises(UnreadableError):
            loads(data[:length])


def test_bombs_cost_little():
    doubling = (
        b"\x80\x02(" + b"".join(b"]q%c(h%ch%ce" % (i, i - 1, i - 1) if i else b"]q\x00" for i in range(80)) + b"t."
    )
    begun = time.process_time()  # what it costs, not how long others made it wait
    value = loads(doubling)  # 2**80 leaves, if anybody walked them
    assert isinstance(value, tuple)
    for opcode in (b"(", b"]", b"}", b"N"):
        with pytest.raises(UnreadableError, match="more than 100,000 operations"):
            loads(b"\x80\x02" + opcode * 100_001, max_operations=100_000)
    nested = loads(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    del nested
    assert time.process_time() - begun < 10


def test_a_list_that_holds_itself_is_only_data():
    value = loads(b"\x80\x02]q\x00h\x00a.")
    assert isinstance(value, list)
    assert value[0] is value
