"""One file's bytes as evidence: flight records, stacks, process states. Trusts no byte; raises UnreadableError only.

The envelope is what everstep's own collectors write around anything, so that rank, generation and failure are said
and not guessed: {"everstep_evidence": 1, "rank": 2, "generation": 0, "at": 1795266472.6, "flight_record": {...},
"stacks": [...py-spy threads...], "states": [[pid, "S"], ...], "native": [{"pid", "tid", "name", "state",
"call", "waits_in", "stack"}, ...], "load": {...}, "unavailable": ["py-spy: not permitted"], and what `Said` lists}.
"""

import json
import math
import re
from typing import TypeVar

import msgspec

from everstep.analyzer.observations.records import (
    FlightRecord,
    GpuLoad,
    KernelThread,
    ProcessStack,
    RankLoad,
    ThreadWait,
)
from everstep.analyzer.reading import bounds, flight, pickled, stacks, torch_pickle
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.evidence.sniff import Kind

MAX_DUMP_BYTES = 128 << 20
"""A flight record of torch's default 2,000 entries has 2 MB with stacks. Larger files are not read at all."""
MAX_JSON_NODES = 4_000_000
"""Opening brackets and commas: what a JSON file costs in memory follows from them, not from its size."""
MAX_JSON_VALUES = 10_000
MAX_NATIVE = 64
_MOST = 1e15
"""Seconds, shares, bytes per second: no larger number was measured."""

_S = TypeVar("_S", bound=msgspec.Struct)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of an envelope beside dumps; each as in `analyzer.observations.records.RankEvidence`."""

    phase: str = ""
    step: int | None = None
    step_age_s: float | None = None
    cpu_left_s: float | None = None
    gpus: tuple[GpuLoad, ...] = ()
    links: dict[str, float] = {}
    stack_source: str = ""
    waits: tuple[ThreadWait, ...] = ()
    unsupported: tuple[str, ...] = ()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one file, or of one value of a file. A record stays raw until its rank is known."""

    raw_record: object = None
    record: FlightRecord | None = None
    processes: tuple[ProcessStack, ...] = ()
    states: tuple[tuple[int, str], ...] = ()
    native: tuple[KernelThread, ...] = ()
    load: RankLoad | None = None
    said: Said | None = None
    unavailable: tuple[str, ...] = ()
    rank: int | None = None
    generation: int | None = None
    at: float | None = None  # when it was taken: said by the envelope, else when the file was written


def decode(data: bytes, kind: Kind) -> list[Part]:
    """Raises UnreadableError."""
    if kind is Kind.PICKLE:
        return [_part(_pickled(data))]
    if kind is Kind.JSON:
        return [_part(value) for value in _json_values(data)]
    text = data.decode("utf-8", "replace")
    if kind is Kind.STACK_TEXT:
        return [Part(processes=tuple(stacks.from_text(text)))]
    if kind is Kind.PROCESS_STATUS:
        return [_process_status(text)]
    if kind is Kind.STACK_ERROR:
        return [Part(unavailable=(f"py-spy: {_reason(text)}",))]
    raise UnreadableError(f"{kind}: not a format of evidence")


def _pickled(data: bytes) -> object:
    value = torch_pickle.loads(data)
    if flight.is_flight_record(value) and not flight.is_envelope(value):
        return value  # as large as its file, and walked no deeper than it is understood
    value = pickled.loads(data) if value is None else value
    if why := bounds.objection(value):
        raise UnreadableError(why)
    return value


