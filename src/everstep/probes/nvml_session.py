"""NVML, loaded and initialised once: handles of the node's GPUs, and queries that may have no answer.

Used for the loads of ranks (`probes.rank.gpu`) and the senses of the node (`probes.node.accelerators.nvml`). Needs the
package nvidia-ml-py: without it, or without a driver, everything is unsupported.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from everstep.probes.sense import UnsupportedError

LOST = "lost"
"""In place of a handle: the GPU has fallen off the bus."""


class NoBindingError(UnsupportedError):
    """The package is missing or broken: the number of GPUs is unknown."""


def _import() -> ModuleType:
    try:
        import pynvml
    except ImportError as error:
        raise NoBindingError("nvidia-ml-py is not installed: pip install 'everstep[gpu]'") from error
    except Exception as error:  # a broken binding raises anything
        raise NoBindingError(f"nvidia-ml-py cannot be imported: {error}") from error
    module: ModuleType = pynvml
    return module


class Session:
    """NVML initialised once. Raises UnsupportedError without a driver."""

    def __init__(self) -> None:
        self.nvml: Any = _import()
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as error:
            raise UnsupportedError(f"NVML: {error}") from error
        self.is_open = True

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            try:
                self.nvml.nvmlShutdown()
            except self.nvml.NVMLError:
                return

    def handles(self) -> list[Any]:
        """One entry per index: a handle, LOST, or None for a device that is not permitted (a container's limits)."""
        nvml = self.nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise UnsupportedError(f"NVML: {error}") from error
        if not count:
            raise UnsupportedError("NVML lists no GPU")
        found = []
        for index in range(count):
            try:
                found.append(nvml.nvmlDeviceGetHandleByIndex(index))
            except nvml.NVMLError as error:
                found.append(LOST if error.value == nvml.NVML_ERROR_GPU_IS_LOST else None)
        return found

    def ask(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401  (whatever NVML answers)
        """The answer; None if this GPU, driver or library has none. Raises `LostError`."""
        try:
            return call()
        except self.nvml.NVMLError as error:
            if error.value == self.nvml.NVML_ERROR_GPU_IS_LOST:
                raise LostError from error
            return None

    def bus_of(self, handle: Any) -> str:  # noqa: ANN401
        """The bus address as the driver writes it to the kernel log: a domain of four digits, no function."""
        info = self.ask(lambda: self.nvml.nvmlDeviceGetPciInfo(handle))
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}" if info is not None else ""


class LostError(Exception):
    """The GPU has fallen off the bus."""
