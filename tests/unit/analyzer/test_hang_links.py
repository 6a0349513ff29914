"""A hang, and what both ends of each link say: the network, or a rank, or nobody knows."""

import msgspec
import pytest

from everstep.analyzer.hangs.combine import Diagnosis
from everstep.analyzer.hangs.links import Between, Sight, is_candidate, joined, pairs_of
from everstep.analyzer.observations.clusters import Activity, Cluster, Clusters
from everstep.model.facts import LinkSeen, LinkState, PortSeen
from everstep.model.verdict import Blame, Certainty, Confidence, Verdict

NODES = ("n0", "n1", "n2")
GOOD, DEAD = LinkState.GOOD, LinkState.DEAD


def diagnosis(code="ES-H11", activity=Activity.COLLECTIVE, ranks=(), **told) -> Diagnosis:
    blame = {"ES-H11": Blame.NETWORK}.get(code, Blame.UNKNOWN)
    verdict = Verdict(
        code=code, sentence="all entered.", blame=blame, confidence=Confidence.HIGH, ranks=ranks, at=50.0, **told
    )
    one = Cluster(ranks=(0, 1), signature=(), activity=Activity.COLLECTIVE, innermost="", place="")
    other = Cluster(ranks=(2,), signature=(), activity=activity, innermost="", place="")
    clusters = Clusters(healthy=(one,), outliers=(other,))
    return Diagnosis(verdict=verdict, limit_s=1800.0, group=None, clusters=clusters, findings=())


def sight(nodes=NODES, ago_s=0.0, **said) -> Sight:
    """All links are good, but for what is said: `n1_n2=(state, hears)`."""
    links = {}
    for one in nodes:
        seen = []
        for other in nodes:
            if other != one:
                state, hears = said.get(f"{one}_{other}", (GOOD, True))
                lost = 9 if state is DEAD else 0
                seen.append(
                    (LinkSeen(to=other, state=state, for_s=4.0, sent=9, lost=lost, hears=hears, ports=4), ago_s)
                )
        links[one] = tuple(seen)
    return Sight(links=links, node_of=dict(enumerate(nodes)))


def cut(one, other, hears=(False, False)):
    return {f"{one}_{other}": (DEAD, hears[0]), f"{other}_{one}": (DEAD, hears[1])}


def test_a_link_that_both_ends_call_dead_is_the_network():
    verdict = joined(diagnosis(), sight(ago_s=2.0, **cut("n1", "n2")))
    assert (verdict.code, verdict.blame, verdict.certainty) == ("ES-H19", Blame.NETWORK, Certainty.DOUBTFUL)
    assert verdict.sentence == (
        "the network between n1 and n2 loses every probe, for 6.0 s: ranks 1-2 have called, and are not heard beyond "
        "it; all entered."
    )
    assert (verdict.ranks, verdict.evidence[0].source) == ((), "link")
    assert verdict.evidence[0].says == "n1 and n2: every probe is lost, for 6.0 s"


def test_what_ports_counted_is_evidence_for_a_link_that_is_cut_and_for_nothing_else():
    ports = {"n1": ((PortSeen(nic="tcp", seconds=10.0, grown={"retransmits": 7}), 1.0),),
             "n0": ((PortSeen(nic="eth0", seconds=10.0, grown={"rx_errors": 1}), 1.0),)}  # fmt: skip
    seen = msgspec.structs.replace(sight(**cut("n1", "n2")), ports=ports)
    verdict = joined(diagnosis(), seen)
    told = [each.says for each in verdict.evidence if each.source == "port"]
    assert told == ["n1 tcp: retransmits +7 in 10 s, 1.0 s ago"], "n0 is at no end of the link"
    assert [each.source for each in verdict.evidence[:4]] == ["link", "link", "link", "port"]
    assert joined(diagnosis(), msgspec.structs.replace(sight(), ports=ports)) == joined(diagnosis(), sight())


def test_a_node_without_any_link_is_named_alone():
    verdict = joined(diagnosis(), sight(**cut("n0", "n2"), **cut("n1", "n2")))
    assert verdict.sentence.startswith("the network between n2 and the other nodes (n0 and n1) loses every probe")
    assert "rank 2 has called, and is not heard beyond it" in verdict.sentence


@pytest.mark.parametrize(("hears", "way"), [((False, True), "from n1 to n2"), ((True, False), "from n2 to n1")])
def test_one_way(hears, way):
    """Who hears nothing is at the end of the way that is cut. Here `hears` is what n1 and n2 hear of each other."""
    heard_by_n1, heard_by_n2 = not hears[0], not hears[1]
    verdict = joined(diagnosis(), sight(**cut("n1", "n2", (heard_by_n1, heard_by_n2))))
    assert verdict.sentence.startswith(f"the network {way} loses every probe one way")


