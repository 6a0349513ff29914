"""`everstep fabric check`: each kind of fault is found once and named; a healthy network has none."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from everstep.cli.main import main
from everstep.fabric.topology.check import check_topology, compare
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import Cable, FabricError, Host, Port, Switch, Topology

RAILS, GROUP, GROUPS, SPINES = 2, 4, 2, 2


def healthy() -> Topology:
    """Two groups of four hosts, two rails, a leaf per group and rail, two spines, 1:1."""
    hosts, cables = [], []
    common = {"mtu": 9000, "duplex": "full", "lossless": (3,), "ecn": (3,)}
    for number in range(GROUP * GROUPS):
        nics = tuple(Port(node=f"n{number}", name=f"nic{rail}", rail=rail) for rail in range(RAILS))
        hosts.append(Host(name=f"n{number}", nics=nics))
        for rail in range(RAILS):
            leaf = f"leaf{number // GROUP}-{rail}"
            cables.append(Cable(one=Port(node=f"n{number}", name=f"nic{rail}", rail=rail, bps=100e9, **common),
                                other=Port(node=leaf, name=f"down{number % GROUP}", bps=100e9, **common)))  # fmt: skip
    leaves = [f"leaf{group}-{rail}" for group in range(GROUPS) for rail in range(RAILS)]
    for leaf in leaves:
        for spine in range(SPINES):
            cables.append(Cable(one=Port(node=leaf, name=f"up{spine}", bps=200e9, **common),
                                other=Port(node=f"spine{spine}", name=leaf, bps=200e9, **common)))  # fmt: skip
    switches = [Switch(name=name) for name in [*leaves, *(f"spine{number}" for number in range(SPINES))]]
    return Topology(source="lab", hosts=tuple(hosts), switches=tuple(switches), cables=tuple(cables))


def with_end(topology: Topology, number: int, *, both: bool = False, **settings: object) -> Topology:
    cables = list(topology.cables)
    cable = cables[number]
    other = replace(cable.other, **settings) if both else cable.other
    cables[number] = replace(cable, one=replace(cable.one, **settings), other=other)
    return replace(topology, cables=tuple(cables))


def test_a_healthy_network_has_no_finding() -> None:
    checked = check_topology(healthy())
    assert checked.findings == ()
    assert checked.unknown == {}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("speed", {"bps": 50e9}),
        ("mtu", {"mtu": 1500}),
        ("duplex", {"duplex": "half"}),
        ("pfc", {"lossless": (4,)}),
        ("ecn", {"ecn": ()}),
    ],
)
@pytest.mark.parametrize("both", [False, True])
def test_settings_that_differ(kind: str, settings: dict[str, object], both: bool) -> None:
    broken = with_end(healthy(), 3, both=both, **settings)
    found = [each for each in check_topology(broken).findings if each.kind == kind]
    assert {each.object for each in found} == {healthy().cables[3].label}


def test_unknown_is_not_wrong_and_not_checked() -> None:
    unknown = healthy()
    for number in range(len(unknown.cables)):
        unknown = with_end(unknown, number, both=True, mtu=None)
    checked = check_topology(unknown)
    assert checked.findings == ()
    assert checked.unknown == {"mtu": len(unknown.cables)}


def test_two_cables_swapped_between_rails() -> None:
    base = healthy()
    cables = list(base.cables)
    cables[0], cables[1] = replace(cables[0], other=cables[1].other), replace(cables[1], other=cables[0].other)
    swapped = replace(base, cables=tuple(cables))
    assert {each.object for each in check_topology(swapped).findings if each.kind == "rail"} == {
        cables[0].label, cables[1].label}  # fmt: skip
    wrong = compare(swapped, base)
    assert len(wrong) == 2
    assert all("instead" in each.text for each in wrong)


def test_a_missing_uplink_is_uneven_and_oversubscribed() -> None:
    base = healthy()
    cut = replace(base, cables=base.cables[:-1])
    kinds = {each.kind: each.object for each in check_topology(cut).findings}
    assert kinds["cabling"] == "leaf1-1"
    assert kinds["oversubscription"] == "leaf1-1"
    assert check_topology(cut, oversubscription=2.0).findings[-1].kind == "cabling"
    assert [each.text for each in compare(cut, base)] == ["in the blueprint, not found"]
    assert [each.text for each in compare(base, cut)] == ["not in the blueprint"]


def test_a_cable_that_is_down() -> None:
    down = with_end(healthy(), -1, is_up=False)
    assert "down" in {each.kind for each in check_topology(down).findings}


def test_hosts_without_a_path_are_named() -> None:
    base = healthy()
    alone = replace(base, cables=tuple(each for each in base.cables if "n5" not in (each.one.node, each.other.node)))
    (found,) = [each for each in check_topology(alone).findings if each.kind == "disconnected"]
    assert found.object == "n5"
    with pytest.raises(FabricError, match="no path from n0 to n5"):
        Graph(alone).require_connected()


def test_the_order_of_a_file_does_not_matter() -> None:
    base = with_end(healthy(), 5, mtu=1500)
    expected = sorted((each.kind, each.object) for each in check_topology(base).findings)
    for seed in range(5):
        cables = list(base.cables)
        random.Random(seed).shuffle(cables)
        shuffled = check_topology(replace(base, cables=tuple(cables))).findings
        assert sorted((each.kind, each.object) for each in shuffled) == expected


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import msgspec

    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(msgspec.json.encode(healthy()))
    bad.write_bytes(msgspec.json.encode(with_end(healthy(), 3, mtu=1500)))
    assert main(["fabric", "check", str(good)]) == 0
    assert "nothing wrong found" in capsys.readouterr().out
    assert main(["fabric", "check", str(bad)]) == 1
    assert "n1:nic1 has 1500, leaf0-1:down1 has 9000" in capsys.readouterr().out
    assert main(["fabric", "check", str(good), "--against", str(bad), "--json"]) == 0
    assert '"findings"' in capsys.readouterr().out
    assert main(["fabric", "show", str(good)]) == 0
    assert "joined by tier 1" in capsys.readouterr().out
    assert main(["fabric", "check", str(good), "--oversubscription", "x"]) == 2
    assert main(["fabric", "show", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    bare = tmp_path / "bare.json"
    bare.write_bytes(msgspec.json.encode(replace(healthy(), hosts=healthy().hosts[:1], cables=(), switches=())))
    main(["fabric", "check", str(bare)])
    shown = capsys.readouterr().out
    assert "nothing wrong" not in shown, "without a cable nothing was compared"
    assert "no cable is known" in shown
