"""What collectives send over each link, beside what ports counted."""

import json
import math
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.analyzer.collective.folding import Folding
from everstep.cli.fabric import traffic
from everstep.cli.main import main
from everstep.fabric.flows.network import Network
from everstep.fabric.locate.observations import Counted
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError
from everstep.fabric.traffic.matrix import Amounts, Operation, Span, sends
from everstep.fabric.traffic.picture import picture
from everstep.fabric.traffic.pictured import LinkTraffic, Picture
from everstep.journal.rank_nodes import RankNodes
from everstep.journal.runs import RunDir
from everstep.journal.view import GenerationView, RunView
from everstep.model.collective import RankOps

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from fabrics.two_tiers import two_tiers

MB = 1_000_000


def _ring_by_steps(num_bytes: int, hosts: list[str], rounds: int) -> Amounts:
    """Each rank sends a chunk to the next one, in each step."""
    num, found = len(hosts), dict[tuple[str, str], float]()
    for _ in range(rounds * (num - 1)):
        for rank in range(num):
            ends = hosts[rank], hosts[(rank + 1) % num]
            if ends[0] != ends[1]:
                found[ends] = found.get(ends, 0.0) + num_bytes / num
    return found


@given(st.integers(2, 9), st.integers(1, 4), st.sampled_from([("all_reduce", 2), ("_all_gather_base", 1)]))
def test_rings_send_what_their_steps_add_up_to(num_hosts: int, per_host: int, kind: tuple[str, int]) -> None:
    hosts = [f"n{n}" for n in range(num_hosts) for _ in range(per_host)]
    found = sends(kind[0], MB, hosts)
    wanted = _ring_by_steps(MB, hosts, kind[1])
    assert found is not None
    assert found.keys() == wanted.keys()
    assert all(math.isclose(found[ends], wanted[ends]) for ends in wanted)
    mixed = [f"n{n}" for _ in range(per_host) for n in range(num_hosts)]  # ranks dealt out: NCCL's ring is the same
    assert sends(kind[0], MB, mixed) == found


@given(st.integers(2, 70))
def test_trees_reach_every_host_and_no_host_is_inside_of_both(num: int) -> None:
    hosts = [f"n{n}" for n in range(num)]
    found = sends("allreduce", 2 * MB, hosts, is_tree=True)
    assert found is not None
    assert all(found[other, one] == amount for (one, other), amount in found.items())  # up and down
    assert sum(found.values()) == 2 * 2 * (num - 1) * MB  # both trees have an edge less than hosts
    out = {host: sum(amount for (one, _), amount in found.items() if one == host) for host in hosts}
    assert max(out.values()) <= 2 * 2 * MB  # as a ring at most: the buffer up and down, or a little more at the roots


def test_what_is_not_known_is_not_nothing() -> None:
    assert sends("all_reduce", None, ["a", "b"]) is None
    assert sends("gather", MB, ["a", "b"]) is None
    assert sends("coalesced", MB, ["a", "b"]) is None
    assert sends("send 0->7", MB, ["a", "b"]) is None
    for op, hosts in (("barrier", ["a", "b"]), ("all_reduce", ["a", "a"]), ("recv 0->1", ["a", "b"])):
        assert sends(op, MB, hosts) == {}
    assert sends("send 0->1", MB, ["a", "b"]) == {("a", "b"): MB}
    assert sends("all_to_all", 4 * MB, ["a", "a", "b", "b"]) == {("a", "b"): 4 * MB, ("b", "a"): 4 * MB}


def _operation(hosts: str, per_s: float, job: str = "run-a", **changes: object) -> Operation:
    made = Operation(
        job=job,
        group="dp",
        op="all_reduce",
        num_bytes=MB,
        hosts=tuple(hosts.split()),
        spans=(Span(100.0, 110.0, per_s),),
    )
    return msgspec.structs.replace(made, **changes)


