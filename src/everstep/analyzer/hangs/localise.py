"""Which rank the others wait for, from flight records alone.

Every waiting rank waits for the members of its group that have not entered the same operation. Following these edges
ends at ranks that wait for nobody (the culprits), at ranks that left no record (gone, or stopped), or in a circle
(two groups entered in opposite order). A rank that waits itself is never blamed for being behind: torch's own
`torchfrtrace` does that. Before all that, ranks that called different things at the same place are looked for.

Pure. Called by `combine`; used by the controller and by `everstep analyze`.
"""

from collections import Counter, defaultdict

from everstep.analyzer.base.finding import Finding
from everstep.analyzer.base.positions import Positions
from everstep.analyzer.base.records import Collective, ParallelGroup
from everstep.analyzer.base.words import operation, ranks_text, verb
from everstep.analyzer.hangs import desync
from everstep.model.verdict import Confidence, Evidence


def localise(positions: Positions, at: float) -> list[Finding]:
    """Findings, best first. Empty: no rank waits for anything."""
    waits = {rank: positions.pending(rank) for rank in positions.records}
    waits = {rank: entries for rank, entries in waits.items() if entries}
    if not waits:
        return []
    mismatch = desync.find_mismatch(positions, waits, at)
    if mismatch:
        return [mismatch]
    edges = _Edges(positions, waits)
    return [f for f in (edges.never_entered(at), edges.opposite_order(at), edges.absent(at), edges.stalled(at)) if f]


