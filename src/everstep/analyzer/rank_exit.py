"""Conclusions from one rank's end by itself: whether it only follows from another one, whose fault it was, in words.
Pure.

Called by `exits`, which weighs the ends of all ranks and what the nodes noticed.
"""

import re
import signal as signals
from collections.abc import Mapping, Sequence

from everstep.analyzer.numbers.alerts import blame_of, is_cause
from everstep.model.components import KERNEL, NODE_ACTIONS
from everstep.model.facts import Alert, ErrorReport, Exit
from everstep.model.verdict import Blame, Confidence, Evidence

MAX_EVIDENCE = 64
"""Exits that a verdict shows one by one. A fault ends every rank of the job, and a hundred thousand say the same."""

_CONSEQUENCE = re.compile(
    r"connection (was )?(likely )?(closed|reset|refused|aborted)( by peer)?"
    r"|broken pipe|socket closed|recvvalue failed|got 0 bytes|remote process exited"
    r"|timed out waiting|wait timeout|pair closure|collective operation timeout"
    r"|watchdog caught|heartbeat monitor|failed to (connect|recv|send)",
    re.IGNORECASE,
)
"""Messages of gloo, NCCL and the store when a peer is gone (wordings of torch 2.6 to 2.13)."""

_OF_JOB = re.compile(
    r"peer|gloo|c10|nccl|rccl|hccl|watchdog|collective|process ?group|heartbeat|\bpair\b|\bstore\b|tcpstore|recvvalue"
    r"|\brank\b|got 0 bytes|remote process|timed out waiting|wait timeout",
    re.IGNORECASE,
)
_COPED_WITH = re.compile(
    r"\[W\d* |warn(ing)?\b|retr(y|ies)|try(ing)? again|attempt \d|ignor|falling back", re.IGNORECASE
)

_SENT = frozenset({signals.SIGTERM, signals.SIGINT, signals.SIGHUP, signals.SIGQUIT})
"""No process brings these upon itself: a person, or a tool on their behalf, sends them."""

_LIMITS = {signals.SIGXCPU: "CPU time", signals.SIGXFSZ: "the size of a file"}
"""Resource limits (`ulimit -t`, `ulimit -f`) that the kernel enforces by a signal."""

_OWN_CODE = frozenset({signals.SIGSEGV, signals.SIGABRT, signals.SIGFPE, signals.SIGTRAP, signals.SIGSYS})
"""Native code of the program brings these upon itself far more often than a broken machine does. SIGBUS may also be a
full /dev/shm or a storage that is gone, SIGILL a processor that lacks an instruction."""

_ENDS_ONLY = frozenset({"ES-TD14", "ES-TD16", "ES-PY20", *(f"ES-ST{number}" for number in range(50, 56))})
"""Lines such as "Fatal Python error: Segmentation fault": they say how a process ended, and the signal says as much."""

_SHELL_SIGNALS = 128
"""A shell that reports a signal of its child ends with this much more than the signal's number."""

_LOADER_KILLED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (\d{1,9})[\d, ]{0,200}\) is killed by signal: "
    r"(Killed|Terminated|Hangup|Interrupt|Quit)\b"
)
"""What torch raises when a worker of its data loader is gone by a signal that no process sends itself."""

_OWN_SOCKET = {
    "ConnectionResetError": Blame.NETWORK,
    "ConnectionAbortedError": Blame.NETWORK,
    "ConnectionRefusedError": Blame.NETWORK,
    "BrokenPipeError": Blame.UNKNOWN,
}
"""What Python raises when the other end of a socket or pipe is gone. The job's own connections are in native code,
which raises other classes. A broken pipe may be one to a process of the program's own."""

_BY_PEER = "by peer"  # the C library says so of any socket
_FRAME = re.compile(r'^[ \t]{0,40}File "([^"\n]{1,400})", line (\d{1,8}), in ', re.MULTILINE)

_CANNOT_RUN = frozenset({"SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError", "ProgramNotFound"})


