"""Old harmless lines before ends of a rank: is the verdict the same as without them, and whose fault is it?

Every kind of line stands before every kind of end: in the rank's own output, or in the kernel log of its node a minute
earlier while steps go on. Pure but for the exceptions, which are really raised.

    python bench/harmless_lines.py [--all]      --all: also each end by itself
"""

import argparse
import sys
from collections.abc import Sequence

from everstep.analyzer.exits import FaultFacts, judge
from everstep.analyzer.numbers.alerts import SeenAlert
from everstep.knowledge.ending import end_of_rank
from everstep.knowledge.loading import load_base
from everstep.model.facts import Alert, ErrorReport, Exit
from everstep.model.verdict import Verdict
from everstep.probes.node.debounce import Debounce
from everstep.probes.node.kernel.kernel_log import KernelLog
from matrix.rank_ends import ENDINGS, EXCEPTIONS, RANK_DIED_AT, reported
from measuring.figures import table

PRINTED = {
    "read-only mount": 'sysctl: setting key "net.core.somaxconn", ignoring: Read-only file system',
    "web retry": "request to tracker failed: Connection refused, retrying (attempt 1/5)",
    "web error": "HTTPSConnectionPool(host='stats.local', port=443): Max retries exceeded with url: /v1",
    "caught oom": "torch.OutOfMemoryError: CUDA out of memory, caught: halving the micro batch",
    "bare oom": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "fabric manager": "fabricmanager: error: NVSwitch fabric is not initialized yet",
    "printed xid": "NVRM: Xid (PCI:0000:4b:00): 79, pid=901, name=python3, GPU has fallen off the bus.",
    "printed mce": "[12345.6] mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400",
    "socket warning": "[W socket.cpp:755] [c10d] The client socket has failed to connect to [node-a]:29500 (111)",
    "nccl warning": "n1:88:99 [0] NCCL WARN NET/IB : No device found.",
    "nccl error": "n1:88:99 [0] NCCL WARN Call to connect returned Connection refused, retrying",
    "gloo": "[W gloo] Rank 1 has no route to itself over eth1; using the default interface",
    "disk": "cache: [Errno 28] No space left on device: '/tmp/x.idx', going on without an index",
    "object store": "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL",
    "checkpoint": "checkpoint /ckpt/step-0 does not exist, starting from nothing",
    "loader": "DataLoader worker (pid 4242) is killed by signal: Killed. A new one was started.",
    "threads": "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 8: Resource temporarily unavailable",
    "printed source": '    raise RuntimeError(f"CUDA error: device-side assert triggered on {rank}")',
    "C++ source": '  TORCH_CHECK(false, "NCCL error in: ", file, "unhandled system error");',
    "deprecation": "/opt/lib/amp.py:12: FutureWarning: torch.cuda.amp.autocast(args) is deprecated",
    "handled exception": "Traceback (most recent call last):\n"
    '  File "/job/cache.py", line 8, in load\n    open(path)\nTimeoutError: timed out',
    "health counters": "GPU 3: volatile uncorrectable ECC errors: 0, retired pages: 0",
    "quota of another": "du: warning: /home/other: Disk quota exceeded, skipping",
}
KERNEL = {
    "oom of another cgroup": "Memory cgroup out of memory: Killed process 812 (chrome) total-vm:9000kB, anon-rss:80kB",
    "corrected memory": "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0)",
    "corrected mce": "mce: [Hardware Error]: Machine check events logged",
    "corrected pcie": "pcieport 0000:00:01.0: AER: Corrected error received: 0000:00:01.0",
    "link of another": "e1000e 0000:00:1f.6 eno1: NIC Link is Down",
    "cable of another": "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged",
    "nfs recovered": "nfs: server fs01 not responding, still trying",
    "usb disk": "Buffer I/O error on dev sdz1, logical block 0, async page read",
    "ext4 count": "EXT4-fs (sdz1): error count since last fsck: 3",
    "nvme retry": "nvme nvme1: I/O 12 QID 3 timeout, aborting",
    "hung copy": "INFO: task rsync:8123 blocked for more than 120 seconds.",
    "other's crash": "cron[812]: segfault at 0 ip 00007f0000001234 sp 00007ffc00001234 error 4 in libc.so.6",
    "throttled": "CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)",
    "syn flood": "TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.",
    "conntrack": "nf_conntrack: nf_conntrack: table full, dropping packet",
    "soft lockup": "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:99]",
    "xid of a program": "NVRM: Xid (PCI:0000:3b:00): 13, pid=1234, name=other, Graphics SM Warp Exception",
    "xid of a channel": "NVRM: Xid (PCI:0000:3b:00): 43, pid=1234, name=other, Ch 00000008",
    "old xid": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "old ecc": "NVRM: Xid (PCI:0000:3b:00): 63, pid=1234, Row Remapper: New row marked for remapping",
}
LINE_AT, STEPPED_AT = RANK_DIED_AT - 60.0, RANK_DIED_AT - 2.0
STEPS = "".join(f"step {n} loss {4.2 - n / 1000:.3f} lr 3.0e-04 tokens/s 41235\n" for n in range(1, 200))
FEW_STEPS = "".join(f"iteration {n}\n" for n in range(1, 6))
"""So that the line is still among the rank's last words."""
Said = tuple[str, ...]


