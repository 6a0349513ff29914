"""Whole failures as a launch prints them: several ranks, the agent's block and what follows give the root once."""

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.live import classify
from everstep.knowledge.matcher import Matcher

NOW = 1_795_000_000.0

AGENT = """\
W1121 10:00:07.120000 811 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 902 closing signal SIGTERM
E1121 10:00:08.310000 811 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: {rank} (pid: 901) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/usr/lib/python3/site-packages/torch/distributed/launcher/api.py", line 264, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_10:00:07
  host      : n1
  rank      : 5 (local_rank: 5)
  exitcode  : -6 (pid: 905)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 905
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:00:06
  host      : n1
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 901)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""  # noqa: E501, W291
WATCHDOG = """\
[rank{r}]:[E1121 10:00:05.311 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.
[rank{r}]:[E1121 10:00:05.400 ProcessGroupNCCL.cpp:684] [Rank {r}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
[rank{r}]:[E1121 10:00:05.400 ProcessGroupNCCL.cpp:690] [Rank {r}] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank {r}] Process group watchdog thread terminated with exception: [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.
Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in /usr/lib/python3/site-packages/torch/lib/libc10.so)
"""  # noqa: E501
PEER = """\
n2:88:99 [0] misc/socket.cc:57 NCCL WARN Net : Connection closed by remote peer n1<41822>
n2:88:99 [0] NCCL INFO misc/socket.cc:783 -> 6
n2:88:99 [0] NCCL INFO proxy.cc:1521 -> 6
n2:88:99 [0] proxy.cc:1458 NCCL WARN [Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 3
"""


def traceback(rank: int, exception: str) -> str:
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/job/train.py", line 41, in <module>\n'
        f"[rank{rank}]:     main()\n"
        f'[rank{rank}]:   File "/job/train.py", line 30, in main\n'
        f"[rank{rank}]:     loss.backward()\n"
        f"[rank{rank}]: {exception}\n"
    )


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB "
    "of which 1.2 GiB is free. Including non-PyTorch memory, this process has 77.9 GiB memory in use."
)
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote "
    "process exited or there was a network error, NCCL version 2.21.5\n"
    "[rank5]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
LOADER = (
    "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. Details are lost due to multiprocessing."
)
FAILURES = [
    pytest.param(traceback(3, OOM), 1, "cuda_oom", id="out of memory"),
    pytest.param(traceback(3, ILLEGAL), 1, "cuda_illegal_memory_access", id="illegal access"),
    pytest.param(traceback(3, "KeyError: 'labels'"), 1, "user_exception", id="user"),
    pytest.param(traceback(3, LOADER), 1, "dataloader_worker_killed", id="loader"),
    pytest.param(traceback(3, "OSError: [Errno 28] No space left on device"), 1, "disk_full", id="disk full"),
    pytest.param(
        "[ 9.1] NVRM: Xid (PCI:0000:4b:00): 79, pid=901, name=python3, GPU has fallen off the bus.\n",
        -6,
        "gpu_fallen_off_bus",
        id="lost GPU",
    ),
    pytest.param(
        "[ 9.1] Out of memory: Killed process 901 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB\n",
        -9,
        "host_oom",
        id="host memory",
    ),
]


def of(text: str) -> list[Finding]:
    matcher = Matcher(BASE, now=NOW, engine=ENGINE)
    matcher.feed("log", text.encode())
    return rank_findings(matcher.finish())


def consequences() -> str:
    others = "".join(traceback(rank, REMOTE) for rank in (5, 6))
    return others + WATCHDOG.replace("{r}", "5") + WATCHDOG.replace("{r}", "6") + PEER


def agent(code: int) -> str:
    return AGENT.replace("{code}", str(code)).replace("{rank}", "3")


@pytest.mark.parametrize("order", ["root first", "consequences first"])
@pytest.mark.parametrize(("root", "code", "klass"), FAILURES)
def test_a_whole_failure_has_one_root_and_it_comes_first(root, code, klass, order):
    parts = [root, consequences()] if order == "root first" else [consequences(), root]
    ranked = of("".join(parts) + agent(code))
    assert [f.klass for f in ranked].count(klass) == 1
    choice = choose_verdict(ranked)
    assert choice.finding is not None
    assert choice.finding.klass == klass
    assert ranked[0] is choice.finding
    assert not [f.klass for f in ranked[1:] if f.explained_by == "" and f.acts]


def test_the_same_exception_of_many_ranks_is_one_finding_that_names_them():
    ranked = of("".join(traceback(rank, ILLEGAL) for rank in range(8)) + agent(1))
    assert ranked[0].klass == "cuda_illegal_memory_access"
    assert ranked[0].count == 8
    assert set(ranked[0].ranks) == set(range(8))


def test_only_consequences_name_nobody():
    choice = choose_verdict(of(consequences() + agent(-6)))
    assert choice.finding is None


@pytest.mark.parametrize(("root", "code", "klass"), FAILURES)
def test_the_tail_of_the_rank_says_the_same(root, code, klass):
    found = classify(consequences() + root + agent(code))
    assert found is not None
    assert found.klass == klass
