"""The flow under random histories of faults, machines that are bad, and machines that say nothing.

The player knows the truth: who is bad, who was alerted, which ranks were named. So "never an eviction without evidence"
is checked against the world and not against what the brain says of itself.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.model import actions, events
from everstep.model.spec import Mode, RunSpec
from everstep.testing import Cluster

FAULTS = ("crash", "kill", "raise", "exit", "hang", "hang-group", "lose-node", "alert", "corrupt", "peer")
WORDS = (
    "bad",
    "CUDA error: an illegal memory access was encountered",
    "loss is nan at step 3",
    "HDFS connection failed",
    "CUDA error: uncorrectable ECC error encountered",
)
OTHER = ("train", "train", "train-long", "break", "mend", "mute", "hold", "answer", "takeover", "agree")


class Player:
    """Does one random thing after the other to a cluster, and keeps what would justify an eviction."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.spec = RunSpec(
            program="train.py",
            num_slots=self.draw(st.integers(1, 7)),
            nproc_per_node=self.draw(st.integers(1, 2)),
            num_standby=self.draw(st.integers(0, 3)),
            mode=self.draw(st.sampled_from([Mode.ACT, Mode.ACT, Mode.ACT, Mode.ADVISE, Mode.OBSERVE])),
        )
        policy = Policy(
            max_restarts=self.draw(st.sampled_from([4, 12])),
            blind_restarts=self.draw(st.integers(0, 2)),
            max_evicted_share=self.draw(st.sampled_from([0.25, 0.5, 1.0])),
            group_cooldown_s=self.draw(st.sampled_from([0.0, 900.0])),
        )
        self.cluster = Cluster(self.spec, policy)
        self.suspect: set[str] = set()  # named by something that happened, rightly or not
        self.cluster.start()

    def play(self, num: int) -> None:
        for _ in range(num):
            if self.cluster.state.is_over:
                return
            self.one_thing()

    def one_thing(self) -> None:
        cluster = self.cluster
        what = self.draw(st.sampled_from((*FAULTS, *OTHER)))
        alive = sorted(rank for rank, worker in cluster.state.workers.items() if worker.exit is None)
        if cluster.state.phase is Phase.PROPOSING:
            cluster.feed(events.ProposalApproved(at=cluster.clock.now, incident=f"i{cluster.state.num_incidents}"))
        elif what in FAULTS and alive:
            self.fault(what, self.draw(st.sampled_from(alive)))
        elif what in OTHER:
            self.other(what)
        cluster.wait(1)

    def fault(self, what: str, rank: int) -> None:
        cluster = self.cluster
        node = cluster.state.workers[rank].node
        match what:
            case "crash":
                cluster.end(rank, signal=self.draw(st.sampled_from([6, 7, 11])))
            case "kill":
                cluster.kill(rank)
            case "raise":
                self.say(rank, node)
            case "exit":
                cluster.end(rank, code=3)
            case "peer":
                cluster.lose_peer(rank)
            case "hang":
                self.suspect.add(node)
                cluster.hang(rank, self.draw(st.sampled_from(["ES-H02", "ES-H07", "ES-H11"])))
            case "hang-group":
                group = tuple(sorted({rank, self.draw(st.sampled_from(sorted(cluster.state.workers)))}))
                self.suspect |= {cluster.state.workers[each].node for each in group}
                cluster.hang(rank, "ES-H12", group=group)
            case "lose-node":
                cluster.lose_node(self.draw(st.sampled_from(sorted(cluster.state.members))))
            case "alert":
                alerted = self.draw(st.sampled_from(sorted(cluster.state.members)))
                self.suspect.add(alerted)
                cluster.alert(alerted, "ES-G79", "fault", "REPLACE_NODE")
            case "corrupt":
                code = self.draw(st.sampled_from(["ES-N04", "ES-N05", "ES-N07"]))
                if code == "ES-N04":
                    self.suspect.add(node)
                cluster.anomaly(code, rank)

    def say(self, rank: int, node: str) -> None:
        words = self.draw(st.sampled_from(WORDS))
        if "ECC" in words:  # the machine's own
            self.suspect.add(node)
        self.cluster.say(rank, words)

    def other(self, what: str) -> None:
        cluster, exams = self.cluster, self.cluster.exams
        nodes = sorted(cluster.state.members)
        match what:
            case "train" | "train-long" if cluster.state.phase in (Phase.RUNNING, Phase.FORMING):
                cluster.train(self.draw(st.integers(1, 4)), 1000.0 if what == "train-long" else 1.0)
            case "break" if nodes:
                kinds = self.draw(st.sampled_from(["self", "all-to-all", "all-gather", "alignment", "replay"]))
                exams.break_at(self.draw(st.sampled_from(nodes)), kinds)
            case "mend":
                exams.bad.clear()
                exams.mute.clear()
            case "mute" if nodes:
                exams.mute.add(self.draw(st.sampled_from(nodes)))
            case "hold":
                cluster.held_back.add("ExamineNode")
            case "answer":
                cluster.held_back.clear()
                cluster.restart_controller()
            case "takeover":
                cluster.restart_controller()
            case "agree" if cluster.state.phase is Phase.RUNNING:
                cluster.agree()
            case _:
                pass
        self.suspect |= set(exams.bad)