def test_one_that_lies_or_is_busy_is_not_enough():
    alone = sight(n1_n2=(DEAD, False), n1_n0=(DEAD, False))
    assert {pair.state for pair in pairs_of(alone, NODES)} == {Between.UNKNOWN, Between.GOOD}
    assert joined(diagnosis(), alone).sentence == joined(diagnosis(), sight(nodes=("n0", "n2"))).sentence.replace(
        "n0 and n2", "n0 and n2 on 1 of 3 links that are watched"
    )


def test_a_rank_that_never_called_stays_the_culprit():
    never = diagnosis("ES-H02", Activity.BLOCKED, ranks=(2,))
    assert not is_candidate(never)
    verdict = joined(never, sight())
    assert (verdict.ranks, verdict.blame) == ((2,), Blame.UNKNOWN)
    assert verdict.sentence.endswith("Probes come through between n0, n1 and n2: the network is not seen to be broken.")
    beside = joined(never, sight(**cut("n1", "n2")))
    assert (beside.ranks, beside.blame, beside.sentence) == ((2,), Blame.UNKNOWN, "all entered.")
    assert beside.evidence[0].says.startswith("n1 and n2: every probe is lost")


@pytest.mark.parametrize("code", ["ES-H18", "ES-H02", "ES-H05", "ES-H12", "ES-H15"])
def test_where_all_wait_for_each_other_a_cut_link_says_more_than_who_is_behind(code):
    """One got its last packet before the cut, and went on to the next call."""
    found = diagnosis(code, ranks=(2,), certainty=Certainty.CERTAIN)
    verdict = joined(found, sight(**cut("n1", "n2")))
    assert (verdict.code, verdict.blame, verdict.ranks) == ("ES-H19", Blame.NETWORK, ())
    assert verdict.certainty is Certainty.DOUBTFUL
    assert joined(found, sight()).certainty is Certainty.CERTAIN


@pytest.mark.parametrize("code", ["ES-H01", "ES-H03", "ES-H04", "ES-H06", "ES-H09", "ES-H00", "ES-P09"])
def test_what_is_proven_is_not_the_network(code):
    verdict = joined(diagnosis(code, ranks=(2,)), sight(**cut("n1", "n2")))
    assert (verdict.code, verdict.ranks) == (code, (2,))


def test_where_nothing_is_known_nothing_changes():
    plain = diagnosis()
    unknown = {f"{one}_{other}": (LinkState.UNKNOWN, False) for one in NODES for other in NODES}
    for nothing in (sight(**unknown), sight(nodes=("n0",)), Sight(links={}, node_of={0: "n0"})):
        assert joined(plain, nothing) == plain.verdict


def test_only_links_between_nodes_of_the_group_count():
    found = diagnosis(group_ranks=(0, 1))
    assert "the network is not seen to be broken" in joined(found, sight(**cut("n1", "n2"))).sentence
    assert msgspec.structs.replace(found.verdict, sentence="", evidence=()).blame is Blame.NETWORK


def test_a_way_that_is_lost_for_some_ports_is_told_and_not_blamed():
    partial = sight(n1_n2=(LinkState.PARTIAL, True))
    stalled, behind = joined(diagnosis(), partial), joined(diagnosis("ES-H18", ranks=(2,)), partial)
    assert stalled.code == "ES-H11"
    assert "Between n1 and n2 probes of 0 of 4 source ports are lost, those of others come through." in stalled.sentence
    assert (behind.ranks, behind.sentence) == ((2,), "all entered.")


def test_what_a_node_makes_up_is_no_verdict_that_nobody_can_read():
    odd = {"n1": tuple((LinkSeen(to="n2", state=DEAD, for_s=float("nan")), float("-inf")) for _ in range(1000))}
    odd["n2"] = ((LinkSeen(to="n1", state=DEAD, for_s=-5.0), float("nan")), (LinkSeen(to="n2", state=DEAD), 0.0))
    verdict = joined(diagnosis(), Sight(links=odd, node_of=dict(enumerate(NODES))))
    assert verdict.sentence.startswith("the network between n1 and n2 loses every probe, for 0 ms")


def test_a_large_job_is_joined_by_what_is_watched_and_not_by_pairs():
    num = 1000
    links = {
        f"n{place}": tuple((LinkSeen(to=f"n{(place + step) % num}", state=GOOD), 0.0) for step in (1, -1, 8, -8))
        for place in range(num)
    }
    found = pairs_of(Sight(links=links, node_of={}), links)
    assert len(found) == 4 * num // 2
