"""Findings from the text output of libraries and tools, for the case that their records themselves are missing. Pure.

A rank that differs is a suspect, in either direction: a minority that went on to another operation is as odd as one
that is behind. If all agree, none is accused.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

import msgspec

from everstep.analyzer.observations.claims import Call, Claims, Kind, Named, Work
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.words import ranks_text, verb
from everstep.model.verdict import Confidence, Evidence

_MAX_LISTED = 8
_CODES = {
    Kind.MISSING: "ES-H02",
    Kind.BEHIND: "ES-H02",
    Kind.MISMATCH: "ES-H03",
    Kind.SILENT: "ES-H20",
    Kind.INIT: "ES-H20",
    Kind.STUCK: "ES-H20",
}
_SAME_SIZE = frozenset({"allreduce", "broadcast", "_allgather_base", "_reduce_scatter_base"})
"""Operations in which all ranks of a group have the same number of elements."""
_PAIRED = ("send", "recv", "coalesced")
_ORDER = (Kind.MISMATCH, Kind.MISSING, Kind.SILENT, Kind.BEHIND, Kind.INIT, Kind.STUCK)


def findings(claims: Claims, at: float) -> list[Finding]:
    """Strongest first."""
    return [
        *_mismatches(claims.calls, at, "fingerprint"),
        *_by_tool(claims, at),
        *_traced(claims.last_calls, at),
        *_watchdogs(claims, at),
    ]


def _mismatches(calls: Sequence[Call], at: float, source: str) -> list[Finding]:
    """Different calls at the same place."""
    by_place: defaultdict[tuple[str, int | None], dict[int, Call]] = defaultdict(dict)
    for call in calls:
        by_place[call.group, call.seq][call.rank] = call
    for (_, seq), told in sorted(by_place.items(), key=lambda item: -len(item[1])):
        for code, form in (
            ("ES-H03", {r: c.op for r, c in told.items() if c.op}),  # what is not known is not another one
            ("ES-H04", {r: c.form for r, c in told.items() if c.form}),
        ):
            odd, usual = _minority(form)
            if not odd:
                continue
            place = f" #{seq}" if seq else ""
            is_draw = not usual
            if is_draw:
                sentence = f"the ranks went different ways{f' at #{seq}' if seq else ''}: {_listed(told, code)}; no "
                sentence += "majority says which is wrong."
            else:
                sentence = f"{ranks_text(odd)} called {_said(told[odd[0]], code)}{place}; the others called "
                sentence += f"{_said(told[usual[0]], code)}."
            return [
                Finding(
                    code=code,
                    sentence=sentence,
                    confidence=Confidence.LOW if is_draw else Confidence.HIGH,
                    ranks=() if is_draw and len(odd) > 2 else odd,  # of two, both are worth a look
                    waiting=usual,
                    evidence=tuple(
                        Evidence(at=at, source=source, says=f"called {call.op} {call.form}".strip(), rank=rank)
                        for rank, call in sorted(told.items())[:_MAX_LISTED]
                    ),
                )
            ]
    return []


def _said(call: Call, code: str) -> str:
    return call.op if code == "ES-H03" else f"{call.op} of {call.form}"


def _listed(told: Mapping[int, Call], code: str) -> str:
    by_call: defaultdict[str, list[int]] = defaultdict(list)
    for rank, call in sorted(told.items()):
        by_call[_said(call, code)].append(rank)
    return ", ".join(f"{ranks_text(ranks)} called {call}" for call, ranks in list(by_call.items())[:_MAX_LISTED])


def _minority(values: Mapping[int, Hashable]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ranks that differ, and those that agree with the majority. In a draw all and none; nothing if all agree."""
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return (), ()
    if counts[0][1] == counts[1][1]:
        return tuple(sorted(values)), ()
    usual = counts[0][0]
    odd = tuple(sorted(rank for rank, value in values.items() if value != usual))
    return odd, tuple(sorted(rank for rank, value in values.items() if value == usual))


def _by_tool(claims: Claims, at: float) -> list[Finding]:
    found = []
    for kind in _ORDER:
        told = [named for named in claims.named if named.kind is kind]
        accused = [named for named in told if named.ranks and named.is_sure] or [n for n in told if n.ranks]
        ranks = tuple(sorted({rank for named in accused for rank in named.ranks}))
        world = {*claims.world, *(rank for named in told for rank in (*named.ranks, *named.others))}
        if ranks and not 2 * len(ranks) > len(world) > 2:
            found.append(_accusing(kind, accused, ranks, tuple(sorted(world - {*ranks})), at))
        elif told:
            found.append(_of_most(kind, told[0], at))
    return found


