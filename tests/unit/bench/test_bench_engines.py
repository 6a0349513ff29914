"""bench/engines.py: scenario files, a journal's decisions in words that fit any engine, and where they differ."""

import sys
from pathlib import Path

import pytest

from everstep.model import actions as act
from everstep.model.events import NodeJoined, NodeLost, StopRequested, TimerFired
from everstep.model.facts import Fetch
from everstep.model.record import Record
from everstep.model.verdict import Blame, Confidence, Decision, Refusal, Verdict

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from engines import ENGINES, SCENARIO
from playing.scenario import OF_RANKS, OF_SLOTS, Fault, ScenarioError, parsed
from sameness.decisions import COMPARED, SHOWN, decided
from sameness.decisions_compare import differences, document, table

FAULTS = ["kill-agent slot 1"]


class Journal:
    """Of two slots and a standby. `names`: of the nodes of slot 0, slot 1, the standby; `at`: when it began."""

    def __init__(self, names=("n0", "n1", "n2"), at=100.0):
        self.names, self.at, self.records = names, at, []

    def note(self, *actions, event=None):
        self.at += 0.1
        event = event or TimerFired(at=self.at, key="any")
        seq = len(self.records) + 1
        self.records.append(Record(seq=seq, at=self.at, gen=0, event=event, actions=actions))

    def start(self, node, slot, generation, step=None, fetch=()):
        return act.StartWorkers(
            why=f"as {node} says",
            node=node,
            generation=generation,
            slot=slot,
            first_rank=slot,
            num_ranks=1,
            world_size=2,
            num_slots=2,
            store_host=node,
            store_port=1,
            resume_step=step,
            fetch=fetch,
        )

    def begin(self):
        for node in self.names:
            self.note(event=NodeJoined(at=self.at, node=node, host=f"host of {node}", pid=7))
        first, second, _ = self.names
        self.note(self.start(first, 0, 0), self.start(second, 1, 0))

    def lose(self, *, step=40, code="ES-P06", refused="wait for the lost node", taker=None, fetch=True, lost=0):
        first, second, standby = self.names
        taker = taker or standby
        verdict = Verdict(
            code=code,
            sentence=f"the agent of {second} is lost",
            blame=Blame.MACHINE,
            confidence=Confidence.HIGH,
            ranks=(1,),
            node=second,
            at=self.at,
        )
        decision = Decision(
            chosen=f"restart all 2 ranks as generation 1, on another node for {second}",
            rule="replace-lost-node",
            why=f"{second} is lost",
            refused=(Refusal(what=refused.replace("SLOT1", second), why="gone"),),
        )
        self.note(
            act.ReleaseNode(why="lost", node=second),
            act.IncidentOpened(why="the first sign of a fault", incident="i1"),
            act.Concluded(why="x", incident="i1", verdict=verdict, decision=decision),
            act.StopWorkers(why="i1", node=first, generation=0, grace_s=5.0, save_s=2.0),
            event=NodeLost(at=self.at, node=second, reason=f"process of {second} ended"),
        )
        came = (Fetch(rank=1, node=first, endpoint=f"{first}:1", step=step),) if fetch else ()
        self.note(self.start(first, 0, 1, step), self.start(taker, 1, 1, step, came))
        self.note(
            act.IncidentClosed(
                why="steps", incident="i1", outcome="recovered", lost_steps=lost, resumed_step=step + 1 - lost
            )
        )

    @classmethod
    def told(cls, names=("n0", "n1", "n2"), at=100.0, **lose):
        journal = cls(names, at)
        journal.begin()
        journal.lose(**lose)
        return decided(journal.records)


def test_what_must_differ_does_not_count():
    """Other names of the nodes, another time, another step, and a snapshot that was in memory already."""
    runs = {"local": Journal.told(), "hosts": Journal.told(("n0", "n4", "n11"), at=9000.0, step=77, fetch=False)}
    assert differences(runs) == []
    (one,) = runs["local"]
    assert one["chosen"] == "restart all 2 ranks as generation 1, on another node for slot 1"
    assert (one["code"], one["party"], one["ranks"], one["slot"]) == ("ES-P06", "machine", "1", "slot 1")
    assert one["started"] == "generation 1 of 2 ranks: slot 0 ranks 0, slot 1 ranks 1: a standby"
    assert (one["stopped"], one["grace"]) == ("generation 0 by signal 15", "5 s, and 2 s to save before")
    assert (one["nodes"], one["first sign"]) == ("release slot 1", "NodeLost")
    assert (one["resumed"], one["lost steps"]) == ("from memory, 1 after the restored step", "0")
    assert (one["snapshots"], runs["hosts"][0]["snapshots"]) == ("rank 1 from slot 0", "each where its rank is")


