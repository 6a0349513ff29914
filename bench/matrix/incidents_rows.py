"""Every row of ByteRobust's incident table (SOSP 2025, Table 1), as something that is done to a real run.

`how` says what is real and what is emulated: there is no GPU, no InfiniBand and no HDFS here. A machine's kernel lines
go into the log that its agent reads; what a library would say is raised with the library's own words. Whether a
machine computes wrongly is real in either case: `everstep drill miscompute` holds in the job and in its examinations.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from everstep.model import actions as act
from matrix.incidents_run import Job

_LAZILY = 2  # MNT_DETACH
_libc = ctypes.CDLL(None, use_errno=True)
MANY = {"max_evicted_share": 9.0, "max_restarts": 99}
"""More happens in one run here than in a month."""

NO_DIGESTS = {**MANY, "digest_every": 1_000_000, "watch_numbers": False}
"""Only what the row is about may find the machine."""

NAN_WAYS = (
    ("go-back",),
    ("go-back", "examine", "go-back"),
    ("go-back", "examine", "go-back", "replay", "go-back"),
)
"""Where replicas are compared in the very step that goes wrong, the machine is named at once; else by examinations."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """`expected`: the rules that ByteRobust's flow asks for, in their order; `hurt` waits until the run is cured."""

    name: str
    how: str
    expected: tuple[str, ...]
    hurt: Callable[[Job], None]
    also: tuple[tuple[str, ...], ...] = ()  # other ways of the flow: which one it is depends on chance
    options: tuple[str, ...] = ("--standby", "1")
    policy: Mapping[str, object] = field(default_factory=lambda: dict(MANY))
    is_alone: bool = False  # in a run of its own: the flow remembers, and this row needs it to begin
    env: dict[str, str] = field(default_factory=dict)


def cuda_error(job: Job) -> None:
    bad = job.node_of(1)
    job.drill("miscompute", bad)
    says = "CUDA error: an illegal memory access was encountered"
    job.fault(kind="raise", raises="RuntimeError", says=says, agent=job.agent_of(bad))
    job.until_evicted(bad)


def native_crash(job: Job) -> None:
    bad = job.node_of(1)
    job.drill("miscompute", bad)
    job.fault(kind="crash", agent=job.agent_of(bad))
    job.until_evicted(bad)


def nccl_error(job: Job) -> None:
    says = (
        "NCCL error in: ProcessGroupNCCL.cpp:3690, internal error - please report this issue to the NCCL developers, "
        "NCCL version 2.27.5\nncclInternalError: Internal check failed."
    )
    job.fault(kind="raise", raises="RuntimeError", says=says, ranks=[1], times=1)
    job.until_closed()


def cpu_overload(job: Job) -> None:
    with _burners(core=0, count=3, pin=job.rank_pid(2)):
        job.until("what the vote says", lambda: job.actions(act.Concluded) or _voted(job, 12), 90.0)


def out_of_memory(job: Job) -> None:
    job.drill("oom", 2, wait_s=60)
    job.until_closed()


def disk_full(job: Job) -> None:
    with mounted(job.folder / "scratch", "tmpfs", "size=1m") as scratch:
        job.fault(kind="fill", path=str(scratch), ranks=[1], times=2)
        job.until_closed(2)


def infiniband(job: Job) -> None:
    bad = job.node_of(1)
    job.drill("flap-link", bad)
    job.until_evicted(bad)


def mount_lost(job: Job) -> None:
    data = job.folder / "data"
    data.mkdir()
    (data / "shard-0").write_bytes(b"data")
    with dead_fuse(data):
        job.fault(kind="read", path=str(data), ranks=[1])
        job.until("two failures", lambda: len(job.actions(act.IncidentOpened)) >= 2)
    job.until_closed()


def hdfs(job: Job) -> None:
    says = "HDFS connectToHost failed: java.net.ConnectException: Connection refused: namenode:8020"
    job.fault(kind="raise", raises="OSError", says=says, ranks=[0], times=3)
    job.until_closed(3)


def container(job: Job) -> None:
    os.kill(job.agent_of(job.node_of(1)), signal.SIGKILL)
    job.until_closed()


