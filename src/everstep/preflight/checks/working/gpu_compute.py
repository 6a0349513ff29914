"""GPUs at work: matrix products with digests, memory bandwidth, copies from and to the host, their memory.

Each GPU is used by one process of its own, all at once; the device is initialised only there. GPUs of one node are
compared with each other: all have the same bits and nearly the same speed, or one of them is named.
"""

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from everstep.preflight.checks.working.arithmetic import DTYPES, copies, products, torch_problem
from everstep.preflight.checks.working.device_memory import tested
from everstep.preflight.result import Better, Doing, Judgement, Result, Yielded, measured, unsupported
from everstep.preflight.running.processes import Failed, run_forked
from everstep.preflight.settings import Settings, Sizes

_LIMIT_S = 60.0  # starting a context on each of eight GPUs takes many seconds
_FACTOR = 8  # a GPU is asked for matrices this many times as wide as a core
_EXACT_FACTOR = 2  # exactness of float64 is checked on the host
_COPIES = (("memory_copy", "{0}", "{0}"), ("from_host", "cpu", "{0}"), ("to_host", "{0}", "cpu"))


def measure(settings: Settings) -> Iterator[Yielded]:
    yield Doing(what="import torch, counting GPUs")
    problem = torch_problem()
    (counted,) = run_forked([_count], limit_s=_LIMIT_S) if not problem else [Failed(why=problem)]
    number = 0 if isinstance(counted, Failed) else int(counted["count"])
    if not number:
        why = counted.why if isinstance(counted, Failed) else "torch sees no CUDA or ROCm device"
        yield unsupported("gpu_compute.count", why, "devices")
        return
    how = "torch.cuda.device_count"
    yield measured("gpu_compute.count", number, "devices", how=how, better=Better.SAME, tolerance=0.0)
    yield Doing(what=f"products and copies on {number} GPUs")
    yield from on_devices([f"cuda:{index}" for index in range(number)], settings.sizes)


def _count() -> dict[str, Any]:
    import torch

    return {"count": torch.cuda.device_count()}


def on_devices(devices: list[str], sizes: Sizes, factor: int = _FACTOR) -> Iterator[Result]:
    """Everything that is measured on each of these devices of torch, at the same time, and compared among them."""
    limit_s = _LIMIT_S + 4.0 * sizes.products
    answers = dict(
        zip(devices, run_forked([partial(_work, d, sizes, factor) for d in devices], limit_s=limit_s), strict=True)
    )
    good = {_index(device): a for device, a in answers.items() if not isinstance(a, Failed)}
    for device, answer in answers.items():
        if isinstance(answer, Failed):
            yield Result(
                name=f"gpu_compute.{_index(device)}.work", value="failed", verdict=Judgement.BAD, how="forked process",
                why=f"products and copies on gpu {_index(device)}: {answer.why}", device=f"gpu {_index(device)}",
            )  # fmt: skip
    if not good:
        return
    for dtype in DTYPES:
        found = {index: answer[dtype] for index, answer in good.items()}
        side = _side(dtype, sizes, factor)
        how = f"{sizes.products} products of {side} x {side}, all GPUs at once"
        yield from _digests(dtype, found, how)
        flops = 2.0 * side**3
        yield from _compared(f"{dtype}.speed", "flop/s", {i: flops / f["best_s"] for i, f in found.items()}, how)
    yield from _memory({index: answer["memory"] for index, answer in good.items()})
    for name, _, _ in _COPIES:
        found = {index: answer[name] for index, answer in good.items()}
        how = f"{sizes.copies} copies of {sizes.copy_bytes >> 20} MiB, all GPUs at once"
        yield from _equal(name, found)
        yield from _compared(name, "bytes/s", {i: f["median_rate"] for i, f in found.items()}, how)


def _work(device: str, sizes: Sizes, factor: int) -> dict[str, Any]:
    """In a process of its own: one context for all that is asked of this device."""
    found = {dtype: products(dtype, _side(dtype, sizes, factor), sizes.products, device) for dtype in DTYPES}
    for name, source, target in _COPIES:
        found[name] = copies(sizes.copy_bytes, sizes.copies, source.format(device), target.format(device))
    found["memory"] = tested(device, sizes.device_memory_share)
    return found


def _side(dtype: str, sizes: Sizes, factor: int) -> int:
    return sizes.matrix * (min(factor, _EXACT_FACTOR) if dtype == "float64" else factor)


def _index(device: str) -> str:
    return device.partition(":")[2]


def _digests(dtype: str, found: dict[str, dict[str, Any]], how: str) -> Iterator[Result]:
    expected = statistics.mode([digest for answer in found.values() for digest in answer["digests"]])
    for index, answer in found.items():
        same = set(answer["digests"]) == {expected} and not answer["wrong"]
        yield Result(
            name=f"gpu_compute.{index}.{dtype}.digest", value=answer["digests"][0], baseline=expected, how=how,
            baseline_from="majority of this node's GPUs", better=Better.SAME, tolerance=0.0, device=f"gpu {index}",
            verdict=Judgement.OK if same else Judgement.BAD,
            why="" if same else f"gpu {index} computes {dtype} products with other bits than the others, or wrongly",
        )  # fmt: skip


def _memory(found: dict[str, dict[str, Any]]) -> Iterator[Result]:
    for index, answer in found.items():
        wrong = answer["wrong"]
        yield Result(
            name=f"gpu_compute.{index}.memory_wrong_words", value=wrong, unit="words", device=f"gpu {index}",
            verdict=Judgement.BAD if wrong else Judgement.OK, how=f"{answer['bytes'] >> 20} MiB written and read back",
            why=f"gpu {index} reads {wrong} words of its memory that were never written" if wrong else "",
        )  # fmt: skip


def _equal(name: str, found: dict[str, dict[str, Any]]) -> Iterator[Result]:
    for index, answer in found.items():
        yield Result(
            name=f"gpu_compute.{index}.{name}.is_equal", value=answer["is_equal"], device=f"gpu {index}",
            verdict=Judgement.OK if answer["is_equal"] else Judgement.BAD, how="compared with the original",
            why="" if answer["is_equal"] else f"a copy by gpu {index} differs from its original",
        )  # fmt: skip


def _compared(name: str, unit: str, values: dict[str, float], how: str) -> Iterator[Result]:
    for index, value in values.items():
        full = f"gpu_compute.{index}.{name}"
        yield measured(full, value, unit, how=how, better=Better.HIGHER, tolerance=0.1, device=f"gpu {index}")
    if len(values) > 1:
        slowest = min(values, key=lambda index: values[index])
        yield measured(
            f"gpu_compute.{name}_balance", values[slowest] / statistics.median(values.values()), "ratio",
            how=f"slowest GPU (gpu {slowest}) by the median: {how}", better=Better.HIGHER, device=f"gpu {slowest}",
        )  # fmt: skip
