"""One verdict for a folder: a hang if there is one, else what the logs say of numbers and of step times. Pure."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from everstep.analyzer.codes import CODES
from everstep.analyzer.hangs.combine import diagnose
from everstep.analyzer.hangs.diagnosis import Diagnosis
from everstep.analyzer.numbers.series import LEAST_POINTS, Point, course_of, judge_numbers
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.known import Known
from everstep.analyzer.observations.records import Case
from everstep.analyzer.observations.words import ranks_text, seconds
from everstep.analyzer.slowness.slow import judge_history
from everstep.model.verdict import Blame, Confidence, Evidence

_NO_HANG = ("ES-H00", "ES-H15")
_MISMATCHES, _MISMATCH = ("ES-H03", "ES-H04"), "nccl_trunc"
_WORSE_THAN_SLOW = "ES-N"
_OF_ITS_RANK = frozenset({"ES-TD11", "ES-TD12", "ES-ST53", "ES-PY19"})
"""Consequences that tell how the rank itself ended. In all others it only speaks of what it noticed of others."""
_TELLS_AN_END = frozenset(
    {"elastic_signal", "elastic_child_failed", "process_lost", "elastic_cascade", "sched_task_exit"}
)
"""What a launcher says of the end of a rank: an exception of that rank says more, also in words that nobody knows."""

_STALLED = "ES-H11"
_TIMED_OUT = "nccl_timeout"
_COSTS = frozenset({_TIMED_OUT, "process_aborted", "segfault", "bus_error_rank"})
"""What costs a job its exit code, or the time of its machines, although its training was over."""
_RAN = re.compile(r"ran for (\d{1,12}) milliseconds")
_HOST_OOM = "host_oom"
_KILLED = re.compile(r"exitcode ?: -9\b|\breturn code = -9\b|\bSIGKILL\b|[Ss]ignal:? 9\b|\bKilled\b")


def overall(case: Case, series: Mapping[str, Sequence[Point]], known: Sequence[Known] = ()) -> Diagnosis:
    """`series` is what each log told, oldest point first; `known` what the signatures found, the cause first."""
    hang = diagnose(case)
    cause = next((each for each in known if each.is_cause), None)
    if cause is not None and _explains(cause, hang):
        return _by_signature(cause, known, hang)
    if any(each.finished_line for each in known) and hang.verdict.code in (*_NO_HANG, _STALLED):
        return _after_training(known, hang, case)
    logged = [finding for name, points in sorted(series.items()) for finding in _of_log(name, points, case.at)]
    logged.sort(key=lambda finding: finding.code)  # N before S: numbers that are wrong are worse than slow ones
    said = _first_of([each for each in known if each.is_consequence])
    small = next((each for each in known if each.is_small), None)
    supposed = next((each for each in known if each.is_supposed), None)
    if hang.verdict.code == "ES-H15" and not _are_numbers_wrong(logged):
        if supposed is not None and (said is None or said.name in _TELLS_AN_END):
            return _by_exception(supposed, known, hang)
        if said is not None:
            starved = next((each for each in known if each.name == _HOST_OOM), None)
            if starved is not None and _KILLED.search(_reported(said.text)):
                return _by_signature(msgspec.structs.replace(starved, is_root=False), known, hang)
            return _by_consequence(said, known, hang)
        if small is not None and not any(series.values()):
            return _by_signature(msgspec.structs.replace(small, is_root=False), known, hang)
    if not logged and hang.verdict.code == "ES-H15" and not known and not case.unread:
        return _well(series, hang)
    if not logged:
        return hang
    if hang.verdict.code not in _NO_HANG:
        return msgspec.structs.replace(hang, findings=(*hang.findings, *logged))
    first = logged[0]
    same = [finding for finding in logged if finding.code == first.code]
    verdict = msgspec.structs.replace(
        hang.verdict,
        code=first.code,
        sentence=first.sentence,
        blame=Blame(CODES[first.code].blame),
        confidence=first.confidence,
        ranks=first.ranks,
        place="",
        evidence=(*(evidence for finding in same for evidence in finding.evidence), *hang.verdict.evidence),
    )
    return msgspec.structs.replace(hang, verdict=verdict, group=first.group, findings=(*logged, *hang.findings))


def _explains(cause: Known, hang: Diagnosis) -> bool:
    """A fault that names itself explains why others wait, unless records prove another reason."""
    found = hang.verdict
    if found.code in _MISMATCHES and cause.name == _MISMATCH:
        return False  # the same line: it is of two ranks, and says nothing against the one that printed it
    if found.code in _NO_HANG or found.confidence is Confidence.LOW:
        return True
    return cause.is_root and found.confidence is not Confidence.HIGH


def _first_of(consequences: Sequence[Known]) -> Known | None:
    """A process that was killed came before those that lost their connection to it."""
    killed = next(
        (each for each in consequences if each.name in _TELLS_AN_END and _KILLED.search(_reported(each.text))), None
    )
    return killed or next(iter(consequences), None)


def _well(series: Mapping[str, Sequence[Point]], hang: Diagnosis) -> Diagnosis:
    """The diagnosis of logs that show a training, and no fault: it says what is well. A log that shows neither stays
    without a verdict, and so does one that ends with an error."""
    points = max(series.values(), key=len, default=())
    is_error = any(e.source == "log" for e in hang.verdict.evidence)
    if len(points) < LEAST_POINTS or is_error:
        return hang
    losses = [point.loss for point in points if point.loss is not None]
    sentence = f"nothing is wrong in what is here: {len(points)} steps were logged{course_of(losses)}."
    verdict = msgspec.structs.replace(hang.verdict, code="ES-H00", sentence=sentence, evidence=())
    first = Finding(code="ES-H00", sentence=sentence, confidence=verdict.confidence)
    return msgspec.structs.replace(hang, verdict=verdict, findings=(first,))


def _reported(text: str) -> str:
    """The text without the list of what may be behind it."""
    return text.partition("potential root causes")[0]


def _are_numbers_wrong(logged: Sequence[Finding]) -> bool:
    return bool(logged) and logged[0].code.startswith(_WORSE_THAN_SLOW)


def _after_training(known: Sequence[Known], hang: Diagnosis, case: Case) -> Diagnosis:
    """The diagnosis when the training ended by itself. What came then cost no training; a time limit that ran out and a
    crash still cost the time and the exit code of the job, so they are a fault of small confidence."""
    torn = [each for each in known if each.finished_line]
    last = next((each for each in torn if each.name in _COSTS), torn[0])
    over = f"the training was over: {last.source}:{last.finished_line} says so. After that"
    work = next((work for work in case.claims.works if work.op), None) if last.name == _TIMED_OUT else None
    code, blame, confidence = "ES-H00", Blame.UNKNOWN, Confidence.MEDIUM
    if last.name == _TIMED_OUT:
        code, blame, confidence = "ES-H17", Blame.USER, Confidence.LOW
        who = f"{ranks_text(last.ranks)} " if last.ranks else "a rank "
        where = f"in {work.op}{f' #{work.seq}' if work.seq is not None else ''}" if work else "in a collective"
        ran = _RAN.search(last.text)
        cost = f" for {seconds(int(ran[1]) / 1000)}" if ran is not None else ""
        sentence = f"{over}, {who}waited {where}{cost}, which the others did not enter; the job ended with an error."
    elif last.name in _COSTS:
        code, confidence = last.code, Confidence.LOW
        sentence = f'{over}, {last.code} {last.title} ("{last.text[:160].strip()}"): no training is lost, the job '
        sentence += "ended with an error."
    else:
        sentence = f'{over}, {last.code} {last.title} ("{last.text[:160].strip()}"), which ended no training.'
    verdict = msgspec.structs.replace(
        hang.verdict,
        code=code,
        sentence=sentence,
        blame=blame,
        confidence=confidence,
        evidence=(*_told(known, hang), *(e for e in hang.verdict.evidence if e.source != "missing")),
    )
    first = Finding(code=code, sentence=sentence, confidence=confidence)
    return msgspec.structs.replace(hang, verdict=verdict, group=None, findings=(first,))


def _told(known: Sequence[Known], hang: Diagnosis) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(at=hang.verdict.at, source="log", says=f"{k.source}:{k.line}: {k.code} {k.title}", detail=k.text)
        for k in known
    )


def _by_signature(cause: Known, known: Sequence[Known], hang: Diagnosis) -> Diagnosis:
    who = f"{ranks_text(cause.ranks)}: " if cause.ranks else ""
    verdict = msgspec.structs.replace(
        hang.verdict,
        code=cause.code,
        sentence=f'{who}{cause.title} ("{cause.text[:160].strip()}").',
        blame=cause.blame,
        confidence=Confidence.MEDIUM if cause.is_root else Confidence.LOW,
        ranks=cause.ranks,
        place=cause.place,
        evidence=(*_told(known, hang), *(e for e in hang.verdict.evidence if e.source != "missing")),
    )
    others = hang.findings if hang.verdict.code not in _NO_HANG else ()
    first = Finding(code=cause.code, sentence=verdict.sentence, confidence=verdict.confidence, ranks=cause.ranks)
    return msgspec.structs.replace(hang, verdict=verdict, group=None, findings=(first, *others))


def _by_exception(supposed: Known, known: Sequence[Known], hang: Diagnosis) -> Diagnosis:
    """Nothing else is known: then the exception that ended the program is told, and that its words are unknown."""
    guess = msgspec.structs.replace(supposed, is_root=False)
    said = _by_signature(guess, known, hang)
    sentence = f"{said.verdict.sentence[:-1]}; no signature knows these words, so the party is a guess by them."
    verdict = msgspec.structs.replace(said.verdict, sentence=sentence)
    first = msgspec.structs.replace(said.findings[0], sentence=sentence)
    return msgspec.structs.replace(said, verdict=verdict, findings=(first, *said.findings[1:]))


def _by_consequence(said: Known, known: Sequence[Known], hang: Diagnosis) -> Diagnosis:
    """The logs hold only what followed. Then at least that is said; a rank is named only for its own end."""
    who = f"{ranks_text(said.ranks)}: " if said.ranks else ""
    verdict = msgspec.structs.replace(
        hang.verdict,
        code=said.code,
        sentence=f'{who}{said.title} ("{said.text[:160].strip()}"); what brought it about is not in these logs.',
        blame=said.blame,
        confidence=Confidence.LOW,
        ranks=said.ranks if said.code in _OF_ITS_RANK else (),
        place=said.place,
        evidence=(*_told(known, hang), *hang.verdict.evidence),
    )
    first = Finding(code=said.code, sentence=verdict.sentence, confidence=verdict.confidence, ranks=verdict.ranks)
    return msgspec.structs.replace(hang, verdict=verdict, group=None, findings=(first,))


def _of_log(name: str, points: Sequence[Point], at: float) -> list[Finding]:
    found: list[Finding] = []
    wrong = judge_numbers(points, at)
    if wrong:
        evidence = tuple(msgspec.structs.replace(e, says=f"{name}: {e.says}") for e in wrong.evidence)
        found.append(msgspec.structs.replace(wrong, evidence=evidence))
    timed = [(point.step, point.step_s) for point in points if point.step_s is not None]
    slow = judge_history([step_s for _, step_s in timed])
    if slow.code == "ES-S03" and slow.since_step is not None:
        step = timed[slow.since_step][0]  # since_step is an index here: a log may leave steps out
        sentence = (
            slow.sentence.replace(f"since step {slow.since_step}", f"since step {step}") if step else slow.sentence
        )
        says = Evidence(at=at, source="log", says=f"{name}: {sentence}")
        found.append(Finding(code=slow.code, sentence=sentence, confidence=slow.confidence, evidence=(says,)))
    return found
