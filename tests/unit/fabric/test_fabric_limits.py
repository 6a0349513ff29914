"""What could not have been seen is said, link by link: unknown is not healthy."""

import itertools
import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from test_fabric_full import SENT, TOPOLOGY, UPLINKS, congested, load, loads, window
from test_fabric_locate import FLOWS, LINKS, NAMES, PATHS, losses, names

from everstep.cli.main import main
from everstep.fabric.locate.blame import NOISE, QUEUE_LOSS, Verdict, blame
from everstep.fabric.locate.likelihood import Row, gain_of, likeliest_rate
from everstep.fabric.locate.limits import JUDGED, Unjudged, packets_judged, smallest_seen
from everstep.fabric.locate.loads import Load, Rate
from everstep.fabric.locate.observations import Link, Seen

CROSSING = Counter(link for flow in FLOWS for link in itertools.pairwise(PATHS[flow]))
WORST = sorted(CROSSING, key=lambda link: CROSSING[link])[:8]  # the hosts' own


def name(link: Link) -> str:
    return " > ".join(link)


def is_named(verdict: Verdict, link: Link) -> bool:
    return any(name(link) in found for found in names(verdict.faults))


def unjudged(verdict: Verdict, link: Link) -> Unjudged | None:
    return next((each for each in verdict.unjudged if each.link == name(link)), None)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [60, 150])
def test_what_is_said_to_be_seen_is_seen(sent: int) -> None:
    limit = blame(losses({}, 0, sent=sent), NAMES).smallest_rate
    links = (WORST * 8)[:60]
    found = [is_named(blame(losses({link: limit}, seed, sent=sent), NAMES), link) for seed, link in enumerate(links)]
    assert sum(found) >= 54


@pytest.mark.slow
@pytest.mark.parametrize("full", [UPLINKS, LINKS], ids=["uplinks", "all"])
@pytest.mark.parametrize("lossy", [("n5", "leaf1"), ("leaf0", "spine0")])
@pytest.mark.parametrize("rate", [0.02, 0.1])
def test_a_lossy_link_at_full_load_is_named_or_not_judged(full: list[Link], lossy: Link, rate: float) -> None:
    for seed in range(3):
        verdict = blame(congested(full, seed, {lossy: rate}), NAMES, loads(full))
        link = unjudged(verdict, lossy)
        assert link is not None
        assert link.why == ("full" if lossy in full else "beside full")
        assert is_named(verdict, lossy) or link.smallest_rate > rate, seed
        assert {found for fault in names(verdict.faults) for found in fault} <= {name(lossy)}


def test_why_a_link_is_not_judged_and_what_would_allow_it() -> None:
    full, behind = ("leaf0", "spine0"), ("spine0", "leaf1")
    seen = [
        Seen(nodes=("n0", *full, "leaf1", "n4"), sent=900, bad=20),
        Seen(nodes=("n0", "leaf0", "n1"), sent=100, bad=0),
    ]
    verdict = blame(seen, NAMES, {full: load(19.6e6, errors=0), behind: load(1e6)}, [("n9", "leaf2"), behind])
    assert verdict.faults == ()
    assert [(each.link, each.why) for each in verdict.unjudged] == [
        ("leaf0 > spine0", "full"),
        ("leaf1 > n4", "beside full"),
        ("n0 > leaf0", "beside full"),
        ("n9 > leaf2", "no probes"),
        ("spine0 > leaf1", "beside full"),
    ]
    first, second, third, fourth, _ = verdict.unjudged
    assert (first.packets, first.packets_beside, first.smallest_rate, first.full) == (0, 900, 1.0, ("leaf0 > spine0",))
    assert first.counts_damage
    assert not second.counts_damage
    assert (third.packets, third.packets_beside, third.packets_wanted) == (100, 900, packets_judged(NOISE) - 100)
    assert third.smallest_rate == smallest_seen(100, NOISE)
    assert (fourth.packets, fourth.packets_beside, fourth.full) == (0, 0, ())
    assert verdict.smallest_rate == smallest_seen(100, NOISE), "of leaf0 > n1, which is judged"


def test_as_many_packets_as_are_wanted_are_enough() -> None:
    full = ("leaf0", "spine0")
    rates = tuple(Rate(bps=bps, at=at, seconds=1.0) for bps, at in ((1e6, 8.0), (19.6e6, 10.0), (1e6, 30.0)))
    known = {full: Load(rates=rates, capacity_bps=20e6)}
    nodes = ("n0", *full, "leaf1", "n4")
    busy = Seen(nodes=nodes, sent=900, bad=20, at=10.0, seconds=1.0)
    wanted = blame([busy], NAMES, known).unjudged[0].packets_wanted

    def more(packets: int) -> Verdict:
        return blame([busy, Seen(nodes=nodes, sent=packets, bad=0, at=30.0, seconds=1.0)], NAMES, known)

    assert len(more(wanted - 1).unjudged) == 4
    assert more(wanted).unjudged == ()
    assert JUDGED / 2 < more(wanted).smallest_rate <= JUDGED


