"""GPUs through NVML (`nvidia-ml-py`): count, clocks, heat, power, ECC, row remapping, throttling, PCIe and NVLink.

One table of metrics; a GPU or driver that does not have one of them makes it unsupported, with NVML's own words. Each
GPU is announced before it is asked: a lost GPU can block the driver. Never written to: no clock, mode or limit is
changed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from everstep.preflight.checks.reading.pci import gpus_on_bus
from everstep.preflight.result import Better, Doing, Judgement, Result, Value, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.probes.nvml_session import NoBindingError, Session
from everstep.probes.sense import UnsupportedError

_NVLINKS = 18
_NO_PERMISSION = 4  # NVML_ERROR_NO_PERMISSION
_THROTTLED_HARDWARE = 0x8 | 0x80  # nvmlClocksEventReasonHwSlowdown, HwPowerBrakeSlowdown
_THROTTLED_THERMAL = 0x20 | 0x40  # SwThermalSlowdown, HwThermalSlowdown
_THROTTLED_POWER = 0x4  # SwPowerCap


class Ask(msgspec.Struct, frozen=True):
    """One question to NVML about one GPU: the function, and what to take of its answer."""

    call: str
    take: Callable[[Any, Any], Value]


class Metric(msgspec.Struct, frozen=True):
    name: str
    unit: str
    better: Better
    ask: Ask
    tolerance: float = 0.2


def _get(call: str, *arguments: object, take: Callable[[Any], Value] = lambda found: _text(found)) -> Ask:
    name = f"nvmlDevice{call}"
    return Ask(name, lambda nvml, gpu: take(getattr(nvml, name)(gpu, *arguments)))


def _scaled(call: str, factor: float, *arguments: object) -> Ask:
    return _get(call, *arguments, take=lambda found: found * factor)


def _reasons(mask: int) -> Ask:
    def take(nvml: Any, gpu: Any) -> Value:  # noqa: ANN401
        try:
            return bool(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & mask)
        except (AttributeError, nvml.NVMLError):  # older bindings and drivers call it throttle reasons
            return bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & mask)

    return Ask("nvmlDeviceGetCurrentClocksEventReasons", take)


def _full_width(nvml: Any, gpu: Any) -> Value:  # noqa: ANN401
    return bool(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu) >= nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))


def _margin(nvml: Any, gpu: Any) -> Value:  # noqa: ANN401
    now = nvml.nvmlDeviceGetTemperature(gpu, 0)
    return float(now / nvml.nvmlDeviceGetTemperatureThreshold(gpu, 1))  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN


def _text(value: Any) -> Value:  # noqa: ANN401
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _violation(found: Any) -> Value:  # noqa: ANN401
    return float(found.violationTime * 1e-9)


S, H, L, A = Better.SAME, Better.HIGHER, Better.LOWER, Better.ANY
METRICS = (
    Metric("name", "", S, _get("GetName")),
    Metric("uuid", "", A, _get("GetUUID")),
    Metric("serial", "", A, _get("GetSerial")),
    Metric("vbios", "", S, _get("GetVbiosVersion")),
    Metric("inforom", "", S, _get("GetInforomImageVersion")),
    Metric("bus_id", "", S, _get("GetPciInfo", take=lambda f: _text(f.busId))),
    Metric("memory_total_bytes", "bytes", H, _get("GetMemoryInfo", take=lambda f: f.total), 0.01),
    Metric("memory_used_bytes", "bytes", A, _get("GetMemoryInfo", take=lambda f: f.used)),
    Metric("bar1_total_bytes", "bytes", S, _get("GetBAR1MemoryInfo", take=lambda f: f.bar1Total)),
    Metric("bar1_used_bytes", "bytes", A, _get("GetBAR1MemoryInfo", take=lambda f: f.bar1Used)),
    Metric("use_ratio", "ratio", A, _get("GetUtilizationRates", take=lambda f: f.gpu / 100)),
    Metric("memory_use_ratio", "ratio", A, _get("GetUtilizationRates", take=lambda f: f.memory / 100)),
    Metric("temperature_celsius", "celsius", L, _get("GetTemperature", 0), 0.4),
    Metric("slowdown_celsius", "celsius", S, _get("GetTemperatureThreshold", 1)),
    Metric("shutdown_celsius", "celsius", S, _get("GetTemperatureThreshold", 0)),
    Metric("margin_celsius_used", "ratio", A, Ask("nvmlDeviceGetTemperatureThreshold", _margin)),
    Metric("fan_ratio", "ratio", A, _scaled("GetFanSpeed", 0.01)),
    Metric("power_watt", "watt", A, _scaled("GetPowerUsage", 1e-3)),
    Metric("power_limit_watt", "watt", H, _scaled("GetEnforcedPowerLimit", 1e-3), 0.01),
    Metric("power_limit_default_watt", "watt", S, _scaled("GetPowerManagementDefaultLimit", 1e-3)),
    Metric("energy_joule", "joule", A, _scaled("GetTotalEnergyConsumption", 1e-3)),
    Metric("performance_state", "", A, _get("GetPerformanceState")),
    Metric("clock_sm_hertz", "hertz", A, _scaled("GetClockInfo", 1e6, 1)),
    Metric("clock_memory_hertz", "hertz", A, _scaled("GetClockInfo", 1e6, 2)),
    Metric("clock_sm_max_hertz", "hertz", H, _scaled("GetMaxClockInfo", 1e6, 1), 0.01),
    Metric("clock_memory_max_hertz", "hertz", H, _scaled("GetMaxClockInfo", 1e6, 2), 0.01),
    Metric("clock_sm_application_hertz", "hertz", S, _scaled("GetApplicationsClock", 1e6, 1)),
    Metric("throttled_hardware", "", S, _reasons(_THROTTLED_HARDWARE)),
    Metric("throttled_thermal", "", S, _reasons(_THROTTLED_THERMAL)),
    Metric("throttled_power", "", A, _reasons(_THROTTLED_POWER)),
    Metric("violation_power_s", "s", A, _get("GetViolationStatus", 0, take=_violation)),
    Metric("violation_thermal_s", "s", L, _get("GetViolationStatus", 1, take=_violation)),
    Metric("ecc_enabled", "", S, _get("GetEccMode", take=lambda f: bool(f[0]))),
    Metric("ecc_corrected", "errors", L, _get("GetTotalEccErrors", 0, 0)),
    Metric("ecc_uncorrected", "errors", L, _get("GetTotalEccErrors", 1, 0)),
    Metric("ecc_corrected_ever", "errors", L, _get("GetTotalEccErrors", 0, 1)),
    Metric("ecc_uncorrected_ever", "errors", L, _get("GetTotalEccErrors", 1, 1)),
    Metric("ecc_uncorrected_sram", "errors", L, _get("GetMemoryErrorCounter", 1, 1, 7)),
    Metric("ecc_uncorrected_dram", "errors", L, _get("GetMemoryErrorCounter", 1, 1, 2)),
    Metric("remapped_correctable", "rows", L, _get("GetRemappedRows", take=lambda f: f[0])),
    Metric("remapped_uncorrectable", "rows", L, _get("GetRemappedRows", take=lambda f: f[1])),
    Metric("remap_pending", "", S, _get("GetRemappedRows", take=lambda f: bool(f[2]))),
    Metric("remap_failure", "", S, _get("GetRemappedRows", take=lambda f: bool(f[3]))),
    Metric("retired_pages_corrected", "pages", L, _get("GetRetiredPages", 0, take=len)),
    Metric("retired_pages_uncorrected", "pages", L, _get("GetRetiredPages", 1, take=len)),
    Metric("retired_pending", "", S, _get("GetRetiredPagesPendingStatus", take=bool)),
    Metric("link_width", "lanes", H, _get("GetCurrPcieLinkWidth"), 0.0),
    Metric("link_at_full_width", "", S, Ask("nvmlDeviceGetMaxPcieLinkWidth", _full_width), 0.0),
    Metric("link_generation", "", A, _get("GetCurrPcieLinkGeneration")),
    Metric("link_generation_max", "", H, _get("GetMaxPcieLinkGeneration"), 0.0),
    Metric("pcie_replays", "times", L, _get("GetPcieReplayCounter")),
    Metric("persistence_mode", "", S, _get("GetPersistenceMode", take=bool)),
    Metric("compute_mode", "", S, _get("GetComputeMode")),
    Metric("mig_mode", "", S, _get("GetMigMode", take=lambda f: f[0])),
    Metric("processes", "processes", A, _get("GetComputeRunningProcesses", take=len)),
)
LINK_METRICS = (
    ("active", "", "GetNvLinkState"), ("version", "", "GetNvLinkVersion"),
    ("replay_errors", "errors", "GetNvLinkErrorCounter"), ("recovery_errors", "errors", "GetNvLinkErrorCounter"),
    ("crc_flit_errors", "errors", "GetNvLinkErrorCounter"), ("crc_data_errors", "errors", "GetNvLinkErrorCounter"),
)  # fmt: skip
_LINK_COUNTERS = {"replay_errors": 0, "recovery_errors": 1, "crc_flit_errors": 2, "crc_data_errors": 3}


def measure(settings: Settings) -> Iterator[Yielded]:
    yield Doing(what="starting NVML")
    try:
        session = Session()
    except UnsupportedError as error:
        yield unsupported("gpu.count", str(error), "devices")
        yield _all_answer(settings.root, None if isinstance(error, NoBindingError) else 0)
        return
    try:
        yield from ask_all(session.nvml, settings.root)
    finally:
        session.close()


def ask_all(nvml: Any, root: str) -> Iterator[Yielded]:  # noqa: ANN401
    """Everything about every GPU. `nvml` has been initialised."""
    number = int(nvml.nvmlDeviceGetCount())
    yield measured("gpu.count", number, "devices", how="nvmlDeviceGetCount", better=Better.SAME, tolerance=0.0)
    for name, call in (("driver", "nvmlSystemGetDriverVersion"), ("nvml", "nvmlSystemGetNVMLVersion")):
        yield _asked(f"gpu.{name}", "", call, partial(_system, nvml, call), nvml.NVMLError)
    answering = 0
    for index in range(number):
        yield Doing(what=f"asking gpu {index}")
        device = f"gpu {index}"
        presence, gpu = _presence(nvml, index, device)
        yield presence
        if gpu is not None:
            answering += 1
            yield from _one(nvml, gpu, index)
            yield from _links(nvml, gpu, index)
    yield _all_answer(root, answering)


def _presence(nvml: Any, index: int, device: str) -> tuple[Result, Any]:  # noqa: ANN401
    """Whether the GPU answers, and its handle if so. One that NVML counts and that does not answer is lost."""
    name, how = f"gpu.{index}.present", "nvmlDeviceGetHandleByIndex, nvmlDeviceGetMemoryInfo"
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceGetMemoryInfo(gpu)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) == _NO_PERMISSION:
            return unsupported(name, f"NVML: {error}", how=how, device=device), None
        why = f"NVML counts gpu {index}, and it does not answer: {error}"
        lost = Result(name=name, value=False, verdict=Judgement.BAD, why=why, how=how, device=device)
        return lost, None
    return measured(name, True, how=how, better=Better.SAME, tolerance=0.0, device=device), gpu


def _one(nvml: Any, gpu: Any, index: int) -> Iterator[Result]:  # noqa: ANN401
    for metric in METRICS:
        yield _asked(
            f"gpu.{index}.{metric.name}", metric.unit, metric.ask.call,
            partial(metric.ask.take, nvml, gpu),
            nvml.NVMLError, metric.better, metric.tolerance, f"gpu {index}",
        )  # fmt: skip


def _links(nvml: Any, gpu: Any, index: int) -> Iterator[Result]:  # noqa: ANN401
    """Links that the GPU does not have are not listed; the first answer says whether there is one."""
    for link in range(_NVLINKS):
        try:
            state = nvml.nvmlDeviceGetNvLinkState(gpu, link)
        except nvml.NVMLError as error:
            if link == 0:
                yield unsupported(f"gpu.{index}.nvlink.0.active", f"NVML: {error}", device=f"gpu {index}")
            return
        for name, unit, call in LINK_METRICS:
            ask = partial(_of_link, nvml, gpu, link, name, state)
            better = Better.LOWER if name in _LINK_COUNTERS else Better.SAME
            yield _asked(
                f"gpu.{index}.nvlink.{link}.{name}", unit, f"nvmlDevice{call}", ask, nvml.NVMLError, better, 0.0,
                f"gpu {index}",
            )  # fmt: skip


def _of_link(nvml: Any, gpu: Any, link: int, name: str, state: Any) -> Value:  # noqa: ANN401
    if name in _LINK_COUNTERS:
        return int(nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, _LINK_COUNTERS[name]))
    return bool(state) if name == "active" else int(nvml.nvmlDeviceGetNvLinkVersion(gpu, link))


def _system(nvml: Any, call: str) -> Value:  # noqa: ANN401
    return _text(getattr(nvml, call)())


def _asked(
    name: str,
    unit: str,
    call: str,
    ask: Callable[[], Value],
    failure: type[Exception],
    better: Better = Better.SAME,
    tolerance: float = 0.2,
    device: str = "",
) -> Result:
    try:
        value = ask()
    except failure as error:
        return unsupported(name, f"NVML: {error}", unit, how=call, device=device)
    except AttributeError as error:  # an older binding has no such function
        return unsupported(name, f"this NVML binding does not have it: {error}", unit, how=call, device=device)
    if value is None or value == "":
        return unsupported(name, "NVML answers with nothing", unit, how=call, device=device)
    return measured(name, value, unit, how=call, better=better, tolerance=tolerance, device=device)


def _all_answer(root: str, answering: int | None) -> Result:
    """GPUs that are on the bus and that the driver does not show: lost, or without a driver."""
    on_bus = len(gpus_on_bus(root))
    if not on_bus:
        return unsupported("gpu.all_answer", "no NVIDIA GPU is on the PCI bus")
    if answering is None:
        return unsupported("gpu.all_answer", f"{on_bus} NVIDIA GPUs are on the PCI bus; NVML cannot be asked")
    how = f"{on_bus} NVIDIA GPUs on the PCI bus, {answering} answer to NVML"
    return measured("gpu.all_answer", answering >= on_bus, how=how, better=Better.SAME, tolerance=0.0)
