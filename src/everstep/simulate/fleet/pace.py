"""Steps of a training as arithmetic: how many were done at a time, and which of them a checkpoint has. Pure.

Steps are not simulated one by one: between two faults they come at a steady pace, so their number is a division.
"""

import math

import msgspec


class Cadence(msgspec.Struct, frozen=True, kw_only=True):
    """How a job steps and saves. `save_every_s` of training, then `save_stall_s` in which it stands still."""

    step_s: float
    stall_s: float = 0.0  # after every step, for its snapshot in memory
    save_every_s: float = math.inf
    save_stall_s: float = 0.0
    persist_s: float = 0.0  # after its stall, until a checkpoint on storage is whole

    @property
    def steps_per_save(self) -> float:
        """Whole steps between two checkpoints; infinite without any."""
        if math.isinf(self.save_every_s):
            return math.inf
        return max(1, round(self.save_every_s / (self.step_s + self.stall_s)))

    @property
    def cycle_s(self) -> float:
        return self.steps_per_save * (self.step_s + self.stall_s) + self.save_stall_s


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """One generation: its first step is `first_step` and begins at `begun_at`."""

    cadence: Cadence
    first_step: int
    begun_at: float

    def completed(self, at: float) -> int:
        """Steps done by then, in this generation."""
        passed_s = at - self.begun_at
        if passed_s <= 0:
            return 0
        cycles, rest_s = self._cycles(passed_s)
        return int(cycles * self._per_save + min(self._per_save, _whole(rest_s / self._one_s)))

    def last_step(self, at: float) -> int | None:
        """Index of the newest step done by then; None: none of this generation."""
        done = self.completed(at)
        return self.first_step + done - 1 if done else None

    def done_at(self, number: int) -> float:
        """When so many steps were done."""
        saves = (number - 1) // int(self._per_save) if not math.isinf(self.cadence.save_every_s) else 0
        return self.begun_at + number * self._one_s + saves * self.cadence.save_stall_s

    def stalled_s(self, number: int) -> float:
        """In the time until so many steps were done: seconds in which training waited for a save."""
        saves = (number - 1) // int(self._per_save) if not math.isinf(self.cadence.save_every_s) else 0
        return number * self.cadence.stall_s + saves * self.cadence.save_stall_s

    def newest_save(self, at: float) -> int | None:
        """Index of the newest step that storage has whole by then; None: none of this generation."""
        if math.isinf(self.cadence.save_every_s):
            return None
        cycles = _whole((at - self.begun_at - self.cadence.persist_s) / self.cadence.cycle_s)
        return self.first_step + int(cycles * self._per_save) - 1 if cycles > 0 else None

    @property
    def _one_s(self) -> float:
        return self.cadence.step_s + self.cadence.stall_s

    @property
    def _per_save(self) -> float:
        return self.cadence.steps_per_save

    def _cycles(self, passed_s: float) -> tuple[float, float]:
        """Whole cycles, and what is left."""
        if math.isinf(self.cadence.save_every_s):
            return 0, passed_s
        cycles = _whole(passed_s / self.cadence.cycle_s)
        return cycles, max(0.0, passed_s - cycles * self.cadence.cycle_s)


def _whole(number: float) -> int:
    """Rounded down, but for the last bits that adding times has cost."""
    return math.floor(number + 1e-6)