def looks_like_consequence(exit_: Exit) -> bool:
    """This end only says that a peer is gone (or that we stopped it)."""
    if exit_.stopped_by_us:
        return True
    if exit_.error is not None:
        if _is_own_cause(exit_, exit_.error):
            return False
        return _CONSEQUENCE.search(exit_.error.message) is not None or _is_cascade(exit_)
    if exit_.signal is not None and exit_.signal != signals.SIGABRT:
        return False
    return any(map(_says_peer_is_gone, exit_.last_output.splitlines()))


def _says_peer_is_gone(line: str) -> bool:
    """Whether a printed line says that a peer is gone: not a web service's refusal, nor what is tried again."""
    is_of_job = _CONSEQUENCE.search(line) is not None and _OF_JOB.search(line) is not None
    return is_of_job and _COPED_WITH.search(line) is None


def _is_own_cause(exit_: Exit, error: ErrorReport) -> bool:
    """Whether the exception is known as a cause: the connection that was refused is one to a storage, and not to a
    peer."""
    found = exit_.finding
    return found is not None and found.role == "root" and is_cause(found) and _is_in(found, error)


def _is_in(found: Alert, error: ErrorReport) -> bool:
    """Whether the line that was recognised is that of the exception itself."""
    first = error.message.strip().split("\n", 1)[0]
    return bool(first) and first[:80] in found.line


def _is_cascade(exit_: Exit) -> bool:
    return exit_.finding is not None and exit_.finding.role == "cascade"


def _named(exit_: Exit) -> Alert | None:
    """The cause that its own words give, if that is more than "the program raised an exception"."""
    found = exit_.finding
    if found is None or exit_.oom is not None or exit_.signal == signals.SIGKILL:
        return None  # a process killed from outside does not know why
    is_plain = found.component == "python" and blame_of(found) is Blame.USER  # its exception says as much
    is_end = found.code in _ENDS_ONLY and (exit_.signal is not None or shell_signal(exit_) is not None)
    return found if is_cause(found) and not is_plain and not is_end and not _is_of_machine(found) else None


def _is_of_machine(found: Alert) -> bool:
    """Whether the alert is what the kernel or a driver reports when a machine is broken."""
    return found.component in KERNEL and (blame_of(found) is Blame.MACHINE or found.action in NODE_ACTIONS)


def _says_machine(exit_: Exit, error: ErrorReport) -> bool:
    """Its exception is what a broken machine causes (an ECC error, a damaged file system). Its node noticed nothing, so
    this is a hint: no machine is taken out for it."""
    return exit_.finding is not None and _is_of_machine(exit_.finding) and _is_in(exit_.finding, error)


def repeated(exit_: Exit) -> str:
    """A line of the kernel or of a driver in its output: evidence of what the program printed. If it is true, the
    node's own senses say so (`_noticed_verdict`)."""
    found = exit_.finding
    if found is None or not is_cause(found) or not _is_of_machine(found):
        return ""
    if exit_.error is not None and _is_in(found, exit_.error):
        return "; its node did not notice"
    return f'; it printed "{_shorten(found.line.strip(), 80)}" ({found.code}), which its node did not notice'


def lost_a_service(exit_: Exit) -> bool:
    """Whether the connection that broke was one to a service outside the job, by the library that raised it."""
    found = _named(exit_)
    return found is not None and found.component == "network" and exit_.error is not None and _is_in(found, exit_.error)


def killed_loader(error: ErrorReport | None) -> tuple[int, str] | None:
    """Process id and signal of the data loader's worker that was killed from outside, if that is what was raised."""
    found = None if error is None else _LOADER_KILLED.search(f"{error.message}\n{error.traceback}")
    return None if found is None else (int(found[1]), found[2])


