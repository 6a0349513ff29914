"""NVIDIA GPUs through NVML (the optional package nvidia-ml-py): states and counters, and Xid events as they come.

A field that a GPU does not support is None, never 0. Xids go to the same signatures as the driver's kernel lines, which
helps in containers without a kernel log.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from everstep.model.facts import Alert
from everstep.probes.node.accelerators.accelerators import Device
from everstep.probes.nvml_session import LOST, LostError, Session
from everstep.probes.sense import UnsupportedError

XID_EVERY_S = 0.5
_MAX_EVENTS = 64

_SLOWED_BY = {
    0x08: "a hardware slowdown",
    0x40: "heat",
    0x80: "its power supply (power brake)",
}
"""Reasons for a lowered clock that a healthy GPU does not have under load. A software power cap (0x4) is normal."""
_NUM_LINKS = 18


class Nvml:
    """The vendor of `Accelerators`."""

    name = "nvml"
    component = "gpu"

    def __init__(self) -> None:
        self._session: Session | None = None
        self._buses: dict[int, str] = {}

    def read(self) -> list[Device]:
        session = self._session = self._session or Session()
        found = [(index, handle) for index, handle in enumerate(session.handles()) if handle is not None]
        if not found:
            raise UnsupportedError("NVML lists GPUs, but none may be used here")
        return [self._device(session, index, handle) for index, handle in found]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _device(self, session: Session, index: int, handle: Any) -> Device:  # noqa: ANN401
        name = f"GPU {index}"
        try:
            if handle is LOST:
                raise LostError
            if index not in self._buses:
                self._buses[index] = session.bus_of(handle)
            return _read(session, handle, name, self._buses[index])
        except LostError:
            return Device(name=name, bus=self._buses.get(index, ""), is_lost=True)


def _read(session: Session, handle: Any, name: str, bus: str) -> Device:  # noqa: ANN401
    nvml, ask = session.nvml, session.ask
    reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    rows = ask(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    temperature = ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    links = _links(session, handle)
    return Device(
        name=name,
        bus=bus,
        temperature_c=temperature,
        limit_c=_limit_c(session, handle, temperature),
        power_w=None if power is None else power / 1000.0,
        power_limit_w=None if limit is None else limit / 1000.0,
        clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        slowed_by=None if reasons is None else tuple(text for bit, text in _SLOWED_BY.items() if reasons & bit),
        uncorrectable=ask(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC
            )
        ),
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        links=links,
        link_errors=_link_errors(session, handle, [link for link, active in links.items() if active]),
    )


def _limit_c(session: Session, handle: Any, temperature: float | None) -> float | None:  # noqa: ANN401
    """The temperature at which it slows itself down. GPUs since Hopper report the distance to it instead."""
    nvml = session.nvml
    kind = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    limit: float | None = session.ask(lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, kind))
    if limit is not None or temperature is None or not hasattr(nvml, "nvmlDeviceGetMarginTemperature"):
        return limit
    margin = session.ask(lambda: nvml.nvmlDeviceGetMarginTemperature(handle))
    return None if margin is None else temperature + margin


def _links(session: Session, handle: Any) -> dict[int, bool]:  # noqa: ANN401
    """Whether each link is active; empty for a GPU without NVLink."""
    nvml, links = session.nvml, {}
    for link in range(_NUM_LINKS):
        state = session.ask(partial(nvml.nvmlDeviceGetNvLinkState, handle, link))
        if state is None:
            break
        links[link] = bool(state)
    return links


def _link_errors(session: Session, handle: Any, links: list[int]) -> dict[str, int]:  # noqa: ANN401
    nvml, errors = session.nvml, {}
    kinds = {nvml.NVML_NVLINK_ERROR_DL_REPLAY: "replays", nvml.NVML_NVLINK_ERROR_DL_RECOVERY: "recoveries"}
    for kind, title in kinds.items():
        for link in links:
            value = session.ask(partial(nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind))
            if value is None:
                break  # newer GPUs count errors elsewhere, for all of their links
            errors[f"link {link} {title}"] = value
    return errors


class NvmlXids:
    """The sense for Xid events. `classify` makes alerts of kernel lines; see `agent.senses.sensing`."""

    name = "nvml events"
    every_s = XID_EVERY_S

    def __init__(self, classify: Callable[[list[bytes], float, str], list[Alert]]) -> None:
        self._classify = classify
        self._session: Session | None = None
        self._events: Any = None
        self._buses: dict[int, str] = {}

    def look(self, now: float) -> list[Alert]:
        if self._events is None:
            self._register()
        assert self._session is not None
        lines: list[bytes] = []
        while len(lines) < _MAX_EVENTS and (line := self._next(self._session)) is not None:
            lines.append(line)
        return self._classify(lines, now, self.name) if lines else []

    def close(self) -> None:
        session, events = self._session, self._events
        self._session = self._events = None
        if session is not None:
            if events is not None:
                session.ask(lambda: session.nvml.nvmlEventSetFree(events))
            session.close()

    def _register(self) -> None:
        session = self._session = Session()
        nvml = session.nvml
        num_registered = 0
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in session.handles():
                if handle not in (None, LOST) and self._register_one(session, handle, events):
                    num_registered += 1
        except (nvml.NVMLError, UnsupportedError, LostError) as error:
            self.close()
            raise UnsupportedError(f"NVML events: {error}") from error
        if not num_registered:
            session.ask(lambda: nvml.nvmlEventSetFree(events))
            self.close()
            raise UnsupportedError("NVML events: no GPU reports Xids")
        self._events = events

    def _register_one(self, session: Session, handle: Any, events: Any) -> bool:  # noqa: ANN401
        nvml = session.nvml
        try:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            return False
        self._buses[_address(handle)] = session.bus_of(handle)
        return True

    def _next(self, session: Session) -> bytes | None:
        """The event as a line of the driver; None if there is none."""
        nvml = session.nvml
        try:
            data = nvml.nvmlEventSetWait_v2(self._events, 0)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return None
            self.close()
            raise UnsupportedError(f"NVML events: {error}") from error
        bus = self._buses.get(_address(data.device), "")
        return f"NVRM: Xid (PCI:{bus}): {int(data.eventData)}, reported by NVML".encode()


def _address(handle: Any) -> int:  # noqa: ANN401
    import ctypes

    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
