"""Current load of each GPU and the processes that use it: use, memory, clock, power, temperature. NVIDIA, through NVML.

It is evidence of use, not a sign of life, because kernels of a collective spin at 100 % while they wait. A field that a
GPU does not report is None; without NVML everything is unsupported, with the reason. NVML may block on a broken GPU, so
the caller asks in a thread that may hang (`agent.watching.loads`). Faults of a GPU are a sense of the node:
`probes.node.accelerators.nvml`.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from everstep.analyzer.observations.records import GpuLoad
from everstep.probes.nvml_session import LOST, LostError, Session
from everstep.probes.sense import UnsupportedError

__all__ = ["UnsupportedError", "of_processes", "read"]

_LOST = "it has fallen off the bus"


def read() -> list[GpuLoad]:
    """All GPUs of the node. Raises UnsupportedError."""
    session = Session()
    try:
        return [_use(session, index, handle) for index, handle in enumerate(session.handles())]
    finally:
        session.close()


def of_processes(gpus: Iterable[GpuLoad], pids: Iterable[int]) -> tuple[GpuLoad, ...]:
    """The GPUs that one of these processes uses."""
    wanted = set(pids)
    return tuple(gpu for gpu in gpus if wanted & set(gpu.pids))


def _use(session: Session, index: int, handle: Any) -> GpuLoad:  # noqa: ANN401
    if handle is None:
        return GpuLoad(index=index, why="it does not answer")
    if handle is LOST:
        return GpuLoad(index=index, why=_LOST)
    nvml = session.nvml
    try:
        processes = session.ask(partial(nvml.nvmlDeviceGetComputeRunningProcesses, handle)) or []
        rates = session.ask(partial(nvml.nvmlDeviceGetUtilizationRates, handle))
        memory = session.ask(partial(nvml.nvmlDeviceGetMemoryInfo, handle))
        power = session.ask(partial(nvml.nvmlDeviceGetPowerUsage, handle))
        return GpuLoad(
            index=index,
            name=str(session.ask(partial(nvml.nvmlDeviceGetName, handle)) or ""),
            pids=tuple(int(process.pid) for process in processes),
            use_share=None if rates is None else rates.gpu / 100,
            memory_share=None if rates is None else rates.memory / 100,
            used_bytes=None if memory is None else int(memory.used),
            total_bytes=None if memory is None else int(memory.total),
            clock_mhz=session.ask(partial(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)),
            power_w=None if power is None else power / 1000,
            temperature_c=session.ask(partial(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)),
        )
    except LostError:
        return GpuLoad(index=index, why=_LOST)
