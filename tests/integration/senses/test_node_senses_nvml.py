"""NVIDIA GPUs through the real nvidia-ml-py and ctypes, with a small library of ours in the place of the driver's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import nvml_child
import pytest

LOOKS = """
import json, os, sys, time
from everstep.probes.node.accelerators.accelerators import Accelerators
from everstep.probes.node.kernel.kernel_log import LazyKernelLog
from everstep.probes.node.accelerators.nvml import Nvml, NvmlXids
vendor = Nvml()
gpus, xids = Accelerators(vendor), NvmlXids(LazyKernelLog().take)
for at, line in enumerate(sys.stdin):
    with open(os.environ["FAKE_NVML_STATE"], "w") as file:
        file.write(line.replace(";", chr(10)))
    alerts = gpus.look(10.0 * at) + xids.look(10.0 * at)
    print(json.dumps([[a.code, a.device, a.severity, a.source, a.sentence] for a in alerts]), flush=True)
last = vendor.read()[1]
other = vendor.read()[0].uncorrectable
print(json.dumps([last.power_w, last.power_limit_w, last.clock_mhz, last.uncorrectable, other]))
gpus.close(); xids.close()
"""


def look(nvml: Path, tmp_path: Path, states: list[str]) -> list[list]:
    return [json.loads(line) for line in nvml_child.lines(LOOKS, nvml, tmp_path, states)]


def test_what_a_gpu_tells_and_what_is_wrong_with_it(nvml, tmp_path):
    states = ["", "ecc 2", "ecc 2;pending 1", "ecc 2;link1 0;replays 3", "ecc 2;failed 1", "ecc 2;temperature 91"]
    *rounds, figures = look(nvml, tmp_path, [*states, "", "reasons 64", "reasons 64", "reasons 68", "lost 1", ""])
    codes = [[(code, device) for code, device, *_ in alerts] for alerts in rounds]
    bad = "0000:91:00"
    both = ["0000:17:00", bad]
    assert codes[:2] == [[], [("ES-M01", bad)]]
    assert codes[2] == [("ES-M03", gpu) for gpu in both]
    assert codes[3] == [("ES-M05", bad), ("ES-M08", bad), ("ES-M08", bad)]
    assert codes[4] == [("ES-M02", gpu) for gpu in both]
    assert codes[5] == [("ES-M07", gpu) for gpu in both]
    assert codes[6:9] == [[], [], []]
    assert codes[9] == [("ES-M04", gpu) for gpu in both], "heat at three looks; a power cap is how GPUs are run"
    assert codes[10:] == [[("ES-M06", bad)], []]
    assert rounds[10][0][4] == "GPU 1 (0000:91:00) is lost: its driver cannot reach it any more"
    assert figures == [310.5, 700.0, 1980, 0, None], "what a GPU does not support is unknown, not 0"


def test_a_gpu_that_tells_how_far_it_is_from_its_limit_is_too_hot_at_the_limit(nvml, tmp_path):
    *rounds, _ = look(nvml, tmp_path, ["hopper 1;margin 3", "hopper 1;margin 0;hidden 1", "hopper 1;margin -2"])
    assert [[code for code, *_ in alerts] for alerts in rounds] == [[], ["ES-M07"], ["ES-M07", "ES-M07"]]


def test_a_gpu_that_is_not_for_this_container_is_not_lost(nvml, tmp_path):
    *rounds, _ = look(nvml, tmp_path, ["hidden 1", "hidden 1", "hidden 1;temperature 95", ""])
    assert [[(code, device) for code, device, *_ in alerts] for alerts in rounds] == [
        [], [], [("ES-M07", "0000:17:00")], [],
    ]  # fmt: skip


def test_xid_events_have_the_codes_of_kernel_lines(nvml, tmp_path):
    *rounds, _ = look(nvml, tmp_path, ["", "xids 1", "xids 1", "xids 2;xid 31", "xids 3;xid 43"])
    found = [[(code, device, severity, source) for code, device, severity, source, _ in alerts] for alerts in rounds]
    assert found[:3] == [[], [("ES-G79", "0000:91:00", "fault", "nvml events")], []]
    assert [one[0] for one in found[3]] == ["ES-G31"]
    assert rounds[4] == [] or rounds[4][0][2] in ("warning", "error")


def test_without_a_driver_it_is_unsupported_and_says_why(tmp_path):
    if shutil.which("nvidia-smi"):
        pytest.skip("there is a driver here")
    code = (
        "from everstep.probes.node.accelerators.nvml import Nvml\n"
        "from everstep.probes.sense import UnsupportedError\n"
        "try: Nvml().read()\n"
        "except UnsupportedError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60, check=True)
    assert "NVML Shared Library Not Found" in done.stdout