def _counted(port: str, mbit: float, at: float, seconds: float = 1.0, **names: str) -> Counted:
    node, _, nic = port.partition(":")
    grown = {names.get("counter", "tx_bytes"): round(mbit * 1e6 / 8 * seconds)}
    return Counted(node=node, nic=nic, seconds=seconds, gap_s=1.0, at=at, grown=grown)


LAB = two_tiers(leaves=2, nics=2, spines=2, bps=100e6)
SECONDS = range(100, 110)


def _picture(*operations: Operation, counted: tuple[Counted, ...] = ()) -> Picture:
    return picture(Network(Graph(LAB)), operations, counted, SECONDS, is_tree=False)


def _link(shown: Picture, name: str) -> LinkTraffic:
    return next(each for each in shown.links if each.link == name)


def test_links_carry_what_their_rings_send_and_equal_ways_share_it() -> None:
    shown = _picture(_operation("n0 n1 n2 n3", 2.0), _operation("n0 n2", 3.0, "run-b"))
    first = _link(shown, "n0:nic0 > leaf0:d0")
    assert first.predicted_bps == pytest.approx(8 * MB * (2 * 1.5 + 3 * 1.0))
    assert [(each.job, round(each.bps)) for each in first.jobs] == [("run-a", 24 * MB), ("run-b", 24 * MB)]
    up = _link(shown, "leaf0:u1 > spine1:d0")
    assert up.predicted_bps == pytest.approx(first.predicted_bps / 2)
    assert (up.measured_bps, up.is_hot) == (None, False)
    assert _link(shown, "n1:nic0 > leaf0:d1").jobs[0].job == "run-a"


def test_a_hot_link_is_named_with_its_jobs_and_the_difference() -> None:
    """The switch took one way for both of its flows: a collision of hashes."""
    counted = [_counted("leaf0:u0", 78.0, at + 1.0) for at in SECONDS] + [
        _counted("leaf0:u1", 0.0, at + 1.0) for at in SECONDS
    ]
    shown = _picture(_operation("n0 n1 n2 n3", 3.0), _operation("n1 n2", 5.0, "run-b"), counted=tuple(counted))
    hot = shown.links[0]
    assert (hot.link, hot.is_hot, round(hot.peak or 0, 2)) == ("leaf0:u0 > spine0:d0", True, 0.78)
    assert hot.measured_bps == pytest.approx(78e6)
    assert hot.predicted_bps == pytest.approx((3 * 1.5 + 5.0) * 8e6 / 2)
    assert [each.job for each in hot.jobs] == ["run-b", "run-a"]
    assert _link(shown, "leaf0:u1 > spine1:d0").measured_bps == 0.0


def test_seconds_are_compared_one_by_one_and_unknown_ones_are_not_zero() -> None:
    burst = _operation("n0 n1", 0.0, spans=(Span(102.0, 104.0, 5.0), Span(104.0, 106.0, 0.0)))
    counted = (_counted("n0:nic0", 40.0, 103.5, 1.0), _counted("n0:nic0", 8.0, 105.5, 2.0))
    link = _link(_picture(burst, counted=counted), "n0:nic0 > leaf0:d0")
    told = {each.at: (each.predicted_bps, each.measured_bps) for each in link.seconds}
    assert told[101] == (None, None)
    assert told[102] == (40e6, None)  # half of it was counted: not enough
    assert told[103][1] == pytest.approx(40e6 * 0.5 + 8e6 * 0.5)
    assert told[105][0] == 0.0
    assert told[109] == (None, None)


def test_a_port_that_is_not_read_is_known_from_the_other_end() -> None:
    counted = (_counted("leaf0:d0", 30.0, 105.0, 5.0, counter="rx_bytes"),)
    assert _link(_picture(counted=counted), "n0:nic0 > leaf0:d0").measured_bps == pytest.approx(30e6)
    lost = msgspec.structs.replace(counted[0], grown={}, unknown=("rx_bytes",))
    assert _link(_picture(counted=(lost,)), "n0:nic0 > leaf0:d0").measured_bps is None


def test_a_rank_on_an_unknown_host_is_said() -> None:
    with pytest.raises(FabricError, match="unknown host: n9: a job's rank is there"):
        _picture(_operation("n0 n9", 1.0))


