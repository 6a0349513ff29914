"""Copies of snapshots and contents of the persistent tier, as the journal has them: the part of a `RunView` that `fold`
builds from these records. Pure; decides and formats nothing."""

from collections.abc import Callable
from typing import Any

import msgspec

from everstep.model import actions, events
from everstep.model.facts import Checkpoint, RankGroup
from everstep.model.record import Record


class Written(msgspec.Struct, kw_only=True):
    """A step on its way to the persistent tier, or there."""

    step: int
    begun_at: float
    nodes: tuple[str, ...] = ()  # that were asked for their part
    parts: dict[str, events.SnapshotPersisted] = {}  # node -> its part
    committer: str = ""  # node that was asked to commit; empty: not every part is there
    is_last: bool = False  # the run ends when it is there
    committed_at: float | None = None
    failed: str = ""

    @property
    def is_under_way(self) -> bool:
        return self.committed_at is None and not self.failed

    @property
    def written_bytes(self) -> int:
        return sum(part.written_bytes for part in self.parts.values())

    @property
    def total_bytes(self) -> int:
        return sum(part.total_bytes for part in self.parts.values())

    @property
    def took_s(self) -> float | None:
        """The time of the slowest node, from when it was asked, including the wait for a step to come."""
        return max((part.took_s for part in self.parts.values()), default=None)


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was written once; retention may have dropped it since."""

    at: float
    step: int
    is_trusted: bool


MAX_COMMITS = 1024
"""How many commits are kept with their time. In a longer run they are thinned evenly over its time."""


class Kept(msgspec.Struct, kw_only=True):
    backups: dict[int, str] = {}  # rank -> node that its snapshots are copied to, in this generation
    groups: tuple[RankGroup, ...] = ()
    trusted_step: int | None = None
    checkpoints: list[Checkpoint] = []  # that can be restored, oldest first
    commits: list[Commit] = []
    is_tier_known: bool = False
    written: Written | None = None  # the newest that was asked for
    last_write_s: float | None = None  # how long the newest one took that got there
    last_failure: str = ""  # of the newest step that did not get there; empty once one did


def _started(kept: Kept, record: Record, action: actions.StartWorkers) -> None:
    kept.backups = {}
    _fail(kept, "the ranks were restarted meanwhile")
    if kept.trusted_step is not None and (action.resume_step is None or action.resume_step < kept.trusted_step):
        kept.trusted_step = action.resume_step


def _placed(kept: Kept, record: Record, action: actions.PlaceBackups) -> None:
    kept.backups |= {backup.rank: backup.node for backup in action.backups}


def _asked(kept: Kept, record: Record, action: actions.PersistSnapshot) -> None:
    written = kept.written
    if written is None or written.step != action.step or not written.is_under_way:
        written = kept.written = Written(step=action.step, begun_at=record.at, is_last=action.is_last)
    written.nodes = tuple(dict.fromkeys((*written.nodes, action.node)))


def _persisted(kept: Kept, record: Record, event: events.SnapshotPersisted) -> None:
    written = kept.written
    if written is not None and written.step == event.step and written.is_under_way:
        if event.why:
            _fail(kept, f"{event.node}: {event.why}")
        else:
            written.parts[event.node] = event


def _committing(kept: Kept, record: Record, action: actions.CommitCheckpoint) -> None:
    if kept.written is not None and kept.written.step == action.step:
        kept.written.committer = action.node


def _timed_out(kept: Kept, record: Record, event: events.TimerFired) -> None:
    if event.key == "persist:limit":
        _fail(kept, "it took too long")


def _lost(kept: Kept, record: Record, event: events.NodeLost) -> None:
    """A part that is there stays there."""
    written = kept.written
    if written is None or event.node not in written.nodes:
        return
    if event.node not in written.parts or event.node == written.committer:
        _fail(kept, f"{event.node} was lost meanwhile")


def _fail(kept: Kept, why: str) -> None:
    if kept.written is not None and kept.written.is_under_way:
        kept.written.failed = kept.last_failure = why


def _committed(kept: Kept, record: Record, event: events.CheckpointCommitted) -> None:
    """However late. Newer ones are void only if it is the one that was waited for."""
    written = kept.written if kept.written is not None and kept.written.step == event.step else None
    kept.checkpoints = [c for c in kept.checkpoints if c.step not in event.dropped]
    if event.checkpoint is None:
        if written is not None:
            _fail(kept, f"{event.node}: {event.why}")
        return
    is_late = written is None or not written.is_under_way
    left = [c for c in kept.checkpoints if c.step < event.step or (is_late and c.step > event.step)]
    kept.checkpoints = sorted((*left, event.checkpoint), key=lambda checkpoint: checkpoint.step)
    kept.last_failure = ""
    kept.commits.append(Commit(at=event.at, step=event.step, is_trusted=event.checkpoint.is_trusted))
    if len(kept.commits) > MAX_COMMITS:
        kept.commits = _thinner(kept.commits)
    if written is not None:
        written.committed_at, written.failed = event.at, ""
        kept.last_write_s = event.at - written.begun_at


def _thinner(commits: list[Commit]) -> list[Commit]:
    """At most half of them, as far apart as that makes them; the first and the last stay."""
    apart_s = (commits[-1].at - commits[0].at) / (MAX_COMMITS // 2 - 2)
    found = commits[:1]
    for commit in commits[1:-1]:
        if commit.at - found[-1].at >= apart_s:
            found.append(commit)
    return [*found[: MAX_COMMITS // 2], commits[-1]]


def _struck(kept: Kept, record: Record, action: actions.StrikeCheckpoint) -> None:
    """A corruption may be in it."""
    kept.checkpoints = [c for c in kept.checkpoints if c.step != action.step]
    if kept.written is not None and kept.written.step == action.step:
        kept.written.committed_at = None
        kept.written.failed = kept.last_failure = action.why


def _found(kept: Kept, record: Record, event: events.CheckpointsFound) -> None:
    kept.checkpoints = sorted(event.checkpoints, key=lambda checkpoint: checkpoint.step)
    kept.is_tier_known = not event.why


def _reopened(kept: Kept, record: Record, event: events.RunReopened) -> None:
    """Forget memory, and the writes under way. What was compared stays compared: checkpoints up to there are
    trusted."""
    kept.backups, kept.written, kept.last_failure, kept.is_tier_known = {}, None, "", False


def _trusted(kept: Kept, record: Record, action: actions.TrustStep) -> None:
    """Not `ReplicasAgreed`: of another generation, or while a corruption is handled, it counts for nothing."""
    kept.trusted_step = action.step


def _found_wrong(kept: Kept, record: Record, event: events.AnomalyFound) -> None:
    """Take over the agreed step from an anomaly that led to an incident. Nodes are not asked to keep that step."""
    is_taken = any(isinstance(action, actions.IncidentOpened) for action in record.actions)
    if is_taken and event.agreed_step is not None and event.refusal is None:
        kept.trusted_step = max(event.agreed_step, -1 if kept.trusted_step is None else kept.trusted_step)


def _refused(kept: Kept, record: Record, action: actions.Refused) -> None:
    if action.what == actions.NOT_TRUSTED:
        kept.trusted_step = None


def _learned(kept: Kept, record: Record, event: events.GroupsLearned) -> None:
    kept.groups = event.groups


_Handler = Callable[[Kept, Record, Any], None]

_HANDLERS: dict[type, _Handler] = {
    actions.StartWorkers: _started,
    actions.PlaceBackups: _placed,
    actions.PersistSnapshot: _asked,
    events.TimerFired: _timed_out,
    events.NodeLost: _lost,
    events.SnapshotPersisted: _persisted,
    events.CheckpointCommitted: _committed,
    events.CheckpointsFound: _found,
    events.RunReopened: _reopened,
    events.AnomalyFound: _found_wrong,
    actions.TrustStep: _trusted,
    actions.Refused: _refused,
    actions.CommitCheckpoint: _committing,
    actions.StrikeCheckpoint: _struck,
    events.GroupsLearned: _learned,
}


def note(kept: Kept, record: Record) -> None:
    """One more record. An answer comes before what was decided because of it."""
    for each in (record.event, *record.actions):
        handle = _HANDLERS.get(type(each))
        if handle is not None:
            handle(kept, record, each)
