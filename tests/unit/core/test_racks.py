"""Racks: names, who shares one, and which standby takes a slot."""

import msgspec
import pytest

from everstep.core.restore import racks
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Role
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster


def cluster(nodes: int, standby: int, *names: str) -> Cluster:
    job = Cluster(
        RunSpec(program="train.py", num_slots=nodes, nproc_per_node=1, num_standby=standby), Policy(), racks=names
    )
    job.start()
    return job


@pytest.mark.parametrize("name", ["a", "7", "row-3/leaf.2:b_1", "x" * 64])
def test_names(name):
    assert racks.why_no_rack(name) == ""


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a\n", "x" * 65, "\x1b[31m"])
def test_names_that_cannot_be(name):
    assert "is not the name of a rack" in racks.why_no_rack(name)


def test_who_shares_a_rack():
    state = cluster(4, 1, "a", "a", "b", "", "b").state
    assert racks.known(state) == ["a", "b"]
    assert racks.shared(state, ["n0", "n1"]) == "a"
    assert racks.shared(state, ["n0", "n2"]) == racks.shared(state, ["n0", "n3"]) == racks.shared(state, ["n0"]) == ""
    assert racks.shared(state, ["n3", "n3"]) == racks.shared(state, []) == racks.shared(state, ["n8", "n9"]) == ""
    assert [member.node for member in racks.members_of(state, "b")] == ["n4", "n2"], "a standby is not missed"
    assert racks.active_nodes(state, "b") == ("n2",)


def test_two_nodes_of_unknown_racks_share_none():
    assert racks.shared(cluster(2, 0, "").state, ["n0", "n1"]) == ""


def test_the_standby_of_the_emptiest_rack_is_taken():
    state = cluster(3, 2, "a", "a", "b", "a", "b").state
    assert racks.best_standby(state).node == "n4"
    without = cluster(3, 2, "").state
    assert racks.best_standby(without).node == "n3", "without racks, who came first"


def test_a_suspected_standby_is_not_taken():
    state = cluster(1, 1, "a", "b").state
    suspected = msgspec.structs.replace(state.members["n1"], suspected=True)
    state = msgspec.structs.replace(state, members=state.members.updated({"n1": suspected}))
    assert state.members["n1"].role is Role.STANDBY
    assert racks.best_standby(state) is None


def test_a_node_that_tells_another_rack_when_it_comes_again_is_believed():
    job = cluster(2, 0, "a", "b")
    joined = next(r.event for r in job.records if getattr(r.event, "node", "") == "n1" and hasattr(r.event, "rack"))
    job.feed(msgspec.structs.replace(joined, rack="c", generation=0, stopped=False))
    assert racks.known(job.state) == ["a", "c"]