def test_every_byte_that_leaves_a_host_comes_to_one() -> None:
    shown = _picture(_operation("n0 n2 n1 n3", 1.0), _operation("n0 n3", 1.0, op="all_to_all"))
    out = sum(each.predicted_bps or 0 for each in shown.links if each.link.startswith("n"))
    into = sum(each.predicted_bps or 0 for each in shown.links if " > n" in each.link)
    assert out == pytest.approx(into)
    for switch in ("leaf0", "spine1"):
        comes = sum(each.predicted_bps or 0 for each in shown.links if f"> {switch}:" in each.link)
        goes = sum(each.predicted_bps or 0 for each in shown.links if each.link.startswith(f"{switch}:"))
        assert comes == pytest.approx(goes)


class _Opened(msgspec.Struct):
    run_dir: RunDir
    view: RunView


def _run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on two hosts that reduce 1 MB twice a second, told each ten seconds, one operation of ten unseen."""
    folding = Folding()
    for look in range(3):
        ops = [(0, seq, seq / 2, 0.1) for seq in range(20 * look, 20 * look + 20) if seq % 10 != 5]
        streams = [
            RankOps(rank=rank, kinds=(("0", "all_reduce", MB),), ops=tuple(ops), titles={"0": "default_pg"})
            for rank in (0, 1)
        ]
        folding.add(streams, at=10.0 * look + 10, world_size=2)
    traffic.collectives.save(folder, folding.table())
    generation = GenerationView(
        number=0, begun_at=0.0, seq=1, resume_step=None, why="", node_of=RankNodes({0: "n0", 1: "n2"})
    )
    view = RunView(run="run-a", everstep_version="", policy={}, generations=[generation])
    monkeypatch.setattr(traffic, "open_run", lambda _name, _dir: _Opened(RunDir(folder), view))


def test_the_verb_puts_a_run_beside_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(tmp_path, monkeypatch)
    lab, counters = tmp_path / "lab.json", tmp_path / "counted.jsonl"
    lab.write_bytes(msgspec.json.encode(LAB))
    lines = [_counted("n0:nic0", 16.0, float(at)) for at in range(15, 31)]
    counters.write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    argv = ["fabric", "traffic", str(lab), "--runs", "a", "--counters", str(counters), "--seconds", "20"]
    assert main(argv) == 0
    page = capsys.readouterr().out
    row = next(line for line in page.splitlines() if line.strip().startswith("n0:nic0 > leaf0"))
    assert "16 Mbit/s" in row
    assert "run-a default_pg" in row
    assert main([*argv, "--link", "n0 > leaf0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 23
    assert main([*argv, "--json"]) == 0
    told = {each["link"]: each for each in json.loads(capsys.readouterr().out)["links"]}
    link = told["n0:nic0 > leaf0:d0"]
    assert link["predicted_bps"] == pytest.approx(16e6, rel=0.08)
    assert link["measured_bps"] == pytest.approx(16e6)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "needs --runs, --counters or both"),
        (["--counters", "none"], "cannot be read"),
        (["--counters", "COUNTED", "--seconds", "0"], "--seconds must be"),
        (["--counters", "COUNTED", "--link", "n7 > x"], "unknown link: n7 > x"),
        (["--counters", "COUNTED", "--link", "x", "--json"], "--link is for the page"),
        (["--counters", "EMPTY"], "nothing is known of the traffic"),
    ],
)
def test_bad_questions(flags: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab, counted = tmp_path / "lab.json", tmp_path / "counted.jsonl"
    lab.write_bytes(msgspec.json.encode(LAB))
    counted.write_bytes(msgspec.json.encode(_counted("n0:nic0", 1.0, 50.0)) + b"\n")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    flags = [{"COUNTED": str(counted), "EMPTY": str(empty)}.get(flag, flag) for flag in flags]
    assert main(["fabric", "traffic", str(lab), *flags]) == 2
    assert told in capsys.readouterr().err
