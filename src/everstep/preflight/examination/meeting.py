"""Where the processes of an examination meet: a store that another process opened, and a process group over it.

A process that is missing, or falls silent, is reported: each leaves a word in the store when it is done and when its
exchange breaks, and the first break ends the exchanges of all, so that no sound one waits in one and looks dead. Every
wait has an end.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from everstep.preflight.examination.request import Request

_COME_SHARE = 0.75
"""Of the time there is: what comes later could not be examined any more."""

_TELL_SHARE = 0.1
"""Kept back at the end to say what happened."""

_SILENCE_S = 1.5
"""After a break every live process leaves a word within it: they look at the store at least every `_LOOK_S`."""

_LOOK_S = 0.05
_POLL_S = 0.0005
_BROKEN = "broken"
_MAX_WHY = 300


class Absent(Exception):  # noqa: N818 - an answer
    """These ranks did not come."""

    def __init__(self, ranks: set[int], waited_s: float) -> None:
        super().__init__(f"ranks {sorted(ranks)} did not come within {waited_s:.1f} s")
        self.ranks = ranks
        self.waited_s = waited_s


class Broken(Exception):  # noqa: N818 - an answer
    """An exchange of this process failed, or another process's did."""


class Unreachable(Exception):  # noqa: N818 - an answer
    """The store does not answer: nothing can be said of anybody."""


class Meeting:
    """One process's side of it."""

    def __init__(self, request: Request) -> None:
        """Connects. Raises Unreachable."""
        from torch.distributed import PrefixStore, TCPStore

        self.rank, self.world_size = request.rank, request.world_size
        self._began = time.monotonic()
        self._limit_s = request.limit_s
        self._groups: dict[str, Any] = {}
        try:
            store = TCPStore(
                request.store_host, request.store_port, is_master=False, timeout=timedelta(seconds=self.left_s)
            )
        except RuntimeError as error:
            raise Unreachable(f"the store at {request.store_host}:{request.store_port} does not answer") from error
        self._store = PrefixStore(f"{request.exam}/{request.group_index}", store)

    @property
    def left_s(self) -> float:
        """For exchanges."""
        return max(0.1, self._limit_s * (1 - _TELL_SHARE) - (time.monotonic() - self._began))

    def come(self) -> None:
        """Be there, and wait for the others. Raises Absent; Unreachable, also when this process itself is late."""
        limit_s = max(0.1, self._limit_s * _COME_SHARE - (time.monotonic() - self._began))
        with _reaching():
            self._store.set(f"here/{self.rank}", "1")
            absent = self._wait("here", limit_s)
        if absent:
            self.break_off(f"gave up waiting for ranks {sorted(absent)}")
            raise Absent(absent, limit_s)
        with _reaching():
            if self._store.check([_BROKEN]):
                raise Unreachable("it was too late: the others had given up waiting")

    def connect(self, device: Any, axes: Mapping[str, Sequence[Sequence[int]]]) -> None:  # noqa: ANN401 - torch's
        """Make the process group, and those of the axes: name -> ranks of all groups along it. Raises Broken."""
        import torch.distributed as dist

        backend = "nccl" if device.type == "cuda" else "gloo"
        limit = timedelta(seconds=self.left_s)
        try:
            dist.init_process_group(
                backend, store=self._store, rank=self.rank, world_size=self.world_size, timeout=limit
            )
            self._groups["world"] = dist.group.WORLD
            for name, groups in axes.items():
                for ranks in groups:
                    made = dist.new_group(list(ranks), timeout=limit) if len(ranks) > 1 else None
                    if self.rank in ranks:
                        self._groups[name] = made
        except RuntimeError as error:
            self.break_off(str(error))
            raise Broken(_first_line(error)) from error

    def group(self, name: str) -> Any:  # noqa: ANN401
        """This rank's group along an axis; None where it is alone."""
        return self._groups[name]

    def exchange(self, start: Callable[[], Any]) -> None:
        """A collective, given as what starts it with `async_op`. Ends with it, with its failure or with the first
        failure of anybody. Raises Broken."""
        try:
            work = start()
            looked = began = time.monotonic()
            while not work.is_completed():
                now = time.monotonic()
                if now - looked > _LOOK_S:
                    looked = now
                    self._look()
                if now - began > self.left_s:
                    raise Broken("it was not done in time")
                time.sleep(_POLL_S)
            work.wait()
        except RuntimeError as error:
            self.break_off(str(error))
            raise Broken(_first_line(error)) from error
        except Broken as broken:
            self.break_off(str(broken))
            raise

    def tell(self, word: object) -> None:
        """Leave a word for the others. Raises Unreachable."""
        with _reaching():
            self._store.set(f"said/{self.rank}", json.dumps(word))

    def hear(self) -> dict[int, Any]:
        """The words of all processes. Raises Broken when one fell silent or broke off."""
        with _reaching():
            self._wait("said", self.left_s, or_broken=True)
            words = self._words()
        if len(words) < self.world_size:
            raise Broken("not everybody came to the end")
        return words

    def break_off(self, why: str) -> None:
        """Let the others know that exchanges are over."""
        with contextlib.suppress(RuntimeError):
            if not self._store.check([_BROKEN]):
                self._store.set(_BROKEN, f"rank {self.rank}: {why[:_MAX_WHY]}")
            self._store.set(f"alive/{self.rank}", "1")

    def silent(self) -> set[int]:
        """After a break: the processes that have fallen silent. Raises Unreachable."""
        with _reaching():
            return self._wait("alive", min(_SILENCE_S, max(0.3, self._limit_s * _TELL_SHARE)))

    def _wait(self, what: str, limit_s: float, *, or_broken: bool = False) -> set[int]:
        """The ranks whose key is still missing when the time is over."""
        until = time.monotonic() + limit_s
        missing = set(range(self.world_size))
        while True:
            missing = {rank for rank in missing if not self._store.check([f"{what}/{rank}"])}
            if not missing or time.monotonic() > until or (or_broken and self._store.check([_BROKEN])):
                return missing
            time.sleep(0.005 if len(missing) < 64 else _LOOK_S)

    def _words(self) -> dict[int, Any]:
        keys = {rank: f"said/{rank}" for rank in range(self.world_size)}
        return {rank: json.loads(self._store.get(key)) for rank, key in keys.items() if self._store.check([key])}

    def _look(self) -> None:
        if self._store.check([_BROKEN]):
            raise Broken(self._store.get(_BROKEN).decode(errors="replace"))


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Unreachable(f"the store does not answer any more: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:_MAX_WHY]


def interface(group: Sequence[str]) -> None:
    """Inside one node gloo needs no more than the loopback; the user's own choice stays."""
    if len(group) == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
