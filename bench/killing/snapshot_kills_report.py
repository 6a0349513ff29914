"""What a run with kills in all phases of a snapshot showed: the verdict, as text and as JSON. Pure; called by
snapshot_kills.py."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from killing.hurt_run import HurtRun
from killing.snapshot_kills_plan import PHASES, TARGETS
from killing.snapshot_kills_strike import Outcome
from measuring.figures import NEVER, quantile, seconds, spread, table


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(HurtRun):
    """What the whole run showed."""

    outcomes: tuple[Outcome, ...]
    shm_left: tuple[str, ...]
    restore_failures: tuple[str, ...]
    not_persisted: tuple[str, ...]
    num_committed: int
    verified: str | None  # empty: the newest checkpoint is whole; None: there is no tier
    shmem_grown_bytes: int | None = field(default=None)  # of the whole machine: others may be at work on it

    @property
    def not_newest(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.is_newest is False]

    @property
    def passed(self) -> bool:
        return (
            self.went_on(self.outcomes)
            and not self.not_newest
            and not any(one.lost_all for one in self.outcomes)
            and not (self.shm_left or self.verified or self.restore_failures)
        )


def report(verdict: Verdict) -> str:
    outcomes, same = verdict.outcomes, verdict.comparison
    known = [one for one in outcomes if one.is_newest is not None]
    lost = [one.lost_steps for one in outcomes if one.lost_steps is not None]
    compared = (
        f"{same.num_steps} steps, {len(same.missing)} missing, {len(same.different)} different, "
        f"{same.redone} logged again"
    )
    recovered = sum(one.recovered_s != NEVER for one in outcomes)
    sources = {name: sum(one.source == name for one in outcomes) for name in ("memory", "peer", "disk")}
    disk = "no tier" if verdict.verified is None else verdict.verified or "whole"
    lines = [
        f"{verdict.planned} kills planned, {len(outcomes)} done, {recovered} recovered",
        "",
        _phases(outcomes),
        "",
        _times(outcomes),
        "",
        f"newest possible step   {sum(one.is_newest is True for one in known)} of {len(known)} restarts",
        f"restored from          {', '.join(f'{name} {number}' for name, number in sources.items())}",
        f"lost steps             {sum(lost)}, {len(outcomes) - len(lost)} kills unknown; by what: {_lost_by(outcomes)}",
        f"began anew             {sum(one.lost_all for one in outcomes)}",
        f"without a second copy  {_uncovered(outcomes)}",
        f"damaged when restored  {len(verdict.restore_failures)}",
        f"losses bit-identical   {_yes(same.identical)}   {compared}",
        f"final bit-identical    {_yes(verdict.same_final)}   every rank's parameters",
        f"on disk                {verdict.num_committed} committed, {len(verdict.not_persisted)} not; newest {disk}",
        f"processes left         {len(verdict.leftover)}",
        f"/dev/shm               {len(verdict.shm_left)} left; shared memory of the machine grew by "
        + ("unknown" if verdict.shmem_grown_bytes is None else f"{verdict.shmem_grown_bytes / 1e6:.0f} MB"),
        f"journal                {verdict.holes} holes, run {verdict.finished or 'not finished'}",
        f"exit code              {'none: it was still running' if verdict.exit_code is None else verdict.exit_code}",
    ]
    lines += [f"not the newest: {_told(one)}" for one in verdict.not_newest[:10]]
    lines += [f"damaged: {one}" for one in verdict.restore_failures[:10]]
    lines += [f"stopped early: {verdict.stalled}"] if verdict.stalled else []
    return "\n".join([*lines, "", "PASS" if verdict.passed else "FAIL"])


def _lost_by(outcomes: Sequence[Outcome]) -> str:
    sums = {who: sum(one.lost_steps or 0 for one in outcomes if one.kill.target == who) for who in TARGETS}
    return ", ".join(f"{who} {steps}" for who, steps in sums.items())


def _uncovered(outcomes: Sequence[Outcome]) -> str:
    """How long a machine that was due to be lost had to be waited for; most had their copy already."""
    waits = [one.uncovered_s for one in outcomes if one.uncovered_s is not None]
    return f"median {seconds(quantile(waits, 0.5))}, most {seconds(max(waits))}" if waits else "no machine was lost"


def _told(one: Outcome) -> str:
    return f"kill {one.kill.index} ({one.kill.told}): resumed {one.resumed}, {one.possible} was there"


def _phases(outcomes: Sequence[Outcome]) -> str:
    """A kill may hit several phases: the copy of one step runs while another one is sealed and sent."""
    rows = []
    for phase in PHASES:
        hits = [one for one in outcomes if phase in one.hit]
        rows.append((phase, *(str(sum(one.kill.target == who for one in hits)) for who in TARGETS), str(len(hits))))
    return table(("hit in the middle of", *TARGETS, "all"), rows)


def _times(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for target in TARGETS:
        for moment, in_recovery in (("training", False), ("in a recovery", True)):
            chosen = [
                one.recovered_s
                for one in outcomes
                if one.kill.target == target and (one.kill.in_recovery_s is not None) == in_recovery
            ]
            figures = spread(chosen)
            if figures is not None:
                p95 = seconds(quantile(chosen, 0.95))
                rows.append((target, moment, str(figures.num), seconds(figures.median), p95, seconds(figures.most)))
    return table(("killed", "moment", "kills", "median", "p95", "most"), rows)


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else ("yes" if value else "NO")


def document(verdict: Verdict, args: argparse.Namespace) -> dict[str, object]:
    told = {name: getattr(verdict, name) for name in Verdict.__slots__ if name not in ("outcomes", "comparison")}
    return {
        "benchmark": "snapshot_kills",
        "seed": args.seed,
        "passed": verdict.passed,
        **told,
        **asdict(verdict.comparison),
        "kills": [
            {**asdict(one), "recovered_s": None if one.recovered_s == NEVER else round(one.recovered_s, 4)}
            for one in verdict.outcomes
        ],
    }
