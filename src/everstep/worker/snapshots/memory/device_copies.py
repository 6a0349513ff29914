"""The device's side of copying a snapshot: a stream of its own, and what the program's stream waited for it.

A copy begins behind an event of the step's end, and the program's stream waits for the end of the copy on the device,
before an optimizer changes what is read: the program's thread waits for neither. How long the device stood still for it
is measured between two events and read once both have passed, which is after the next step at the earliest.

Called by `worker.snapshots.copying`: `queue` on the copying thread, all else on the program's.
"""

from typing import Any

import torch

from everstep.checkpoint.packing import copy
from everstep.worker.process.capturing import relax

Marked = list[tuple[torch.device, Any]]
"""An event of each device."""


def mark(devices: tuple[torch.device, ...]) -> Marked:
    """Where the program's streams are now: the end of the step."""
    marked = []
    for device in devices:
        module = torch.get_device_module(device)
        event = module.Event()
        event.record(module.current_stream(device))
        marked.append((device, event))
    return marked


class DeviceCopies:
    """The device copies of one process."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}
        self._waits: list[tuple[Any, Any]] = []  # the program's stream was there; the copy was done

    def queue(
        self, marked: tuple[torch.device, Any], places: list[torch.Tensor], tensors: list[torch.Tensor]
    ) -> tuple[torch.device, Any]:
        """Copy behind the event of this device. Returns the device and an event of the end. With memory that is not
        page-locked, CUDA comes back from this only when all has arrived."""
        device, after = marked
        module = torch.get_device_module(device)
        if device.type == "cuda":
            relax()
            # A thread begins at device 0: to come back to it from a stream would make a context of this process there.
            module.set_device(device)
        if device not in self._streams:
            self._streams[device] = module.Stream(device)
        stream = self._streams[device]
        with module.stream(stream):
            stream.wait_event(after)
            copy(places, tensors)
            done = _timed(device)
            done.record(stream)
        return device, done

    def hold_program(self, copied: Marked) -> None:
        """Make the program's streams wait until these copies are done."""
        for device, done in copied:
            stream = torch.get_device_module(device).current_stream(device)
            if device.type == "cuda":
                here = _timed(device)
                here.record(stream)
                self._waits.append((here, done))
            stream.wait_event(done)

    def held_s(self) -> float:
        """How long the program's streams stood still for copies, as far as that is known now and was not reported
        yet."""
        known = [pair for pair in self._waits if all(event.query() for event in pair)]
        self._waits = [pair for pair in self._waits if pair not in known]
        return sum((max(0.0, float(here.elapsed_time(done))) for here, done in known), 0.0) * 1e-3


def _timed(device: torch.device) -> Any:  # noqa: ANN401
    """An event that can be waited for without a CPU that spins, and that knows when it passed."""
    module = torch.get_device_module(device)
    return module.Event(enable_timing=True, blocking=True) if device.type == "cuda" else module.Event()
