"""Why a rank ended, as it wrote it down: its error report, its last output, the stack of a crash."""

import json
import time

from hypothesis import given
from hypothesis import strategies as st

from everstep.agent.processes import error_reports as exits
from everstep.worker.process import errors


def test_our_report_is_read_back(tmp_path):
    path = tmp_path / "rank-0.json"
    began = time.time()
    try:
        json.loads("{")
    except ValueError as error:
        errors.report_exception(str(path), error)
    report = exits.read_error(path)
    assert (report.kind, report.place.split(":")[0]) == ("JSONDecodeError", "test_agent_error_reports.py")
    assert report.message in report.traceback
    assert began <= report.at <= time.time()


def test_the_first_report_stays(tmp_path):
    path = tmp_path / "rank-0.json"
    errors.write_report(str(path), kind="A", message="first")
    errors.write_report(str(path), kind="B", message="second")
    assert exits.read_error(path).message == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["rank-0.json"]


def test_a_report_cut_anywhere_is_unknown_never_an_error(tmp_path):
    path = tmp_path / "rank-0.json"
    errors.write_report(str(path), kind="A", message="m", text="t", place="x.py:1")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert exits.read_error(path) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["message", "extraInfo", "everstep", "py_callstack", "timestamp", "kind", "at"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_a_report_or_none(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("report") / "rank-0.json"
    path.write_text(json.dumps(value))
    report = exits.read_error(path)
    assert report is None or isinstance(report.message, str)


def test_an_exception_whose_text_raises_is_still_reported(tmp_path):
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError

    path = tmp_path / "r.json"
    errors.report_exception(str(path), Bad())
    assert exits.read_error(path).message == "<its __str__ raised>"


def test_a_very_long_traceback_keeps_both_ends(tmp_path):
    path = tmp_path / "r.json"
    errors.write_report(str(path), kind="A", message="m", text="begin" + "x" * 1_000_000 + "end")
    text = exits.read_error(path).traceback
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) < 70_000


def test_place_in_a_printed_traceback_is_the_users_frame():
    text = (
        'Traceback (most recent call last):\n  File "/home/u/train.py", line 12, in <module>\n    main()\n'
        f'  File "{json.__file__}", line 300, in loads\n    x\n  File "<string>", line 1, in <module>\nE: m\n'
    )
    assert exits.place_of(text) == "train.py:12"
    assert exits.place_of("nothing here") == ""


def test_last_output_is_the_end_in_whole_lines(tmp_path):
    path = tmp_path / "stderr.log"
    path.write_text("".join(f"line {n}\n" for n in range(1000)))
    text = exits.last_output(exits.last_words(path))
    assert text.endswith("line 999")
    assert text.startswith("line ")
    assert len(text) <= exits.MAX_OUTPUT_BYTES
    path.write_bytes(b"\xff" * 5000)
    assert 0 < len(exits.last_output(exits.last_words(path))) <= exits.MAX_OUTPUT_BYTES
    assert exits.last_words(tmp_path / "absent") == ""


CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f02 (most recent call first):
  File "{library}", line 519 in string_at
  File "/home/u/train.py", line 41 in step
  File "/home/u/train.py", line 99 in main

Extension modules: {modules} (total: 400)
"""


def test_the_stack_of_a_crash_says_where_the_program_was(tmp_path):
    path = tmp_path / "stderr.log"
    modules = ", ".join(f"torch._C._module{number}" for number in range(400))
    path.write_text("step 1\n" + CRASH.format(library=json.__file__, modules=modules))
    assert exits.crash_place(exits.last_words(path)) == "train.py:41"
    text = exits.last_output(exits.last_words(path))
    assert text.startswith("step 1")
    assert text.endswith("line 99 in main")
    path.write_text(CRASH.format(library=json.__file__, modules=modules).replace("/home/u/train.py", json.__file__))
    assert exits.crash_place(exits.last_words(path)) == "__init__.py:519"
    path.write_text(
        "Fatal Python error: Aborted\n\nCurrent thread 0x01 (most recent call first):\n  <no Python frame>\n"
    )
    assert exits.crash_place(exits.last_words(path)) == ""
    assert exits.crash_place("") == ""
