"""Actions as lines of a transcript: what a reader of a scenario needs, and nothing that changes from run to run."""

from everstep.analyzer.observations.words import ranks_text
from everstep.model import actions
from everstep.model.actions import Action


def describe_actions(decided: list[Action]) -> list[str]:
    """One line per action; the same action on several nodes, and a verdict that only was confirmed, show once."""
    lines: list[str] = []
    said: set[tuple[str, ...]] = set()
    for action in decided:
        text = tuple(_examination(action, decided) if isinstance(action, actions.ExamineNode) else _lines(action))
        folds = isinstance(
            action, actions.StartWorkers | actions.StopWorkers | actions.Concluded | actions.PersistSnapshot
        )
        if folds and text in said:
            continue
        said.add(text)
        lines += text
    return lines


_WITH_WHY = ("examine", "replay", "reattempt", "evict-group", "flow-exhausted")


def _examination(action: actions.ExamineNode, decided: list[Action]) -> list[str]:
    """One line for all groups that are examined together, at the first of its actions."""
    same = [a for a in decided if isinstance(a, actions.ExamineNode) and a.exam == action.exam]
    if action is not same[0]:
        return []
    groups = dict.fromkeys("+".join(a.group) for a in same)
    return [f"examine {action.exam} {action.kind}: {', '.join(groups)}"]


def _asking(action: actions.CollectEvidence | actions.TraceRank | actions.Diagnose) -> str:
    if isinstance(action, actions.TraceRank):
        return f"trace rank {action.rank} on {action.node} for {action.seconds:g} s"
    if isinstance(action, actions.Diagnose):
        return f"diagnose {action.incident}"
    return f"collect evidence on {action.node}"


def _copies(action: actions.PlaceBackups) -> str:
    ranks_of_node: dict[str, list[int]] = {}
    for backup in action.backups:
        ranks_of_node.setdefault(backup.node, []).append(backup.rank)
    there = ", ".join(f"of {ranks_text(tuple(ranks))} to {node}" for node, ranks in ranks_of_node.items())
    return f"on {action.node} {there}"


def _lines(action: Action) -> list[str]:
    match action:
        case actions.StartWorkers():
            resume = "from the start" if action.resume_step is None else f"after step {action.resume_step}"
            code = f" with {action.version.id}" if action.version is not None else ""
            return [f"start generation {action.generation} {resume}{code}", f"    why: {action.why}"]
        case actions.StopWorkers():
            return [f"stop generation {action.generation}"]
        case actions.IncidentOpened():
            return [f"open {action.incident}" + (f" (drill {action.drill})" if action.drill else "")]
        case actions.Concluded():
            verdict, decision = action.verdict, action.decision
            lines = [f"{action.incident} {verdict.code} {verdict.sentence} [{verdict.confidence}]"]
            lines.append(f"    {decision.rule}: {decision.chosen}")
            lines += [f"    because: {decision.why}"] if decision.rule in _WITH_WHY else []
            lines += [f"    then: {decision.then}"] if decision.then else []
            return lines + [f"    not: {refused.what}, because {refused.why}" for refused in decision.refused]
        case actions.Refused():
            return [f"refuse: {action.what}", f"    why: {action.why}"]
        case actions.IncidentClosed():
            steps = "" if action.lost_steps is None else f", {action.lost_steps} steps lost"
            return [f"close {action.incident}: {action.outcome}{steps}"]
        case actions.AcquireNode():
            return [f"acquire a node: {action.why}"]
        case actions.EvictNode() | actions.ReleaseNode():
            unless = ", unless it is only late" if isinstance(action, actions.EvictNode) and action.may_spare else ""
            return [f"{'evict' if isinstance(action, actions.EvictNode) else 'release'} {action.node}{unless}"]
        case actions.CollectEvidence() | actions.TraceRank() | actions.Diagnose():
            return [_asking(action)]
        case actions.Inject():
            target = action.node if action.rank is None else f"rank {action.rank}"
            return [f"inject {action.kind} {target or ''}".rstrip()]
        case actions.Finish():
            return [f"finish: {action.outcome}, exit code {action.exit_code}", f"    why: {action.why}"]
        case _:
            return _copying(action)


def _copying(action: Action) -> list[str]:
    match action:
        case actions.PlaceBackups():
            return [f"copy the snapshots {_copies(action)}"]
        case actions.PersistSnapshot():
            last = " before the end" if action.is_last else ""
            return [f"persist step {action.step} in {action.root}{last}", f"    why: {action.why}"]
        case actions.CommitCheckpoint():
            return [f"commit step {action.step}" + (", trusted" if action.is_trusted else "")]
        case actions.ValidateUpdate():
            how = "start it if it can" if action.can_start else "read it"
            return [f"check {action.version.id} on {action.node}: {how}"]
        case actions.UpdateConcluded():
            back = f", back to {action.back_to}" if action.back_to else ""
            return [f"{action.version}: {action.stage}{back}", f"    why: {action.why}"]
        case actions.Resized():
            return [
                f"{action.num_slots} nodes instead of {action.num_before}: {', '.join(action.nodes)}",
                f"    why: {action.why}",
            ]
        case actions.SettleDoubt():
            return [f"{action.node} {'may go on' if action.may_go_on else 'is over'}", f"    why: {action.why}"]
        case actions.StrikeCheckpoint():
            return [f"strike the checkpoint of step {action.step}", f"    why: {action.why}"]
        case _:
            return []
