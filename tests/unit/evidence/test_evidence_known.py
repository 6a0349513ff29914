"""Signatures over the logs of a folder: what they cost does not grow with the names that the folder makes up."""

import pytest

from everstep.analyzer.overall import overall
from everstep.evidence.folder import read_folder
from everstep.knowledge import live, matcher
from everstep.knowledge.kept import Kept
from everstep.model.verdict import Blame, Confidence, Verdict


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


def verdict_of(folder, text: str) -> Verdict:
    (folder / "job.log").write_text(text)
    read = read_folder(folder, 1.8e9)
    return overall(read.case, read.points, read.known).verdict


AGENT = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
fit.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:00:06
  host      : n1
  rank      : 6 (local_rank: 2)
  exitcode  : -9 (pid: 88123)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 88123
============================================================
"""  # noqa: W291
OLD_AGENT = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 2 (pid: 88) of binary: /e/python\n"  # noqa: E501
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [10.3.0.7]:4120: Connection reset by peer\n"  # noqa: E501
WATCHDOG = "[rank9]:[E603 17:48:01.005 ProcessGroupNCCL.cpp:632] [Rank 9] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600068 milliseconds before timing out.\n"  # noqa: E501
RETRIED = "request to the tracker failed: Connection refused, retrying (attempt 1/5)\n"
QUOTED = "[2026-11-21 10:00:01] INFO sample 4: he said that the connection was closed by peer [10.3.0.7]:41\n"
STORE_GONE = '[rank1]:[W1229 22:06:38.480 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n'  # noqa: E501


@pytest.mark.parametrize(
    ("text", "code", "ranks"),
    [
        (AGENT, "ES-TD12", (6,)),
        (OLD_AGENT, "ES-TD11", None),
        (GLOO, "ES-GL02", ()),
        (WATCHDOG, "ES-TD01", ()),
        ("exits with return code = -9\n", "ES-PY19", ()),
    ],
    ids=["agent", "older agent", "gloo", "one watchdog", "deepspeed"],
)
def test_logs_that_hold_only_consequences_say_which_and_whose_end_it_was(tmp_path, text, code, ranks):
    """Only a rank's own end names it: who lost a peer, or waited for one, is no suspect."""
    found = verdict_of(tmp_path, text)
    assert (found.code, found.blame, found.confidence) == (code, Blame.UNKNOWN, Confidence.LOW)
    assert ranks is None or found.ranks == ranks
    assert "what brought it about is not in these logs" in found.sentence


UNKNOWN_WORDS = """\
Traceback (most recent call last):
  File "/job/fit.py", line 41, in <module>
    run()
  File "/opt/env/lib/python3.12/site-packages/quux/core.py", line 7, in spin
    raise WobbleError("the gimbal is at odds with the frobnicator")
quux.core.WobbleError: the gimbal is at odds with the frobnicator
"""


@pytest.mark.parametrize("text", [UNKNOWN_WORDS, UNKNOWN_WORDS + OLD_AGENT], ids=["alone", "and its launcher"])
def test_an_exception_in_words_that_nobody_knows_is_told_with_low_confidence(tmp_path, text):
    """What a launcher says of the same end says less."""
    found = verdict_of(tmp_path, text)
    assert (found.code, found.confidence) == ("ES-UN07", Confidence.LOW)
    assert "gimbal" in found.sentence
    assert "no signature knows these words" in found.sentence


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("lost the heartbeat of rank 3", "ES-FB31"),
        ("ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.", "ES-RY01"),
        ("ChildProcessError: a child has ended", "ES-FB12"),
    ],
)
def test_a_rank_that_speaks_of_the_end_of_another_process_is_not_named_for_it(tmp_path, line, code):
    found = verdict_of(tmp_path, f"[rank0]: {line}\n")
    assert (found.code, found.ranks) == (code, ())


STEPS = "".join(f"step {number} loss 2.{number} lr 0.001\n" for number in range(40))


@pytest.mark.parametrize(
    "text",
    [
        GLOO + STEPS,
        UNKNOWN_WORDS + STEPS,
        UNKNOWN_WORDS + "evaluating a shard of the set\n" * 9,
        STORE_GONE,
        RETRIED,
        QUOTED,
        "INFO nothing to see\n" * 150,
        "MeanSquaredError: 0.1234\n",
        "WARNING:root:WobbleError: at odds, using the default\n",
    ],
    ids=str,
)
def test_what_a_job_got_over_or_was_only_warned_of_is_no_end(tmp_path, text):
    assert verdict_of(tmp_path, text).code in ("ES-H15", "ES-H00", "ES-S00")


def test_a_consequence_far_above_the_end_of_a_log_is_not_said(tmp_path):
    assert verdict_of(tmp_path, GLOO + "evaluating a shard of the set\n" * 150).code == "ES-H15"


@pytest.mark.parametrize(("also", "code"), [(GLOO, "ES-GL02"), (WATCHDOG, "ES-TD01")], ids=["gloo", "watchdog"])
def test_a_consequence_that_tells_of_others_stands_before_an_exception_of_unknown_words(tmp_path, also, code):
    assert verdict_of(tmp_path, UNKNOWN_WORDS + also).code == code


def test_numbers_that_went_wrong_are_told_before_the_end_that_followed(tmp_path):
    jump = "".join(f"step {n} loss {2.5 if n < 30 else 9000.0} grad_norm 1.0\n" for n in range(40))
    assert verdict_of(tmp_path, jump + OLD_AGENT).code.startswith("ES-N0")


def test_a_mismatch_that_one_rank_reports_is_of_both_and_accuses_none_alone(tmp_path):
    form = "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[{}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt)))"  # noqa: E501
    text = f"[rank3]: RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: {form.format(64)}, but Rank 5 is running collective: {form.format(48)}.Collectives differ in the following aspects: \t Tensor Tensor shapes: 64vs 48\n"  # noqa: E501
    found = verdict_of(tmp_path, text)
    assert (found.code, found.ranks, found.blame) == ("ES-H04", (3, 5), Blame.USER)
