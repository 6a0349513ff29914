"""A digest of parameters: what silent corruption cannot hide from, at the price of reading them once every N steps.

A parameter is read as 64-bit words; the sums of rows of words are added up with odd weights, modulo 2^64. A changed bit
changes its word by a power of two, and a power of two times an odd number is not 0 modulo 2^64: one flipped bit, in any
data type, always changes the digest. At most MAX_RANGES named digests go to the agent, in one frame.

It never waits for a device: sums that are computed there are fetched in one small copy and sent at a later step. Which
parameters to digest, and which ranks hold the same, is decided in `replicas`. The caller catches what this raises.
"""

import dataclasses
import hashlib
import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from everstep.worker.digests.replicas import Named, Target

if TYPE_CHECKING:
    from everstep.wire.frames import DigestTold, RankTells

ROW_WORDS = 4096
"""Sums along rows run at the speed of memory; shorter rows cost more, longer ones weigh positions more coarsely."""

MAX_LISTED = 1024
MAX_RANGES = 64
MAX_NAME = 80
"""64 names and digests, and 1,024 ranks, fit into one frame of 16 KiB, which the kernel takes whole."""

MAX_CPU_BYTES = 4 << 30
"""Limit for parameters in the CPU's memory, which the training thread reads itself: 0.2 to 0.6 s. Decided by their size
alone, so that all ranks decide alike."""

_WORD_BYTES = 8
_MASK = (1 << 64) - 1


class Teller(Protocol):
    """The part of `worker.link.runtime.Runtime` that is used here."""

    rank: int

    def tell(self, frame: "RankTells") -> None: ...


@dataclasses.dataclass(slots=True)
class _Pending:
    """Sums that a device is computing."""

    step: int
    names: list[str]  # not the parameters: a model that the program gives up must be free at once
    target: Target  # without them
    parts: list[tuple[list[int], torch.Tensor, Any]]  # places in the target, their sums, when they are there


class Digests:
    """The digests of one rank."""

    def __init__(self, runtime: Teller, every: int) -> None:
        self._runtime = runtime
        self._every = every
        self._taken = False
        self._missing_told = False
        self._pending: _Pending | None = None

    def is_due(self, step: int) -> bool:
        """After the first step of this process, and then whenever the number of steps done is a multiple."""
        return not self._taken or (step + 1) % self._every == 0

    def after_step(self, step: int, target: Target) -> None:
        """Digest what the parameters are after `step`. The same steps on all ranks: only the index decides."""
        self._taken = True
        if not target.parameters:
            if target.missing and not self._missing_told:
                self._missing_told = True
                self._tell(step, {}, target)
            return
        if (size := _bytes_here(target.parameters)) > MAX_CPU_BYTES:
            self._tell(step, {}, dataclasses.replace(target, parameters=[], missing=_too_large(size)))
            return
        names = [name for name, _ in target.parameters]
        kept = dataclasses.replace(target, parameters=[])
        self._pending = _Pending(step, names, kept, _begin_sums(target.parameters))
        self.poll()

    def poll(self) -> None:
        """Send what has arrived; called after every step."""
        pending = self._pending
        if pending is None or not all(event is None or event.query() for _, _, event in pending.parts):
            return
        self._pending = None
        sums = [0] * len(pending.names)
        for places, values, _ in pending.parts:
            for place, value in zip(places, values.tolist(), strict=True):
                sums[place] = value & _MASK
        self._tell(pending.step, fold(pending.names, sums), pending.target)

    def _tell(self, step: int, values: dict[str, str], target: Target) -> None:
        replicas, stride = compact(target.replicas)
        digest: DigestTold = {
            "step": step,
            "values": values,
            "replicas": replicas,
            "stride": stride,
            "missing": target.missing,
        }
        self._runtime.tell({"digest": digest})


def _bytes_here(parameters: Sequence[Named]) -> int:
    return sum(t.numel() * t.element_size() for _, t in parameters if t.device.type == "cpu")


