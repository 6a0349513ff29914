"""Reads logs while they are written, and names the end of one rank.

`LiveReader` is fed pieces of many logs and gives findings as soon as their last line is there. Memory and the cost of
one call are bounded whatever the logs hold. `classify` says what the end of a rank's own output means. Neither reads a
file or a clock, and neither decides anything: a finding is evidence, and its action what the signature suggests.

A line is dated by when it arrived, never by its stamp: stamps of several programs on one machine differ by their time
zones, the arrival does not. Called by the agent (rank logs, kernel log) and by who explains the end of a rank.
"""

import re
import threading
from functools import lru_cache

from everstep.knowledge.causality.ranking import Choice, choose_verdict, rank_findings
from everstep.knowledge.engine import Engine
from everstep.knowledge.findings import Finding
from everstep.knowledge.loading import Base, load_base
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.signature import Role, Severity
from everstep.model.components import KERNEL
from everstep.model.verdict import Blame

MAX_CHUNK_BYTES = 256 << 10
"""Read in one call. Ordinary text of this size takes about a millisecond, the worst a fraction of a second."""
MAX_LINES = 4000
"""Lines taken apart in one call: what a rank prints when it dies, several times over."""
REPEAT_AFTER_S = 60.0
"""A fault that goes on is told again this often, and not for each of its lines."""
MAX_STREAMS = 4096
"""Logs read at once. One node has some hundreds at most; a log beyond these is not read, and counted."""
MAX_TAIL_CHARS = 256 << 10
"""`classify` reads this much of the end of a text."""

_REPORT = "report"
_RANK_TAG = re.compile(r"^\[rank\d+\]: ?")
_LAST_WORDS = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/job/train.py", line 41, in main
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB.
RuntimeError: CUDA error: an illegal memory access was encountered
RuntimeError: DataLoader worker (pid(s) 42) exited unexpectedly
OSError: [Errno 28] No space left on device
ValueError: Expected input batch_size (8) to match target batch_size (4).
[rank3]:[E1121 10:00:05.311 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL()
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  NCCL error: remote process exited or there was a network error
n2:88:99 [0] misc/socket.cc:57 NCCL WARN Net : Connection closed by remote peer n1<41822>
n2:88:99 [0] proxy.cc:1458 NCCL WARN [Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 3
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in /usr/lib/python3/site-packages/torch.so)
Fatal Python error: Segmentation fault
W1121 10:00:07.12 811 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 902 closing signal SIGTERM
E1121 10:00:08.31 811 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3 (pid: 9)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
  exitcode  : -6 (pid: 901)
  traceback : Signal 6 (SIGABRT) received by PID 901
============================================================
step 1200 loss 2.3145 grad_norm 0.91 lr 3.0e-04 tokens/s 41235
"""


class LiveReader:
    """Feed it what was appended to each log; it returns what that means."""

    def __init__(self, base: Base, *, engine: Engine | None = None) -> None:
        self._base = base
        self._engine = engine or Engine(base.signatures)
        self._matcher: Matcher | None = None
        self._streams: set[str] = set()
        self._began = 0.0  # of the findings at hand
        self._earlier: list[Finding] = []  # of the period before
        self.num_skipped_bytes = 0
        """Text that was not read because one call brought too much, or too many streams were open."""

    def feed(self, stream: str, chunk: bytes, *, now: float) -> list[Finding]:
        """Findings that this chunk completes and that were not told within REPEAT_AFTER_S.

        At most MAX_CHUNK_BYTES are read; what stands beyond is skipped and counted, so split longer ones.
        """
        matcher = self._ready(now)
        if stream not in self._streams:
            if len(self._streams) >= MAX_STREAMS:
                self.num_skipped_bytes += len(chunk)
                return []
            self._streams.add(stream)
        skipped_before = matcher.num_skipped_bytes
        new = matcher.feed(stream, chunk[:MAX_CHUNK_BYTES])
        self.num_skipped_bytes += matcher.num_skipped_bytes - skipped_before + max(0, len(chunk) - MAX_CHUNK_BYTES)
        return new

    def close(self, stream: str, *, now: float) -> list[Finding]:
        """This log has ended: what its last, perhaps unfinished, line means."""
        matcher = self._ready(now)
        self._streams.discard(stream)
        return matcher.close(stream)

    def findings(self) -> list[Finding]:
        """What was found within the last one to two times REPEAT_AFTER_S of calls, cause first."""
        current = self._matcher.findings() if self._matcher else []
        return rank_findings([*self._earlier, *current])

    def cause(self) -> Choice:
        """The cause among `findings`, and why it is the one."""
        return choose_verdict(self.findings())

    def _ready(self, now: float) -> Matcher:
        if self._matcher is None:
            self._matcher = Matcher(self._base, now=now, engine=self._engine)
            self._began = now
        if not 0.0 <= now - self._began < REPEAT_AFTER_S:  # a clock that was set back starts a period, too
            self._earlier = self._matcher.start_over()
            self._began = now
        self._matcher.arrived_at = now
        self._matcher.lines_left = MAX_LINES
        return self._matcher


def classify(text: str, *, report: str = "") -> Finding | None:
    """What the end of one rank's output says about why it ended; None when nothing in it is known.

    `report`: the exception that it reported itself. The output explains the end only as far as it is linked to that.

    Look at `role`: a root names the cause, a cascade says that this rank is a victim, unknown is an exception without
    an entry. Lines that are harmless or only for information are never returned. The first call of a process compiles
    the signatures.
    """
    with _compiling:  # whoever comes meanwhile waits for the rest of it, and does not do all of it beside
        base, engine = _built_in()
    matcher = Matcher(base, now=0.0, engine=engine)
    matcher.arrived_at = 0.0
    matcher.is_of_program = True
    matcher.feed("", _without(text[-MAX_TAIL_CHARS:], report).encode("utf-8", "replace"))
    matcher.feed(_REPORT, report[-MAX_TAIL_CHARS:].encode("utf-8", "replace"))
    ordered = rank_findings(matcher.finish(), end=_REPORT if report else "")
    told = [f for f in ordered if _says_why(f)]
    own = [f for f in told if f.is_exception and f.role in (Role.ROOT, Role.EITHER)]
    is_printed = bool(told) and told[0].component in KERNEL and told[0].blame is Blame.MACHINE
    if own and is_printed:
        return own[0]  # its exception names its cause; what it printed of a machine is for the node's own senses
    return told[0] if told else None


def _without(text: str, report: str) -> str:
    """The report's traceback is printed as well. Of the end of a log it may be only a part, and a part without its
    beginning does not say what it was raised from."""
    reported = {line.strip() for line in report.splitlines()} - {""}
    if not reported:
        return text
    return "\n".join(line for line in text.splitlines() if _RANK_TAG.sub("", line).strip() not in reported)


def _says_why(finding: Finding) -> bool:
    if finding.role is Role.UNKNOWN:
        return finding.family == "traceback"
    return finding.role is not Role.RECOVERY and finding.severity is not Severity.INFO


_compiling = threading.Lock()


@lru_cache(maxsize=1)
def _built_in() -> tuple[Base, Engine]:
    """Compiled, and led once over what dying ranks print: automata are built by the text they meet, and the first
    real text must not pay for that while a recovery waits."""
    base = load_base()
    engine = Engine(base.signatures)
    matcher = Matcher(base, now=0.0, engine=engine)
    matcher.feed("", _LAST_WORDS.encode())
    rank_findings(matcher.finish())
    return base, engine
