"""The fast reader of torch's pickles: the same data as the careful one, or nothing."""

import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep.analyzer.reading import bounds, torch_pickle
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.analyzer.reading.pickled import loads as careful
from everstep.evidence.apart import LEAST_MEMORY
from everstep.evidence.decode import decode
from everstep.evidence.sniff import Kind

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from matrix.flights import Shape, make_guilty
from matrix.many_flights import write_folder
from matrix.torch_pickle import TorchPickler

HEAD = b"\x80\x02"
FRAME = {"name": "main", "filename": "/u/train.py", "line": 3}
RECORD = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [
        {"frames": [FRAME, FRAME], "record_id": n, "process_group": ("0", "default_pg"), "duration_ms": 0.5,
         "time_created_ns": 1_795_266_560_946_186_722 + n, "input_sizes": [[4, 70_000]], "state": None, "retired": True}
        for n in range(300)
    ],
}  # fmt: skip


def dumped(record: object = RECORD, shared: tuple[object, ...] = (FRAME,)) -> bytes:
    return TorchPickler(frozenset(map(id, shared))).dumps(record)


def text(content: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(content)) + content


def test_torchs_own_bytes_give_what_is_in_them():
    data = dumped()
    assert torch_pickle.loads(data) == careful(data) == pickle.loads(data) == RECORD
    for seed in range(3):
        for record in make_guilty(seed).records.values():
            assert torch_pickle.loads(TorchPickler().dumps(record)) == record


def test_the_whole_may_be_remembered_at_its_end():
    data = dumped()
    for put in (b"q\x40", b"r\x40\x01\x00\x00"):
        assert torch_pickle.loads(data[:-1] + put + b".") == RECORD


def test_what_stands_after_the_end_is_not_read():
    assert torch_pickle.loads(dumped() + b"cos\nsystem\n(S'true'\ntR.") == RECORD


def test_a_large_job_is_read_by_the_fast_one(tmp_path):
    """The files of the bench are of the dialect: what it measures is what a user waits for."""
    write_folder(tmp_path, Shape(2, 2, 2), num_entries=400, num_frames=12)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 8
    for file in files:
        assert torch_pickle.loads(file.read_bytes()) == careful(file.read_bytes())


def test_every_cut_is_left_to_the_careful_one():
    data = dumped({**RECORD, "entries": RECORD["entries"][:3]})
    for length in range(len(data)):
        assert torch_pickle.loads(data[:length]) is None


class Gadget:
    def __reduce__(self):
        return exec, ("raise SystemExit('was run')",)


SELF = HEAD + b"}q\x05(" + text(b"entries") + b"h\x05u."
REFUSED = {
    "gadget": pickle.dumps({"entries": [Gadget()]}, 2),
    "global": HEAD + b"cos\nsystem\n.",
    "stack global": HEAD + text(b"os") + text(b"system") + b"\x93.",
    "reduce": HEAD + b"]]R.",
    "build": HEAD + b"}}b.",
    "persistent": HEAD + b"Px\n.",
    "extension": HEAD + b"\x82\x01.",
    "buffer": HEAD + b"\x97.",
    "twice": HEAD + b"]2.",
    "newer protocol": pickle.dumps(RECORD, 4),
    "python's pickler, which remembers lists": pickle.dumps(RECORD, 2),
    "memo of a gigabyte": HEAD + b"Nr\xff\xff\xff\x7f.",
    "memo of 64 million": HEAD + b"Nr\x00\x00\x00\x04.",
    "claimed text": HEAD + b"X\xff\xff\xff\x7f.",
    "claimed bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b".",
    "large integer": HEAD + b"\x8b\xff\xff\xff\x7f.",
    "integer of nine bytes": HEAD + b"\x8a\x09123456789.",
    "half a surrogate": HEAD + b"}(" + text(b"\xed\xa0\x80") + b"Nu.",
    "no text": HEAD + b"}(" + text(b"\xff") + b"Nu.",
    "a shared list": HEAD + b"](]q\x00h\x00h\x00e.",
    "a shared pair": HEAD + b"](" + text(b"a") + b"q\x00" + text(b"b") + b"q\x01\x86q\x02h\x02e.",
    "a shared dictionary with a list": HEAD + b"](}(" + text(b"a") + b"q\x00]uq\x01h\x01e.",
    "it holds itself": SELF,
    "it holds itself, remembered again": SELF[:-1] + b"q\x05.",
    "a dictionary as a key": HEAD + b"}(}N\x75.",
    "doubled lists": HEAD
    + b"("
    + b"".join(b"]q%c(h%ch%ce" % (i, i - 1, i - 1) if i else b"]q\0" for i in range(80))
    + b"t.",
    "doubled pairs": HEAD + text(b"a") + b"q\0" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(80)) + b".",
    "stack is empty": HEAD + b"e.",
    "no value": HEAD + b".",
    "nothing": b"",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_torchs_is_left_to_the_careful_one(name):
    begun = time.process_time()
    assert torch_pickle.loads(REFUSED[name]) is None
    assert time.process_time() - begun < 5


