"""What the end of a rank's own output means.

`classify` reads no file and no clock, and decides nothing: a finding is evidence, and its action what the signature
suggests. Called where the end of a rank is explained.
"""

import re
import threading

from everstep.knowledge.causality.ranking import rank_findings
from everstep.knowledge.engine import Engine
from everstep.knowledge.findings import Finding
from everstep.knowledge.kept import Kept
from everstep.knowledge.loading import Base, load_base
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.signature import Role, Severity
from everstep.model.components import KERNEL
from everstep.model.verdict import Blame

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


def classify(text: str, *, report: str = "") -> Finding | None:
    """What the end of one rank's output says about why it ended; None when nothing in it is known.

    `report`: the exception that it reported itself. The output explains the end only as far as it is linked to that.

    Look at `role`: a root names the cause, a cascade says that this rank is a victim, unknown is an exception without
    an entry. Lines that are harmless or only for information are never returned. The first call of a process compiles
    the signatures.
    """
    with _built_in.reading() as (base, engine):
        matcher = Matcher(base, now=0.0, engine=engine)
        matcher.arrived_at = 0.0
        matcher.is_of_program, matcher.may_prepare = True, False
        matcher.feed("", _without(text[-MAX_TAIL_CHARS:], report).encode("utf-8", "replace"))
        matcher.feed(_REPORT, report[-MAX_TAIL_CHARS:].encode("utf-8", "replace"))
        found = matcher.finish()
    if _built_in.is_large:  # a recovery waits for this call, not for that
        threading.Thread(target=_built_in.renew, name="everstep-signatures", daemon=True).start()
    ordered = rank_findings(found, end=_REPORT if report else "", of_process=True)
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


def built_in() -> tuple[Base, Engine]:
    """The signatures that come with Everstep, compiled once in a process: it takes most of a second."""
    return _built_in.get()


def shared() -> Kept[tuple[Base, Engine]]:
    """The same, for whoever reads other text with them in this process: made once, and renewed for all."""
    return _built_in


def _compile() -> tuple[Base, Engine]:
    """Led once over what dying ranks print: automata are built by the text they meet, and the first
    real text must not pay for that while a recovery waits."""
    base = load_base()
    engine = Engine(base.signatures)
    matcher = Matcher(base, now=0.0, engine=engine)
    matcher.feed("", _LAST_WORDS.encode())
    rank_findings(matcher.finish())
    return base, engine


_built_in = Kept(_compile)
