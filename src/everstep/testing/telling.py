"""Reports of the fake cluster's agents and detectors: accounts, alerts, verdicts, failed restores."""

from collections.abc import Sequence

from everstep.analyzer.codes import CODES
from everstep.model.actions import StartWorkers
from everstep.model.events import RestoreFailed
from everstep.model.facts import Alert, RankAccount
from everstep.model.verdict import Blame, Certainty, Confidence, Verdict
from everstep.testing.memory import Failed


def account_of(
    rank: int,
    done: int | None,
    resume: int | None,
    now: float,
    *,
    snapshots: bool,
    collectives: bool = True,
    own_steps: bool = True,
) -> RankAccount:
    """`done`: the newest step that it has completed. `resume`: the one that its generation went on from."""
    first = None if done is None or done == resume else (0 if resume is None else resume + 1)
    return RankAccount(
        rank=rank,
        spawned_at=now,
        entered_at=now,
        first_step=first,
        last_step=done if first is not None else None,
        first_step_at=now if first is not None else None,
        last_step_at=now if first is not None else None,
        published_step=done if snapshots else None,
        communicated_at=now if first is not None and collectives else None,
        counts_own_steps=own_steps,
    )


def alert_of(code: str, severity: str, action: str, device: str, at: float) -> Alert:
    return Alert(
        at=at,
        code=code,
        sentence=f"{code} was noticed",
        component="gpu",
        blame="user" if action == "CHECK_USER_CODE" else "machine",
        severity=severity,
        action=action,
        device=device,
        source="kernel log",
    )


def restore_failed(action: StartWorkers, failed: Sequence[Failed], at: float) -> list[RestoreFailed]:
    return [
        RestoreFailed(
            at=at,
            node=action.node,
            generation=action.generation,
            rank=each.rank,
            step=each.step,
            source=each.source,
            where=each.where,
            why="sums do not match" if each.is_damaged else "no answer within 60 s",
            is_damaged=each.is_damaged,
        )
        for each in failed
    ]


def diagnosis_of(culprit: int | None, code: str, at: float, doubt: str = "", place: str = "") -> Verdict:
    blame, sure = Blame(CODES[code].blame) if code in CODES else Blame.UNKNOWN, Confidence.HIGH
    if culprit is None:
        return Verdict(code="ES-H00", sentence="no fault found.", blame=blame, confidence=sure, at=at)
    certain = Certainty.CERTAIN if code.startswith("ES-H") else Certainty.UNSTATED
    return Verdict(
        code=code,
        sentence=f"rank {culprit} never entered all_reduce #7; the others wait there.",
        blame=blame,
        confidence=Confidence.MEDIUM if doubt else sure,
        ranks=(culprit,),
        at=at,
        place=place,
        certainty=Certainty.DOUBTFUL if doubt else certain,
        because=f"rank {culprit} {doubt}" if doubt else "",
        computes=doubt == "computes",
    )