def test_pairs_within_pairs_cannot_grow():
    """Python hashes a pair of pairs by calling itself: a million deep would end the process."""
    few = HEAD + b"}(" + text(b"a") + text(b"b") + b"\x86" * 1 + b"Nu."
    assert torch_pickle.loads(few) == {("a", "b"): None}
    chain = text(b"a") + b"".join(text(b"b") + b"\x86" for _ in range(100_000))
    assert torch_pickle.loads(HEAD + b"}(" + chain + b"Nu.") is None
    by_reference = b"q\x00" + b"h\x00h\x00\x86h\x00\x86" * 100_000
    assert torch_pickle.loads(HEAD + b"}(" + text(b"a") + by_reference + b"Nu.") is None


LIMITED = f"""
import resource, sys
from everstep.analyzer.reading import torch_pickle
resource.setrlimit(resource.RLIMIT_AS, ({LEAST_MEMORY},) * 2)
value = torch_pickle.loads(sys.stdin.buffer.read())
assert not isinstance(value, dict) or "entries" not in value
"""


@pytest.mark.parametrize("piece", [b"]", b"}", b"N", b"(", b"K\x01", b"h\x00h\x00\x86", b"](Ne", b"}(h\x00Nu"])
def test_a_bomb_fits_the_memory_that_the_reader_always_has(piece):
    begin = HEAD + b"(" + text(b"a") + b"q\x00"
    data = begin + piece * ((torch_pickle.MAX_BYTES - len(begin) - 1) // len(piece)) + b"."
    subprocess.run([sys.executable, "-c", LIMITED], input=data, check=True, timeout=120)
    assert torch_pickle.loads(data[:-1] + piece * 9 + b".") is None, "larger files are not read by it at all"


def test_lists_in_lists_cost_no_stack():
    deep = b"](" * 200_000 + b"e" * 200_000
    data = HEAD + b"}(" + text(b"entries") + deep + text(b"pg_config") + b"}" + b"u."
    value = torch_pickle.loads(data)
    assert value is not None
    assert bounds.objection(value)
    parts = decode(data, Kind.PICKLE)
    assert parts[0].raw_record is not None
    del value, parts


def test_an_envelope_is_measured_before_it_is_walked():
    deep = b"](" * 5_000 + b"e" * 5_000
    data = HEAD + b"}(" + text(b"everstep_evidence") + b"K\x01" + text(b"stacks") + deep
    data += text(b"entries") + b"]" + text(b"pg_config") + b"}" + b"u."
    assert torch_pickle.loads(data) is not None
    with pytest.raises(UnreadableError, match="deep"):
        decode(data, Kind.PICKLE)


def test_a_list_as_a_key_or_as_a_number_is_refused_in_words():
    data = HEAD + b"}(]" + text(b"a") + b"u."
    assert torch_pickle.loads(data) is None
    with pytest.raises(UnreadableError, match="dictionary key"):
        decode(data, Kind.PICKLE)