def _too_large(size: int) -> str:
    return f"{size / 2**30:.0f} GiB of parameters in the CPU's memory: reading them would hold up the training"


def weigh(tensor: torch.Tensor) -> torch.Tensor:
    """The digest of one tensor as an int64 scalar on its device."""
    total: torch.Tensor | None = None
    for words in _as_words(tensor):
        part = _weigh_words(words)
        total = part if total is None else total * 3 + part  # odd as well: a change of either part stays a change
    if total is None:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    return total


def _weigh_words(words: torch.Tensor) -> torch.Tensor:
    if words.numel() <= ROW_WORDS:
        return words.sum(dtype=torch.int64)
    whole = words.numel() // ROW_WORDS * ROW_WORDS
    sums = words[:whole].view(-1, ROW_WORDS).sum(1, dtype=torch.int64)
    if whole < words.numel():
        sums = torch.cat((sums, words[whole:].sum(dtype=torch.int64).reshape(1)))
    return (sums * torch.arange(1, 2 * len(sums), 2, device=sums.device)).sum()


def _as_words(tensor: torch.Tensor) -> list[torch.Tensor]:
    """All bytes of a tensor once: as 64-bit words, and the last few by themselves."""
    flat = tensor.detach().contiguous().view(-1)
    if not flat.numel():
        return []
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    size = flat.element_size()
    if flat.storage_offset() * size % _WORD_BYTES:
        flat = flat.clone()  # words must begin where the tensor does, or a copy elsewhere would have another digest
    whole = flat.numel() * size // _WORD_BYTES * _WORD_BYTES // size
    parts = [flat[:whole].view(torch.int64)] if whole else []
    if whole < flat.numel():
        parts.append(flat[whole:].view(torch.uint8))
    return parts


def fold(names: Sequence[str], sums: Sequence[int]) -> dict[str, str]:
    """At most MAX_RANGES digests, each of neighbouring parameters: `layers.0.weight..layers.3.bias`."""
    count = min(MAX_RANGES, len(names))
    values: dict[str, str] = {}
    for index in range(count):
        start, end = index * len(names) // count, (index + 1) * len(names) // count
        data = b"".join(struct.pack("<Q", value & _MASK) for value in sums[start:end])
        name = names[start] if end - start == 1 else f"{_short(names[start])}..{_short(names[end - 1])}"
        name = name if len(name) <= MAX_NAME else f"{index}:{name[3 - MAX_NAME :]}"
        values[name if name not in values else f"{index}:{name}"] = hashlib.blake2b(data, digest_size=8).hexdigest()
    return values


def compact(ranks: Sequence[int]) -> tuple[Sequence[int], int]:
    """Ranks at equal distances as (first, last) and their distance; others as they are, with 0. Too many that are not
    regular are not declared: the frame must stay small, and the controller learns them."""
    if len(ranks) > 2:
        stride = ranks[1] - ranks[0]
        if stride > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, stride)):
            return (ranks[0], ranks[-1]), stride
    return (ranks, 0) if len(ranks) <= MAX_LISTED else ((), 0)


def _short(name: str) -> str:
    return name[-(MAX_NAME // 2 - 1) :]


def _begin_sums(parameters: Sequence[Named]) -> list[tuple[list[int], torch.Tensor, Any]]:
    by_device: defaultdict[torch.device, list[int]] = defaultdict(list)
    for place, (_, tensor) in enumerate(parameters):
        by_device[tensor.device].append(place)
    parts: list[tuple[list[int], torch.Tensor, Any]] = []
    with torch.no_grad():
        for device, places in by_device.items():
            sums = torch.stack([weigh(parameters[place][1]) for place in places])
            if device.type == "cpu":
                parts.append((places, sums, None))
                continue
            fetched = torch.empty(sums.shape, dtype=sums.dtype, device="cpu", pin_memory=device.type == "cuda")
            fetched.copy_(sums, non_blocking=True)
            backend = torch.get_device_module(device)
            event = backend.Event()
            event.record(backend.current_stream(device))
            parts.append((places, fetched, event))
    return parts
