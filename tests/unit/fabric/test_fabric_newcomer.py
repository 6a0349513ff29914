"""Wrong files, flags, counters and clocks: what happened, to what, and what to do. Each was a trace, a wrong object, a
figure that cannot be, or "no fault found" before."""

import itertools
from pathlib import Path

import msgspec
import pytest
from test_fabric_full import SENT, UPLINKS, congested
from test_fabric_locate import LINKS, NAMES

from everstep.cli.main import main
from everstep.fabric.locate.blame import blame
from everstep.fabric.locate.loads import Load, Rate

LAB = """
[[hosts]]
names = "n[0-1]"
nics = 1
[[switches]]
names = "leaf0"
[[cables]]
from = "n[0-1]"
nic = "nic0"
to = "leaf0"
speed = {speed}
"""
FLOW = '{"to": "127.0.0.1", "port": %d, "there": ["a", "b"], "back": ["b", "a"]}'


def _asked(tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: str, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    words = [str(tmp_path / word[1:]) if word.startswith("@") else word for word in argv.split()]
    code = main(["fabric", *words])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("blame @none", "everstep: file: "),
        ("watch @none --address 127.0.0.1", "everstep: flows: "),
        ("storms @none", "everstep: counters: "),
        ("deadlock @none", "everstep: routes: "),
        ("cover @none --out x", "everstep: candidates: "),
        ("watch --address 127.0.0.1 --windows -1", "--windows -1: must be 1 at least"),
        ("watch --address 127.0.0.1 --windows 0", "--windows 0: must be 1 at least"),
        ("counters --windows -1", "--windows -1: must be 1 at least"),
        ("watch @flow --address 127.0.0.1 --windows 1", "source port 28700 is the one at which this host answers"),
        ("watch --address 203.0.113.9 --windows 1", "No interface of this host has that address"),
        ("watch --address 0.0.0.0 --windows 1", "--address: 0.0.0.0 is not the address of one host"),
        ("watch --address 255.255.255.255 --windows 1", "255.255.255.255 is not the address of one host"),
        ("watch --address 224.0.0.1 --windows 1", "224.0.0.1 is not the address of one host"),
        ("blame @empty", "no path in it: nothing is known of the network"),
        ("blame @itself", "leaf0 follows itself"),
        ("show @slow.toml", "speed '400' is 400 bit/s: a unit is missing, as in 100G"),
        ("plan --chips 16 --speed 400", "--speed: speed '400' is 400 bit/s: a unit is missing"),
    ],
)
def test_an_error_names_what_it_is_about_and_what_to_do(
    argv: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    itself = '{"nodes": ["n0", "leaf0", "leaf0", "n1"], "sent": 100, "bad": 50}'
    files = {"flow": FLOW % 28700, "empty": "\n", "itself": itself, "slow.toml": LAB.format(speed=400)}
    code, text = _asked(tmp_path, capsys, argv, **files)
    assert code == 2
    assert told in text


@pytest.mark.parametrize("grown", [-500, 10**18], ids=["backwards", "wrapped"])
def test_what_no_cable_can_carry_is_not_known_and_named(
    grown: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"node": "n0", "nic": "nic0", "seconds": 1, "gap_s": 1, "at": 100, "grown": {"tx_bytes": grown}}
    files = {"lab.toml": LAB.format(speed='"100G"'), "counted": msgspec.json.encode(line).decode() + "\n"}
    code, text = _asked(tmp_path, capsys, "traffic @lab.toml --counters @counted --seconds 5", **files)
    page = " ".join(text.split())
    assert code == 0
    assert "0 hot of 4 links" in page
    assert "of 4 links nothing is known" in page
    assert f"n0:nic0: tx_bytes grew by {grown} in 1 s, which its cable cannot carry" in page


def test_a_host_whose_clock_was_set_blames_no_cable_for_what_a_queue_loses() -> None:
    """Its windows lie beside none of the counters': when the links were full is not known then, and not that they were
    not. Before, half of such hosts' losses were a cable's fault."""
    rates = (Rate(bps=19.6e6, at=1000.0, seconds=10.0),)
    idle = (Rate(bps=9e6, at=1000.0, seconds=10.0),)
    for seed in range(4):
        seen = [
            msgspec.structs.replace(
                each, at=4600.0 if "n5" in (each.nodes[0], each.nodes[-1]) else 1000.0, seconds=10.0
            )
            for each in congested(UPLINKS, seed)
        ]
        loads = {link: Load(rates=rates if link in UPLINKS else idle, capacity_bps=20e6, errors=0) for link in LINKS}
        verdict = blame(seen, NAMES, loads, LINKS)
        assert (verdict.faults, verdict.slow) == ((), ()), seed
        lossy = ("n9", "leaf2")
        broken = [
            msgspec.structs.replace(each, bad=SENT, late=0) if lossy in itertools.pairwise(each.nodes) else each
            for each in seen
        ]
        named = blame(broken, NAMES, loads, LINKS).faults
        assert [fault.suspects[0].name for fault in named] == ["n9 > leaf2"]


@pytest.mark.parametrize("verb", [["storms"], ["deadlock"], ["cover", "--out", "flows"], ["blame"]])
@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_of_nothing_is_not_healthy(
    verb: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that wrote nothing looked like a network without storms."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given").write_text(text)
    assert main(["fabric", verb[0], "given", *verb[1:]]) == 2
    assert "no " in capsys.readouterr().err
    assert not (tmp_path / "flows").exists()
