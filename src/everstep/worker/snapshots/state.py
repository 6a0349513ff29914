"""`everstep.State`: the loop that resumes at the very next step.

    state = everstep.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
    for step in state.steps(10_000):
        ...

Answers: which step is next, and what did the objects look like after the last one that every rank has completed.
Outside `everstep run` it is a counter from 0. Used by the user's program; the only module of ours whose name they know.
It must not raise into the program for a failure of ours; it raises TypeError for an object that cannot be kept,
SnapshotError for a snapshot that cannot be restored, and EverstepError for a second State in one process.
"""

import operator
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from everstep.checkpoint.pending import Pending
from everstep.checkpoint.recalling import Part, PartError
from everstep.checkpoint.stored import Stored
from everstep.errors import EverstepError, SnapshotError
from everstep.worker.completeness import redone, restored
from everstep.worker.completeness.check import Completeness, is_off
from everstep.worker.digests import ddp_order, random_state
from everstep.worker.digests.digesting import StateDigests
from everstep.worker.link.runtime import Runtime, current
from everstep.worker.parking import begin
from everstep.worker.process.board import Phase
from everstep.worker.process.signals import came_from_signal
from everstep.worker.snapshots import in_place, restoring
from everstep.worker.snapshots.adapting import adapted
from everstep.worker.snapshots.snapshots import Snapshots

_RANDOM = "everstep.random"  # a keyword cannot contain a dot
_DDP_ORDER = "everstep.ddp_order"
_ORDER = "the order of DDP's sums"
_INEXACT = "training continues, and after a restart the last bits of gradients may differ with 3 or more ranks"

_PARTIAL = "a step in which no optimizer steps leaves gradients to be added to; such steps are not kept"
_OTHERWISE = "is not what it was before the restart, and the run continues with other numbers"
_BUILD = "Build it as in the run that took the snapshot, or give State an object that loads what it saves"

_stepping: "weakref.ref[State] | None" = None
"""The State whose loop has begun in this process."""


class Stateful(Protocol):
    """An object that a State can keep: modules, optimizers, schedulers, samplers, loaders, or a class of the user's
    own."""

    def state_dict(self) -> Any: ...  # noqa: ANN401
    def load_state_dict(self, state_dict: Any, /) -> Any: ...  # noqa: ANN401