def kernel_panic(job: Job) -> None:
    job.drill("lose-node", job.node_of(1), wait_s=60)
    job.until_closed()


def gpu_memory(job: Job) -> None:
    _by_kernel(job, "NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=python, An uncorrectable double bit error (DBE)")


def external_service(job: Job) -> None:
    with failing_service() as url:
        job.fault(kind="request", url=url, ranks=[2])
        job.until("two failures", lambda: len(job.actions(act.IncidentOpened)) >= 2)
        job.heal()
    job.until_closed()


def gpu_unavailable(job: Job) -> None:
    _by_kernel(job, "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.")


def disk_fault(job: Job) -> None:
    line = "critical medium error, dev nvme0n1, sector 1953525 op 0x0:(READ) flags 0x80700 phys_seg 2 prio class 2"
    _by_kernel(job, line)


def hang(job: Job) -> None:
    bad = job.node_of(2)
    job.fault(kind="stop", agent=job.agent_of(bad))
    job.until_evicted(bad)


def mfu_decline(job: Job) -> None:
    bad = job.node_of(2)
    job.drill("slow", 2, "--percent", 100)
    job.until_evicted(bad)


def nan(job: Job) -> None:
    bad = job.node_of(1)
    job.until("a trusted step", lambda: job.actions(act.TrustStep, ever=True))
    job.drill("miscompute", bad, "--result", "nan")
    job.until_evicted(bad)


def rare_nan(job: Job) -> None:
    bad = job.node_of(1)
    job.until("a trusted step", lambda: job.actions(act.TrustStep, ever=True))
    job.drill("miscompute", bad, "--result", "nan", "--chance", "0.2")
    job.until_evicted(bad)


def adjustment(job: Job) -> None:
    code = job.folder / "changed"
    code.mkdir()
    (code / "train.py").write_text((job.folder / "code" / "train.py").read_text().replace("lr=1e-3", "lr=1e-4"))
    job.ask("update", job.run_dir, "--code", code, "--urgent")
    job.until("the new version", lambda: any(each.stage == "trained" for each in job.actions(act.UpdateConcluded)))


def bad_adjustment(job: Job) -> None:
    code = job.folder / "changed-badly"
    code.mkdir()
    text = (job.folder / "code" / "train.py").read_text()
    (code / "train.py").write_text(text.replace("loss.backward()", "loss.backward(gradient=torch.ones(3))"))
    job.ask("update", job.run_dir, "--code", code, "--urgent")
    job.until_closed()