def broke_its_own(exit_: Exit) -> Blame | None:
    """The party behind a broken socket or pipe that is none of the job's: the program's own line used it. None: it may
    be one between ranks, or its traceback is not there."""
    error = exit_.error
    if (
        error is None
        or error.kind.rpartition(".")[2] not in _OWN_SOCKET
        or _OF_JOB.search(error.message.replace(_BY_PEER, ""))
    ):
        return None
    frames = _FRAME.findall(error.traceback)
    if not frames or f"{frames[-1][0].rpartition('/')[2]}:{frames[-1][1]}" != error.place:
        return None
    return _OWN_SOCKET[error.kind.rpartition(".")[2]]


def fault_time(exit_: Exit) -> float:
    """When the rank's own trouble began: when it raised, if it said so; when it ended, otherwise."""
    if exit_.error is not None and exit_.error.at is not None:
        return min(exit_.error.at, exit_.at)
    return exit_.at


_NO_INPUT = (
    "its debugger found no commands to read. For breakpoint() run one rank at a terminal, with stdin not redirected"
)


def describe(exit_: Exit) -> str:
    """How it ended, in a few words."""
    if exit_.error is not None:
        where = f" at {exit_.error.place}" if exit_.error.place else ""
        text = exit_.error.message.strip().splitlines()
        if exit_.error.kind.rpartition(".")[2] == "BdbQuit":
            return f"raised {exit_.error.kind}{where}: {_NO_INPUT}"
        return f"raised {exit_.error.kind}{where}" + (f": {_shorten(text[0])}" if text else "")
    if exit_.signal is not None:
        return f"was killed by {signal_name(exit_.signal)}" + (f" at {exit_.place}" if exit_.place else "")
    if exit_.code is not None:
        return f"ended with exit code {exit_.code}" + (f" at {exit_.place}" if exit_.place else "")
    return "ended, it is not known how"


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def classify(cause: Exit, causes: list[Exit], num_ranks: int) -> tuple[str, Blame, Confidence, str]:
    """Code, blame, confidence, and what to add to the sentence."""
    worker = killed_loader(cause.error)
    if worker is not None:
        return _of_loader(worker[1], cause)
    named = _named(cause)
    is_alone = num_ranks > 1 and len({e.rank for e in causes if same_fault(cause, e)}) < 2
    if named is not None:
        # A program's words are only a hint if others would have to act on them, or if no other rank confirms them.
        is_own = named.role == "root" and blame_of(named) is Blame.USER and not is_alone
        confidence = Confidence.HIGH if is_own else Confidence.MEDIUM
        return named.code, blame_of(named), confidence, f" ({named.sentence})"
    if cause.error is not None and _says_machine(cause, cause.error):
        assert cause.finding is not None
        return cause.finding.code, Blame.MACHINE, Confidence.LOW, f" ({cause.finding.sentence})"
    if cause.error is not None:
        everywhere = len({e.rank for e in causes if same_fault(cause, e)}) >= max(2, num_ranks)
        code = "ES-U02" if cause.error.kind in _CANNOT_RUN else "ES-U01"
        sure = everywhere or (code == "ES-U02" and not is_alone)
        return code, Blame.USER, Confidence.HIGH if sure else Confidence.MEDIUM, ""
    if cause.oom is not None:
        return "ES-P03", Blame.USER, Confidence.HIGH, f" for lack of memory ({cause.oom.source})"
    if cause.signal == signals.SIGKILL:
        return "ES-P09", Blame.OPERATOR, Confidence.MEDIUM, "; no sign of lack of memory"
    if cause.signal is not None:
        return ("ES-P02", *_of_signal(cause.signal))
    if cause.place:
        return "ES-P01", Blame.USER, Confidence.MEDIUM, ": the program ended itself"
    of_shell = shell_signal(cause)
    if of_shell is not None:
        blame, confidence, note = _of_signal(of_shell)
        return "ES-P02", blame, confidence, f", a shell's word for {signal_name(of_shell)}{note}"
    is_own = cause.code is not None and 0 < cause.code < _SHELL_SIGNALS
    blame = Blame.USER if is_own else Blame.UNKNOWN
    return "ES-P01", blame, Confidence.LOW if is_own else Confidence.MEDIUM, " and left no report"


