"""The node is inspected while a job runs: what is wrong is told once, and nothing of it ends the agent."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from everstep.agent import main
from everstep.agent.senses import inspecting
from everstep.preflight.result import Judgement, Result


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(inspecting, "FIRST_AFTER_S", 0.0)
    monkeypatch.setattr(inspecting, "EVERY_S", 0.01)


def looks(monkeypatch, *each: "list[Result] | Exception") -> Callable[[], bool]:
    """What the looks find, one after the other; whether a further one has begun, which finds nothing."""
    done = threading.Event()
    left = list(each)

    def look(before):
        if not left:
            done.set()
            return []
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(inspecting.light, "inspect", look)
    return done.is_set


def result(verdict: Judgement) -> Result:
    return Result(name="disk./.free", value=1, unit="bytes", verdict=verdict, why="less than 1 GB")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def inspect_until(is_done: Callable[[], bool], folder) -> list:
    told = []
    task = asyncio.create_task(inspecting.inspect("n0", told.append, folder))
    await until(is_done)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return told


def test_what_is_bad_is_told_once(tmp_path, monkeypatch):
    bad, fine = [result(Judgement.BAD)], [result(Judgement.OK)]

    async def play():
        return await inspect_until(looks(monkeypatch, bad, bad, fine, bad), tmp_path)

    (event,) = asyncio.run(play())
    (alert,) = event.alerts
    assert (alert.code, alert.severity) == ("ES-M38", "warning")
    assert alert.sentence == "disk./.free is 1 bytes: less than 1 GB"


def test_what_comes_and_goes_every_minute_is_told_ever_less_often():
    news = inspecting._News()
    told = []
    for minute in range(120):
        verdict = Judgement.BAD if minute % 2 else Judgement.OK
        told += [(minute, alert.count) for alert in news.take([result(verdict)], 60.0 * minute)]
    assert [minute for minute, _ in told] == [1, 3, 9, 59, 109]
    assert told[2][1] == 3, "what was not told is counted"


def test_one_bad_result_does_not_hide_another():
    news = inspecting._News()
    other = msgspec.structs.replace(result(Judgement.BAD), name="memory.swap")
    assert len(news.take([result(Judgement.BAD), other], 0.0)) == 2
    many = [msgspec.structs.replace(other, name=f"check {number}") for number in range(100)]
    assert len(news.take(many, 60.0)) == inspecting.MAX_TOLD


def test_a_look_at_a_dead_disk_does_not_hold_up_the_end(tmp_path, monkeypatch):
    comes_back = threading.Event()
    looking = []

    def look(before):
        looking.append(threading.current_thread())
        comes_back.wait(60)
        return []

    async def play():
        task = asyncio.create_task(inspecting.inspect("n0", lambda event: None, tmp_path))
        await until(lambda: bool(looking))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(inspecting.light, "inspect", look)
    try:
        asyncio.run(play())
        assert [thread.is_alive() for thread in looking] == [True], "nobody has waited for it"
    finally:
        comes_back.set()


def test_a_report_that_fails_is_no_end(tmp_path, monkeypatch):
    def report(event):
        raise RuntimeError("of ours")

    async def play():
        is_done = looks(monkeypatch, [result(Judgement.BAD)])
        task = asyncio.create_task(inspecting.inspect("n0", report, tmp_path))
        await until(is_done)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())


@pytest.mark.parametrize("broken", ["import", "inspect"])
def test_the_agents_task_sleeps_first_and_never_ends(tmp_path, monkeypatch, broken, caplog):
    imported = threading.Event()

    def load(name):
        assert threading.current_thread() is not threading.main_thread()
        imported.set()
        if broken == "import":
            raise ImportError(name)
        return SimpleNamespace(inspect=lambda *args: 1 / 0)

    async def play():
        task = asyncio.create_task(main._inspect("n0", lambda event: None, tmp_path))
        await asyncio.sleep(0.05)
        assert not imported.is_set()
        await until(lambda: imported.is_set() and "the node is not inspected" in caplog.text)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(main, "_INSPECT_AFTER_S", 0.2)
    monkeypatch.setattr(main, "importlib", SimpleNamespace(import_module=load))
    asyncio.run(play())


def test_a_beat_that_fails_is_followed_by_others(monkeypatch):
    beats = []

    def report_progress():
        beats.append(1)
        raise RuntimeError("of ours")

    async def play():
        node = SimpleNamespace(report_progress=report_progress)
        task = asyncio.create_task(main._beat(node, SimpleNamespace(is_flowing=True)))
        await until(lambda: len(beats) > 1)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(main, "PROGRESS_S", 0.01)
    asyncio.run(play())


def test_a_look_that_fails_is_followed_by_others(tmp_path, monkeypatch):
    async def play():
        return await inspect_until(looks(monkeypatch, OSError("gone"), [result(Judgement.BAD)]), tmp_path)

    assert len(asyncio.run(play())) == 1


def test_the_real_look_leaves_its_results(tmp_path):
    path = tmp_path / "inspection.json"
    written = set()

    def is_written_again() -> bool:
        if path.exists():
            written.add(path.stat().st_mtime_ns)
        return len(written) > 1

    asyncio.run(inspect_until(is_written_again, tmp_path))
    results = msgspec.json.decode(path.read_bytes(), type=list[Result])
    assert len(results) > 50
