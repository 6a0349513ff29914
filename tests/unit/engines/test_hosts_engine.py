"""Which host gives a node, what its loss means, and what a host that comes back is told."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from everstep.engines.hosts import engine as engines
from everstep.engines.hosts.admission import Shape
from everstep.engines.hosts.announcing import LINES_PER_HOST
from everstep.engines.hosts.engine import HostsEngine
from everstep.engines.hosts.files import Received
from everstep.engines.protocol import Loss, NoNodeError
from everstep.wire.heirs import public
from everstep.wire.joining import (
    Admitted,
    Bye,
    EndNode,
    Join,
    Late,
    Leaving,
    NodeEnded,
    Over,
    Ping,
    Refused,
    StartNode,
    StopAsked,
)


class Local:
    """The nodes of the first host: it can have one."""

    def __init__(self):
        self.pids: dict[str, int] = {}
        self.late = None
        self.asked: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.number = 0

    def watch(self, on_loss):
        self.on_loss = on_loss

    def acquire(self, request, *, is_urgent=True):
        self.asked.append(request)
        self.pids[self.new_name()] = 1

    def new_name(self):
        self.number += 1
        return f"n{self.number - 1}"

    def lose(self, node):
        del self.pids[node]
        self.on_loss(Loss(node=node, at=1.0, reason="killed", kept=("what the next one may not find",)))

    def release(self, node):
        self.ended.append((node, "release"))

    def fence(self, node):
        self.ended.append((node, "fence"))
        self.pids.pop(node, None)

    def evict(self, node):
        self.ended.append((node, "evict"))

    def find_late(self, node):
        return self.late

    def freeze(self, node, seconds):
        self.ended.append((node, f"freeze {seconds}"))

    async def end(self, grace_s, *, spares=False):
        self.pids.clear()


class Line:
    """A connection to a host: what it is told, and what the test says in its place."""

    def __init__(self):
        self.told = []
        self.said = asyncio.Queue()
        self.is_of_job, self.peer = False, "10.0.0.1"

    def send(self, message):
        if not isinstance(message, Ping):
            self.told.append(message)

    async def receive(self):
        message = await self.said.get()
        if message is None:
            raise EOFError
        return message

    def close(self):
        self.said.put_nowait(None)

    def abort(self):
        self.told.append("aborted")
        self.close()

    def started(self):
        return [message.node for message in self.told if isinstance(message, StartNode)]


class Story:
    def __init__(self, tmp_path, num_hosts=2, num_standby=1, lease_s=60.0, earlier=None, job=""):
        self.local, self.losses, self.lines, self.tasks = Local(), [], {}, []
        self.said, self.stops = [], []
        self.engine = HostsEngine(
            self.local,
            run="r1",
            shape=Shape(
                num_hosts=num_hosts,
                num_standby=num_standby,
                nproc=1,
                program="train.py",
                everstep_version="0",
                torch_version="2",
            ),
            spec=b"{}",
            port=1,
            node_rank=None,
            host="h0",
            first=self,
            received=Received(tmp_path, lambda generation, rank: None),
            ahead=tmp_path / "ahead.json",
            lease_s=lease_s,
            on_stop=lambda number, why: self.stops.append(number),
            job=job,
            earlier=earlier,
        )
        self.engine.watch(self.losses.append)

    def credentials(self, node, machine):
        return node.encode()

    def say(self, text):
        self.said.append(text)

    async def join(self, name, session="", nodes=(), has_proven_job=False, **fields):
        line = Line()
        line.is_of_job = has_proven_job
        join = Join(
            session=session or name,
            host=name,
            address="10.0.0.1",
            everstep_version="0",
            torch_version="2",
            nodes=nodes,
            **fields,
        )

        async def live():
            try:
                await self.engine.welcome(join, line)
            except EOFError:
                pass

        self.tasks.append(asyncio.create_task(live()))
        await until(lambda: line.told)
        return line

    async def over(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.engine._retry is not None:
            self.engine._retry.cancel()


async def until(condition):
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at
        await asyncio.sleep(0.001)


def tell(story_of, tmp_path, **given):
    async def run():
        story = Story(tmp_path, **given)
        try:
            await story_of(story)
        finally:
            await story.over()

    asyncio.run(run())


def test_requests_are_served_by_this_host_and_then_in_order_of_arrival(tmp_path):
    async def story(s):
        for request in ("r1", "r2", "r3"):
            s.engine.acquire(request)
        s.engine.acquire("r2")
        assert s.local.asked == ["r1"]
        one, two = await s.join("h1"), await s.join("h2")
        assert (one.started(), two.started()) == (["n1"], ["n2"])
        assert isinstance(one.told[0], Admitted)
        assert [one.told[0].number, two.told[0].number] == [1, 2]

    tell(story, tmp_path)


def test_a_node_that_ended_is_lost_and_its_host_gives_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "AGAIN_S", 0.0)

    async def story(s):
        s.engine.acquire("r1")
        s.engine.acquire("r2")
        line = await s.join("h1")
        line.said.put_nowait(NodeEnded(node="n1", at=5.0, reason="its agent ended", signal=9))
        await until(lambda: s.losses)
        assert (s.losses[0].node, s.losses[0].signal, s.losses[0].kept) == ("n1", 9, ())
        s.engine.acquire("r3")
        await until(lambda: line.started() == ["n1", "n2"])

    tell(story, tmp_path)


def test_nothing_is_promised_of_a_node_of_this_host_either(tmp_path):
    async def story(s):
        s.engine.acquire("r1")
        s.local.lose("n0")
        assert s.losses[0].kept == ()
        s.engine.acquire("r2")
        assert s.local.asked == ["r1", "r2"]

    tell(story, tmp_path)


def test_a_node_that_a_host_does_not_have_cannot_be_lost_by_it(tmp_path):
    async def story(s):
        s.engine.acquire("r1")
        s.engine.acquire("r2")
        await s.join("h1")
        liar = await s.join("h2")
        for node in ("n0", "n1", "n7"):
            liar.said.put_nowait(NodeEnded(node=node, at=1.0, reason="a lie"))
        await until(liar.said.empty)
        await asyncio.sleep(0.01)
        assert s.losses == []

    tell(story, tmp_path)


def test_a_silent_host_loses_its_node_when_the_lease_is_over_and_is_told_so_when_it_comes_back(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now, time=time.time)
    monkeypatch.setattr(engines, "time", clock)

    async def story(s):
        s.engine.acquire("r1")
        s.engine.acquire("r2")
        line = await s.join("h1")
        s.engine.evict("n1", is_silent=True)
        assert s.losses == [], "it was heard a moment ago: it may end its node and say so"
        clock.now += 61.0
        await until(lambda: s.losses)
        assert "its lease is over" in s.losses[0].reason
        s.engine.fence("n1")
        line.close()
        await asyncio.sleep(0.01)
        again = await s.join("h1", nodes=("n1",))
        assert EndNode(node="n1", how="fence") in again.told
        s.engine.acquire("r3")
        assert again.started() == ["n2"]
        again.said.put_nowait(NodeEnded(node="n1", at=1.0, reason="ended"))
        await until(again.said.empty)
        assert len(s.losses) == 1

    tell(story, tmp_path, lease_s=60.0)


def test_a_host_that_fell_silent_leaves_its_place_before_its_connection_breaks(tmp_path):
    async def story(s):
        s.engine.acquire("r1")
        s.engine.acquire("r2")
        await s.join("h1")
        assert isinstance((await s.join("h2")).told[0], Refused)
        s.engine._roster._hosts["h1"].heard_at -= 60.0  # switched off: no connection ends
        assert isinstance((await s.join("h2")).told[0], Refused), "its node may run"
        s.engine.evict("n1", is_silent=True)
        assert [each.node for each in s.losses] == ["n1"]
        s.engine.acquire("r3")
        assert (await s.join("h2")).started() == ["n2"]

    tell(story, tmp_path, num_standby=0, lease_s=1.0)


def test_a_host_that_answers_is_not_given_up_for_its_node(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "ASK_S", 0.002)

    async def story(s):
        s.engine.acquire("r1")
        s.engine.acquire("r2")
        line = await s.join("h1")
        s.engine.evict("n1", is_silent=True)
        await asyncio.sleep(engines.ASK_S * (engines.MAX_ASKED + 2))
        assert s.losses == []
        assert EndNode(node="n1", how="evict") in line.told

    tell(story, tmp_path, lease_s=60.0)


LATE = Late(pid=7, silent_s=3.0, state="R", cpu_wait_share=0.9)


def test_a_silent_node_is_spared_while_its_host_is_heard_and_says_that_it_is_late(tmp_path):
    async def play(story):
        story.engine.acquire("q1")
        story.engine.acquire("q2")
        line = await story.join("h1")
        await until(line.started)
        story.local.late = LATE
        assert "process 7 lives" in story.engine.evict("n0", is_silent=True, may_spare=True)
        line.said.put_nowait(Ping(late=LATE))
        await until(lambda: next(iter(story.engine.hosts)).late)
        assert "process 7 lives" in story.engine.evict("n1", is_silent=True, may_spare=True)
        await asyncio.sleep(0.3)
        assert not story.losses
        assert not [message for message in line.told if isinstance(message, EndNode)]
        # From now on its machine is silent too.
        await until(lambda: story.losses)
        assert [loss.node for loss in story.losses] == ["n1"]

    tell(play, tmp_path, lease_s=1.0)


def test_a_silent_node_whose_host_hears_it_is_cut_off_and_ends(tmp_path):
    async def play(story):
        story.engine.acquire("q1")
        story.engine.acquire("q2")
        line = await story.join("h1")
        await until(line.started)
        line.said.put_nowait(Ping())
        host = next(iter(story.engine.hosts))
        assert story.engine.evict("n1", is_silent=True, may_spare=True) == ""
        assert [message.how for message in line.told if isinstance(message, EndNode)] == ["evict"]
        host.heard_at -= 2.0  # so late that it could not say anything of its node
        assert "late itself" in story.engine.evict("n1", is_silent=True, may_spare=True)
        host.late = LATE
        assert story.engine.evict("n1", is_silent=True) == ""  # the controller has waited for long enough

    tell(play, tmp_path)


def test_a_machine_that_was_given_up_is_told_to_leave_and_gets_no_other_node(tmp_path):
    async def story(s):
        s.engine.acquire("r1")
        s.engine.acquire("r2")
        line = await s.join("h1")
        s.engine.evict("n1", "GPU 3 fell off the bus")
        assert line.told[-1] == EndNode(node="n1", how="evict", given_up="GPU 3 fell off the bus")
        line.said.put_nowait(NodeEnded(node="n1", at=1.0, reason="evicted"))
        await until(lambda: s.losses)
        s.engine.acquire("r3")
        line.close()
        await asyncio.sleep(0.01)
        again = await s.join("h1", nodes=())
        assert again.started() == []
        assert again.told[-1] == EndNode(node="", how="evict", given_up="GPU 3 fell off the bus"), "it may not know"
        assert (await s.join("h1", session="after-its-repair")).started() == ["n2"]

    tell(story, tmp_path)


def test_the_first_host_that_was_given_up_keeps_the_controller_and_no_node(tmp_path):
    async def story(s):
        s.engine.acquire("r1")
        s.engine.evict("n0", "a fan is to be replaced")
        s.local.lose("n0")
        s.engine.acquire("r2")
        assert s.local.asked == ["r1"]
        assert (await s.join("h1")).started() == ["n1"]
        assert any("a fan is to be replaced" in line for line in s.said)

    tell(story, tmp_path)


@pytest.mark.parametrize("how", [{"is_silent": True}, {"is_drill": True}])
def test_a_machine_with_nothing_against_it_is_used_again(tmp_path, how):
    async def story(s):
        s.engine.acquire("r1")
        s.engine.acquire("r2")
        line = await s.join("h1")
        s.engine.evict("n1", "why", **how)
        line.said.put_nowait(NodeEnded(node="n1", at=1.0, reason="evicted"))
        await until(lambda: s.losses)
        s.engine._roster._hosts["h1"].not_before = 0.0
        s.engine.acquire("r3")
        assert line.started() == ["n1", "n2"]

    tell(story, tmp_path)


def test_a_host_that_leaves_is_lost_when_its_ranks_have_ended_and_its_place_is_free(tmp_path):
    async def story(s):
        s.engine.acquire("r1")
        s.engine.acquire("r2")
        line = await s.join("h1", node_rank=1)
        line.said.put_nowait(Leaving(why="SIGTERM on h1"))
        await until(line.said.empty)
        await asyncio.sleep(0.01)
        assert s.losses == [], "its ranks may still run"
        line.said.put_nowait(Bye())
        await until(lambda: s.losses)
        assert "SIGTERM on h1" in s.losses[0].reason
        await until(lambda: s.tasks[0].done())
        s.engine.acquire("r3")
        again = await s.join("h1", session="another", node_rank=1)
        assert again.started() == ["n2"]

    tell(story, tmp_path, num_standby=0)


def test_a_host_too_many_is_refused_and_so_is_one_after_the_end(tmp_path):
    async def story(s):
        line = await s.join("h1")
        (refused,) = (await s.join("h2")).told
        assert isinstance(refused, Refused)
        assert "no place for h2" in refused.why
        s.engine.announce(Over(exit_code=0, outcome="succeeded", why=""))
        assert isinstance(line.told[-1], Over)
        (late,) = (await s.join("h3")).told
        assert "run r1 is over (succeeded)" in late.why
        line.said.put_nowait(Bye())
        await s.engine.end(1.0)

    tell(story, tmp_path, num_standby=0)


def test_a_machine_that_is_back_before_its_earlier_life_is_given_up_may_ask_again(tmp_path):
    """Switched off and on: no connection ends, so the run counts it as there for two seconds more."""

    async def story(s):
        await s.join("h1", node_rank=1)
        for fields in ({}, {"node_rank": 1}):
            (refused,) = (await s.join("h1", session="back", **fields)).told
            assert (type(refused), refused.may_pass) == (Refused, True)
        (stranger,) = (await s.join("h2")).told
        assert (type(stranger), stranger.may_pass) == (Refused, False)
        (odd,) = (await s.join("h1", session="back", nproc=8)).told
        assert (type(odd), odd.may_pass) == (Refused, False), "asking again does not help"
        assert len([each for each in s.said if "a host was refused" in each]) == 2, "those that do not ask again"
        s.engine._roster._hosts["h1"].heard_at -= 60.0
        back = await s.join("h1", session="back", node_rank=1)
        assert isinstance(back.told[0], Admitted)

    tell(story, tmp_path, num_standby=0)


def test_drills_reach_the_node_where_it_is(tmp_path):
    async def story(s):
        s.engine.acquire("r1")
        s.engine.acquire("r2")
        line = await s.join("h1")
        s.engine.freeze("n1", 3.0)
        s.engine.freeze("n0", 2.0)
        assert line.told[-1] == EndNode(node="n1", how="freeze", seconds=3.0)
        assert s.local.ended == [("n0", "freeze 2.0")]
        with pytest.raises(NoNodeError):
            s.engine.cut("n1", 1.0)

    tell(story, tmp_path)


def test_what_another_first_host_started_is_this_ones_now(tmp_path):
    async def story(s):
        one = await s.join("h1", session="a", nodes=("n3",))
        await s.join("h2", session="new")
        assert [host.number for host in s.engine.hosts] == [4, 5]
        s.engine.acquire("r1")
        assert s.local.asked == ["r1"]
        s.engine.acquire("r2")
        assert one.started() == []
        one.said.put_nowait(NodeEnded(node="n9", at=1.0, reason="it ended before this host had the controller"))
        await until(lambda: s.losses)
        assert s.losses[0].node == "n9"
        s.engine.fence("n3")
        assert one.told[-1] == EndNode(node="n3", how="fence")

    tell(story, tmp_path, earlier={public("a"): 4})


def test_a_node_whose_host_never_came_to_the_new_first_one_is_lost_at_once_and_ended_when_it_comes(tmp_path):
    async def story(s):
        s.engine.evict("n7", is_silent=True)
        assert [loss.node for loss in s.losses] == ["n7"]
        s.engine.evict("n7")
        assert len(s.losses) == 1
        line = await s.join("h1", nodes=("n7",))
        await until(lambda: EndNode(node="n7", how="fence") in line.told)

    tell(story, tmp_path, earlier={})


def test_a_first_host_that_has_lost_the_run_says_nothing_more(tmp_path):
    async def story(s):
        line = await s.join("h1")
        s.engine.forsake(Over(exit_code=3, outcome="failed", why="another host has the controller"))
        await s.engine.end(1.0)
        assert line.told[-1] == "aborted"
        assert not any(isinstance(message, Over) for message in line.told)

    tell(story, tmp_path)


def test_a_host_that_comes_back_says_anew_how_much_of_the_journal_it_has(tmp_path):
    class Heirs:
        epoch, endpoints, told = 1, (), []

        def joined(self, host):
            self.told.append(host.join.journal)

    async def story(s):
        s.engine._heirs = Heirs()
        await s.join("h1", journal=(0, 0))
        await s.join("h1", journal=(1, 500))
        assert Heirs.told == [(0, 0), (1, 500)]

    tell(story, tmp_path)


def test_under_a_new_first_host_nobody_ends_or_takes_a_node_that_another_one_has(tmp_path):
    async def story(s):
        one = await s.join("h1", session="a", nodes=("n3",))
        s.engine.acquire("r1")  # n0, here
        liar = await s.join("h2", session="b", nodes=("n3", "n0"))
        for node in ("n3", "n0"):
            liar.said.put_nowait(NodeEnded(node=node, at=1.0, reason="a lie"))
        liar.said.put_nowait(NodeEnded(node="n9", at=1.0, reason="it was its own"))
        await until(lambda: s.losses)
        assert [loss.node for loss in s.losses] == ["n9"]
        s.engine.fence("n3")
        assert one.told[-1] == EndNode(node="n3", how="fence")
        assert not any(isinstance(message, EndNode) for message in liar.told)

    tell(story, tmp_path, num_hosts=3, earlier={public("a"): 4})


@pytest.mark.parametrize(
    ("job", "its_job", "has_proven_it", "is_believed"),
    [("", "", False, False), ("", "5", True, False), ("5", "5", False, False), ("5", "5", True, True)],
)
def test_only_a_host_that_has_proven_to_be_of_the_job_says_that_the_scheduler_ends_it(
    tmp_path, job, its_job, has_proven_it, is_believed
):
    async def story(s):
        line = await s.join("h1", scheduler_job=its_job, has_proven_job=has_proven_it)
        line.said.put_nowait(StopAsked(why="SIGTERM from Slurm", signal=15))
        line.said.put_nowait(Leaving(why="after it"))
        await until(lambda: any("leaves" in text for text in s.said))
        assert s.stops == [15] * is_believed

    tell(story, tmp_path, job=job)


def test_a_host_that_comes_and_goes_without_end_writes_few_lines(tmp_path):
    async def story(s):
        for number in range(300):
            line = await s.join("h1", session=f"s{number}")
            line.said.put_nowait(Bye())
            await until(lambda line=line: line.said.empty())
        assert 2 <= len([text for text in s.said if "h1" in text]) <= LINES_PER_HOST * 2 + 5

    tell(story, tmp_path)


def test_of_what_a_leaving_host_says_a_line_is_shown_once(tmp_path):
    async def story(s):
        line = await s.join("h1")
        for _ in range(100):
            line.said.put_nowait(Leaving(why="x" * 100_000))
        line.said.put_nowait(Bye())
        await asyncio.gather(*s.tasks)
        leaving = [text for text in s.said if "leaves" in text]
        assert len(leaving) == 1
        assert len(leaving[0]) < 1200

    tell(story, tmp_path)