def _of_loader(signal: str, cause: Exit) -> tuple[str, Blame, Confidence, str]:
    what = "; a worker of its data loader was killed"
    if cause.oom is not None and signal == "Killed":
        return "ES-P03", Blame.USER, Confidence.HIGH, f"{what} for lack of memory ({cause.oom.source})"
    if signal == "Killed":
        return "ES-P09", Blame.OPERATOR, Confidence.MEDIUM, f"{what} from outside; no sign of lack of memory"
    return "ES-P02", Blame.OPERATOR, Confidence.MEDIUM, f"{what}, by a signal that comes from outside"


def shell_signal(exit_: Exit) -> int | None:
    """The signal that a shell says its child ended by, where a process brings that one upon itself or a limit does."""
    number = 0 if exit_.code is None else exit_.code - _SHELL_SIGNALS
    return number if number in _OWN_CODE or number in _LIMITS else None


def _of_signal(number: int) -> tuple[Blame, Confidence, str]:
    """Whose doing an end by this signal is, if nothing else is known."""
    if number in _SENT:
        return Blame.OPERATOR, Confidence.MEDIUM, ", which comes from outside"
    if number in _LIMITS:
        return Blame.ENVIRONMENT, Confidence.HIGH, f": it reached its limit of {_LIMITS[signals.Signals(number)]}"
    if number in _OWN_CODE:
        return Blame.USER, Confidence.LOW, ""
    return Blame.UNKNOWN, Confidence.HIGH, ""


def action_of(cause: Exit) -> str:
    """Return the action that the rank's own words suggest. It never takes a machine out of the fleet: a program can
    print anything."""
    named = _named(cause)
    return "" if named is None or named.action in NODE_ACTIONS else named.action


def same_fault(one: Exit, other: Exit) -> bool:
    if one.rank == other.rank:
        return True
    if one.error is not None and other.error is not None:
        return (one.error.kind, one.error.place) == (other.error.kind, other.error.place)
    return False


def same_killer(one: Exit, other: Exit) -> bool:
    """Both were killed from outside, by one signal: whichever was reported first, neither follows from the other."""
    is_sent = one.signal == signals.SIGKILL or one.signal in _SENT
    has_own = any(each.error is not None or each.oom is not None for each in (one, other))
    return is_sent and one.signal == other.signal and not has_own


def strongest_first(exits: Sequence[Exit]) -> list[Exit]:
    """Causes before what follows from them, each in the order in which trouble began."""
    return sorted(exits, key=lambda each: (looks_like_consequence(each), fault_time(each)))


def evidences(exits: Sequence[Exit], nodes: Mapping[int, str]) -> tuple[Evidence, ...]:
    """Return evidence of the first exits, and how many more there are."""
    shown = [_evidence(exit_, nodes.get(exit_.rank)) for exit_ in exits[:MAX_EVIDENCE]]
    more = len(exits) - len(shown)
    if more > 0:
        says = f"{more} more ranks ended; all of them are in the records of this incident"
        shown.append(Evidence(at=fault_time(exits[-1]), source="exit status", says=says))
    return tuple(shown)


def _evidence(exit_: Exit, node: str | None) -> Evidence:
    says = f"rank {exit_.rank} {describe(exit_)}"
    if exit_.stopped_by_us:
        says += " (ended by everstep)"
    elif looks_like_consequence(exit_):
        says += " (a consequence: a peer was gone)"
    detail = exit_.error.traceback if exit_.error is not None else exit_.last_output
    if exit_.oom is not None:
        detail = exit_.oom.line or exit_.oom.source
    source = "error report" if exit_.error is not None else "exit status"
    return Evidence(at=fault_time(exit_), source=source, says=says, rank=exit_.rank, node=node, detail=detail)


def is_own_exception(exit_: Exit) -> bool:
    """A Python exception about which nothing more is known than that the program raised it."""
    return exit_.error is not None and _named(exit_) is None


def _shorten(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
