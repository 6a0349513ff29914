"""Counts for /metrics and ids, folded record by record. Pure; holds no records.

Absent means unknown: a figure that nobody reported yet is None here and no line in /metrics.
"""

from collections import Counter

from everstep.model import actions, events
from everstep.model.facts import RankAccount
from everstep.model.record import Record


class Tally:
    def __init__(self) -> None:
        self.num_drills = 0
        self.num_nodes = 0  # agents that ever joined
        self.num_formations = 0  # generations started
        self.incidents: Counter[str] = Counter()  # by code of the final verdict
        self.restarts: Counter[str] = Counter()  # by blame of the incident
        self.rollback_steps: int | None = None  # None until an incident measured it
        self.last_step: int | None = None  # newest step that the slowest reporting rank has done
        self.last_step_at: float | None = None
        self.open_incident = ""
        self.open_since: float | None = None
        self.outcome = ""
        self.worker_errors: Counter[str] = Counter()
        self._code = ""
        self._blame = ""
        self._generation = -1
        self._accounts: dict[int, RankAccount] = {}

    def add(self, record: Record) -> None:
        self._add_event(record.event)
        for action in record.actions:
            self._add_action(action, record.at)

    def _add_event(self, event: events.Event) -> None:
        match event:
            case events.DrillRequested():
                self.num_drills += 1
            case events.NodeJoined():
                self.num_nodes += 1
            case events.RuntimeFaulted():
                self.worker_errors[event.where] += 1
            case events.MarksReported() | events.ProgressReported() | events.WorkersStopped():
                self._add_accounts(event.accounts)
            case events.WorkerExited() if event.account is not None:
                self._add_accounts((event.account,))
            case _:
                pass

    def _add_action(self, action: actions.Action, at: float) -> None:
        match action:
            case actions.StartWorkers() if action.generation > self._generation:
                self._generation = action.generation
                self._accounts = {}
                self.num_formations += 1
                if self.open_incident:
                    self.restarts[self._blame or "unknown"] += 1
            case actions.IncidentOpened():
                self.open_incident, self.open_since = action.incident, at
                self._code = self._blame = ""
            case actions.Concluded():
                self._code, self._blame = action.verdict.code, str(action.verdict.blame)
            case actions.IncidentClosed():
                self._close(action)
            case actions.Finish():
                self.outcome = action.outcome
            case _:
                pass

    def _close(self, action: actions.IncidentClosed) -> None:
        self.incidents[self._code or "none"] += 1
        self.open_incident, self.open_since = "", None
        if action.lost_steps is not None:
            self.rollback_steps = (self.rollback_steps or 0) + action.lost_steps

    def _add_accounts(self, accounts: tuple[RankAccount, ...]) -> None:
        for account in accounts:
            self._accounts[account.rank] = account
        steps = [account.last_step for account in self._accounts.values()]
        known = [step for step in steps if step is not None]
        if known and len(known) == len(steps):
            self.last_step = min(known)
            self.last_step_at = max(account.last_step_at or 0.0 for account in self._accounts.values()) or None
