"""Root before cascade: incidents as logs of several sources, and which finding is the cause."""

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.signature import Action

NOW = 1_795_000_000.0
BOOT = 1_794_000_000.0
NCCL_TIMEOUT = (
    "[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"
)
PEER_GONE = "a:1:2 [0] misc/socket.cc:57 NCCL WARN Net : Connection closed by remote peer node-7<41822>"
XID_45 = "NVRM: Xid (PCI:0000:91:00): 45, pid=7, Ch 0000000a"
XID_79 = "NVRM: Xid (PCI:0000:91:00): 79, pid=7, GPU has fallen off the bus."


def ranked(**sources: str) -> list[Finding]:
    matcher = Matcher(BASE, now=NOW, engine=ENGINE, offsets={"kmsg": BOOT})
    for name, text in sources.items():
        matcher.feed(name, text.encode() + b"\n")
    return rank_findings(matcher.finish())


def cause(**sources: str) -> str | None:
    choice = choose_verdict(ranked(**sources))
    return choice.finding and choice.finding.code


@pytest.mark.parametrize("consequence", ["Killed", NCCL_TIMEOUT, PEER_GONE, XID_45])
def test_a_consequence_is_never_the_cause(consequence):
    choice = choose_verdict(ranked(log=consequence))
    assert choice.finding is None
    assert "only consequences" in choice.why


@pytest.mark.parametrize("consequence", ["Killed", NCCL_TIMEOUT, PEER_GONE, XID_45])
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (XID_79, "ES-G79"),
        ("[rank3]: KeyError: 'labels'", "ES-PY01"),
        ("OSError: [Errno 28] No space left on device", "ES-FS01"),
        ("mlx5_core 0000:a3:00.0 mlx5_3: Port: 1 Link DOWN", "ES-IB01"),
        ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-17T03:14:05 DUE TO PREEMPTION ***", "ES-SC02"),
    ],
)
def test_what_stands_earlier_explains_it(consequence, line, code):
    ordered = ranked(log=f"{line}\n{consequence}")
    assert ordered[0].code == code
    assert ordered[1].explained_by == code
    # even when the files are read the other way round
    assert cause(log=consequence, other=line) == code


def test_the_kernel_wins_over_what_the_process_felt_although_its_clock_is_late():
    process = "2026-11-17 03:14:05,000 step 9\nRuntimeError: CUDA error: unspecified launch failure"
    assert cause(log=process, kmsg=f"[{1794885246.5 - BOOT:.3f}] {XID_79}") == "ES-G79"


def test_a_root_long_after_does_not_explain_what_was_before():
    text = (
        "2026-11-17 03:14:05,000 x\nRuntimeError: CUDA error: unspecified launch failure\n"
        "2026-11-17 03:24:05,000 x\nOSError: [Errno 28] No space left on device"
    )
    assert cause(log=text) == "ES-CU06"


def test_the_first_root_is_found_through_clock_skew():
    a = "2026-11-17 03:14:05,900 ERROR x\nKeyError: 'labels'"  # this host is late by 1.5 s
    b = "2026-11-17 03:14:04,400 ERROR x\nNVRM: Xid (PCI:0000:91:00): 48, DBE"
    assert cause(a=a, b=b) == "ES-G48"
    first = "2026-11-17 03:14:05,000 ERROR x\nOSError: [Errno 28] No space left on device"
    later = "2026-11-17 03:15:05,000 ERROR x\nOSError: [Errno 122] Disk quota exceeded"
    assert cause(a=later, b=first) == "ES-FS01"


def test_unknown_lines_stand_before_mere_consequences_but_are_no_cause():
    ordered = ranked(log=f"{NCCL_TIMEOUT}\nmy.StrangeError: x")
    assert [f.code for f in ordered] == ["ES-UN07", "ES-TD01"]
    assert choose_verdict(ordered).finding is None


XID = "NVRM: Xid (PCI:0000:{gpu:02x}:00): {n}, pid={pid}, name=python3, Ch 00000008"


def blames(*lines: str) -> set[str]:
    return {str(f.blame) for f in ranked(kmsg="\n".join(lines)) if f.code in ("ES-G13", "ES-G31")}