def check_history(player: Player, told: Counter[str]) -> None:
    cluster = player.cluster
    evicted = Counter[str]()
    for record in cluster.records:
        for action in record.actions:
            assert action.why, f"no reason: {action}"
            match action:
                case actions.EvictNode(node=node):
                    assert node in player.suspect, f"{node} is evicted, and nothing ever spoke against it"
                    evicted[node] += 1
                case actions.Refused():
                    told["refused"] += 1
                case actions.Concluded(decision=decision):
                    assert all(refusal.why and refusal.what for refusal in decision.refused)
                    told["refused"] += len(decision.refused)
                    told[decision.rule] += 1
                case actions.ExamineNode():
                    assert action.node in action.group
                    told["exams"] += 1
    assert not evicted or max(evicted.values()) == 1, "once is enough"
    told["evictions"] += sum(evicted.values())
    if player.spec.mode is not Mode.ACT:
        assert not evicted
        assert not told["exams"] or told["acted"]


def check_end(player: Player) -> None:
    """With peers that answer, or at the limits of those that do not, it always gets somewhere."""
    cluster = player.cluster
    cluster.wait(3000)
    stuck = (Phase.STOPPING, Phase.EXAMINING, Phase.SETTLING, Phase.GATHERING, Phase.PROPOSING)
    assert cluster.state.phase not in stuck, cluster.state.phase
    before = cluster.state
    cluster.restart_controller()  # asserts that the fold of the journal is the state
    assert cluster.state.generation == before.generation
    assert not [a for a in cluster.actions if isinstance(a, actions.EvictNode) and a.node not in player.suspect]


def history(data: st.DataObject, told: Counter[str], num: int) -> None:
    player = Player(data)
    player.play(num)
    told["acted"] += player.spec.mode is Mode.ACT
    check_history(player, told)
    check_end(player)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_flow_holds_in_every_history(data: st.DataObject) -> None:
    history(data, Counter(), data.draw(st.integers(1, 14)))


@pytest.mark.soak
def test_ten_thousand_histories() -> None:
    told = Counter[str]()

    @settings(max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
    @given(data=st.data())
    def many(data: st.DataObject) -> None:
        history(data, told, data.draw(st.integers(1, 14)))
        told["histories"] += 1

    many()
    assert told["histories"] >= 10_000
    for reached in ("examine", "replay", "evict", "evict-group", "reattempt", "flow-exhausted", "go-back"):
        assert told[reached], f"no history reached {reached}"
    print(f"\n{dict(sorted(told.items()))}")
