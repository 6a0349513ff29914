"""Which end was the cause: the rules of analyzer.exits, one by one."""

import time

import msgspec
import pytest

from everstep.analyzer.exits import FaultFacts, LostNode, Overdue, judge
from everstep.analyzer.numbers.alerts import SeenAlert
from everstep.analyzer.rank_exit import describe, looks_like_consequence
from everstep.knowledge.ending import end_of_rank
from everstep.knowledge.loading import load_base
from everstep.model.components import NODE_ACTIONS
from everstep.model.facts import Alert, ErrorReport, Exit, OomEvidence
from everstep.model.verdict import Blame, Confidence

NODES = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}


def facts(*exits: Exit, **more: object) -> FaultFacts:
    return FaultFacts(at=100.0, exits=exits, nodes=NODES, **more)


def raised(rank: int, at: float, kind: str = "KeyError", message: str = "'labels'", place: str = "train.py:7") -> Exit:
    return Exit(rank=rank, at=at + 0.5, code=1, error=ErrorReport(kind=kind, message=message, place=place, at=at))


def peer_gone(rank: int, at: float) -> Exit:
    return raised(rank, at, "RuntimeError", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer", "train.py:9")


def test_a_rank_that_raised_first_is_the_cause_even_if_it_ends_last() -> None:
    culprit = Exit(rank=2, at=110.0, code=1, error=ErrorReport(kind="KeyError", message="x", place="t.py:1", at=100.0))
    verdict = judge(facts(peer_gone(0, 100.2), peer_gone(1, 100.3), culprit))
    assert verdict.code == "ES-U01"
    assert verdict.ranks == (2,)
    assert verdict.at == 100.0
    assert verdict.blame is Blame.USER
    assert verdict.evidence[0].rank == 2


def test_a_killed_rank_is_the_cause_of_broken_connections_that_were_seen_before() -> None:
    verdict = judge(facts(peer_gone(0, 99.0), Exit(rank=3, at=100.0, signal=9)))
    assert (verdict.code, verdict.ranks, verdict.node, verdict.blame) == ("ES-P09", (3,), "n1", "operator")


def test_ranks_that_were_killed_together_are_all_named_and_no_machine_of_several() -> None:
    """Which of them the first report is about is chance, and no rank's death makes another one be killed."""
    killed = [Exit(rank=rank, at=100.0 + rank / 1000, signal=9) for rank in (0, 3)]
    for order in (killed, killed[::-1]):
        verdict = judge(facts(*order, peer_gone(1, 100.2)))
        assert (verdict.code, verdict.ranks, verdict.node, verdict.blame) == ("ES-P09", (0, 3), None, "operator")
        assert verdict.sentence.startswith("2 ranks (first: rank 0 on n0) were killed by SIGKILL; no sign of")
    on_one = judge(facts(*(Exit(rank=rank, at=100.0, signal=15) for rank in (2, 3))))
    assert (on_one.code, on_one.ranks, on_one.node) == ("ES-P02", (2, 3), "n1")


def test_a_crash_is_of_its_own_rank_and_the_memory_that_ran_out_of_its_own_process() -> None:
    assert judge(facts(*(Exit(rank=rank, at=100.0 + rank, signal=11) for rank in (0, 3)))).ranks == (0,)
    oom = OomEvidence(source="kernel log", line="Out of memory: Killed process 7 (python)")
    assert judge(facts(Exit(rank=3, at=100.0, signal=9, oom=oom), Exit(rank=0, at=100.1, signal=9))).ranks == (3,)


def test_memory_evidence_tells_the_oom_killer_from_a_plain_sigkill() -> None:
    oom = OomEvidence(source="kernel log", line="Out of memory: Killed process 7 (python)")
    verdict = judge(facts(Exit(rank=1, at=100.0, signal=9, oom=oom)))
    assert verdict.code == "ES-P03"
    assert "kernel log" in verdict.sentence
    assert verdict.evidence[0].detail == "Out of memory: Killed process 7 (python)"


def test_ends_that_we_caused_are_never_the_cause() -> None:
    ours = Exit(rank=0, at=90.0, signal=15, stopped_by_us=True)
    assert judge(facts(ours, Exit(rank=1, at=100.0, code=3))).ranks == (1,)


def test_only_consequences_make_a_verdict_of_low_confidence() -> None:
    verdict = judge(facts(peer_gone(1, 100.0), peer_gone(0, 100.1)))
    assert verdict.code == "ES-P07"
    assert verdict.confidence is Confidence.LOW
    assert verdict.ranks == (1, 0)


def test_the_same_place_on_all_ranks_is_certainly_the_users_code() -> None:
    verdict = judge(facts(*(raised(rank, 100.0 + rank) for rank in range(4))))
    assert verdict.confidence is Confidence.HIGH
    assert verdict.sentence.startswith("4 ranks (first: rank 0 on n0) raised KeyError at train.py:7: 'labels'")
    assert (verdict.blame, verdict.node) == (Blame.USER, None)


def test_what_ranks_of_several_machines_raised_is_of_none_of_these_machines() -> None:
    """Which of them raised it first is chance."""
    for order in ((0, 3), (3, 0)):
        verdict = judge(facts(*(raised(rank, 100.0 + at) for at, rank in enumerate(order))))
        assert (verdict.code, verdict.ranks, verdict.node) == ("ES-U01", order, None)
    on_one = judge(facts(raised(2, 100.0), raised(3, 100.1), raised(0, 100.2, "ValueError", place="eval.py:1")))
    assert (on_one.ranks, on_one.node) == ((2, 3), "n1")
    assert on_one.sentence.startswith("2 ranks (first: rank 2) on n1 raised KeyError")


def test_nodes_that_are_lost_together_are_all_named() -> None:
    """Which of them was missed first is chance; without a rack in common too."""
    n1 = LostNode(node="n1", at=100.0, reason="killed by SIGKILL", ranks=(2, 3), rack="a")
    n0 = LostNode(node="n0", at=100.2, reason="nothing was heard of it", ranks=(0, 1), rack="b")
    verdict = judge(facts(lost=(n0, n1)))
    told = "2 agents are lost (n0, n1; the first: killed by SIGKILL), and ranks 0, 1, 2, 3 with them"
    assert verdict.sentence == told
    assert verdict.ranks == (0, 1, 2, 3)


def test_a_lost_node_explains_everything_else() -> None:
    lost = LostNode(node="n1", at=100.0, reason="killed by SIGKILL", ranks=(2, 3))
    verdict = judge(facts(peer_gone(0, 99.9), lost=(lost,)))
    assert (verdict.code, verdict.ranks, verdict.blame) == ("ES-P06", (2, 3), Blame.MACHINE)


def test_an_overdue_rank_is_named_and_a_real_end_outweighs_it() -> None:
    overdue = Overdue(code="ES-P05", at=100.0, ranks=(3,), says="rank 3 never called it")
    assert judge(facts(overdue=(overdue,))).ranks == (3,)
    assert judge(facts(Exit(rank=1, at=99.0, signal=11), overdue=(overdue,))).code == "ES-P02"


def test_nothing_known_is_said_to_be_unknown() -> None:
    verdict = judge(facts())
    assert verdict.blame is Blame.UNKNOWN
    assert "for an unknown reason" in verdict.sentence


@pytest.mark.parametrize(
    ("exit_", "expected"),
    [
        (peer_gone(0, 1.0), True),
        (raised(0, 1.0), False),
        (Exit(rank=0, at=1.0, signal=9), False),
        (Exit(rank=0, at=1.0, signal=11, last_output="Connection reset by peer"), False),
        (Exit(rank=0, at=1.0, signal=6, last_output="Watchdog caught collective operation timeout"), True),
        (Exit(rank=0, at=1.0, code=1, last_output="RuntimeError: Connection closed by peer"), True),
        (Exit(rank=0, at=1.0, code=1, last_output="MyError: bad number"), False),
        (
            Exit(rank=0, at=1.0, signal=6, last_output="GET: Connection refused, retrying (attempt 1/5)"),
            False,
        ),
        (
            Exit(rank=0, at=1.0, signal=6, last_output="[W socket.cpp] [c10d] client socket failed to connect"),
            False,
        ),
        (Exit(rank=0, at=1.0, code=1, last_output="urlopen: Connection refused by stats.local"), False),
    ],
)
def test_consequence(exit_: Exit, expected: bool) -> None:
    assert looks_like_consequence(exit_) is expected


def test_describe_names_signals_and_survives_unknown_ones() -> None:
    assert describe(Exit(rank=0, at=0.0, signal=11)) == "was killed by SIGSEGV"
    assert describe(Exit(rank=0, at=0.0, signal=99)) == "was killed by signal 99"
    assert describe(Exit(rank=0, at=0.0)) == "ended, it is not known how"


@pytest.mark.parametrize(
    ("number", "title"), [(11, "Segmentation fault"), (6, "Aborted"), (8, "Floating-point exception")]
)
def test_a_crash_whose_stack_is_in_its_log_is_the_programs(number: int, title: str) -> None:
    text = f'Fatal Python error: {title}\n\nCurrent thread 0x1 (most recent call first):\n  File "t.py", line 7 in f\n'
    crashed = Exit(
        rank=1, at=9.0, signal=number, place="t.py:7", last_output=text, finding=end_of_rank(text, None, rank=1, at=9.0)
    )
    verdict = judge(facts(crashed, peer_gone(0, 9.5)))
    assert (verdict.code, verdict.blame, verdict.confidence) == ("ES-P02", Blame.USER, Confidence.LOW)
    assert (verdict.ranks, verdict.place) == ((1,), "t.py:7")
    assert "at t.py:7" in verdict.sentence


@pytest.mark.parametrize(
    ("code", "blame"), [(139, Blame.USER), (134, Blame.USER), (152, Blame.ENVIRONMENT), (137, Blame.UNKNOWN)]
)
def test_a_shell_that_tells_how_its_child_ended_is_believed(code: int, blame: Blame) -> None:
    text = "./train.sh: line 3: 12 Segmentation fault (core dumped) python train.py" if code == 139 else ""
    found = end_of_rank(text, None, rank=1, at=9.0)
    verdict = judge(facts(Exit(rank=1, at=9.0, code=code, last_output=text, finding=found)))
    assert (verdict.blame, verdict.ranks) == (blame, (1,))


def test_a_crash_after_its_machine_said_something_is_the_machines() -> None:
    text = "Fatal Python error: Segmentation fault"
    found = end_of_rank(text, None, rank=1, at=9.0)
    crashed = Exit(rank=1, at=9.0, signal=11, place="t.py:7", last_output=text, finding=found)
    failing = Alert(
        at=8.5, code="ES-G79", sentence="GPU fell off the bus", component="gpu", blame="machine", severity="fault",
        action="REPLACE_NODE", role="root", source="kernel log", line="Xid 79", device="0000:3b:00",
    )  # fmt: skip
    verdict = judge(facts(crashed, alerts=(SeenAlert(node="n0", alert=failing),)))
    assert (verdict.code, verdict.blame) == ("ES-G79", Blame.MACHINE)


def test_a_debugger_without_input_says_what_to_do():
    for kind in ("BdbQuit", "bdb.BdbQuit"):
        error = ErrorReport(kind=kind, message="", traceback="", at=None, place="train.py:7")
        said = describe(Exit(rank=0, at=0.0, code=1, error=error))
        assert said.startswith(f"raised {kind} at train.py:7: ")
        assert "run one rank at a terminal" in said


PRINTED = [
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.",
    "mce: [Hardware Error]: Machine check events logged",
    "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0",
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
    "EDAC MC0: 1 UE memory read error on DIMM_A1 (channel:0 slot:0)",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "[ERROR] RUNTIME(1,python): The device is broken, error code 0x80E18402",
]


@pytest.mark.parametrize("text", PRINTED)
@pytest.mark.parametrize("has_report", [False, True])
def test_what_a_program_prints_takes_no_machine_out(text: str, has_report: bool) -> None:
    """A signature of the kernel or a driver counts from there; in a rank's output it says what a program printed."""
    error = ErrorReport(kind="ValueError", message="bad sample", place="train.py:7", at=100.0) if has_report else None
    finding = end_of_rank(text, error, rank=2, at=100.0)
    verdict = judge(facts(Exit(rank=2, at=100.0, code=1, error=error, finding=finding, last_output=text)))
    assert verdict.action not in NODE_ACTIONS
    assert verdict.confidence is not Confidence.HIGH
    assert verdict.ranks == (2,)


def test_every_signature_that_would_take_a_machine_out_needs_another_source_than_a_rank() -> None:
    for signature in load_base().signatures:
        found = Alert(
            at=100.0,
            code=signature.code,
            sentence=signature.title,
            component=signature.component,
            blame=str(signature.blame),
            severity=str(signature.severity),
            action=str(signature.action),
            role=str(signature.role),
            source="rank 2 stderr",
            line="what it says",
            rank=2,
        )
        verdict = judge(facts(Exit(rank=2, at=100.0, code=1, finding=found)))
        assert verdict.action not in NODE_ACTIONS, signature.code
        if verdict.blame in (Blame.MACHINE, Blame.NETWORK):
            assert verdict.confidence is not Confidence.HIGH, signature.code


def test_the_printed_line_is_shown_and_the_nodes_own_sense_is_believed() -> None:
    finding = end_of_rank(PRINTED[0], None, rank=2, at=100.0)
    assert finding is not None
    exit_ = Exit(rank=2, at=100.0, code=1, finding=finding, last_output=PRINTED[0])
    alone = judge(facts(exit_))
    assert alone.code == "ES-P01"
    assert "it printed" in alone.sentence
    assert "ES-G79" in alone.sentence
    sensed = msgspec.structs.replace(finding, source="kernel log", rank=None)
    agreed = judge(facts(exit_, alerts=(SeenAlert(node="n1", alert=sensed),)))
    assert (agreed.code, agreed.action, agreed.confidence) == ("ES-G79", finding.action, Confidence.HIGH)


@pytest.mark.parametrize(
    ("kind", "message", "code", "blame"),
    [
        ("RuntimeError", "can't start new thread", "ES-PY11", "environment"),
        ("OSError", "[Errno 24] Too many open files: '/dev/null'", "ES-PY10", "environment"),
        ("KeyboardInterrupt", "", "ES-PY16", "operator"),
        ("KeyError", "'a'", "ES-U01", "user"),
    ],
)
def test_an_exception_that_names_another_party_is_not_the_programs(kind: str, message: str, code: str, blame: str):
    text = f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    x\n{kind}: {message}\n'
    error = ErrorReport(at=100.0, kind=kind, message=message, traceback=text, place="a.py:3")
    finding = end_of_rank("", error, rank=2, at=100.0)
    verdict = judge(facts(Exit(rank=2, at=100.0, code=1, error=error, finding=finding)))
    assert (verdict.code, verdict.blame) == (code, blame)


LOADER = "DataLoader worker (pid 4711) is killed by signal: {}. "
CHAINED = (
    "Traceback (most recent call last):\n"
    '  File "/e/lib/python3.12/site-packages/torch/utils/data/dataloader.py", line 1251, in _try_get_data\n'
    "    data = self._data_queue.get(timeout=timeout)\n"
    "RuntimeError: " + LOADER + "\n\nThe above exception was the direct cause of the following exception:\n\n"
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 7, in main\n    for batch in loader:\n'
    "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly"
)


def lost_its_loader(signal: str, oom: OomEvidence | None = None) -> Exit:
    message = "DataLoader worker (pid(s) 4711) exited unexpectedly"
    error = ErrorReport(
        kind="RuntimeError", message=message, traceback=CHAINED.format(signal), place="train.py:7", at=100.0
    )
    return Exit(rank=1, at=100.5, code=1, error=error, oom=oom, finding=end_of_rank("", error, rank=1, at=100.0))


@pytest.mark.parametrize(("signal", "code"), [("Killed", "ES-P09"), ("Terminated", "ES-P02"), ("Hangup", "ES-P02")])
def test_a_data_loaders_worker_that_was_killed_from_outside_is_not_the_programs_fault(signal, code):
    verdict = judge(facts(lost_its_loader(signal), peer_gone(0, 100.2)))
    assert (verdict.code, verdict.blame, verdict.ranks) == (code, Blame.OPERATOR, (1,))
    assert "a worker of its data loader was killed" in verdict.sentence


def test_a_data_loaders_worker_that_the_kernel_killed_for_memory_is_told_so():
    oom = OomEvidence(source="kernel log", line="Out of memory: Killed process 4711 (python)")
    verdict = judge(facts(lost_its_loader("Killed", oom)))
    assert (verdict.code, verdict.blame) == ("ES-P03", Blame.USER)
    assert "kernel log" in verdict.sentence


def test_a_data_loaders_worker_that_got_another_signal_did_not_lack_memory():
    oom = OomEvidence(source="cgroup memory.events oom_kill 0 -> 1")
    verdict = judge(facts(lost_its_loader("Terminated", oom)))
    assert (verdict.code, verdict.blame) == ("ES-P02", Blame.OPERATOR)
    assert "memory" not in verdict.sentence


def test_a_data_loaders_worker_that_crashed_stays_the_programs():
    assert judge(facts(lost_its_loader("Segmentation fault"))).code not in ("ES-P02", "ES-P09")


def broke(rank: int, at: float, kind: str, message: str, frame: str = "/job/feed.py") -> Exit:
    place = "feed.py:31"
    trace = (
        f'Traceback (most recent call last):\n  File "{frame}", line 31, in push\n    link.send(x)\n{kind}: {message}'
    )
    error = ErrorReport(kind=kind, message=message, traceback=trace, place=place, at=at)
    return Exit(rank=rank, at=at, code=1, error=error, finding=end_of_rank("", error, rank=rank, at=at))


@pytest.mark.parametrize(
    ("kind", "message", "blame"),
    [
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", Blame.NETWORK),
        ("ConnectionRefusedError", "[Errno 111] Connection refused", Blame.NETWORK),
        ("BrokenPipeError", "[Errno 32] Broken pipe", Blame.UNKNOWN),
    ],
)
def test_a_broken_socket_of_the_programs_own_is_the_cause_of_what_peers_lost(kind, message, blame):
    verdict = judge(facts(peer_gone(0, 99.9), broke(2, 100.0, kind, message), peer_gone(1, 100.1)))
    assert (verdict.code, verdict.ranks, verdict.node, verdict.blame) == ("ES-U01", (2,), "n1", blame)
    assert "the program made that connection itself" in verdict.sentence


def test_a_message_of_empty_lines_costs_no_time():
    """The controller judges in its event loop, and the program wrote the text."""
    broken = broke(2, 100.0, "ConnectionResetError", "reset" + "\n" * 32_000 + "x")
    began = time.process_time()
    judge(facts(peer_gone(0, 99.9), broken))
    assert time.process_time() - began < 1.0


def test_a_socket_that_broke_well_after_ranks_had_lost_each_other_is_not_the_cause():
    own = broke(2, 103.0, "ConnectionRefusedError", "[Errno 111] Connection refused")
    verdict = judge(facts(peer_gone(0, 100.0), own))
    assert (verdict.code, verdict.blame) == ("ES-P07", Blame.UNKNOWN)
    assert "rank 0 on n0" in verdict.sentence


def test_a_socket_that_may_be_one_between_ranks_stays_without_a_party():
    between = broke(2, 100.0, "ConnectionResetError", "[Errno 104] recv from rank 1: Connection reset by peer")
    library = broke(2, 100.0, "ConnectionResetError", "[Errno 104] reset", frame="/lib/multiprocessing/connection.py")
    for doubtful in (between, library):
        verdict = judge(facts(doubtful, peer_gone(1, 100.1)))
        assert (verdict.code, verdict.blame) == ("ES-P07", Blame.UNKNOWN)