def _accusing(kind: Kind, told: Sequence[Named], ranks: tuple[int, ...], others: tuple[int, ...], at: float) -> Finding:
    first = told[0]
    sure = kind in (Kind.MISMATCH, Kind.MISSING) and first.source == "torchfrtrace"
    confidence = Confidence.HIGH if sure else Confidence.MEDIUM
    if kind is Kind.STUCK or not any(named.is_sure for named in told):
        confidence = Confidence.LOW
    return Finding(
        code=_CODES[kind],
        sentence=f"{ranks_text(ranks)} {first.says} ({first.source}).",
        confidence=confidence,
        ranks=ranks,
        waiting=others,
        evidence=_evidence(told, at),
    )


def _of_most(kind: Kind, named: Named, at: float) -> Finding:
    """Most ranks cannot be the odd ones, so none is accused. What was said of them still is the best there is."""
    who = f"{ranks_text(named.ranks)} " if named.ranks else ""
    others = f"; {ranks_text(named.others)} did" if named.others and kind is Kind.MISSING else ""
    odd = ", too many to be the odd ones" if named.ranks else ""
    branch = (
        ". A branch that not all ranks take is the usual cause: see what the few do there"
        if kind is Kind.MISSING
        else ""
    )
    return Finding(
        code="ES-H11" if kind is Kind.INIT else _CODES[kind],
        sentence=f"{who}{named.says} ({named.source}){others}{odd}{branch}.",
        confidence=Confidence.LOW,
        evidence=_evidence([named], at),
    )


def _evidence(told: Sequence[Named], at: float) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            at=at,
            source="log" if named.kind is Kind.INIT else named.source,
            says=named.says,
            rank=named.ranks[0] if len(named.ranks) == 1 else None,
        )
        for named in told[:_MAX_LISTED]
    )


def _traced(calls: Sequence[Call], at: float) -> list[Finding]:
    """The newest call of each rank in NCCL's trace: ranks at another number, or with another call there."""
    by_group: defaultdict[str, dict[int, Call]] = defaultdict(dict)
    for call in calls:
        by_group[call.group][call.rank] = call
    for told in by_group.values():
        odd, usual = _minority({rank: call.seq for rank, call in told.items()})
        if odd and usual and len(told) > 2:
            numbers = ", ".join(sorted({f"#{told[rank].seq}" for rank in odd}))
            there = told[usual[0]]
            return [
                _differs(odd, usual, f"ended at {numbers} in NCCL's trace, the others at {there.op} #{there.seq}", at)
            ]
        same_place = _mismatches(tuple(told.values()), at, "NCCL trace")
        if same_place and same_place[0].waiting:  # a log may be cut off: no proof
            return [msgspec.structs.replace(same_place[0], confidence=Confidence.MEDIUM)]
    return []


def _differs(odd: tuple[int, ...], usual: tuple[int, ...], says: str, at: float) -> Finding:
    return Finding(
        code="ES-H20",
        sentence=f"{ranks_text(odd)} {says}.",
        confidence=Confidence.MEDIUM if len(odd) == 1 else Confidence.LOW,
        ranks=odd,
        waiting=usual,
        evidence=(Evidence(at=at, source="log", says=says, rank=odd[0] if len(odd) == 1 else None),),
    )


def _watchdogs(claims: Claims, at: float) -> list[Finding]:
    """Return findings from the ranks' watchdogs about the group in which most of them timed out."""
    by_group: defaultdict[str, dict[int, Work]] = defaultdict(dict)
    groups = {work.group for work in claims.works if work.group}
    only = groups.pop() if len(groups) == 1 else ""
    for work in claims.works:
        by_group[work.group or only].setdefault(work.rank, work)
    if not by_group:
        return []
    group, told = max(by_group.items(), key=lambda item: len(item[1]))
    reported = {work.rank for work in claims.works}
    apart = _apart(told, at, is_named=bool(group), is_pair=len(claims.world) == 2) if group or not groups else []
    if apart:
        return apart
    for says, values in (
        ("timed out at another place than the others", {r: w.seq for r, w in told.items() if w.seq is not None}),
        (
            "had enqueued another number of operations",
            {r: w.enqueued for r, w in told.items() if w.enqueued is not None},
        ),
        (
            "had completed another number of operations",
            {r: w.completed for r, w in told.items() if w.completed is not None},
        ),
    ):
        odd, usual = _minority(values)
        if odd and usual:
            return [_differs(odd, usual, f"{says}: {_places(odd, told)}, others {_places(usual[:1], told)}", at)]
    silent = tuple(rank for rank in claims.world if rank not in reported)
    if silent and 2 * len(silent) <= len(reported):
        first = next(iter(told.values()))
        where = f", in {_place(first)}" if len(by_group) == 1 else " in several groups"
        says = f"did not report a timeout; {len(reported)} ranks did{where}"
        return [_differs(silent, tuple(sorted(reported)), says, at)]
    odd = _behind(told)
    if odd:
        rest = tuple(sorted(set(told) - set(odd)))
        return [
            _differs(
                odd,
                rest,
                f"{verb(odd, 'was', 'were')} behind: {_places(odd, told)}, others {_places(rest[:1], told)}",
                at,
            )
        ]
    return [_same(told, len(reported - told.keys()), silent, at)] if len(told) > 1 else []


