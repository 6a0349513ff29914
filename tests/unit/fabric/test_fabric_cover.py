"""`everstep fabric cover`: each link is crossed often enough, by flows that `watch` can send; or it is named."""

import itertools
import json
from pathlib import Path

import pytest

from everstep.cli.fabric.links.flows import read_flows
from everstep.cli.main import main

HOSTS = [f"n{number}" for number in range(8)]
ADDRESS = {host: f"10.0.0.{number + 1}" for number, host in enumerate(HOSTS)}


def path(one: str, other: str, port: int) -> list[str]:
    leaves = [f"leaf{HOSTS.index(host) // 4}" for host in (one, other)]
    if leaves[0] == leaves[1]:
        return [one, leaves[0], other]
    return [one, leaves[0], f"spine{(HOSTS.index(one) + HOSTS.index(other) + port) % 2}", leaves[1], other]


def candidates(file: Path, ports: int = 4) -> list[dict[str, object]]:
    flows = [
        {"to": ADDRESS[b], "port": 40_000 + n, "there": path(a, b, n), "back": path(b, a, n)}
        for a, b in itertools.permutations(HOSTS, 2)
        for n in range(ports)
    ]
    file.write_text("".join(json.dumps(flow) + "\n" for flow in flows))
    return flows


def test_every_link_is_crossed_and_the_files_are_those_of_watch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "candidates.jsonl", tmp_path / "flows"
    flows = candidates(file)
    assert main(["fabric", "cover", str(file), "--out", str(out), "--least", "5"]) == 0
    assert "24 of 24 are crossed by 5 flows at least" in capsys.readouterr().out
    chosen = []
    for host in HOSTS:
        own = read_flows((out / f"{host}.jsonl").read_bytes(), host, 12)
        assert {flow.there[0] for flow in own} == {host}
        chosen += own
    assert len(chosen) < len(flows) / 3
    links = {link for flow in flows for link in itertools.pairwise(flow["there"])}  # type: ignore[arg-type]
    for link in links:
        crossing = [flow for flow in chosen if link in itertools.pairwise(flow.there)]
        assert len(crossing) >= 5
        assert len({flow.there[0] for flow in crossing}) >= 2 or link[0] in HOSTS


def test_a_link_that_nothing_reaches_often_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "candidates.jsonl"
    flows = [flow for flow in candidates(file) if "spine1" not in flow["there"]]  # type: ignore[operator]
    rare = {"to": ADDRESS["n7"], "port": 41_000, "there": ["n0", "leaf0", "spine1", "leaf1", "n7"]}
    flows.append({**rare, "back": path("n7", "n0", 0)})
    file.write_text("".join(json.dumps(flow) + "\n" for flow in flows))
    assert main(["fabric", "cover", str(file), "--out", str(tmp_path / "out")]) == 1
    page = capsys.readouterr().out
    assert "leaf0 > spine1" in page
    assert "spine1 > leaf1" in page
    assert main(["fabric", "cover", str(file), "--out", str(tmp_path / "out"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["thin"] == [["leaf0", "spine1"], ["spine1", "leaf1"]]


@pytest.mark.parametrize("change", [{"there": ["../n0", "leaf0", "n1"], "back": ["n1", "leaf0", "../n0"]}, {"port": 0}])
def test_what_cannot_be_written_is_one_line(
    change: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "candidates.jsonl"
    flow = {"to": "10.0.0.1", "port": 1, "there": ["n0", "leaf0", "n1"], "back": ["n1", "leaf0", "n0"], **change}
    file.write_text(json.dumps(flow))
    assert main(["fabric", "cover", str(file), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert main(["fabric", "cover", str(file), "--out", str(tmp_path / "out"), "--least", "0"]) == 2
