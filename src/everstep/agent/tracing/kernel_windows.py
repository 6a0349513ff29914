"""The kernel's view of a rank while it was traced: a process of ours that holds the eBPF programs
(`probes.ebpf.observer`), asked every quarter of a second. Off unless `EVERSTEP_EBPF=on`, as in a run."""

import contextlib
import os
import select
import subprocess
import sys

import msgspec

from everstep.analyzer.slowness.off_cpu import IDLE, QUOTA, UNKNOWN, KernelView
from everstep.probes.ebpf.observer import Answer, Ask
from everstep.probes.ebpf.support import SWITCH
from everstep.report.now.trace import Slice, Track

NAME = "off CPU"
OFF = f"the eBPF probes are off ({SWITCH}=on switches them on)"
ON = ("on", "1", "yes")
START_S = 10.0
ANSWER_S = 2.0
MIN_S = 0.001
MAX_REASONS = 8
_BOOT = "import sys; sys.path[:1] = []; from everstep.probes.ebpf.observer import main; main()"
_TAKERS = {IDLE: "an idle CPU", QUOTA: "its cgroup's quota", UNKNOWN: "unknown"}


class KernelWindows:
    """At most one observer; without it, why."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._why = ""
        self._before = 0.0
        self._slices: list[Slice] = []
        self._process: subprocess.Popen[bytes] | None = None
        if os.environ.get(SWITCH, "").lower() not in ON:
            self._why = OFF
            return
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            self._why = f"the eBPF observer cannot be started: {error.strerror}"
            return
        self._ask(START_S)  # what was before is not ours

    def look(self, now: float) -> None:
        """One window, since the look before."""
        view = self._ask(ANSWER_S) if self._process is not None else None
        if view is not None and self._before:
            reasons = sorted(_reasons(view, self._pid), reverse=True)[:MAX_REASONS]
            if reasons:
                said = {text: f"{seconds * 1e3:.0f} ms" for seconds, text in reasons}
                begin = max(self._before, now - view.window_s)
                self._slices.append(Slice(f"{reasons[0][1]}: {reasons[0][0] * 1e3:.0f} ms", begin, now, said))
        self._before = now

    def track(self) -> Track:
        if self._why and not self._slices:
            return Track(name=NAME, is_measured=False, why=self._why)
        why = "sums of a quarter of a second, all threads; when within it is not known"
        return Track(name=NAME, slices=self._slices, why="; ".join(filter(None, (why, self._why))))

    def close(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process = None

    def _ask(self, limit_s: float) -> KernelView | None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(Ask(pids=[self._pid])) + b"\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], limit_s)[0]:
                raise OSError(f"no answer within {limit_s:g} s")
            answer = msgspec.json.decode(process.stdout.readline(), type=Answer)
        except (OSError, msgspec.MsgspecError) as error:
            self._why = f"the eBPF observer gave no answer: {str(error)[:200]}"
            self.close()
            return None
        if answer.why_not:
            self._why = answer.why_not
            self.close()
        return answer.view


def _reasons(view: KernelView, pid: int) -> list[tuple[float, str]]:
    """Seconds, and what it was."""
    found = []
    for thread in view.threads:
        if thread.pid != pid:
            continue
        own = "" if thread.tid == pid else f" (thread {thread.tid})"
        for taker in thread.takers:
            name = _TAKERS.get(taker.pid, f"{taker.name} (pid {taker.pid})")
            found.append((taker.wait_s, f"not scheduled, CPU taken by {name}{own}"))
        for sleep in thread.sleeps:
            found.append((sleep.total_s, f"{sleep.kind} {sleep.path}".strip() + own))
    return [each for each in found if each[0] >= MIN_S]
