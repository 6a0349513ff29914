"""Processes that are blocked in the kernel for a long time (state D), and zombies that no parent reaps."""

from collections.abc import Callable
from pathlib import Path

from everstep.linux import proc as linux_proc
from everstep.linux.proc import Stat
from everstep.model.facts import Alert
from everstep.probes.sense import UnsupportedError, alert, names_in, read_text

EVERY_S = 60.0
MANY_ZOMBIES = 200
_KTHREADD = 2
_SHOWN = 5


def read_processes(proc: Path) -> list[Stat]:
    """All readable processes, without kernel threads."""
    found = (parse_stat(read_text(proc / name / "stat") or "") for name in names_in(proc) if name.isdigit())
    return [one for one in found if one is not None and _KTHREADD not in (one.pid, one.parent)]


def parse_stat(text: str) -> Stat | None:
    return linux_proc.parse_stat(text.encode(errors="replace"))


class Processes:
    """The sense for processes. `rank_of`: the rank of a pid."""

    name = "processes"
    every_s = EVERY_S

    def __init__(self, rank_of: Callable[[int], int | None] = lambda pid: None, proc: Path = Path("/proc")) -> None:
        self._rank_of = rank_of
        self._proc = proc
        self._blocked: dict[tuple[int, int], int] = {}  # pid, start -> CPU time at the last look

    def look(self, now: float) -> list[Alert]:
        found = read_processes(self._proc)
        if not found:
            raise UnsupportedError(f"no process can be read in {self._proc}")
        blocked = [one for one in found if one.state == "D"]
        stuck = [one for one in blocked if self._blocked.get((one.pid, one.began)) == one.ticks]
        self._blocked = {(one.pid, one.began): one.ticks for one in blocked}
        alerts = [self._rank_stuck(one, rank, now) for one in stuck if (rank := self._rank_of(one.pid)) is not None]
        others = [one for one in stuck if self._rank_of(one.pid) is None]
        if others:
            names = ", ".join(f"{one.name} ({one.pid})" for one in others[:_SHOWN])
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            what = f"blocked in the kernel for a minute or longer: {names}{more}"
            alerts.append(self._say("ES-M35", "", what, now))
        return alerts + self._zombies(found, now)

    def close(self) -> None:
        return

    def _rank_stuck(self, one: Stat, rank: int, now: float) -> Alert:
        channel = read_text(self._proc / str(one.pid) / "wchan") or ""
        where = f" in {channel}" if channel not in ("", "0") else ""
        what = f"rank {rank} (process {one.pid}) has been blocked in the kernel{where} for a minute or longer"
        return self._say("ES-M35", f"pid {one.pid}", what, now, rank)

    def _zombies(self, found: list[Stat], now: float) -> list[Alert]:
        parents = [one.parent for one in found if one.state == "Z"]
        if len(parents) < MANY_ZOMBIES:
            return []
        most = max(set(parents), key=parents.count)
        whose = f"{parents.count(most)} are of process {most}"
        what = f"{len(parents)} processes have ended and their parents did not wait for them; {whose}"
        return [self._say("ES-M36", "", what, now)]

    def _say(self, code: str, device: str, sentence: str, now: float, rank: int | None = None) -> Alert:
        return alert(code, sentence, at=now, source=self.name, device=device, rank=rank)