ROWS = (
    Row(
        name="CUDA Error",
        how="a machine computes wrongly (drill), and its rank raises CUDA's words for an illegal access",
        expected=("restart-in-place", "examine", "evict"),
        hurt=cuda_error,
        policy=NO_DIGESTS,
        is_alone=True,
    ),
    Row(
        name="CUDA Error (crash)",
        how="a machine computes wrongly (drill), and its rank really dies of SIGSEGV",
        expected=("restart-in-place", "examine", "evict"),
        hurt=native_crash,
        policy=NO_DIGESTS,
        is_alone=True,
    ),
    Row(
        name="CPU Overload",
        how="three real burners on the core to which one rank is pinned",
        expected=(),
        hurt=cpu_overload,
        policy={**MANY, "slow_round_s": 2.0},
        is_alone=True,
    ),
    Row(
        name="CPU OOM",
        how="a rank really killed by its memory cgroup",
        expected=("restart-in-place",),
        hurt=out_of_memory,
    ),
    Row(
        name="Insufficient Disk Space",
        how="a rank writes until a tmpfs of 1 MiB is really full, twice",
        expected=("restart-in-place",),
        hurt=disk_full,
    ),
    Row(
        name="Infiniband Error",
        how="a machine's own link goes really down and up, twice (network namespaces; Ethernet)",
        expected=("evict",),
        hurt=infiniband,
        options=("--standby", "1", "--network", "namespaces"),
        is_alone=True,
    ),
    Row(
        name="Infiniband Error (NCCL)",
        how="a rank raises NCCL's words for an internal error, once",
        expected=("restart-in-place",),
        hurt=nccl_error,
    ),
    Row(
        name="Filesystem Mount",
        how="a real FUSE mount whose daemon is gone; unmounted after two failures",
        expected=("restart-in-place",),
        hurt=mount_lost,
    ),
    Row(
        name="HDFS Error",
        how="a rank raises the client's words, three times",
        expected=("restart-in-place",),
        hurt=hdfs,
    ),
    Row(
        name="Container Error",
        how="agent and ranks of a machine really killed; its memory stays",
        expected=("replace-lost-node",),
        hurt=container,
    ),
    Row(
        name="OS Kernel Panic",
        how="agent, ranks and memory of a machine gone at once (drill): nobody is left to read its kernel's line",
        expected=("replace-lost-node",),
        hurt=kernel_panic,
    ),
    Row(name="GPU Memory Error", how="the driver's line for Xid 48", expected=("evict",), hurt=gpu_memory),
    Row(
        name="External Service Error",
        how="a real service that really answers 503, twice",
        expected=("restart-in-place",),
        hurt=external_service,
    ),
    Row(name="GPU Unavailable", how="the driver's line for Xid 79", expected=("evict",), hurt=gpu_unavailable),
    Row(name="Disk Fault", how="the kernel's line for a medium error", expected=("evict",), hurt=disk_fault),
    Row(
        name="Job Hang",
        how="the rank of one machine really stops (SIGSTOP) whenever it runs there",
        expected=("restart-in-place", "evict-group"),
        hurt=hang,
        is_alone=True,
    ),
    Row(
        name="MFU Decline",
        how="the steps of one rank really take twice as long (drill)",
        expected=("evict",),
        hurt=mfu_decline,
        policy={**MANY, "slow_round_s": 2.0},
        is_alone=True,
        env={"TORCH_FR_BUFFER_SIZE": "128"},
    ),
    Row(
        name="NaN value",
        how="a machine computes NaN in every step (drill); the program tells its loss and goes on",
        expected=("go-back",),
        also=NAN_WAYS,
        hurt=nan,
        policy={**MANY, "digest_every": 10},
        is_alone=True,
    ),
    Row(
        name="NaN value (raised)",
        how="a machine computes NaN in a fifth of its steps (drill), and the program raises on it",
        expected=("go-back", "examine", "go-back", "replay", "go-back"),
        also=NAN_WAYS,
        hurt=rare_nan,
        policy={**MANY, "digest_every": 10},
        is_alone=True,
        env={"BENCH_PROGRAM": "raises-on-nan"},
    ),
    Row(name="Code/Data Adjustment", how="everstep update --urgent", expected=(), hurt=adjustment),
    Row(
        name="Code/Data Adjustment (bad)",
        how="everstep update --urgent with code that raises in its first step",
        expected=("roll-back",),
        hurt=bad_adjustment,
    ),
)


def _by_kernel(job: Job, line: str) -> None:
    bad = job.node_of(1)
    job.kernel(bad, line)
    job.until_evicted(bad)


def _voted(job: Job, rounds: int) -> bool:
    """The vote has looked at so many rounds and named nobody."""
    since = time.monotonic()
    job.until("rounds of the vote", lambda: time.monotonic() - since > 2.0 * rounds)
    return True


@contextmanager
def _burners(core: int, count: int, pin: int) -> Iterator[None]:
    """Processes that do nothing but compute, on one core with the rank."""
    for thread in Path(f"/proc/{pin}/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread.name), {core})
    loop = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    burning = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


@contextmanager
def mounted(folder: Path, kind: str, data: str, flags: int = 0) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if _libc.mount(kind.encode(), os.fsencode(folder), kind.encode(), flags, data.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"{kind} cannot be mounted: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        _libc.umount2(os.fsencode(folder), _LAZILY)


@contextmanager
def dead_fuse(folder: Path) -> Iterator[Path]:
    """A mount as it is after its daemon died: nobody has the other end of /dev/fuse."""
    daemon = os.open("/dev/fuse", os.O_RDWR)
    with mounted(folder, "fuse", f"fd={daemon},rootmode=40000,user_id=0,group_id=0"):
        os.close(daemon)
        yield folder


@contextmanager
def failing_service() -> Iterator[str]:
    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/dataset"
    finally:
        server.shutdown()
