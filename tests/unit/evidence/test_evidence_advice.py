"""What to do and what to collect follow the fault that was found, and not the party that is blamed."""

from pathlib import Path

import pytest

from everstep.analyzer.overall import overall
from everstep.evidence.folder import read_folder
from everstep.evidence.inventory import collect
from everstep.report.parts.actions import ACTIONS


def wanted(tmp_path: Path, text: str) -> tuple[str, ...]:
    (tmp_path / "paste.log").write_text(text + "\n")
    folder = read_folder(tmp_path, 1.795e9)
    return collect(folder.case, overall(folder.case, folder.points, folder.known).verdict, folder.known)


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB.",
        "OSError: [Errno 28] No space left on device: '/ckpt/a'",
        "ModuleNotFoundError: No module named 'einops'",
        "[ 91.2] NVRM: Xid (PCI:0000:3d:00): 79, pid=41, name=python, GPU has fallen off the bus.",
        "step: 1 loss: 3.41\nstep: 2 loss: 3.31\nstep: 3 loss: 3.2",
        "training is complete\n[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
    ],
    ids=["memory of a GPU", "a full disk", "a package", "a GPU that is gone", "nothing", "a wait after the end"],
)
def test_a_fault_that_names_itself_asks_for_no_more(tmp_path, text):
    assert wanted(tmp_path, text) == ()


@pytest.mark.parametrize(
    ("text", "has_stacks"),
    [
        (
            "[rank0]:[E1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(",
            True,
        ),
        ("Root Cause (first observed failure):\n  rank : 3\n  exitcode  : -9 (pid: 901)\n=====\n", True),
        ("Killed", False),
    ],
    ids=["a timeout", "a launcher's table", "a killed process"],
)
def test_a_consequence_asks_for_what_may_have_brought_it_about(tmp_path, text, has_stacks):
    rows = wanted(tmp_path, text)
    assert rows
    assert any(row.startswith("stacks") for row in rows) is has_stacks


@pytest.mark.parametrize(
    "text",
    [
        "socket.gaierror: [Errno -2] Name or service not known",
        "The node was low on resource: ephemeral-storage.",
        "RuntimeError: synStatus=26 [Generic failure] Graph compile failed.",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 811 got signal: 1",
        "OSError: [Errno 122] Disk quota exceeded: '/home/u/ckpt'",
        "Memory access fault by GPU node-2 on address 0x7fc133800000. Reason: Page not present.",
        "Fatal Python error: Segmentation fault",
    ],
)
def test_advice_of_its_own_stands_in_place_of_that_of_the_action(tmp_path, text):
    (tmp_path / "paste.log").write_text(text + "\n")
    known = read_folder(tmp_path, 1.795e9).known[0]
    assert known.do
    assert known.do not in ACTIONS.values()
