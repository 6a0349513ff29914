"""Signatures over the logs of a folder: what they cost does not grow with the names that the folder makes up."""

from everstep.evidence.folder import read_folder
from everstep.knowledge import live, matcher


def test_made_up_generations_do_not_compile_the_signatures_again(tmp_path, monkeypatch):
    compiled = []

    def engine(signatures):
        compiled.append(1)
        return real(signatures)

    real = live.Engine
    monkeypatch.setattr(live, "Engine", engine)
    monkeypatch.setattr(matcher, "Engine", engine)
    live._compiled.cache_clear()
    for number in range(20):
        (tmp_path / f"gen-{number}").mkdir()
        (tmp_path / f"gen-{number}" / "rank-0.log").write_text("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off\n")
    read_folder(tmp_path, 1.8e9)
    assert len(compiled) == 1