def _json_values(data: bytes) -> list[object]:
    """One value, or several one after another: py-spy's JSON of many processes, put together with cat."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_JSON_NODES:
        raise UnreadableError(f"JSON of more than {MAX_JSON_NODES:,} values: not a dump of one rank")
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    decoder = json.JSONDecoder()
    values: list[object] = []
    at = 0
    while len(values) < MAX_JSON_VALUES:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except RecursionError:
            raise UnreadableError("JSON nested deeper than anything real") from None
        except ValueError as error:
            raise UnreadableError(f"not JSON, or cut off: {error}") from None
        values.append(value)
    return values


def _part(value: object) -> Part:
    if flight.is_envelope(value):
        return _envelope(value)
    if flight.is_flight_record(value):
        return Part(raw_record=value)
    if stacks.is_stack_json(value):
        return Part(processes=tuple(stacks.from_json(value)))
    if isinstance(value, list) and not value:
        return Part(unavailable=("the stack dump lists no thread",))
    raise UnreadableError(f"readable, but neither a flight record nor a stack dump ({_shape(value)})")


def _shape(value: object) -> str:
    if isinstance(value, dict):
        return f"an object with {', '.join(repr(str(key)[:40]) for key in list(value)[:5]) or 'nothing'}"
    return f"a {type(value).__name__}"


def _envelope(value: dict[str, object]) -> Part:
    version = value["everstep_evidence"]
    if version != 1:
        raise UnreadableError(f"evidence of format {_short(version)}; this version of everstep reads 1")
    raw_stacks = value.get("stacks")
    states = value.get("states")
    unavailable = value.get("unavailable")
    at = value.get("at")
    return Part(
        raw_record=value.get("flight_record"),
        processes=tuple(stacks.from_json(raw_stacks)) if raw_stacks is not None else (),
        states=tuple(
            (pid, letter[:1])
            for pid, letter in (s for s in (states if isinstance(states, list) else ()) if _is_pair(s))
            if _int(pid) is not None and isinstance(letter, str)
        ),
        native=_native(value.get("native")),
        load=_load(value.get("load")),
        said=_said(value),
        unavailable=tuple(map(_short, unavailable[:64])) if isinstance(unavailable, list) else (),
        rank=_int(value.get("rank")),
        generation=_int(value.get("generation")),
        at=_seconds(at),
    )


def _short(value: object) -> str:
    """Text as it is, a number, or what kind of thing it is: to write out a nest may take for ever."""
    if isinstance(value, str):
        return value[:500]
    is_plain = value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 63)
    return repr(value) if is_plain else f"a value of type {type(value).__name__}"


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of 400 digits
        return None


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _said(value: dict[str, object]) -> Said:
    try:
        said = msgspec.convert(value, Said)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise UnreadableError(f"envelope: {error}") from None
    links = {name: rate for name, rate in said.links.items() if _is_possible(rate)}
    gpus = tuple(_possible(gpu, "use_share", "memory_share", "power_w") for gpu in said.gpus)
    return msgspec.structs.replace(_possible(said, "step", "step_age_s", "cpu_left_s"), links=links, gpus=gpus)


def _possible(made: _S, *names: str) -> _S:
    """Without numbers that nothing measured can have: unknown is neither idle nor late."""
    odd = [name for name in names if not _is_possible(getattr(made, name))]
    return msgspec.structs.replace(made, **dict.fromkeys(odd)) if odd else made


def _is_possible(number: float | None) -> bool:
    return number is None or 0 <= number < _MOST


def _load(value: object) -> RankLoad | None:
    if value is None:
        return None
    try:
        return _possible(msgspec.convert(value, RankLoad), "cpu_share", "gpu_share", "traffic_bytes_s")
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise UnreadableError(f"load: {error}") from None


def _native(value: object) -> tuple[KernelThread, ...]:
    if value is None:
        return ()
    try:
        listed = msgspec.convert(value, tuple[KernelThread, ...])
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise UnreadableError(f"native: {error}") from None
    return listed[:MAX_NATIVE]


def _process_status(text: str) -> Part:
    """/proc/PID/status."""
    state, pid = re.search(r"^State:\t(\w)", text, re.M), re.search(r"^Pid:\t(\d{1,9})", text, re.M)
    if not state or not pid:
        raise UnreadableError("process status without a state or a process id")
    return Part(states=((int(pid[1]), state[1]),))


def _reason(text: str) -> str:
    """py-spy's error and its cause, without the stack of its own."""
    lines = [line.strip() for line in text.partition("Stack backtrace")[0].splitlines() if line.strip()]
    return " ".join(line for line in lines if line != "Caused by:")[:300]
