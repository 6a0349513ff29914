"""Tracebacks as they arrive: without indentation, in one line, one within another, of a process that just started."""

import json

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.matcher import Matcher

FLAT = """Traceback (most recent call last):
File "/opt/bin/train", line 8, in
sys.exit(run_training_entry())
File "/opt/lib/torch/nn/modules/module.py", line 1518, in _call_impl
return self._call_impl(*args, **kwargs)
TypeError: forward() takes 2 positional arguments but 3 were given
step 12 loss 2.1
"""
PACKED = (
    r'{"message": "worker 3 failed", "callstack": "Traceback (most recent call last):\n  File \"/a/train.py\", line 3, '
    r'in main\n    run()\nConnectionRefusedError: [Errno 111] Connection refused\n"}'
)
SQUEEZED = (
    'Traceback (most recent call last): File "/a/train.py", line 9, in from models import Actor '
    'File "/a/models.py", line 3, in import flash ImportError: /lib/flash_cuda.so: undefined symbol: _ZN3c10'
)
WRAPPED = """Traceback (most recent call last):
  File "train.py", line 40, in <module>
    for batch in loader:
  File "/opt/lib/torch/utils/data/dataloader.py", line 658, in _process_next_batch
    raise batch.exc_type(batch.exc_msg)
OSError: Traceback (most recent call last):
  File "/opt/lib/numpy/lib/npyio.py", line 404, in load
    magic = fid.read(N)
OSError: [Errno 5] Input/output error
"""
SPAWNED = """Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 132, in _main
    self = reduction.pickle.load(from_parent)
_pickle.UnpicklingError: pickle data was truncated
"""
LOADED = """Traceback (most recent call last):
  File "/a/train.py", line 12, in resume
    state = pickle.load(file)
_pickle.UnpicklingError: pickle data was truncated
"""


def findings(text: str) -> list[Finding]:
    matcher = Matcher(BASE, now=1_795_000_000.0, engine=ENGINE)
    matcher.feed("log", text.encode() + b"\n")
    return rank_findings(matcher.finish())


@pytest.mark.parametrize(
    ("text", "klass", "says"),
    [
        (FLAT, "user_exception", "TypeError: forward()"),
        (PACKED, "peer_process_lost", "ConnectionRefusedError"),
        (SQUEEZED, "env_import_error", "undefined symbol"),
        (WRAPPED, "fs_io_error", "Input/output error"),
        (SPAWNED, "peer_process_lost", "pickle data was truncated"),
        (LOADED, "ckpt_corrupt", "pickle data was truncated"),
    ],
)
def test_a_traceback_that_arrives_broken_still_names_its_exception(text, klass, says):
    found = next(f for f in findings(text) if f.severity != "info")
    assert found.klass == klass
    assert says in found.text


@pytest.mark.parametrize("before", [FLAT, r'{"log": "saw Traceback (most recent call last):\n twice"}' + "\n"])
def test_what_stands_below_is_read(before):
    found = findings(before + "NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.\n")
    assert "gpu_fallen_off_bus" in {f.klass for f in found}


@pytest.mark.parametrize("before", ['        b"', "    text = f'", "WANTED = '"])
def test_a_traceback_in_the_text_of_a_program_is_not_its_end(before):
    quoted = r'Traceback (most recent call last):\n  File \"/a/t.py\", line 3, in <module>\nKeyError: \'x\'\n"'
    assert [f.klass for f in findings(before + quoted)] == []


FILE = """{"message": {"message": "KeyError: 'pixel_values'", "extraInfo": {"py_callstack": "Traceback ..."}}}"""
EVENT = """{"name": "torchelastic.worker.status.FAILED", "metadata": {"global_rank": 5, "raw_error": %s}}"""
RECORDED = (
    FILE,
    EVENT % json.dumps(FILE),
    """  msg:\n    {\n      "message": "KeyError: 'pixel_values'",\n      "extraInfo": {\n        "py_callstack": [""",
)


@pytest.mark.parametrize("text", RECORDED)
def test_the_exception_that_a_rank_recorded_is_the_cause(text: str):
    matcher = Matcher(BASE, now=0.0, engine=ENGINE)
    matcher.feed("log", text.encode() + b"\n")
    found = choose_verdict(rank_findings(matcher.finish())).finding
    assert found is not None
    assert (found.is_exception, str(found.blame)) == (True, "user")
    assert found.text.startswith("KeyError: 'pixel_values'")


def test_a_structured_log_that_speaks_of_an_error_is_no_exception():
    line = b'{"level": "warning", "message": "ConnectionError: tracker away, trying again", "module": "tracker"}\n'
    matcher = Matcher(BASE, now=0.0, engine=ENGINE)
    matcher.feed("log", line)
    assert not [f for f in matcher.finish() if f.is_exception]