def test_a_link_that_is_full_at_times_is_judged_by_the_rest() -> None:
    for seed in range(4):
        seen = [each for at in (1.0, 11.0)
                for each in (msgspec.structs.replace(row, at=at, seconds=1.0)
                             for row in congested(UPLINKS if at < 5 else [], seed))]  # fmt: skip
        rates = tuple(Rate(bps=bps, at=at, seconds=1.0) for bps, at in ((1e6, -1.0), (19.6e6, 1.0), (1e6, 11.0)))
        known = {link: Load(rates=rates, capacity_bps=20e6) for link in UPLINKS}
        verdict = blame(seen, NAMES, known)
        assert verdict.unjudged == ()
        assert len(verdict.full) == len(UPLINKS)
        assert verdict.smallest_rate == smallest_seen(min(CROSSING.values()) * SENT, NOISE)


def test_a_path_over_a_full_link_says_nothing_that_its_queue_explains() -> None:
    least, most = (1 - NOISE) * (1 - QUEUE_LOSS), 1 - NOISE
    row = Row(1000, 60, least, most)
    assert abs(gain_of([row], 0.05)) < 1e-6, "the queue, the fault, or both"
    assert gain_of([row], 0.2) < -10, "a fault that loses a fifth would have lost more"
    assert likeliest_rate([Row(1000, 400, least, most)]) == pytest.approx(0.2, abs=0.01), "beyond a queue's quarter"
    assert likeliest_rate([row]) < 1e-3


@pytest.mark.parametrize("packets", [1, 5, 60, 900, 10**6, 10**12])
def test_the_smallest_loss_that_is_seen_is_named_in_its_middle(packets: int) -> None:
    rate = smallest_seen(packets, NOISE)
    assert 0 < rate <= 1
    assert rate == 1 or gain_of([Row(packets, round(rate * packets), 1 - NOISE, 1 - NOISE)], rate) > 12
    assert smallest_seen(packets * 10, NOISE) <= rate
    assert smallest_seen(0, NOISE) == 1.0


def test_the_page_says_which_links_are_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probes, counters, lab = (tmp_path / file for file in ("probes.jsonl", "counters.jsonl", "lab.toml"))
    probes.write_text('{"nodes": ["n0", "leaf0", "n1"], "sent": 600, "bad": 20, "late": 300}\n')
    lab.write_text(TOPOLOGY)
    counters.write_text(msgspec.json.encode(window(tx_bps=19.6e6)).decode() + "\n")
    command = ["fabric", "blame", str(probes), "--topology", str(lab), "--counters", str(counters)]
    assert main(command) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"{probes}: no fault found in 600 packets; 4 links are not judged\n")
    said = [" ".join(line.split()) for line in page.splitlines()]
    ends = "full while 600 of 600 packets crossed it; a loss below 25.0%, as a full queue may, is not seen"
    wanted = "wanted: 388 packets while nothing on their path is full"
    assert f"not judged n0 > leaf0: it was {ends}" in said
    assert f"{wanted}, or what its receiving port counts as damaged" in said
    assert f"not judged leaf0 > n1: n0 > leaf0 was {ends}" in said
    assert "not judged n1 > leaf0: no probe crossed it while the hosts at both ends ran" in said
    assert "wanted: 388 packets, of a flow that crosses it (`everstep fabric cover`)" in said
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["unjudged"]
    assert [(each["link"], each["why"]) for each in found] == [
        ("leaf0 > n0", "no probes"), ("leaf0 > n1", "beside full"), ("n0 > leaf0", "full"), ("n1 > leaf0", "no probes")
    ]  # fmt: skip


def test_a_page_of_many_links_says_how_many_more_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probes, lab = tmp_path / "probes.jsonl", tmp_path / "lab.toml"
    probes.write_text('{"nodes": ["n0", "leaf0", "n1"], "sent": 600, "bad": 0}\n')
    lab.write_text(TOPOLOGY.replace("n[0-1]", "n[0-15]"))
    assert main(["fabric", "blame", str(probes), "--topology", str(lab)]) == 0
    page = capsys.readouterr().out
    assert "; 30 links are not judged" in page
    assert page.count("not judged    leaf0 > ") + page.count("not judged    n") == 16
    assert "14 links more: --json has all" in page
