"""What a run with many kills showed: the verdict, as text and as JSON. Pure; called by kills.py."""

import argparse
from dataclasses import dataclass

from killing.hurt_run import HurtRun
from killing.killplan import TARGETS
from killing.strikes import Outcome
from measuring.figures import NEVER, quantile, seconds, spread, table
from measuring.losslog import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(HurtRun):
    """What the whole run showed."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        return self.went_on(self.outcomes) and not self.disturbed_for_nothing

    @property
    def disturbed_for_nothing(self) -> int:
        """Kills of a controller, in the middle of the training, that restarted workers."""
        return sum(
            one.disturbed for one in self.outcomes if one.kill.target == "controller" and one.kill.in_recovery_s is None
        )


def report(verdict: Verdict) -> str:
    rows = [
        row
        for target in TARGETS
        for moment, in_recovery in (("training", False), ("in a recovery", True))
        if (row := _row(verdict, target, moment, in_recovery))
    ]
    recovered = sum(one.recovered_s != NEVER for one in verdict.outcomes)
    lost = [one.lost_steps for one in verdict.outcomes]
    known = [steps for steps in lost if steps is not None]
    same = verdict.comparison
    lines = [
        f"{verdict.planned} kills planned, {len(verdict.outcomes)} done, {recovered} recovered",
        "",
        table(("killed", "moment", "kills", "recovered", "median", "p95", "most"), rows),
        "",
        f"losses bit-identical   {_yes(same.identical)}   {_told(same)}",
        f"final bit-identical    {_yes(verdict.same_final)}",
        f"lost steps             {sum(known)}" + (f", {len(lost) - len(known)} kills unknown" if None in lost else ""),
        f"restarts without need  {verdict.disturbed_for_nothing}   (controller killed while training)",
        f"processes left         {len(verdict.leftover)}",
        f"journal                {verdict.holes} holes, run {verdict.finished or 'not finished'}",
        f"exit code              {'none: it was still running' if verdict.exit_code is None else verdict.exit_code}",
    ]
    lines += [f"stopped early: {verdict.stalled}"] if verdict.stalled else []
    return "\n".join([*lines, "", "PASS" if verdict.passed else "FAIL"])


def _row(verdict: Verdict, target: str, moment: str, in_recovery: bool) -> tuple[str, ...] | None:
    chosen = [
        one
        for one in verdict.outcomes
        if one.kill.target == target and (one.kill.in_recovery_s is not None) == in_recovery
    ]
    figures = spread([one.recovered_s for one in chosen])
    if figures is None:
        return None
    p95 = quantile([one.recovered_s for one in chosen], 0.95)
    came = str(figures.num - figures.num_never)
    return (target, moment, str(figures.num), came, seconds(figures.median), seconds(p95), seconds(figures.most))


def _told(same: Comparison) -> str:
    found = f"{len(same.missing)} missing, {len(same.different)} different, {same.redone} logged again"
    return f"{same.num_steps} steps, {found}"


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else ("yes" if value else "NO")


def document(verdict: Verdict, args: argparse.Namespace) -> dict[str, object]:
    return {
        "benchmark": "kills",
        "seed": args.seed,
        "target": args.target,
        "passed": verdict.passed,
        "planned": verdict.planned,
        "losses_identical": verdict.comparison.identical,
        "final_identical": verdict.same_final,
        "steps": verdict.comparison.num_steps,
        "missing": verdict.comparison.missing,
        "different": verdict.comparison.different,
        "redone": verdict.comparison.redone,
        "exit_code": verdict.exit_code,
        "finished": verdict.finished,
        "holes": verdict.holes,
        "leftover": verdict.leftover,
        "stalled": verdict.stalled,
        "kills": [
            {
                "kill": one.kill.index,
                "target": one.kill.target,
                "signal": one.kill.signal.name,
                "rank": one.kill.rank,
                "after_step": one.kill.after_step,
                "phase": round(one.kill.phase, 4),
                "in_recovery_s": one.kill.in_recovery_s,
                "recovered_s": None if one.recovered_s == NEVER else round(one.recovered_s, 4),
                "lost_steps": one.lost_steps,
                "workers_restarted": one.disturbed,
                "why": one.why,
            }
            for one in verdict.outcomes
        ],
    }