class End:
    """One rank's end, to be judged with and without something old before it."""

    def __init__(self, name: str) -> None:
        self.name, self.error = name, None
        self.party, self.how = "", {"code": 1}
        if name in EXCEPTIONS:
            self.party, raising = EXCEPTIONS[name]
            self.error: ErrorReport | None = reported(raising)
        else:
            self.party, self.how = ENDINGS[name]

    def verdict(self, before: str = "", alerts: Sequence[Alert] = ()) -> Verdict:
        words = self.error.traceback if self.error is not None else ""
        output = f"{before}\n{words}" if before else words
        finding = end_of_rank(output, self.error, rank=1, at=RANK_DIED_AT)
        ended = Exit(rank=1, at=RANK_DIED_AT, error=self.error, finding=finding, last_output=output[-2048:], **self.how)
        seen = tuple(SeenAlert(node="n0", alert=alert) for alert in alerts)
        nodes = dict.fromkeys(range(2), "n0")
        return judge(FaultFacts(at=RANK_DIED_AT, exits=(ended,), nodes=nodes, alerts=seen, outlived_at=STEPPED_AT))


def said(verdict: Verdict) -> Said:
    return (verdict.code, str(verdict.blame), str(verdict.confidence), str(verdict.ranks), verdict.action)


def noticed(line: str) -> list[Alert]:
    """What the node's own sense makes of a line of the kernel log."""
    return Debounce().take(LINE_AT, KernelLog(load_base()).take([line.encode()], LINE_AT))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="show each end by itself")
    args = parser.parse_args(argv)
    ends = [End(name) for name in (*EXCEPTIONS, *ENDINGS)]
    alone = {end.name: end.verdict() for end in ends}
    wrong = [end for end in ends if str(alone[end.name].blame) not in end.party.split("|")]
    shown = ends if args.all else wrong
    if shown:
        rows = [[e.name, e.party, *said(alone[e.name])[:3], alone[e.name].sentence[:80]] for e in shown]
        print(table(["end", "party", "code", "said", "confidence", "sentence"], rows))
    print(f"{len(ends)} ends: right party {len(ends) - len(wrong)}")
    changed = []
    for kind, line in PRINTED.items():
        for steps in (STEPS, FEW_STEPS):
            found = {end.name: end.verdict(f"{line}\n{steps}") for end in ends}
            changed += [(kind, name, verdict) for name, verdict in found.items() if said(verdict) != said(alone[name])]
    for kind, line in KERNEL.items():
        alerts = noticed(line)
        found = {end.name: end.verdict(alerts=alerts) for end in ends}
        changed += [(kind, name, verdict) for name, verdict in found.items() if said(verdict) != said(alone[name])]
    for kind, name, verdict in changed:
        print(f"changed by {kind}: {name}: {said(alone[name])} -> {said(verdict)}")
    pairs = len(ends) * (2 * len(PRINTED) + len(KERNEL))
    print(f"{len(PRINTED)} printed kinds and {len(KERNEL)} of the kernel: {pairs} pairs, {len(changed)} changed")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