class _Edges:
    """Who waits for whom."""

    def __init__(self, positions: Positions, waits: dict[int, list[Collective]]) -> None:
        self.positions = positions
        self.waits = waits
        self.behind: dict[int, set[int]] = defaultdict(set)  # waiting rank -> ranks with a record that lag
        self.unseen: dict[int, set[int]] = defaultdict(set)  # waiting rank -> ranks without a usable record
        self._lag: dict[tuple[str, tuple[int, ...], int], tuple[set[int], set[int]]] = {}
        self.where: dict[int, tuple[Collective, ParallelGroup]] = {}  # rank -> operation that others wait for it in
        for rank, entries in waits.items():
            for entry in entries:
                self._follow(rank, entry)

    def _follow(self, rank: int, entry: Collective) -> None:
        group = self.positions.group(entry.group, rank)
        behind, unseen = self._against_peer(rank, entry, group) if entry.is_p2p else self._against_group(entry, group)
        self.behind[rank] |= behind
        self.unseen[rank] |= unseen
        for other in (*behind, *unseen):
            self.where.setdefault(other, (entry, group))

    def _against_peer(self, rank: int, entry: Collective, group: ParallelGroup) -> tuple[set[int], set[int]]:
        behind, unseen = set(), set()
        for other in self._peers(rank, entry, group):
            position = self.positions.at(entry.group, other)
            if position is None:
                unseen.add(other)
            elif not any(rank in self._peers(other, pending, group) for pending in position.pending_p2p):
                behind.add(other)
        return behind, unseen

    def _against_group(self, entry: Collective, group: ParallelGroup) -> tuple[set[int], set[int]]:
        """Once per operation, however many ranks wait in it."""
        key = (group.name, group.ranks[:1], entry.seq)
        if key not in self._lag:
            positions = {rank: self.positions.at(group.name, rank) for rank in group.ranks}
            behind = {rank for rank, position in positions.items() if position and position.entered < entry.seq}
            unseen = {rank for rank, position in positions.items() if position is None}
            if not behind and not unseen and not group.complete:
                unseen = set(self.positions.missing())  # gloo does not say who is in a group: one of these must be
            self._lag[key] = behind, unseen
        return self._lag[key]

    @staticmethod
    def _peers(rank: int, entry: Collective, group: ParallelGroup) -> list[int]:
        places = entry.peer or ()
        return [group.ranks[p] for p in places if p < len(group.ranks) and group.ranks[p] != rank]

    def _blamed_by(self, suspects: set[int]) -> Counter[int]:
        """How many ranks wait for each suspect, directly or through others."""
        count: Counter[int] = Counter()
        for rank in self.waits:
            seen, queue = {rank}, [rank]
            while queue:
                for other in self.behind.get(queue.pop(), ()):
                    if other not in seen:
                        seen.add(other)
                        queue.append(other)
            count.update(suspects & (seen - {rank}))
        return count

    def _order(self, suspects: set[int]) -> tuple[int, ...]:
        blamed = self._blamed_by(suspects)
        return tuple(sorted(suspects, key=lambda rank: (-blamed[rank], rank)))

    def _waiting_in(self, entry: Collective, group: ParallelGroup) -> tuple[int, ...]:
        return tuple(
            rank
            for rank, entries in self.waits.items()
            if rank in group.ranks and any(e.group == entry.group and e.seq == entry.seq for e in entries)
        )

    def never_entered(self, at: float) -> Finding | None:
        lagging = set().union(*self.behind.values()) if self.behind else set()
        roots = {rank for rank in lagging if rank not in self.waits}
        if not roots:
            return None
        ranks = self._order(roots)
        entry, group = self.where[ranks[0]]
        waiting = self._waiting_in(entry, group)
        last = self._last_entered(ranks[0])
        return Finding(
            code="ES-H02",
            sentence=f"{ranks_text(ranks)} never entered {operation(entry, group)}; "
            f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} there.",
            confidence=Confidence.MEDIUM if self._unknown_in(entry, group) else Confidence.HIGH,
            ranks=ranks,
            waiting=tuple(sorted(self.waits)),
            group=group,
            evidence=(
                _says(at, f"{ranks_text(waiting)} pending in {operation(entry, group)}{_from(entry)}"),
                *(_says(at, f"last operation of rank {rank}: {self._last_entered(rank)}", rank) for rank in ranks[1:8]),
                _says(at, f"last operation of rank {ranks[0]}: {last}", ranks[0]),
            ),
        )

    def _unknown_in(self, entry: Collective, group: ParallelGroup) -> bool:
        return any(self.positions.at(entry.group, rank) is None for rank in group.ranks)

    def _last_entered(self, rank: int) -> str:
        entries = self.positions.records[rank].entries
        if not entries:
            return "none"
        state = "completed" if entries[-1].completed else "pending"
        return f"{operation(entries[-1], self.positions.group(entries[-1].group, rank))}, {state}{_from(entries[-1])}"

    def opposite_order(self, at: float) -> Finding | None:
        circle = self._circle()
        if not circle:
            return None
        habits = {rank: self._left_habit(rank) for rank in circle}
        blamed = Counter(other for others in self.behind.values() for other in others)
        ranks = tuple(sorted(circle, key=lambda rank: (not habits[rank], -blamed[rank], rank)))
        culprits = [rank for rank in ranks if habits[rank]]
        places = [(rank, e, self.positions.group(e.group, rank)) for rank in ranks for e in self.waits[rank][:1]]
        listed = "; ".join(f"rank {rank} waits in {operation(e, group)}" for rank, e, group in places[:4])
        clear = len(culprits) == 1 or blamed[ranks[0]] > blamed[ranks[1]]
        sentence = (
            f"{ranks_text(ranks)} entered collectives of different groups in opposite order and wait for each other: "
            f"{listed}."
        )
        if len(culprits) == 1 and ranks[0] in self.where:
            entry, group = self.where[ranks[0]]
            waiting = self._waiting_in(entry, group)
            sentence = (
                f"rank {ranks[0]} left out or put off {operation(entry, group)}, unlike in its earlier steps; "
                f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} there, and {listed.partition(';')[0]}."
            )
        return Finding(
            code="ES-H05",
            sentence=sentence,
            confidence=Confidence.HIGH if clear else Confidence.MEDIUM,
            ranks=ranks,
            waiting=tuple(sorted(set(self.waits) - set(ranks))),
            group=places[0][2],
            evidence=tuple(
                _says(
                    at,
                    f"pending in {operation(e, group)}{_from(e)}"
                    + (", not what its own earlier steps did" if habits[rank] else "")
                    + f"; {blamed[rank]} waiting for it",
                    rank,
                )
                for rank, e, group in places[:16]
            ),
        )

    def _left_habit(self, rank: int) -> bool:
        """Whether it did something else than in its earlier steps, where others wait for it or at the end."""
        record = self.positions.records[rank]
        awaited = self.where[rank][0].group if rank in self.where else self.waits[rank][0].group
        return desync.left_habit(record, awaited) or bool(desync.breaks_habit(record, self.waits[rank][0]))

    def _circle(self) -> set[int]:
        """Ranks that wait for themselves through others."""
        circle: set[int] = set()
        for start in self.waits:
            seen: set[int] = set()
            queue = list(self.behind.get(start, ()))
            while queue:
                rank = queue.pop()
                if rank not in seen:
                    seen.add(rank)
                    queue.extend(self.behind.get(rank, ()))
            if start in seen:
                circle.add(start)
        return circle

    def absent(self, at: float) -> Finding | None:
        unseen = set().union(*self.unseen.values()) if self.unseen else set()
        unseen -= {rank for rank in unseen if rank in self.positions.stale}
        if not unseen:
            return None
        ranks = tuple(sorted(unseen))
        entry, group = self.where[ranks[0]]
        waiting = self._waiting_in(entry, group)
        return Finding(
            code="ES-H10",
            sentence=f"{ranks_text(ranks)} left no flight record, and {ranks_text(waiting)} "
            f"{verb(waiting, 'waits', 'wait')} in {operation(entry, group)}, which everyone else entered.",
            confidence=Confidence.MEDIUM if len(ranks) == 1 else Confidence.LOW,
            ranks=ranks,
            waiting=tuple(sorted(self.waits)),
            group=group,
            evidence=(_says(at, f"{ranks_text(waiting)} pending in {operation(entry, group)}{_from(entry)}"),),
        )

    def stalled(self, at: float) -> Finding | None:
        full = [r for r in self.waits if not self.behind.get(r) and not self.unseen.get(r)]
        if not full:
            return None
        rank = min(full, key=lambda r: (-len(self.positions.group(self.waits[r][0].group, r).ranks), r))
        entry = self.waits[rank][0]
        group = self.positions.group(entry.group, rank)
        if group.ranks == (rank,) and not group.complete:
            return self._alone(at, rank, entry, group)
        return Finding(
            code="ES-H11",
            sentence=f"all ranks of {group.title} entered {operation(entry, group)} with the same arguments, and it "
            "does not complete: no rank is behind, look at the network between them.",
            confidence=Confidence.LOW,
            waiting=tuple(sorted(self.waits)),
            group=group,
            evidence=(_says(at, f"{ranks_text(self.waits)} pending, nobody behind"),),
        )

    def _alone(self, at: float, rank: int, entry: Collective, group: ParallelGroup) -> Finding | None:
        """Nobody else has ever been seen in this group, and a group of one waits for nobody: others belong to it, and
        they wait elsewhere. Who should have come, and did not, the records do not tell: nobody is named."""
        waiting = tuple(sorted(other for other, behind in self.behind.items() if rank in behind))
        if not waiting:
            return None
        missed, where = self.where[rank]
        return Finding(
            code="ES-H05",
            sentence=f"rank {rank} waits in {operation(entry, group)}, which nobody else entered, and "
            f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} for it in {operation(missed, where)}.",
            confidence=Confidence.LOW,
            waiting=tuple(sorted({rank, *waiting})),
            group=where,
            evidence=(_says(at, f"pending in {operation(entry, group)}{_from(entry)}, alone", rank),),
        )


def _from(entry: Collective) -> str:
    return f", called at {entry.place}" if entry.place else ""


def _says(at: float, says: str, rank: int | None = None) -> Evidence:
    return Evidence(at=at, source="flight record", says=says, rank=rank)