@pytest.mark.parametrize("number", [13, 31])
def test_xid_13_and_31_are_the_code_on_different_gpus_and_the_machine_on_the_same_again(number):
    once = XID.format(gpu=1, n=number, pid=7)
    assert blames(f"[ 100.0] {once}") == {"user"}
    assert blames(f"[ 100.0] {once}", f"[ 100.1] {once}") == {"user"}  # one event prints several lines
    assert blames(f"[ 100.0] {once}", f"[ 100.1] {XID.format(gpu=2, n=number, pid=8)}") == {"user"}
    assert blames(f"[ 100.0] {once}", f"[ 900.0] {once}") == {"machine"}
    assert blames(f"[ 100.0] {once}", f"[ 130.0] {XID.format(gpu=1, n=number, pid=9)}") == {"machine"}
    both = [f"[ {t}.0] {XID.format(gpu=gpu, n=number, pid=t)}" for t in (100, 900) for gpu in (1, 2)]
    assert blames(*both) == {"user"}


def test_the_drivers_own_verdict_wins_over_the_table():
    text = (
        "NVRM: Xid (PCI:0000:91:00): 48, DBE\n"
        "NVRM: Xid (PCI:0000:91:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    )
    head = ranked(kmsg=text)[0]
    assert (head.code, head.action) == ("ES-G48", Action.REBOOT_NODE)
    assert "ES-G154B" in head.note


def test_a_switch_error_after_a_lost_gpu_is_its_consequence():
    switch = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"
    assert cause(kmsg=switch) == "ES-SX20034"
    ordered = ranked(kmsg=f"[ 100.0] {switch}\n[ 101.0] {XID_79}")
    assert [f.code for f in ordered] == ["ES-G79", "ES-SX20034"]
    assert not ordered[1].acts


def test_a_server_that_answers_again_is_no_cause():
    silent, ok = "nfs: server filer-3 not responding, still trying", "nfs: server filer-3 OK"
    assert cause(kmsg=silent) == "ES-NF01"
    assert cause(kmsg=f"{silent}\n{ok}") is None
    assert cause(kmsg=f"{silent}\n{ok}\n{silent}") == "ES-NF01"
    assert cause(kmsg=f"{silent}\nnfs: server other OK") == "ES-NF01"


def test_out_of_memory_explains_the_kill_the_worker_and_the_peers():
    ordered = ranked(
        kmsg="[ 100.0] Memory cgroup out of memory: Killed process 991 (python) total-vm:1kB, anon-rss:1kB",
        log=f"RuntimeError: DataLoader worker (pid 991) is killed by signal: Killed.\nKilled\n{PEER_GONE}",
    )
    assert ordered[0].code == "ES-HM01"
    assert {f.explained_by for f in ordered[1:]} == {"ES-HM01"}


def test_ranking_is_a_permutation_and_deterministic():
    findings = ranked(log=f"{PEER_GONE}\n{XID_79}\n{NCCL_TIMEOUT}\nKilled\nmy.StrangeError: x\nKeyError: 1")
    again = rank_findings(list(reversed(findings)))
    assert [f.code for f in again] == [f.code for f in findings]
    assert rank_findings([]) == []
    assert choose_verdict([]).finding is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("999 'unknown error'", "ES-CU19"),
        ("700 'an illegal memory access was encountered'", "ES-CU04"),
        ("719 'unspecified launch failure'", "ES-CU06"),
        ("716 'misaligned address'", "ES-CU07"),
        ("101 'invalid device ordinal'", "ES-CU14"),
        ("209 'no kernel image is available for execution on the device'", "ES-CU12"),
        ("'invalid argument'", "ES-TD05"),
    ],
)
def test_the_failure_of_cuda_that_nccl_quotes_says_more_than_that_nccl_had_one(words, code):
    lines = (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:88, unhandled cuda error",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "Last error:",
        f"Cuda failure {words}",
    )
    quoted = "\n".join(f"[rank3]: {line}" for line in lines)
    assert cause(log=quoted) == code
    if code != "ES-TD05":
        assert cause(log=f"a:1:2 [0] init.cc:88 NCCL WARN Cuda failure {words}\n{quoted}") == code
