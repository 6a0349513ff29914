"""What nodes and ranks said before later steps explains no end of a rank; a peer's end is told from a service's."""

import pytest

from everstep.analyzer.exits import FaultFacts, judge
from everstep.analyzer.numbers.alerts import SeenAlert
from everstep.knowledge.ending import end_of_rank
from everstep.model.facts import Alert, ErrorReport, Exit
from everstep.model.verdict import Blame, Verdict

XID = Alert(
    at=50.0, code="ES-G79", sentence="GPU fell off the bus", component="gpu", blame="machine", severity="fault",
    action="REPLACE_NODE", role="root", source="kernel log", line="NVRM: Xid 79",
)  # fmt: skip
ENDS = [Exit(rank=1, at=100.0, code=3), Exit(rank=1, at=100.0, signal=11), Exit(rank=1, at=100.0, signal=9)]


def judged(end: Exit, outlived_at: float | None) -> Verdict:
    seen = (SeenAlert(node="n0", alert=XID),)
    return judge(FaultFacts(at=100.0, exits=(end,), nodes={0: "n0", 1: "n0"}, alerts=seen, outlived_at=outlived_at))


@pytest.mark.parametrize("end", ENDS)
def test_steps_between_a_line_of_the_kernel_and_an_end_break_their_link(end: Exit) -> None:
    assert judged(end, None).code == "ES-G79"
    assert judged(end, 40.0).code == "ES-G79"
    assert judged(end, 90.0).code != "ES-G79"


WEB = '  File "/usr/lib/python3.11/urllib/request.py", line 216, in urlopen\n    return opener.open(url)\n'
OWN = '  File "/job/train.py", line 21, in fetch\n    read()\n'


def raised(kind: str, message: str, frames: str) -> ErrorReport:
    text = f"Traceback (most recent call last):\n{frames}{kind}: {message}\n"
    return ErrorReport(kind=kind, message=message, traceback=text, at=100.0, place="train.py:21")


@pytest.mark.parametrize(
    ("error", "party"),
    [
        (raised("TimeoutError", "timed out", OWN), "network"),
        (raised("TimeoutError", "The read operation timed out", OWN + WEB), "network"),
        (raised("ConnectionResetError", "[Errno 104] Connection reset by peer", OWN + WEB), "network"),
        (raised("ConnectionResetError", "[Errno 104] Connection reset by peer", OWN), "network"),
        (raised("ConnectionResetError", "[Errno 104] Connection reset by peer", WEB + OWN), "network"),
        (raised("ConnectionResetError", "rank 0 is gone: Connection reset by peer", OWN), "unknown"),
        (raised("RuntimeError", "Connection reset by peer", OWN), "unknown"),
        (raised("KeyError", "'timed out'", OWN + WEB), "user"),
        (raised("OSError", "[Errno 27] File too large: '/x'", OWN), "environment"),
        (raised("OSError", "[Errno 23] Too many open files in system: '/x'", OWN), "environment"),
        (raised("OSError", "[Errno 28] inotify watch limit reached", OWN), "environment"),
        (raised("OSError", "[Errno 19] No such device: '/data/shard-0'", OWN), "storage"),
        (raised("OSError", "[Errno 117] Structure needs cleaning: '/data/shard-0'", OWN), "machine"),
    ],
)
def test_the_frames_below_the_program_tell_a_service_from_a_peer(error: ErrorReport, party: str) -> None:
    finding = end_of_rank("", error, rank=1, at=100.0)
    verdict = judge(FaultFacts(at=100.0, exits=(Exit(rank=1, at=100.0, code=1, error=error, finding=finding),)))
    assert verdict.blame == party
    assert not verdict.action.endswith("NODE")


def test_a_service_that_is_lost_yields_to_a_rank_that_was_killed() -> None:
    error = raised("ConnectionResetError", "[Errno 104] Connection reset by peer", OWN + WEB)
    lost = Exit(rank=1, at=99.0, code=1, error=error, finding=end_of_rank("", error, rank=1, at=99.0))
    verdict = judge(FaultFacts(at=99.0, exits=(lost, Exit(rank=0, at=100.0, signal=9))))
    assert (verdict.ranks, verdict.blame) == ((0,), Blame.OPERATOR)


def test_a_line_of_the_kernels_in_a_ranks_output_is_what_the_program_printed() -> None:
    printed = "[12345.6] mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400\nstep 1\n"
    error = raised("OSError", "[Errno 28] No space left on device: '/data/x'", OWN)
    finding = end_of_rank(printed + error.traceback, error, rank=1, at=100.0)
    assert finding is not None
    assert finding.code == "ES-FS01"


@pytest.mark.parametrize(
    ("end", "party"),
    [
        (Exit(rank=1, at=100.0, signal=24), "environment"),
        (Exit(rank=1, at=100.0, signal=25), "environment"),
        (Exit(rank=1, at=100.0, signal=11), "user"),
        (Exit(rank=1, at=100.0, signal=7), "unknown"),
        (Exit(rank=1, at=100.0, code=9), "user"),
        (Exit(rank=1, at=100.0, code=137), "unknown"),
    ],
)
def test_whose_doing_a_silent_end_is(end: Exit, party: str) -> None:
    verdict = judge(FaultFacts(at=100.0, exits=(end,)))
    assert verdict.blame == party
    assert party != "user" or verdict.confidence == "low"