def _apart(told: Mapping[int, Work], at: float, *, is_named: bool, is_pair: bool) -> list[Finding]:
    """Ranks that timed out at one place of one group in calls that cannot belong together. Sizes that may differ from
    rank to rank, and the two ends of a transfer, say nothing; nor do sizes where no line names the group: stages of a
    pipeline are at one number with tensors of their own. `is_pair`: there are two ranks, and so one group."""
    calls = [
        Call(
            rank=rank,
            seq=work.seq,
            op=work.op,
            form=work.size if work.op in _SAME_SIZE and (is_named or is_pair) else "",
        )
        for rank, work in told.items()
        if work.seq is not None and work.op and not work.op.startswith(_PAIRED)
    ]
    found = _mismatches(calls, at, "watchdog")
    return [msgspec.structs.replace(f, confidence=_least(f.confidence)) for f in found]


def _least(confidence: Confidence) -> Confidence:
    """A log may be cut off: no proof."""
    return Confidence.LOW if confidence is Confidence.LOW else Confidence.MEDIUM


def _behind(told: Mapping[int, Work]) -> tuple[int, ...]:
    """In a draw, those whose last operation is the older one."""
    known = {rank: work.enqueued for rank, work in told.items() if work.enqueued is not None}
    known = known or {rank: work.seq for rank, work in told.items() if work.seq is not None}
    if len(set(known.values())) < 2:
        return ()
    least = min(known.values())
    return tuple(sorted(rank for rank, value in known.items() if value == least))


def _same(told: Mapping[int, Work], num_elsewhere: int, silent: tuple[int, ...], at: float) -> Finding:
    where = _listed_places(told)
    elsewhere = f" ({num_elsewhere} more in other groups)" if num_elsewhere else ""
    quiet = f"; {ranks_text(silent)} did not report a timeout" if silent else ""
    return Finding(
        code="ES-H11",
        sentence=f"{len(told)} ranks timed out in {where}{elsewhere}{quiet}. The logs do not tell which rank is "
        "missing from it, or whether the network or a device stands.",
        confidence=Confidence.LOW,
        waiting=tuple(sorted(told)),
        evidence=(Evidence(at=at, source="log", says=f"timed out in {where}"),),
    )


def _listed_places(told: Mapping[int, Work]) -> str:
    """Where all of them are; of several places, who is where."""
    by_place: defaultdict[str, list[int]] = defaultdict(list)
    for rank, work in sorted(told.items()):
        by_place[_operation(work)].append(rank)
    if len(by_place) == 1:
        return _place(next(iter(told.values())))
    listed = list(by_place.items())
    more = f", and {len(listed) - _MAX_LISTED} more places" if len(listed) > _MAX_LISTED else ""
    return ", ".join(f"{place} ({ranks_text(ranks)})" for place, ranks in listed[:_MAX_LISTED]) + more


def _places(ranks: Sequence[int], told: Mapping[int, Work]) -> str:
    return ", ".join(dict.fromkeys(_place(told[rank]) for rank in ranks[:_MAX_LISTED]))


def _place(work: Work) -> str:
    numbers = (("enqueued", work.enqueued), ("completed", work.completed))
    status = ", ".join(f"{word} #{number}" for word, number in numbers if number is not None)
    return f"{_operation(work)}{f' ({status})' if status else ''}"


def _operation(work: Work) -> str:
    return f"{work.op or 'an operation'}{f' #{work.seq}' if work.seq is not None else ''}"
