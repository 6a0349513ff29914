"""What vendors' tools print, as their documentation shows it: devices, what is unknown, and anything else."""

import json
import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.probes.node.accelerators.amd import parse_amd_smi, parse_rocm_smi
from everstep.probes.node.accelerators.ascend import Ascend, parse_npu_smi
from everstep.probes.node.command import output_of
from everstep.probes.node.disks import failing, parse_smart
from everstep.probes.process import usage
from everstep.probes.sense import UnsupportedError

AMD = [
    {
        "gpu": 0,
        "power": {
            "socket_power": {"value": 140, "unit": "W"}, "gfx_voltage": "N/A", "throttle_status": "UNTHROTTLED",
        },
        "temperature": {
            "edge": "N/A", "hotspot": {"value": 41, "unit": "C"}, "mem": {"value": 35, "unit": "C"},
        },
        "ecc": {"total_correctable_count": 12, "total_uncorrectable_count": 2, "total_deferred_count": 0},
    },
    {"gpu": 1, "power": {"throttle_status": "THROTTLED"}, "temperature": {"edge": 70}, "ecc": "N/A"},
]  # fmt: skip
ROCM = {
    "card0": {
        "Temperature (Sensor edge) (C)": "45.0", "Temperature (Sensor junction) (C)": "48.0",
        "Average Graphics Package Power (W)": "89.0", "PCI Bus": "0000:C1:00.0",
    },
    "system": {"Driver version": "6.7.0"},
}  # fmt: skip
ASCEND = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 23.0.rc2                 Version: 23.0.rc2                                              |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B1               | OK            | 92.4        36                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          4154 / 65536         |
+===========================+===============+====================================================+
| 1     910B1               | Alarm         | 91.1        NA                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          4153 / 65536         |
+===========================+===============+====================================================+
| 2     910B1               | UNKNOWN       | NA          NA                0    / 0             |
| 0                         | 0000:02:00.0  | 0           0    / 0          4153 / 65536         |
+===========================+===============+====================================================+
"""


@pytest.mark.parametrize("document", [AMD, {"gpu_data": AMD}])
def test_amd_smi(document):
    first, second = parse_amd_smi(json.dumps(document).encode())
    assert (first.name, first.temperature_c, first.power_w, first.uncorrectable) == ("GPU 0", 41.0, 140.0, 2)
    assert first.slowed_by == ()
    assert second.slowed_by == ("throttling (THROTTLED)",)
    assert (second.temperature_c, second.uncorrectable, second.power_w) == (70.0, None, None)


def test_rocm_smi():
    (card,) = parse_rocm_smi(json.dumps(ROCM).encode())
    assert (card.name, card.bus, card.temperature_c, card.power_w) == ("GPU 0", "0000:c1:00", 48.0, 89.0)
    assert card.uncorrectable is None


def test_npu_smi():
    first, second, third = parse_npu_smi(ASCEND.encode())
    assert (first.name, first.bus, first.is_healthy) == ("NPU 0 chip 0", "0000:c1:00", True)
    assert (first.power_w, first.temperature_c) == (92.4, 36.0)
    assert (second.is_healthy, second.problem, second.temperature_c) == (False, "health Alarm", None)
    assert (third.is_healthy, third.problem) == (None, ""), "UNKNOWN is not unhealthy, and not healthy"
    (warned, *_) = parse_npu_smi(ASCEND.replace("| OK     ", "| Warning").encode())
    assert (warned.is_healthy, warned.problem) == (None, "health Warning")


@pytest.mark.parametrize("parse", [parse_amd_smi, parse_rocm_smi, parse_npu_smi])
@pytest.mark.parametrize("output", [b"", b"\xff\x00", b"[]", b"{}", b"null", b'{"gpu_data": 3}', b"[" * 100_000])
def test_anything_else_is_unsupported(parse, output):
    with pytest.raises(UnsupportedError):
        parse(output)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.sampled_from(["gpu", "power", "ecc", "card0", "value", "total_uncorrectable_count", "temperature"]), c)))  # fmt: skip  # noqa: E501
def test_any_json(value):
    for parse in (parse_amd_smi, parse_rocm_smi):
        try:
            parse(json.dumps(value).encode())
        except UnsupportedError:
            pass
    failing(parse_smart(json.dumps(value).encode()))


NVME = {"smart_status": {"passed": True}, "nvme_smart_health_information_log": {"critical_warning": 0}}


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ({}, None),
        ({"smart_status": {}}, None),
        ({"smart_status": {"passed": True}}, ""),
        ({"smart_status": {"passed": False}}, "its own check (SMART) says that it fails"),
        (NVME, ""),
        (NVME | {"nvme_smart_health_information_log": {"critical_warning": 4}}, "its critical warning is 0x04"),
        (
            NVME | {"nvme_smart_health_information_log": {"available_spare": 3, "available_spare_threshold": 10}},
            "3 % of its spare blocks are left; 10 % is the least",
        ),
    ],
)
def test_smart(report, why):
    assert failing(parse_smart(json.dumps(report).encode())) == why


def tool(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_real_tool(tmp_path, monkeypatch):
    (tmp_path / "table").write_text(ASCEND)
    tool(tmp_path, "npu-smi", f"cat {tmp_path}/table; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert len(Ascend().read()) == 3


def test_a_tool_that_does_not_end_is_ended_with_its_children(tmp_path, monkeypatch):
    tool(tmp_path, "npu-smi", f"sleep 1000 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    told = tmp_path / "child"
    for limit_s in (2, 4, 8, 16, 32, 64):  # longer where the tool did not come so far
        with pytest.raises(UnsupportedError, match=rf"did not end within {limit_s} s"):
            output_of(["npu-smi"], limit_s=limit_s)
        if told.exists() and told.read_text():
            break
    child = int(told.read_text())
    deadline = time.monotonic() + 60.0
    while (alive := usage(child)) is not None and alive.state != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_killed_tool_had_printed_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "table").write_text(ASCEND)
    tool(tmp_path, "npu-smi", f"cat {tmp_path}/table; kill -9 $$")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UnsupportedError, match="npu-smi was killed by signal 9"):
        Ascend().read()


def test_no_tool():
    with pytest.raises(UnsupportedError, match="no npu-smi-of-nobody"):
        output_of(["npu-smi-of-nobody"])
