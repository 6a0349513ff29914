"""Signatures over the logs of a folder: what they cost does not grow with the names that the folder makes up."""

from everstep.analyzer.overall import overall
from everstep.evidence.folder import read_folder
from everstep.knowledge import live, matcher
from everstep.knowledge.kept import Kept


def test_made_up_generations_do_not_compile_the_signatures_again(tmp_path, monkeypatch):
    compiled = []

    def engine(signatures):
        compiled.append(1)
        return real(signatures)

    real = live.Engine
    monkeypatch.setattr(live, "Engine", engine)
    monkeypatch.setattr(matcher, "Engine", engine)
    monkeypatch.setattr(live, "_built_in", Kept(live._compile))
    for number in range(20):
        (tmp_path / f"gen-{number}").mkdir()
        (tmp_path / f"gen-{number}" / "rank-0.log").write_text("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off\n")
    read_folder(tmp_path, 1.8e9)
    assert len(compiled) == 1


def test_what_only_tore_a_finished_program_down_is_told_and_blames_nobody(tmp_path):
    limit = "slurmstepd: error: *** STEP 88.0 ON n7 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
    steps = "".join(f"step {n} loss 2.{n}\n" for n in range(20))
    verdicts = []
    for name, text in (("over.log", f"{steps}Training complete\n{limit}"), ("cut.log", steps + limit)):
        folder = tmp_path / name[:-4]
        folder.mkdir()
        (folder / name).write_text(text)
        read = read_folder(folder, 1.8e9)
        verdicts.append(overall(read.case, {}, read.known).verdict)
    assert (verdicts[0].code, verdicts[1].code) == ("ES-H00", "ES-SC03")
    assert "over.log:21 says so" in verdicts[0].sentence
    assert "ES-SC03" in verdicts[0].sentence
