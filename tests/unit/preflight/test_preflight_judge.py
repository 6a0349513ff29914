"""What `everstep check` makes of measured values: limits, expectations, baselines, other nodes. Pure."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.preflight.judge import Expectation, among_nodes, by_expectations, by_limits, judge_against
from everstep.preflight.result import Better, Judgement, Report, Result, measured, unsupported

MEMORY = "bandwidth.node0.copy"


def a_report(node: str, *results: Result, kind: str = "k") -> Report:
    return Report(everstep_version="0", node=node, kind=kind, level="quick", at=0.0, took_s=1.0, results=tuple(results))


def copy(value: float) -> Result:
    return measured(MEMORY, value, "bytes/s", how="x", better=Better.HIGHER)


def digest(value: str) -> Result:
    return measured("compute.float32.digest", value, how="x", better=Better.SAME, tolerance=0.0)


def only(results, name: str) -> Result:
    (found,) = [result for result in results if result.name == name]
    return found


def verdicts(reports: list[Report], name: str = MEMORY) -> dict[str, str]:
    return {report.node: only(report.results, name).verdict.value for report in reports}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("disk./tmp.fsync_p50_s", 0.001, "ok"),
        ("disk./tmp.fsync_p50_s", 0.1, "warn"),
        ("disk./tmp.fsync_p50_s", 0.9, "bad"),
        ("disk./tmp.write_bandwidth", 5e6, "bad"),
        ("network.peer.a:1.send_bandwidth", 1.2e6, "bad"),
        ("network.peer.a:1.send_bandwidth", 80e6, "warn"),
        ("container.limit.nofile", "unlimited", "ok"),
        ("container.limit.nofile", 100, "bad"),
        ("cpu.offline", "none", "ok"),
        ("cpu.offline", "3", "warn"),
        ("gpu.3.remap_failure", True, "bad"),
        ("gpu.3.nvlink.7.active", False, "bad"),
        ("memory.edac.mc0.uncorrected", 1, "bad"),
        ("nobody.knows.this", 1, "noted"),
        ("memory.available_ratio", float("nan"), "bad"),
    ],
)
def test_fixed_limits(name, value, expected):
    (judged,) = by_limits([measured(name, value, how="x")])
    assert judged.verdict.value == expected
    assert judged.why or expected in ("ok", "noted")


def test_unsupported_is_never_judged_by_a_limit():
    (judged,) = by_limits([unsupported("memory.edac.mc0.uncorrected", "no driver")])
    assert judged.verdict is Judgement.UNSUPPORTED
    assert judged.value is None


def test_an_expectation_that_cannot_be_confirmed_is_bad():
    results = [unsupported("gpu.count", "no NVML"), measured("nic.eth0.mtu", 1500, how="x")]
    judged = by_expectations(
        results,
        [
            Expectation(pattern="gpu.count", sign="=", value=8),
            Expectation(pattern="nic.*.mtu", sign=">=", value=9000),
            Expectation(pattern="nic.eth1.present", sign="=", value=True),
        ],
    )
    assert [(r.name, r.verdict.value) for r in judged] == [
        ("gpu.count", "bad"),
        ("nic.eth0.mtu", "bad"),
        ("nic.eth1.present", "bad"),
    ]
    assert "no NVML" in judged[0].why


def test_an_expectation_that_is_met_is_ok():
    (judged,) = by_expectations(
        [measured("gpu.count", 8, how="x")], [Expectation(pattern="gpu.count", sign="=", value=8)]
    )
    assert (judged.verdict, judged.baseline_from) == (Judgement.OK, "expected")


def test_the_slow_node_among_others_is_named_and_only_it():
    reports = [a_report(f"n{i}", copy(20e9 + i * 1e8)) for i in range(5)] + [a_report("slow", copy(9e9))]
    found = verdicts(among_nodes(reports))
    assert found.pop("slow") == "bad"
    assert set(found.values()) == {"ok"}


def test_of_two_nodes_the_worse_one_is_named():
    assert verdicts(among_nodes([a_report("a", copy(20e9)), a_report("b", copy(9e9))])) == {"a": "ok", "b": "bad"}


def test_nodes_of_another_kind_are_not_compared():
    reports = [a_report("a", copy(20e9)), a_report("b", copy(2e9), kind="other")]
    assert set(verdicts(among_nodes(reports)).values()) == {"noted"}


def test_a_wrong_digest_is_found_by_majority():
    reports = [a_report(n, digest("aa")) for n in "xyz"] + [a_report("wrong", digest("bb"))]
    found = verdicts(among_nodes(reports), "compute.float32.digest")
    assert found == {"x": "ok", "y": "ok", "z": "ok", "wrong": "bad"}


def test_two_digests_that_differ_blame_both_and_say_why():
    judged = among_nodes([a_report("x", digest("aa")), a_report("y", digest("bb"))])
    assert set(verdicts(judged, "compute.float32.digest").values()) == {"bad"}
    assert "which is right is not known" in only(judged[0].results, "compute.float32.digest").why


def test_digests_of_other_libraries_are_not_compared():
    torch = [measured("software.torch", v, how="x", better=Better.SAME) for v in ("2.13.0", "2.12.0")]
    judged = among_nodes([a_report("x", digest("aa"), torch[0]), a_report("y", digest("bb"), torch[1])])
    assert set(verdicts(judged, "compute.float32.digest").values()) == {"noted"}


def test_a_missing_device_is_named():
    def nic(device):
        return measured(f"nic.{device}.present", True, how="x", better=Better.SAME, tolerance=0.0, device=device)

    full = [a_report(f"n{i}", nic("eth0"), nic("eth1")) for i in range(3)]
    judged = among_nodes([*full, a_report("poor", nic("eth0"))])
    missing = only(judged[-1].results, "nic.eth1.present")
    assert (missing.verdict, missing.value, missing.device) == (Judgement.BAD, False, "eth1")
    assert "eth1 is missing" in missing.why
    assert not any(report.count(Judgement.BAD) for report in judged[:-1])


def test_a_check_that_hung_does_not_prove_that_devices_are_missing():
    nic = measured("nic.eth1.present", True, how="x", better=Better.SAME, tolerance=0.0, device="eth1")
    hung = Result(name="nic.check", value="hung", verdict=Judgement.BAD)
    judged = judge_against(a_report("me", hung), [a_report("base", nic)], are_trusted=True)
    assert [result.name for result in judged.results] == ["nic.check"]


def test_what_others_measured_and_this_node_cannot_is_a_warning():
    reports = [a_report(f"n{i}", copy(20e9)) for i in range(3)] + [a_report("mute", unsupported(MEMORY, "no torch"))]
    found = only(among_nodes(reports)[-1].results, MEMORY)
    assert (found.verdict, found.value) == (Judgement.WARN, None)
    assert "no torch" in found.why


def test_a_baseline_says_where_it_is_from():
    judged = judge_against(a_report("me", copy(10e9)), [a_report("good", copy(20e9))], are_trusted=True)
    found = only(judged.results, MEMORY)
    assert (found.verdict, found.baseline, found.baseline_from) == (Judgement.BAD, 20e9, "baseline of node good")


def test_a_slow_node_that_others_were_using_is_only_worth_a_look():
    pressure = measured("kernel.pressure.cpu.some.avg60", 80.0, "%", how="x")
    judged = judge_against(a_report("me", copy(5e9), pressure), [a_report("good", copy(20e9))], are_trusted=True)
    found = only(judged.results, MEMORY)
    assert found.verdict is Judgement.WARN
    assert "CPU pressure was 80 %" in found.why
    quiet = msgspec.structs.replace(pressure, value=1.0)
    judged = judge_against(a_report("me", copy(5e9), quiet), [a_report("good", copy(20e9))], are_trusted=True)
    assert only(judged.results, MEMORY).verdict is Judgement.BAD


def test_a_wrong_digest_has_no_such_excuse():
    load = [measured("cpu.load_1m", 90.0, how="x"), measured("cpu.count", 2, how="x")]
    judged = judge_against(
        a_report("me", digest("aa"), *load), [a_report("good", digest("bb"), *load)], are_trusted=True
    )
    assert only(judged.results, "compute.float32.digest").verdict is Judgement.BAD


numbers = st.floats(min_value=1e-6, max_value=1e12, allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(value=numbers, others=st.lists(numbers, min_size=1, max_size=8), better=st.sampled_from(list(Better)))
def test_judging_never_improves_a_verdict_nor_changes_a_value(value, others, better):
    severity = ["unsupported", "noted", "ok", "warn", "bad"]
    for first in (Judgement.NOTED, Judgement.WARN, Judgement.BAD):
        mine = msgspec.structs.replace(copy(value), better=better, verdict=first)
        reports = [a_report("me", mine), *(a_report(f"n{i}", copy(v)) for i, v in enumerate(others))]
        after = only(among_nodes(reports)[0].results, MEMORY)
        assert severity.index(after.verdict.value) >= severity.index(first.value)
        assert after.value == value


@settings(max_examples=100, deadline=None)
@given(value=numbers, count=st.integers(min_value=2, max_value=9), better=st.sampled_from(list(Better)))
def test_nodes_that_are_all_the_same_are_never_blamed(value, count, better):
    mine = msgspec.structs.replace(copy(value), better=better)
    for report in among_nodes([a_report(f"n{i}", mine) for i in range(count)]):
        assert only(report.results, MEMORY).verdict in (Judgement.OK, Judgement.NOTED)


@settings(max_examples=100, deadline=None)
@given(good=numbers, count=st.integers(min_value=3, max_value=9), at=st.integers(min_value=0, max_value=8))
def test_one_node_at_a_tenth_is_always_the_one_blamed(good, count, at):
    values = [good] * count
    values[at % count] = good / 10
    found = verdicts(among_nodes([a_report(f"n{i}", copy(v)) for i, v in enumerate(values)]))
    assert [node for node, verdict in found.items() if verdict != "ok"] == [f"n{at % count}"]
