"""GPUs of a rank through the real nvidia-ml-py and ctypes, with a small library of ours for the driver's."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import nvml_child
import pytest
from lateness import Lateness

from everstep.analyzer.observations.records import GpuLoad

MEASURE = """
import asyncio, json, os, sys, time
import msgspec
from everstep.agent.watching.loads import measure
from everstep.probes.rank import gpu
try:
    gpu.read()  # its imports do not count
except Exception:
    pass
async def main():
    for line in sys.stdin:
        with open(os.environ["FAKE_NVML_STATE"], "w") as file:
            file.write(line.replace("PID", str(os.getpid())).replace(";", chr(10)))
        began = time.monotonic()
        found = await measure({0: [os.getpid()], 1: [1 << 22]})
        print(json.dumps([time.monotonic() - began, msgspec.to_builtins(found, str_keys=True)]), flush=True)
asyncio.run(main())
"""


def measured(nvml: Path, tmp_path: Path, states: list[str]) -> list[tuple[float, dict]]:
    return [tuple(json.loads(line)) for line in nvml_child.lines(MEASURE, nvml, tmp_path, states)]


def test_the_gpu_of_a_rank_is_the_one_that_lists_its_process(nvml, tmp_path):
    (_, used), (_, other), (_, lost) = measured(nvml, tmp_path, ["pid PID", "pid 5", "pid PID;lost 1"])
    (gpu,) = msgspec.convert(used["gpus"]["0"], list[GpuLoad])
    assert (gpu.index, gpu.name, gpu.use_share, gpu.memory_share) == (1, "NVIDIA Fake 80GB", 0.97, 0.31)
    assert (gpu.used_bytes, gpu.total_bytes) == (60 << 30, 80 << 30)
    assert (gpu.clock_mhz, gpu.power_w, gpu.temperature_c) == (1980, 310.5, 40)
    assert used["by_rank"]["0"]["gpu_share"] == 0.97
    assert used["by_rank"]["1"]["gpu_share"] is None, "unknown, not 0"
    assert not used["missing"]
    assert other["gpus"] == {}
    assert "GPU: none lists a process" in other["missing"][0]
    assert lost["by_rank"]["0"]["gpu_share"] is None


def test_an_nvml_that_never_answers_costs_a_second_once(nvml, tmp_path):
    began = time.monotonic()
    with Lateness() as late:
        (first_s, first), *others = measured(nvml, tmp_path, ["hang 1"] * 4)
    for found in (first, *(found for _, found in others)):
        assert found["missing"] == ["GPU: no answer within 1 s"]
    assert first["by_rank"]["0"]["cpu_share"] is not None, "the other sources are there"
    assert first_s < 3 + late.seconds
    assert min(again_s for again_s, _ in others) < 1 + late.seconds, "while it hangs nobody waits for it again"
    assert time.monotonic() - began < 20 + late.seconds, "and the process ends all the same"


def test_without_a_library_it_is_unsupported_and_says_so(tmp_path):
    ((_, found),) = measured(tmp_path, tmp_path, [""])
    if not any("NVML Shared Library Not Found" in why for why in found["missing"]):
        pytest.skip("this machine has a driver")
    assert found["gpus"] == {}


@pytest.mark.parametrize(
    ("state", "why"),
    [("lost 1", "fallen off the bus"), ("unreachable 1", "fallen off the bus"), ("hidden 1", "does not answer")],
)
def test_a_gpu_that_cannot_be_asked_says_why_and_the_other_is_read(nvml, tmp_path, state, why):
    (tmp_path / "state").write_text(state + "\n")
    env = {**os.environ, "LD_LIBRARY_PATH": str(nvml), "FAKE_NVML_STATE": str(tmp_path / "state")}
    code = "import msgspec; from everstep.probes.rank.gpu import read; print(msgspec.json.encode(read()).decode())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    first, second = msgspec.json.decode(done.stdout, type=list[GpuLoad])
    assert first.power_w == 310.5
    assert second.power_w is None
    assert why in second.why
