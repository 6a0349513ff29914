"""The agent without an observer: switched off, broken, silent. It has no view then, and nothing else happens."""

import asyncio
import os
import time

import pytest

from everstep.agent.processes.reaping import Reaper
from everstep.agent.watching import kernel_views
from everstep.agent.watching.kernel_views import MAX_STARTS, KernelViews
from everstep.analyzer.slowness.off_cpu import KernelView


def look(views: KernelViews, times: int = 1, until: int | None = None) -> list[KernelView | None]:
    """So often, or until there were so many views."""

    async def ask() -> list[KernelView | None]:
        found: list[KernelView | None] = []
        end = time.monotonic() + 60.0
        while len(found) < times if until is None else sum(map(bool, found)) < until:
            assert time.monotonic() < end
            found.append(await views.look([os.getpid()]))
        views.close()
        return found

    return asyncio.run(ask())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    pids: list[int] = []
    spawn = os.posix_spawn

    def note(*argv: object, **options: object) -> int:
        pids.append(spawn(*argv, **options))  # type: ignore[arg-type]
        return pids[-1]

    monkeypatch.setattr("os.posix_spawn", note)
    yield pids
    for pid in pids:
        os.waitpid(pid, 0)


@pytest.mark.parametrize("value", [None, "", "off", "0", "maybe"])
def test_nothing_is_started_unless_asked_for(value: str | None, started: list[int]) -> None:
    environ = {} if value is None else {"EVERSTEP_EBPF": value}
    assert look(KernelViews(Reaper(), environ)) == [None]
    assert not started


def test_an_observer_that_says_why_not_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, started: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_views, "_BOOT", 'input(); print(\'{"why_not": "no BTF"}\')')
    assert look(KernelViews(Reaper(), {"EVERSTEP_EBPF": "on"}), 3) == [None] * 3
    assert len(started) == 1
    assert "no BTF" in caplog.text


@pytest.mark.parametrize("boot", ["", "input(); print('nonsense')", "import os; os.close(0); os.close(1)"])
def test_one_that_dies_or_talks_nonsense_is_given_up(
    boot: str, monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    monkeypatch.setattr(kernel_views, "_BOOT", boot)
    assert look(KernelViews(Reaper(), {"EVERSTEP_EBPF": "1"}), MAX_STARTS + 2) == [None] * (MAX_STARTS + 2)
    assert len(started) == MAX_STARTS


@pytest.mark.parametrize(("silent_s", "num_started"), [(1e9, 1), (0.0, MAX_STARTS)])
def test_a_silent_one_costs_the_limit_of_each_look_and_is_killed_in_the_end(
    silent_s: float, num_started: int, monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    monkeypatch.setattr(kernel_views, "ANSWER_LIMIT_S", 0.05)
    monkeypatch.setattr(kernel_views, "SILENT_LIMIT_S", silent_s)
    monkeypatch.setattr(kernel_views, "_BOOT", "import time; time.sleep(600)")
    assert look(KernelViews(Reaper(), {"EVERSTEP_EBPF": "on"}), 4) == [None] * 4
    assert len(started) == num_started


def test_a_late_answer_counts_in_a_later_round(monkeypatch: pytest.MonkeyPatch, started: list[int]) -> None:
    monkeypatch.setattr(kernel_views, "ANSWER_LIMIT_S", 0.1)
    late = "import time\nfor n in (1, 2):\n input()\n time.sleep(1)\n"
    late += ' print(\'{"view": {"window_s": %d}}\' % n, flush=True)'
    monkeypatch.setattr(kernel_views, "_BOOT", late)
    found = look(KernelViews(Reaper(), {"EVERSTEP_EBPF": "on"}), until=2)
    windows = [each.window_s for each in found if each is not None]
    assert len(started) == 1
    assert windows == [1.0, 2.0]
