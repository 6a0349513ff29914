"""The journal and the state that is its fold, kept together: nothing is decided that is not on record.

Answers: what does this event lead to, and was this report seen before. It opens the journal (repairing and replaying
it when there is one), asks `core.step`, and appends. It executes nothing and knows no sockets or clocks. Used by
`controller.loop`, one thread.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from everstep.controller.record.spec_file import JOURNAL_NAME, SpecFile
from everstep.controller.record.thinning import Thinning
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.state.stride import stride
from everstep.core.step import step
from everstep.errors import JournalError
from everstep.journal.fold import Fold
from everstep.journal.runs import LIVE_NAME
from everstep.journal.writer import Journal
from everstep.model.actions import Action
from everstep.model.events import ControllerStarted, Event, ProgressReported, RunReopened, RunStarted
from everstep.model.record import Header, Record
from everstep.version import __version__

log = logging.getLogger("everstep.controller")


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """An event's consequences, before they are on record."""

    record: Record
    state: State
    is_stale: bool  # of an older generation or of a node that is out: dropped and counted, not recorded


class Ledger:
    def __init__(self, journal: Journal, policy: Policy) -> None:
        self.journal = journal
        self.policy = policy
        self.state = State.initial()
        self._fold = Fold(journal.header)
        self._unfolded: deque[Record] = deque()  # on record, and not in the view yet
        self._unseen: dict[str, ProgressReported] = {}  # held, and not in the view yet
        self.last_seqs: dict[str, int] = {}  # newest report per peer that is on record or was put aside
        self.thinning = Thinning(journal.path.with_name(LIVE_NAME))
        self.num_mismatches = 0  # records whose actions this version would not have decided

    @classmethod
    def open(cls, run_dir: Path, wanted: SpecFile, *, pid: int, at: float) -> "Ledger":
        """Create the journal, or repair and fold the one that is there. Raises JournalError, RunLockedError."""
        path = run_dir / JOURNAL_NAME
        if not path.exists():
            ledger = cls._create(path, wanted, at)
            ledger.record(ControllerStarted(at=at, pid=pid), at=at)
            return ledger
        journal, records, torn_bytes = Journal.open(path)
        try:
            ledger = cls(journal, _policy_of(journal.header))
            for record in records:
                ledger._replay(record)
            if not records:  # it ended between the header and the first record
                ledger.record(_run_started(wanted, at), at=at)
            elif not ledger.state.is_over:
                ledger._take_over(wanted, pid=pid, at=at, torn_bytes=torn_bytes)
        except BaseException:
            journal.close()
            raise
        return ledger

    def draft(self, event: Event, *, at: float, after: "list[Drafted]", source: str = "", seq: int = 0) -> Drafted:
        """Ask the brain. `after`: drafts of the same batch, not yet on record. Changes nothing."""
        state = after[-1].state if after else self.state
        decided, actions = step(state, event, self.policy)
        record = Record(
            seq=self.journal.seq + len(after) + 1,
            at=at,
            gen=state.generation,
            event=event,
            actions=tuple(actions),
            source=source,
            source_seq=seq,
        )
        return Drafted(record=record, state=decided, is_stale=decided.stale > state.stale)

    def draft_together(
        self, reports: Sequence[ProgressReported], *, at: float, after: "list[Drafted]"
    ) -> list[Drafted]:
        """Draft the first of these reports together: all those that need no turn of their own (`core.state.stride`),
        possibly none. Each has the state after all of them."""
        state = after[-1].state if after else self.state
        decided, number = stride(state, reports)
        first = self.journal.seq + len(after) + 1
        return [
            Drafted(record=Record(seq=seq, at=at, gen=state.generation, event=report), state=decided, is_stale=False)
            for seq, report in enumerate(reports[:number], first)
        ]

    def commit(self, drafts: list[Drafted]) -> None:
        """Append them, all or none; only then is the state theirs. Raises JournalError, and ValueError for an
        event that cannot be written."""
        self.write(drafts)
        self.take(drafts)

    def write(self, drafts: list[Drafted]) -> None:
        """The part of `commit` that waits for the disk; it may run in a thread, nothing else may write meanwhile."""
        if drafts:
            self.journal.append(*(draft.record for draft in drafts))

    def take(self, drafts: list[Drafted]) -> None:
        """They are on record: the state is theirs."""
        for draft in drafts:
            if draft.state.unlisted != self.state.unlisted:
                log.error(
                    "phase: %s: not in the table of phases (after record %d). the run continues. report this as a bug",
                    draft.state.unlisted,
                    draft.record.seq,
                )
            self.state = draft.state
            self._note(draft.record)

    def record(self, event: Event, *, at: float) -> tuple[Action, ...]:
        """Draft and commit one event of the controller's own. Raises JournalError."""
        draft = self.draft(event, at=at, after=[])
        self.commit([draft])
        return draft.record.actions

    def is_known(self, source: str, seq: int) -> bool:
        return bool(source) and seq <= self.last_seqs.get(source, 0)

    def put_aside(self, source: str, seq: int) -> None:
        """A report that is not recorded (stale, unusable) must not be taken again either."""
        if source:
            self.last_seqs[source] = max(seq, self.last_seqs.get(source, 0))

    def close(self) -> None:
        self.journal.close()

    @classmethod
    def _create(cls, path: Path, wanted: SpecFile, at: float) -> "Ledger":
        policy = msgspec.structs.asdict(wanted.policy)
        header = Header(run=wanted.run, everstep_version=__version__, policy=policy)
        ledger = cls(Journal.create(path, header), wanted.policy)
        try:
            ledger.record(_run_started(wanted, at), at=at)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _take_over(self, wanted: SpecFile, *, pid: int, at: float, torn_bytes: int) -> None:
        is_new_attempt = self.state.phase is not Phase.NEW and wanted.attempt > self.state.attempt
        started = ControllerStarted(at=at, pid=pid, took_over=not is_new_attempt, torn_bytes=torn_bytes)
        if is_new_attempt:
            self.record(RunReopened(at=at, attempt=wanted.attempt), at=at)
        self.record(started, at=at)

    def _replay(self, record: Record) -> None:
        state, actions = step(self.state, record.event, self.policy)
        if tuple(actions) != record.actions:
            self.num_mismatches += 1
            log.warning(
                "journal record %d (%s): recorded %s, this version decides %s; what is recorded was done and counts",
                record.seq,
                type(record.event).__name__,
                [type(action).__name__ for action in record.actions],
                [type(action).__name__ for action in actions],
            )
        if state.phase is Phase.NEW:
            raise JournalError(f"{self.journal.path}: record {record.seq} comes before the run was started")
        self.state = state
        self._note(record)
        self.fold_one()

    def hold_back(self, event: ProgressReported, at: float) -> bool:
        """Whether this report need not be on record now; the view has it all the same."""
        if not self.thinning.holds_back(event, at):
            return False
        self._unseen[event.node] = event
        return True

    @property
    def fold(self) -> Fold:
        """The view that the reading verbs have too, brought up to date on access: most of what thousands of nodes
        report every second is replaced by the next report before it is read."""
        while self.fold_one():
            pass
        for event in self._unseen.values():
            self._fold.add_live(event)
        self._unseen.clear()
        return self._fold

    def fold_one(self) -> bool:
        """One more record into the view; whether there was one. What is decided does not wait for the view."""
        if not self._unfolded:
            return False
        self._fold.add(self._unfolded.popleft())
        return True

    def _note(self, record: Record) -> None:
        self.put_aside(record.source, record.source_seq)
        self.thinning.note(record)
        self._unfolded.append(record)


def _run_started(wanted: SpecFile, at: float) -> RunStarted:
    return RunStarted(at=at, run=wanted.run, spec=wanted.spec, everstep_version=__version__, policy=wanted.policy.name)


def _policy_of(header: Header) -> Policy:
    try:
        return msgspec.convert(header.policy, Policy)
    except msgspec.ValidationError as error:
        raise JournalError(f"the journal's policy cannot be used by this version: {error}") from error
