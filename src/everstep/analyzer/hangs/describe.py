"""Description of what a suspect does instead of what the others wait for: refines and explains a finding. Pure; for
`combine`."""

from collections.abc import Iterable, Mapping

import msgspec

from everstep.analyzer.observations.clusters import (
    Activity,
    Clusters,
    children_of,
    is_fetching,
    main_thread,
    place_of,
)
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.records import KernelThread, RankEvidence
from everstep.analyzer.observations.words import ranks_text, verb
from everstep.model.verdict import Confidence, Evidence

_REFINABLE = frozenset({"ES-H02", "ES-H10", "ES-H12", "ES-H18", "ES-H20"})
_BY_ACTIVITY = {
    Activity.LOADER: "ES-H06",
    Activity.PYTHON: "ES-H07",
    Activity.NATIVE: "ES-H08",
}
_STATES = {
    "T": "is stopped (process state T)",
    "t": "is held by a tracer (process state t)",
    "D": "is in uninterruptible sleep (process state D)",
    "Z": "has ended (process state Z)",
    "X": "has ended",
}


def refine(finding: Finding, by_rank: Mapping[int, RankEvidence], doing: Mapping[int, Activity]) -> Finding:
    """Give the finding the code that says what its suspects do; they stay the same. Proven desyncs keep their code."""
    if finding.code not in _REFINABLE or not finding.ranks:
        return finding
    rank = finding.ranks[0]
    evidence = by_rank.get(rank) or RankEvidence(rank=rank)
    code, does = _what(evidence, doing.get(rank, Activity.UNKNOWN))
    place = _place(evidence)
    if code is None:
        if finding.place or not place:
            return finding
        sentence = f"{finding.sentence} rank {rank} is at {place}."
        return msgspec.structs.replace(finding, place=place, sentence=sentence)
    contradicted = finding.code == "ES-H02" and doing.get(rank) is Activity.COLLECTIVE
    confidence = Confidence.MEDIUM if contradicted else _raised(finding, code)
    at = f" at {place}" if place else ""
    same = f"rank {rank} "
    rest = (
        f" and {finding.sentence.removeprefix(same)}" if finding.sentence.startswith(same) else f": {finding.sentence}"
    )
    sentence = f"rank {rank} {does}{at}{rest}"
    return msgspec.structs.replace(finding, code=code, sentence=sentence, confidence=confidence, place=place)


def _raised(finding: Finding, code: str) -> Confidence:
    """Two sources that agree on one rank are better than either."""
    if len(finding.ranks) > 1:
        return finding.confidence
    if code in ("ES-H01", "ES-H09") or finding.code in ("ES-H02", "ES-H10"):
        return Confidence.HIGH
    return finding.confidence


def _what(evidence: RankEvidence, doing: Activity) -> tuple[str | None, str]:
    letters = [letter for _, letter in evidence.states]
    if doing is Activity.NATIVE and letters and letters[0] == "R":
        doing = Activity.PYTHON  # one look of py-spy may miss that a thread runs; the kernel's own word does not
    if letters and letters[0] == "T":
        return "ES-H01", _STATES["T"]
    if doing is Activity.LOADER:
        return "ES-H06", f"waits for its data loader{_worker(evidence)}"
    if letters and letters[0] == "D":
        return "ES-H09", _STATES["D"]
    code = _BY_ACTIVITY.get(doing)
    return code, str(doing) if code else ""


def _worker(evidence: RankEvidence) -> str:
    """Describe what a worker of the rank's loader does: " (worker process 812 reads at data.py:30 __getitem__)". Empty:
    not known."""
    states = dict(evidence.states)
    for process, thread in children_of(evidence):
        if is_fetching(thread):
            state = f" and {_STATES['D']}" if states.get(process.pid) == "D" else ""
            return f" (worker process {process.pid} reads at {place_of(thread.frames) or 'an unknown place'}{state})"
    stuck = [pid for pid, letter in evidence.states[1:] if letter == "D"]
    return f" (child process {stuck[0]} {_STATES['D']})" if stuck else ""


def _place(evidence: RankEvidence) -> str:
    thread = main_thread(evidence.own) if evidence.own is not None else None
    return place_of(thread.frames) if thread else ""


def absent_sentence(ranks: tuple[int, ...], finding: Finding) -> str:
    waiting = finding.waiting
    return (
        f"{ranks_text(ranks)} left no flight record and {verb(ranks, 'does', 'do')} not wait in communication, while "
        f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')}."
    )


def of_suspects(at: float, ranks: Iterable[int], by_rank: Mapping[int, RankEvidence]) -> list[Evidence]:
    """State, stack and children of each suspect."""
    listed: list[Evidence] = []
    for rank in list(ranks)[:16]:
        evidence = by_rank.get(rank)
        if evidence is None:
            listed.append(Evidence(at=at, source="missing", says="no evidence of this rank at all", rank=rank))
            continue
        for pid, letter in evidence.states:
            if letter in _STATES:
                listed.append(
                    Evidence(at=at, source="process state", says=f"process {pid} {_STATES[letter]}", rank=rank)
                )
        for process in evidence.processes[:8]:
            thread = main_thread(process)
            if thread and thread.frames:
                says = (
                    f"process {process.pid}: {' < '.join(f'{f.name} ({f.file}:{f.line})' for f in thread.frames[:4])}"
                )
                detail = "\n".join(f"{f.name} ({f.file}:{f.line})" for f in thread.frames[:100])
                listed.append(Evidence(at=at, source="stack", says=says, rank=rank, detail=detail))
        listed += [_of_kernel(at, rank, thread) for thread in evidence.native[:8]]
        if evidence.last_output:
            listed.append(Evidence(at=at, source="log", says="last output", rank=rank, detail=evidence.last_output))
    return listed


def _of_kernel(at: float, rank: int, thread: KernelThread) -> Evidence:
    """Where no Python stack tells: what the kernel says that a thread waits for."""
    who = f"process {thread.pid}" if thread.tid == thread.pid else f"thread {thread.tid} ({thread.name[:40]})"
    does = f" in {thread.call[:200]}" if thread.call else ""
    waits = f", waits in {thread.waits_in[:100]}" if thread.waits_in else ""
    says = f"{who}: state {thread.state[:1]}{does}{waits}"
    return Evidence(at=at, source="kernel", says=says, rank=rank, detail="\n".join(thread.stack[:12])[:2000])


def of_clusters(at: float, clusters: Clusters) -> list[Evidence]:
    listed = []
    for kind, group in (("usual", clusters.healthy), ("differs", clusters.outliers)):
        for c in group[:8]:
            at_place = f", called at {c.place}" if c.place else ""
            says = f"{kind}: {ranks_text(c.ranks)} ({len(c.ranks)}) {c.activity}, {c.innermost}{at_place}"
            listed.append(Evidence(at=at, source="stacks", says=says))
    return listed
