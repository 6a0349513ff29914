"""NVML's answers against the real library: what the senses of a node read, what `everstep check` measures, who uses the
GPU."""

import json
import os
import subprocess
import sys
import time
from typing import Any

import torch

from everstep.preflight.checks.working.device_memory import tested
from everstep.probes.node.accelerators.accelerators import Accelerators
from everstep.probes.node.accelerators.nvml import Nvml, NvmlXids
from everstep.probes.rank import gpu
from gpu_running.part import Report, Request, run

_PEAKS = {
    ("H200", "bfloat16"): 989e12, ("H100 80GB HBM3", "bfloat16"): 989e12, ("H100 PCIe", "bfloat16"): 756e12,
    ("H100 NVL", "bfloat16"): 835e12, ("A100", "bfloat16"): 312e12, ("L40S", "bfloat16"): 362e12,
    ("B200", "bfloat16"): 2250e12, ("L4", "bfloat16"): 121e12,
}  # fmt: skip
"""Dense products, flop/s, as the maker's data sheets have them."""

_MEMORY_SHARE = 0.6


def main(request: Request, report: Report) -> None:
    torch.cuda.set_device(request.device)
    report.attempt("senses", lambda: _senses(report))
    report.attempt("under load", lambda: _under_load(request, report))
    report.attempt("check", lambda: _check(request, report))
    report.attempt("memory test", lambda: _memory(request, report))


def _senses(report: Report) -> None:
    vendor = Nvml()
    began = time.perf_counter()
    (device, *_) = vendor.read()
    report.figure("a first look at a GPU", time.perf_counter() - began, "s")
    began = time.perf_counter()
    vendor.read()
    report.figure("another look", (time.perf_counter() - began) * 1e3, "ms")
    for name in ("name", "bus", "temperature_c", "limit_c", "power_w", "power_limit_w", "clock_mhz", "slowed_by"):
        report.figure(f"NVML: {name}", getattr(device, name))
    for name in ("uncorrectable", "remap_pending", "remap_failed", "links", "link_errors"):
        value = getattr(device, name)
        report.figure(f"NVML: {name}", str(value) if isinstance(value, dict) else value)
    report.figure("temperature is one", 10 < (device.temperature_c or 0) < 100, goal="is true")
    sense = Accelerators(vendor)
    alerts = sense.look(0.0) + sense.look(10.0) + sense.look(20.0)
    said = "; ".join(alert.sentence for alert in alerts)
    report.figure("a healthy GPU raises no alert", not alerts, goal="is true", note=said)
    sense.close()
    xids = NvmlXids(lambda lines, *_: [])
    report.attempt("NVML events", lambda: _events(xids, report))


def _events(xids: NvmlXids, report: Report) -> None:
    began = time.perf_counter()
    xids.look(0.0)
    report.figure("registered for Xid events", True, note=f"{(time.perf_counter() - began) * 1e3:.1f} ms")
    began = time.perf_counter()
    xids.look(1.0)
    report.figure("a look for Xid events", (time.perf_counter() - began) * 1e3, "ms", "<= 5.0")
    xids.close()


def _under_load(request: Request, report: Report) -> None:
    """Clock, power and use while products run; whether this process is listed."""
    a = torch.randn(8192, 8192, device=request.device, dtype=torch.bfloat16)
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        for _ in range(10):
            a @ a
        torch.cuda.synchronize()
    for _ in range(200):
        a @ a
    (load, *_) = gpu.read()
    torch.cuda.synchronize()
    for name in ("use_share", "clock_mhz", "power_w", "temperature_c"):
        report.figure(f"under load: {name}", getattr(load, name))
    report.figure("NVML lists this process", os.getpid() in load.pids, note=f"pids {load.pids[:4]}")
    used = (load.used_bytes or 0) / 1e9
    report.figure("device memory in use, by NVML", used, "GB")


def _check(request: Request, report: Report) -> None:
    line = [sys.executable, "-m", "everstep", "check", "--quick", "--only", "gpu,gpu_compute", "--json"]
    began = time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True, timeout=request.limit_s, check=False)
    took_s = time.perf_counter() - began
    results = {each["name"]: each for each in _results(json.loads(done.stdout))}
    report.figure("everstep check of GPUs", took_s, "s", note=f"{len(results)} results, exit {done.returncode}")
    bad = [f"{name}: {each.get('why', '')}" for name, each in results.items() if each.get("verdict") == "bad"]
    report.figure("a healthy GPU has nothing bad", not bad, goal="is true", note="; ".join(bad)[:300])
    unknown = [name for name, each in results.items() if each.get("verdict") == "unsupported"]
    report.figure("not told by this GPU", len(unknown), note=", ".join(unknown)[:250])
    device = torch.cuda.get_device_name(request.device)
    for dtype in ("bfloat16", "float32"):
        speed = results.get(f"gpu_compute.0.{dtype}.speed", {}).get("value")
        peak = next((peak for (part, of), peak in _PEAKS.items() if part in device and of == dtype), None)
        report.figure(f"products in {dtype}", speed and speed / 1e12, "TFLOP/s")
        if peak:
            share = None if speed is None else speed / peak
            report.figure(f"products in {dtype}, of the published peak", share, "share", ">= 0.6")
    for name in ("memory_copy", "from_host", "to_host"):
        rate = results.get(f"gpu_compute.0.{name}", {}).get("value")
        report.figure(f"check: {name}", rate and rate / 1e9, "GB/s")


def _results(document: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(document, dict):
        if "name" in document and "value" in document:
            yield document
        for each in document.values():
            yield from _results(each)
    elif isinstance(document, list):
        for each in document:
            yield from _results(each)


def _memory(request: Request, report: Report) -> None:
    began = time.perf_counter()
    found = tested(request.device, _MEMORY_SHARE)
    note = f"{found['bytes'] / 1e9:.0f} GB in {time.perf_counter() - began:.1f} s"
    report.figure("wrong words in device memory", found["wrong"], goal="<= 0", note=note)


if __name__ == "__main__":
    run(main)
