"""The live lines of `everstep run`: what a person at the terminal should know, as it happens. Pure.

Feed it every entry of the journal in order; most give no line. Called by the launcher.
"""

from everstep.journal.fold import Fold
from everstep.journal.format import Entry
from everstep.journal.view import GenerationView, IncidentView, RunView
from everstep.model import actions, events
from everstep.model.record import Header, Record
from everstep.report import checkpoints
from everstep.report.parts.ansi import PLAIN, Paint, Style, printable
from everstep.report.parts.noted import ending_text
from everstep.report.parts.phases import times_of
from everstep.report.parts.sentences import event_sentence
from everstep.report.parts.units import clock, count, duration, plural

_TOLD_AS_IT_IS = (
    events.RunReopened,
    events.NodeLost,
    events.NodeSilent,
    events.NodeSpared,
    events.NodeInDoubt,
    events.NodeRefused,
    events.RankTraced,
    events.SnapshotsRefused,
    events.RuntimeFaulted,
    events.StateIncomplete,
    events.StopRequested,
    events.DrillRequested,
    events.DrillFailed,
    events.HangSuspected,
    events.RestartRequested,
    events.ProposalApproved,
    events.UpdateRequested,
    events.WorkersFailedToStart,
)


class Narrator:
    def __init__(self, header: Header, style: Style = PLAIN) -> None:
        self._fold = Fold(header)
        self._style = style
        self._formed = -1  # newest generation whose forming was reported
        self._stepped = -1
        self._refused_ranks: set[int] = set()
        self._last_steps: set[int] = set()  # written before the end
        self._told_steps: set[int] = set()  # committed
        self._told_ending: set[tuple[int, int]] = set()
        self._exams: set[str] = set()
        self._told: dict[str, tuple[str, ...]] = {}  # incident -> what was said of it last

    @property
    def view(self) -> RunView:
        return self._fold.view

    def tell(self, entry: Entry) -> list[str]:
        """The lines for one entry, without newlines; usually none."""
        self._fold.add(entry)
        if not isinstance(entry, Record):
            return []
        told = [*self._event(entry.event), *self._progress()]
        for action in entry.actions:
            told += self._action(action)
        at = clock(entry.at)[:8]
        return [f"{at} {line}" for line in told]

    def skip(self, entry: Entry) -> None:
        """Take an entry without printing it: it was printed when it happened."""
        self.tell(entry)

    def _event(self, event: events.Event) -> list[str]:
        if isinstance(event, events.NodeLost) and self._is_told(event):
            return []
        if isinstance(event, events.NodeInDoubt) and len(self.view.nodes) < 2:
            return []  # nobody could take its place: on a busy machine it only was late
        if isinstance(event, events.SnapshotsRefused):
            if event.rank in self._refused_ranks:
                return []
            self._refused_ranks.add(event.rank)
        if isinstance(event, events.CheckpointCommitted):
            return self._committed(event)
        if isinstance(event, events.ControllerStarted):
            return [f"{event_sentence(event)}; training continued"] if event.took_over else []
        if isinstance(event, events.TemplateReported):
            return [] if event.usable else [f"{printable(event_sentence(event))}; ranks start as fresh interpreters"]
        if isinstance(event, events.MarksReported):
            return self._ending(event)
        if isinstance(event, events.WorkersStopped):
            return _left_behind(event)
        if isinstance(event, events.NodeExamined):
            return [] if event.passed else [printable(event_sentence(event))]
        return [printable(event_sentence(event))] if isinstance(event, _TOLD_AS_IT_IS) else []

    def _is_told(self, event: events.NodeLost) -> bool:
        """Whether the node's end is on record already: the engine reports it too, once it learns of it."""
        known = self.view.nodes.get(event.node)
        return known is not None and known.lost is not event

    def _ending(self, event: events.MarksReported) -> list[str]:
        """Ranks whose process does not end: each once in a generation."""
        told = []
        for account in event.accounts:
            key, note = (event.generation, account.rank), account.note
            if note is not None and note.kind == "ending" and key not in self._told_ending:
                self._told_ending.add(key)
                told.append(printable(ending_text([account.rank], note.says, event.at - note.since)))
        return told

    def _committed(self, event: events.CheckpointCommitted) -> list[str]:
        written = self.view.kept.written
        if event.checkpoint is None or written is None or written.step != event.step or event.step in self._told_steps:
            return []
        self._told_steps.add(event.step)
        return [printable(checkpoints.committed_text(self.view, written, event.checkpoint))]

    def _progress(self) -> list[str]:
        generation = self.view.generation
        if generation is None:
            return []
        told = []
        if self._formed < generation.number and _is_formed(generation):
            self._formed = generation.number
            told.append(_formed_text(generation))
        if self._stepped < generation.number and _has_stepped(generation):
            self._stepped = generation.number
            if generation.number == 0:
                told.append(
                    f"first step {count(generation.first_step)}" if generation.counts_own_steps else "first step"
                )
        return told

    def _action(self, action: actions.Action) -> list[str]:
        match action:
            case actions.Concluded():
                return self._concluded(self.view.incidents[action.incident], action)
            case actions.IncidentClosed():
                return self._closed(self.view.incidents[action.incident])
            case actions.UpdateConcluded():
                back = f", back to {action.back_to}" if action.back_to else ""
                return [printable(f"{action.version} {action.stage}{back}: {action.why}")]
            case actions.Resized():
                size = f"{plural(action.num_slots, 'node')}, {plural(action.world_size, 'rank')}"
                return [printable(f"{size}: {action.why}")]
            case actions.Refused() if action.incident is None:
                return [printable(f"not done: {action.what}: {action.why}")]
            case actions.ExamineNode() if action.exam not in self._exams:
                self._exams.add(action.exam)
                return [f"examining machines: {action.kind} ({action.exam})"]
            case actions.PersistSnapshot(is_last=True) if action.step not in self._last_steps:
                self._last_steps.add(action.step)
                return [f"writing step {count(action.step)} to {action.root} before the end"]
            case actions.Finish():
                return self._finished(action)
            case _:
                return []

    def _concluded(self, incident: IncidentView, action: actions.Concluded) -> list[str]:
        told = (action.verdict.code, action.verdict.sentence, action.decision.rule)
        before, self._told[incident.id] = self._told.get(incident.id), told
        if before == told:
            return []
        drill = f" (drill {incident.drill})" if incident.drill else ""
        again = "" if before is None else " on a second look"
        verdict = self._style(printable(f"{action.verdict.code} {action.verdict.sentence}"), Paint.ORANGE)
        return [f"{incident.id}{drill}{again}: {verdict} -> {printable(action.decision.chosen)}"]

    def _closed(self, incident: IncidentView) -> list[str]:
        if incident.outcome == "passed":
            return [self._style(f"{incident.id} passed: {printable(incident.close_why)}", Paint.GREEN)]
        if incident.outcome != "recovered":
            return [] if incident.outcome in ("gave-up", "stopped") else [f"{incident.id} {incident.outcome}"]
        lost = (
            "lost steps not measured" if incident.lost_steps is None else f"lost {plural(incident.lost_steps, 'step')}"
        )
        at = "" if incident.resumed_step is None else f", on at step {count(incident.resumed_step)}"
        line = f"{incident.id} recovered in {duration(times_of(self.view, incident).lost_s)}, {lost}{at}"
        return [self._style(line, Paint.GREEN)]

    def _finished(self, action: actions.Finish) -> list[str]:
        run = self.view.run
        if action.outcome == "succeeded":
            return [f"{run} succeeded"]
        paint = () if action.outcome == "stopped" else (Paint.RED,)
        lines = [self._style(printable(f"{run} {action.outcome.replace('-', ' ')}: {action.why}"), *paint)]
        if action.outcome != "stopped" and self.view.incidents:
            last = list(self.view.incidents)[-1]
            lines.append(f"everstep incident show {last}   everstep logs --first-error")
        return lines


def _left_behind(event: events.WorkersStopped) -> list[str]:
    return [
        printable(f"rank {exit_.rank} is left behind: SIGKILL does not end {exit_.left_behind}; going on without it")
        for exit_ in event.exits
        if exit_.left_behind
    ]


def _is_formed(generation: GenerationView) -> bool:
    return bool(generation.node_of) and len(generation.started) == len(generation.node_of)


def _has_stepped(generation: GenerationView) -> bool:
    accounts = generation.accounts
    return len(accounts) == len(generation.node_of) and all(a.first_step is not None for a in accounts.values())


def _formed_text(generation: GenerationView) -> str:
    last = max(started.at for started in generation.started.values())
    hows = sorted({started.how for started in generation.started.values()})
    ranks = plural(len(generation.started), "rank")
    restoring = "" if generation.resume_step is None else f", restoring step {count(generation.resume_step)}"
    took = duration(max(0.0, last - generation.begun_at))
    return f"gen {generation.number}: {ranks} started in {took} ({', '.join(hows)}){restoring}"