@pytest.mark.parametrize(
    ("changed", "what", "word"),
    [
        ({"code": "ES-P09"}, ["code"], "ES-P09"),
        ({"refused": "evict SLOT1"}, ["not done"], "evict slot 1"),
        ({"taker": "n9"}, ["started"], "a new node"),
        ({"lost": 3}, ["resumed", "lost steps"], "3"),
    ],
)
def test_each_decision_that_differs_is_found(changed, what, word):
    runs = {"local": Journal.told(), "slurm": Journal.told(**changed)}
    found = differences(runs)
    assert [each.what for each in found] == what
    assert any(word in each.values["slurm"] and word not in each.values["local"] for each in found)
    assert str(found[0]).startswith(f"incident 1, {what[0]}:\n  local: ")
    assert f"! {what[0]:<11} local: " in table(FAULTS, runs)
    assert document(FAULTS, runs, ())["differences"][0]["values"] == found[0].values


def test_a_run_that_has_an_incident_more_differs():
    (found,) = differences({"local": Journal.told(), "hosts": ()})
    assert (found.incident, found.values) == (1, {"local": "ES-P06", "hosts": ""})
    assert "(an incident without a fault of the scenario)" in table([], {"local": Journal.told()})


def test_a_node_that_is_given_up_before_its_loss_opens_an_incident_belongs_to_that():
    journal = Journal()
    journal.begin()
    journal.note(act.EvictNode(why="silent", node="n1", is_silent=True))
    journal.lose()
    assert decided(journal.records)[0]["nodes"] == "evict as silent slot 1, release slot 1"


def test_all_that_is_compared_or_shown_is_in_the_table():
    told = table(FAULTS, {"local": Journal.told()})
    assert told.startswith("kill-agent slot 1\n")
    assert [line.split("  ")[1] for line in told.splitlines()[1:]] == [
        what for what in (*COMPARED, *SHOWN) if what not in ("certainty", "then", "saved", "ended")
    ]


def test_a_scenario_is_a_shape_and_faults():
    scenario = parsed("nodes 3  # three\nstandby 1\n\nkill-rank 0 2\nkill-agent 1 # its agent\n")
    assert (scenario.nodes, scenario.standby) == (3, 1)
    assert scenario.faults == (Fault(kind="kill-rank", targets=(0, 2)), Fault(kind="kill-agent", targets=(1,)))
    assert list(map(str, scenario.faults)) == ["kill-rank ranks 0, 2", "kill-agent slot 1"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nodes 3\nkill-rank 3", "line 2: kill-rank of"),
        ("nodes 3\nstop-rank 1 2", "line 2: stop-rank of"),
        ("nodes 3\npower-off 0", "slot 0 is the first host's"),
        ("nodes 3\nburn 1", "line 2: no 'burn'"),
        ("nodes three", "line 1: 'nodes' needs numbers"),
        ("nodes 3", "needs `nodes N` and a fault"),
        ("kill-rank 0\nnodes 1", "line 1: kill-rank of"),
    ],
)
def test_what_cannot_be_played_is_said_with_its_line(text, why):
    with pytest.raises(ScenarioError, match=why):
        parsed(text)


def test_the_scenario_that_is_played_has_every_kind_of_fault():
    assert {each.kind for each in parsed(SCENARIO.read_text()).faults} == {*OF_RANKS, *OF_SLOTS}
    assert list(ENGINES) == ["local", "hosts", "slurm"]


def test_a_preemption_is_the_last_line():
    scenario = parsed("nodes 2\nstandby 1\nkill-rank 1\npreempt\n")
    assert scenario.is_preempted
    assert scenario.lines == ["kill-rank rank 1", "preempt"]
    for text in ("nodes 2\npreempt\nkill-rank 1\n", "nodes 2\nkill-rank 1\npreempt 5\n"):
        with pytest.raises(ScenarioError, match="preempt"):
            parsed(text)


@pytest.mark.parametrize("ranks", [(0, 1), (0,)])
def test_a_stop_tells_what_was_saved_and_how_it_ended(ranks):
    journal = Journal()
    journal.begin()
    stop = act.StopWorkers(why="stopped", node="n0", generation=0, grace_s=5.0, signal=15)
    journal.note(stop, event=StopRequested(at=journal.at, why="SIGTERM", signal=15))
    where = {"node": "n0", "generation": 0, "world_size": 2, "root": "ckpt", "limit_s": 9.0}
    journal.note(act.PersistSnapshot(why="as every minute", step=39, ranks=(0, 1), **where))
    for rank in ranks:
        journal.note(act.PersistSnapshot(why="the last", step=40, ranks=(rank,), is_last=True, **where))
    journal.note(act.Finish(why="stopped", outcome="stopped", exit_code=143))
    told = decided(journal.records)
    assert told[0]["saved"] == f"the last step of ranks {' '.join(map(str, ranks))}"
    assert told[0]["ended"] == "stopped, code 143"
    assert told[0]["stopped"] == "generation 0 by signal 15"
    lines = table(["preempt"], {"local": told}).splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["stopped", "saved", "ended"]
