"""Reports as text and HTML, the burn-in's fold, and the command line's small parsers. Pure."""

import pytest

from everstep.cli.examine.check import expectation, read_report
from everstep.errors import ConfigError
from everstep.preflight.burn_in import Series
from everstep.preflight.light import since
from everstep.preflight.registry import CHECKS
from everstep.preflight.result import Better, Judgement, Report, Result, measured, unsupported
from everstep.preflight.settings import SIZES, Level
from everstep.preflight.shown.html import render_html
from everstep.preflight.shown.text import number, render_report

HOSTILE = "<script>alert(1)</script>\x1b[31m"


def a_report(*results: Result) -> Report:
    return Report(
        everstep_version="0", node=HOSTILE, kind=HOSTILE, level="quick", at=0.0, took_s=1.0, results=tuple(results)
    )


def digest(value: str) -> Result:
    return measured("compute.float32.digest", value, how="x", better=Better.SAME, tolerance=0.0)


def speed(value: float) -> Result:
    return measured("compute.float32.speed", value, "flop/s", how="x", better=Better.HIGHER)


def test_text_says_first_what_is_bad_and_steers_no_terminal():
    bad = Result(name="disk./tmp.io", value=HOSTILE, verdict=Judgement.BAD, why="broken", how="writing")
    shown = render_report(a_report(digest("aa"), bad), every=True)
    assert shown.startswith("✗ 1 thing is bad")
    assert shown.index("broken") < shown.index("category")
    assert "\x1b" not in shown


def test_text_of_an_unmeasured_value_is_a_dash_with_its_reason():
    shown = render_report(a_report(unsupported("gpu.count", "no NVML here")), every=True)
    row = next(line for line in shown.splitlines() if "gpu.count" in line)
    assert "—" in row
    assert "no NVML here" in row
    assert " 0 " not in row


def test_what_ebpf_lacks_is_said_without_being_asked_in_one_line_per_class():
    lacking = [unsupported(f"ebpf.{name}", f"permission is missing{HOSTILE}") for name in ("run_queue", "locks")]
    shown = render_report(a_report(*lacking, unsupported("gpu.count", "no NVML here")))
    said = [line.split()[:2] for line in shown.splitlines() if "permission is missing" in line]
    assert said == [["—", "ebpf.run_queue"], ["—", "ebpf.locks"]]
    assert "no NVML here" not in shown
    assert "\x1b" not in shown
    assert "works without" not in render_report(a_report(digest("aa")))


def test_html_is_one_file_that_fetches_nothing_and_runs_nothing_of_a_node():
    page = render_html([a_report(Result(name=HOSTILE, value=HOSTILE, verdict=Judgement.BAD, why=HOSTILE))])
    assert page.count("<script>") == 1  # ours
    assert "alert(1)&lt;/script&gt;" in page
    assert "http" not in page
    assert "src=" not in page


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "bytes", "—"), (True, "", "yes"), (0, "bytes", "0 B"), (1536, "bytes", "1.5 KiB"),
        (2.5e9, "flop/s", "2.5 Gflop/s"), (12e-6, "s", "12 us"), (0.123, "ratio", "12.3 %"), (1500, "", "1,500"),
        (1e15, "bytes/s", "909 TiB/s"), (1023, "bytes", "1023 B"),
    ],
)  # fmt: skip
def test_numbers_as_people_read_them(value, unit, shown):
    assert number(value, unit) == shown


@pytest.mark.parametrize("text", ["gpu.count", "=8", "gpu.count=", "gpu.count>=many"])
def test_expectations_that_make_no_sense_are_refused(text):
    with pytest.raises(ConfigError):
        expectation(text)


def test_expectations():
    assert (expectation("gpu.count=8").sign, expectation("gpu.count=8").value) == ("=", 8)
    assert expectation("nic.*.mtu>=9000").sign == ">="
    assert expectation("cpu.governor=performance").value == "performance"
    assert expectation("kernel.clock.synchronised=yes").value is True


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b"\xff\xfe", None])
def test_garbage_instead_of_a_report_is_refused_in_a_sentence(tmp_path, content):
    file = tmp_path / "a.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.json"):
        read_report(str(file))


def test_burn_in_finds_the_round_in_which_a_digest_changed():
    series = Series()
    for number_ in range(1, 7):
        series.add([digest("bb" if number_ == 4 else "aa")])
    found = next(r for r in series.results() if r.name == "burn_in.compute.float32.digest")
    assert found.verdict is Judgement.BAD
    assert "round 4" in found.why


def test_burn_in_finds_drift_and_not_noise():
    falling, noisy = Series(), Series()
    for index in range(40):
        falling.add([speed(100e9 - index * 2e9)])
        noisy.add([speed(100e9 + (index * 7919 % 11 - 5) * 1e9)])
    drift = {s: next(r for r in s.results() if r.name.endswith("drift")) for s in (falling, noisy)}
    assert drift[falling].verdict is Judgement.BAD
    assert drift[noisy].verdict is Judgement.OK


def test_burn_in_too_short_for_drift_says_so():
    series = Series()
    series.add([speed(1e9)])
    drift = next(r for r in series.results() if r.name.endswith("drift"))
    assert (drift.verdict, drift.value) == (Judgement.UNSUPPORTED, None)


def test_burn_in_counts_what_was_bad_in_a_round():
    series = Series()
    bad = Result(name="compute.check", value="died", verdict=Judgement.BAD, why="SIGSEGV")
    assert series.add([bad]) == 1
    assert series.add([speed(1e9)]) == 0
    found = {r.name: r for r in series.results()}
    assert found["burn_in.failures"].verdict is Judgement.BAD
    assert "in round 1: SIGSEGV" in found["burn_in.round1.compute.check"].why


def test_counters_are_judged_by_their_growth():
    def errors(value):
        return measured("nic.eth0.rx_errors", value, "packets", how="x")

    assert since([errors(7)], [errors(7)])[0].verdict is Judgement.OK
    grown = since([errors(9)], [errors(7)])[0]
    assert (grown.verdict, grown.baseline) == (Judgement.WARN, 7)
    assert since([errors(0)], [errors(7)])[0].verdict is Judgement.NOTED  # reset: proves nothing


def test_the_registry_is_complete():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(callable(check.load_measure()) for check in CHECKS)
    assert set(SIZES) == set(Level)