class State:
    """Everything a step depends on: anything with `state_dict` and `load_state_dict`, by keyword.

    After a restart the constructor restores the objects; random state follows when the loop begins. One State per
    process: put all objects into one, so that they are always of the same step.
    """

    def __init__(self, **objects: Stateful) -> None:
        # a process that continues from here restores its own snapshot: later would be too late
        begin.park("everstep.State")
        for name, thing in objects.items():
            missing = [m for m in ("state_dict", "load_state_dict") if not callable(getattr(thing, m, None))]
            if missing:
                raise TypeError(
                    f"State({name}=...): {type(thing).__module__}.{type(thing).__qualname__} has no "
                    f"{' and no '.join(missing)}; give an object with both, or wrap it in one"
                )
        self._objects = {name: adapted(thing) for name, thing in objects.items()}
        self._kept = {name: Part(name, thing) for name, thing in self._objects.items()}
        self._step = -1
        self._resumed = False
        self._random: dict[str, Any] | None = None
        self._pinned: dict[ddp_order.Key, ddp_order.Layout] | None = None
        self._order: ddp_order.BucketOrder | None = None
        self._digests: StateDigests | None = None
        self._check: Completeness | None = None
        self._redone: redone.Record | None = None
        self._runtime = current()
        self._snapshots = Snapshots(self._runtime) if self._runtime is not None else None
        if self._runtime is not None and self._snapshots is not None:
            began = time.perf_counter()
            self._restore(self._runtime)
            self._runtime.let_siblings_go()
            self._runtime.board.add_restore_s(time.perf_counter() - began)

    @property
    def step(self) -> int:
        """Index of the last completed step; -1 before the first."""
        return self._step

    @property
    def resumed(self) -> bool:
        """Whether the objects were restored from a snapshot."""
        return self._resumed

    def steps(self, num_steps: int) -> Iterator[int]:
        """Indices of the steps still to do, up to `num_steps - 1`. A step is complete when the next is asked for.

        Leaving the loop early (break, an exception) leaves the step that was in progress incomplete. A second call
        continues after the last completed step.
        """
        return self._steps(operator.index(num_steps))

    def begin(self) -> int:
        """Begin the next step, in a loop of another library that cannot use `steps`. Returns its index.

        Random state is restored here: whatever the loop draws before its first step must be drawn before this call.
        """
        self._begin()
        if self._runtime is not None:
            self._runtime.step_in_progress = self._step + 1
        return self._step + 1

    def complete_step(self, step: int | None = None) -> None:
        """The step in progress is complete, and the next one begins. `step` is its index, the next one if not given.

        Raises EverstepError for an index that does not grow: such a snapshot would take the place of another one.
        """
        done = self._step + 1 if step is None else operator.index(step)
        if done <= self._step:
            raise EverstepError(f"complete_step({done}): step {self._step} is complete already; indices only grow")
        self._step = done
        if self._runtime is not None and self._snapshots is not None:
            self._completed(self._runtime, self._snapshots)
            self._hold(self._runtime, self._snapshots)
            self._runtime.step_in_progress = done + 1

    def finish(self) -> None:
        """The loop has ended: there is no next step."""
        if self._runtime is not None and self._snapshots is not None:
            self._guarded(self._snapshots, "snapshot", self._snapshots.finish)
            board = self._runtime.board
            self._guarded(self._snapshots, "progress", lambda: board.set_phase(Phase.FINISHING))

    def _steps(self, num_steps: int) -> Iterator[int]:
        self.begin()
        try:
            while self._step + 1 < num_steps:
                yield self._step + 1
                self.complete_step()
        except GeneratorExit:  # the loop was left early
            if self._snapshots is not None:
                self._guarded(self._snapshots, "snapshot", self._snapshots.finish)
            raise
        self.finish()

    def _restore(self, runtime: Runtime) -> None:
        self._redone = self._record(runtime)
        attempt = restoring.begin(runtime)
        if attempt is not None:
            stored = self._load(attempt, runtime)
            if not stored.is_sealed and self._snapshots is not None:
                self._snapshots.warn(
                    "unsealed",
                    f"resumes after step {runtime.resume_step} with a snapshot that was not sealed yet: its bytes "
                    "could not be compared with those that were written",
                )
            return
        loaded = restoring.from_disk(runtime, self._objects)
        if loaded is None:
            return
        self._random = loaded.random
        self._pinned = loaded.ddp_order
        step = loaded.step if runtime.resume_step is None else runtime.resume_step
        self._step = -1 if step is None else step
        self._resumed = True

    def _record(self, runtime: Runtime) -> redone.Record | None:
        """How the step came out that is to be done again, as far as this rank's memory has it."""
        if runtime.resume_step is None:
            return None
        try:
            return redone.of_arenas(runtime.arenas, runtime.resume_step, runtime.rank)
        except Exception as error:
            if came_from_signal(error):
                raise
            runtime.report_fault("redone", f"{type(error).__name__}: {error}")
            return None

    def _compare_redone(self, record: redone.Record, snapshots: Snapshots) -> None:
        self._redone = None
        if self._step == record.step and (what := record.difference(self._made())):
            snapshots.warn("redone", f"step {record.step}, done again, {_OTHERWISE}: {what} differ")

    def _made(self) -> dict[str, Any]:
        return {name: part.make() for name, part in self._kept.items()}

    def _load(self, attempt: restoring.Attempt, runtime: Runtime) -> Stored:
        try:
            stored = attempt.opened()
            self._compare_names(stored, runtime)
            # What the objects copy into tensors of their own goes there directly, while the rest is read and compared.
            pending = {name: _filled(thing, name, attempt) for name, thing in self._objects.items()}
            attempt.whole()
        except BaseException:
            attempt.end()
            raise
        for name, thing in self._objects.items():
            self._load_one(name, thing, stored, pending.pop(name), runtime)
        self._random = stored.load(_RANDOM)
        self._pinned = stored.load(_DDP_ORDER)
        restoring.confirm(runtime, stored)
        if attempt.arena is not None and self._snapshots is not None:
            self._snapshots.adopt(attempt.arena)
        self._step = -1 if runtime.resume_step is None else runtime.resume_step
        self._resumed = True
        return stored

    def _load_one(self, name: str, thing: Stateful, stored: Stored, pending: Pending | None, runtime: Runtime) -> None:
        given = stored.load(name) if pending is None else pending.value
        try:
            wanted = restored.wanted(thing, given)
            thing.load_state_dict(given)
        except Exception as error:
            if came_from_signal(error):
                raise
            text = f"its load_state_dict does not take what its state_dict gave ({type(error).__name__}: {error})"
            raise _unfit(runtime, f"State({name}=...): {type(thing).__qualname__}: {text}. {_BUILD}") from error
        if wanted is None:
            return
        try:
            why = restored.difference(thing, wanted)
        except Exception as error:  # it cannot be asked now (DeepSpeed before its first step): nothing is known
            if came_from_signal(error):
                raise
            runtime.report_fault("comparing what was restored", f"{name}: {type(error).__name__}: {error}")
            return
        if why:
            text = f"after load_state_dict it is not what its state_dict gave: {why}"
            raise _unfit(runtime, f"State({name}=...): {type(thing).__qualname__}: {text}. {_BUILD}")

    def _compare_names(self, stored: Stored, runtime: Runtime) -> None:
        missing = sorted(set(self._objects) - set(stored.names))
        gone = sorted(set(stored.names) - set(self._objects) - {_RANDOM, _DDP_ORDER})
        if missing or gone:
            text = f"State has other keywords than when the snapshot of step {runtime.resume_step} was taken"
            raise _unfit(runtime, f"{text}: new: {missing}, gone: {gone}. Use the same ones, or start a new run")

    def _begin(self) -> None:
        """Once per call of steps: random state and the order of DDP's sums, then the clock of the loop."""
        runtime, snapshots = self._runtime, self._snapshots
        if runtime is None or snapshots is None:
            return
        self._be_the_only_one()
        began = time.perf_counter()
        if self._order is None:
            self._pin_order(snapshots)
        if self._check is None and not is_off():
            self._guarded(snapshots, "completeness", lambda: self._begin_check(snapshots))
        self._guarded(snapshots, "dividing", lambda: snapshots.begin(self._objects.values()))
        if self._digests is None and runtime.digest_every > 0 and runtime.world_size > 1:
            self._guarded(snapshots, "digest", lambda: self._begin_digests(runtime))
        if self._random is not None:
            random, self._random = self._random, None
            self._guarded(snapshots, "random state", lambda: random_state.restore(random))
        runtime.board.add_restore_s(time.perf_counter() - began)
        self._guarded(snapshots, "progress", lambda: _begin_account(runtime))

    def _begin_check(self, snapshots: Snapshots) -> None:
        check = Completeness(self._objects, snapshots.optimizers, is_resumed=self._resumed)
        if not self._resumed:
            check.begin()
        self._check = check

    def _is_complete(self, snapshots: Snapshots) -> bool:
        """Whether this step may be kept: a resumed run would go on with the same numbers, as far as can be seen."""
        check, why = self._check, ""
        if check is None:
            return True
        try:
            if check.has_partial_gradients():
                snapshots.warn("gradients", f"{_PARTIAL} (step {self._step} is the first such)")
                return False
            if check.is_due(snapshots.plan):
                why = check.look(self._made)
        except PartError:
            return True  # taking the snapshot meets it as well, and reports it
        except Exception as error:
            if came_from_signal(error):
                raise
            self._check = None
            snapshots.warn("completeness", f"State is not checked: {type(error).__name__}: {error}; training continues")
        if why:
            self._check = None
            snapshots.refuse(self._step, why)
        return not why

    def _begin_digests(self, runtime: Runtime) -> None:
        self._digests = StateDigests(runtime, self._objects.values())

    def _be_the_only_one(self) -> None:
        global _stepping
        other = _stepping() if _stepping is not None else None
        if other is not None and other is not self and other._runtime is self._runtime:
            old, new = ", ".join(other._objects), ", ".join(self._objects)
            raise EverstepError(
                f"two everstep.State in one process, of ({old}) and of ({new}): "
                "their snapshots would be of different steps. Give all objects to one State"
            )
        _stepping = weakref.ref(self)

    def _pin_order(self, snapshots: Snapshots) -> None:
        """Raises SnapshotError: a rank that sums in other buckets than its peers would corrupt all of them."""
        try:
            self._order = ddp_order.BucketOrder(ddp_order.find(self._objects.values()), self._pinned)
        except ddp_order.NotPinnedError as error:  # the same on every rank: it depends on the program only
            snapshots.warn(_ORDER, f"{_ORDER} is not kept: {error}; {_INEXACT}")
        except Exception as error:
            if came_from_signal(error):
                raise
            if self._pinned is None:
                snapshots.warn(_ORDER, f"{_ORDER} is not kept: {type(error).__name__}: {error}; {_INEXACT}")
                return
            raise SnapshotError(
                f"{_ORDER} could not be restored on this rank: {type(error).__name__}: {error}"
            ) from error

    def _follow_order(self, snapshots: Snapshots) -> bool:
        """False: the order of this step's sums is not known, so no snapshot of it could be resumed exactly."""
        if self._order is None:
            return True
        try:
            self._order.follow()
            return True
        except ddp_order.NotPinnedError as error:
            self._order = None
            snapshots.warn(_ORDER, f"{_ORDER} is not kept: {error}; {_INEXACT}")
            return True
        except Exception as error:  # a peer is gone, most likely: its fault will be reported by the next collective
            if came_from_signal(error):
                raise
            snapshots.warn(_ORDER, f"no snapshot of step {self._step}: {_ORDER}: {type(error).__name__}: {error}")
            return False

    def _completed(self, runtime: Runtime, snapshots: Snapshots) -> None:
        self._guarded(snapshots, "progress", lambda: runtime.step_done(self._step))
        digests = self._digests
        if digests is not None and not self._guarded(snapshots, "digest", lambda: digests.after_step(self._step)):
            self._digests = None
        record = self._redone
        if record is not None:
            self._guarded(snapshots, "redone", lambda: self._compare_redone(record, snapshots))
        if self._follow_order(snapshots) and self._is_complete(snapshots):
            snapshots.take(self._step, self._parts)

    def _hold(self, runtime: Runtime, snapshots: Snapshots) -> None:
        """Hold where this step is to be the last: its snapshot is complete before that is reported, and no other step
        begins."""
        if runtime.hold.is_due(self._step):
            self._guarded(snapshots, "snapshot", snapshots.finish)
            runtime.hold.wait(self._step)

    def _parts(self) -> dict[str, Any]:
        order = self._order.layouts if self._order is not None else None
        return {**self._kept, _RANDOM: _RANDOM_PART, _DDP_ORDER: order}

    def _guarded(self, snapshots: Snapshots, what: str, act: Callable[[], Any]) -> bool:
        """Run something of ours; a failure is said and reported, and training continues."""
        try:
            act()
            return True
        except Exception as error:
            if came_from_signal(error):
                raise
            snapshots.warn(what, f"{what}: {type(error).__name__}: {error}; training continues")
            return False


class _Random:
    """Captured after all state dicts are made: one of them may draw."""

    state_dict = staticmethod(random_state.capture)


_RANDOM_PART = Part(_RANDOM, _Random())


def _begin_account(runtime: Runtime) -> None:
    runtime.own_steps()
    runtime.loop_began()
    if runtime.board.last_step is not None:
        runtime.board.set_phase(Phase.STEPPING)  # another loop after one that ended


def _filled(thing: object, name: str, attempt: restoring.Attempt) -> Pending | None:
    """Fill a part, beside the reading thread; None: it is loaded when everything was compared."""
    try:
        pending = attempt.pending(name, lambda: in_place.tensors_of(thing))
        if pending is not None:
            pending.fill(make_ready=attempt.make_ready)
        return pending
    except SnapshotError:
        raise  # what is read is not there, or damaged
    except Exception as error:  # tensors of the program that cannot be written to like this: it knows how to
        if came_from_signal(error):
            raise
        return None


def _unfit(runtime: Runtime, why: str) -> SnapshotError:
    """The error to raise, reported: no snapshot of this program would load, so none is tried after a restart."""
    restoring.tell(runtime, "memory", "", why, is_damaged=False, is_unfit=True)
    return SnapshotError(why)
