"""The table of collectives as people and as programs read it."""

import json
from pathlib import Path

import pytest

from everstep.analyzer.collective.figures import Table
from everstep.analyzer.collective.folding import Folding
from everstep.cli.main import main
from everstep.journal.beside import collectives
from everstep.model.collective import RankOps
from everstep.report.now.collectives import render


def table() -> Table:
    """An operation that is timed, one that is not, and a rank that tells nothing."""
    folding = Folding()
    kinds = (("0", "all_reduce", 1 << 20), ("0", "broadcast", 1 << 20))
    for look in range(3):
        streams = [
            RankOps(
                rank=rank,
                kinds=kinds,
                ops=((0, 2 * look, look + 0.25 * rank, 0.5), (1, 2 * look + 1, look + 0.5, -1.0)),
                titles={"0": "default_pg"},
            )
            for rank in (0, 1)
        ]
        missing = RankOps(rank=2, missing="its watch thread sees no process groups")
        folding.add([*streams, missing], at=float(look), world_size=2)
    return folding.table()


def test_text_says_what_is_measured_and_why_the_rest_is_unknown() -> None:
    text = render(table(), 5.0)
    reduced = next(line for line in text.splitlines() if "all_reduce" in line)
    assert " ".join(reduced.split()) == (
        "all_reduce 1.00 MiB 3 0.50s 2.00 MiB/s 2.00 MiB/s 2.00 MiB/s 100% 0.25s 1 (100%) of 3 waits"
    )
    sent = next(line for line in text.splitlines() if "broadcast" in line)
    assert sent.count("unknown") == 4
    assert "no rank is waited for" in sent
    assert "unknown: the call returned before the operation was done" in text
    assert "nothing known of rank 2: its watch thread sees no process groups" in text


def test_the_verb_prints_what_the_controller_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal.jsonl").touch()
    assert main(["collectives", str(tmp_path)]) != 0
    assert "agents report every ten seconds" in capsys.readouterr().err
    collectives.save(tmp_path, table())
    assert main(["collectives", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first, second = told["groups"][0]["rows"]
    assert first["time_s"] == {"is": "measured", "value": 0.5}
    assert second["time_s"]["is"] == "unknown"
    assert second["time_s"]["value"] is None
    assert told["late"][-1] == {"group": 0, "op": "all_reduce", "seq": 4, "rank": 1, "skew_s": 0.25, "at": 2.25}
    assert main(["collectives", str(tmp_path), "--live"]) == 0  # nobody has this run: shown once
    assert "default_pg" in capsys.readouterr().out


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 9}', b'{"groups": [{"rows": 1}]}'])
def test_a_damaged_table_is_told(tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal.jsonl").touch()
    (tmp_path / collectives.NAME).write_bytes(data)
    assert main(["collectives", str(tmp_path)]) != 0
    assert str(tmp_path) in capsys.readouterr().err
