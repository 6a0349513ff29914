"""The choice of the step that a generation resumes from, from where, and at what cost, in words. Pure; asked by
`forming`.

Starting over silently is worse than ending: if steps were kept and none of them can be restored, the run gives up. If
nothing was ever kept, no step by all ranks, or only what cannot be resumed exactly (`flaws`), the program starts as
under torchrun, and that is reported.
"""

import msgspec

from everstep.analyzer.observations.words import ranks_text
from everstep.core.restore import flaws, holdings, trust
from everstep.core.restore.holdings import Restore
from everstep.core.state.schema import State, Struck
from everstep.core.state.turn import Turn

_MAX_NAMED = 3


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    restore: Restore | None = None
    why: str
    must_end: bool = False  # there were steps, and none of them can be restored
    is_corrupted: bool  # the job goes back because of a corruption
    untrusted: str = ""  # a trusted step was wanted, and this is why it is not one


def choose(turn: Turn) -> Choice:
    state = turn.state
    if flaw := flaws.why_not(state):
        why = f"{_cause(state)}; {flaw}, so the program restores itself as it does under torchrun"
        return Choice(why=why, is_corrupted=False)
    is_corrupted = trust.is_corrupted(state.incident)
    restore = holdings.newest(state, only_trusted=is_corrupted)
    untrusted = ""
    if restore is None and is_corrupted:
        restore, untrusted = _untrusted(turn)
    cause = _cause(state)
    if restore is not None:
        if untrusted:
            cause = f"{cause}; {untrusted}: what is wrong may stay"
        cost = _cost(state, restore, is_corrupted and not untrusted)
        why = f"{cause}; {_from_where(restore, turn.spec.world_size)}{cost}"
        return Choice(restore=restore, why=why, is_corrupted=is_corrupted, untrusted=untrusted)
    refused = holdings.newest(state, even_struck=True)
    if refused is not None:
        why = f"nothing is left to restore: {_struck_text(state)}"
        return Choice(why=why, must_end=True, is_corrupted=is_corrupted)
    return Choice(why=f"{cause}{_from_nothing(state)}", is_corrupted=is_corrupted, untrusted=untrusted)


def _untrusted(turn: Turn) -> tuple[Restore | None, str]:
    """The newest step, and why it may be wrong. If this generation began with it and its numbers are none again, it is
    wrong: then the one before it, as long as memory has any."""
    state = turn.state
    restore = holdings.newest(state)
    why = f"{trust.last_trusted(state)}, and no trusted step is held by every rank"
    verdict = state.incident.verdict if state.incident is not None else None
    if restore is None or verdict is None or verdict.code not in trust.NOT_NUMBERS:
        return restore, why
    if restore.step != state.resumes.get(state.generation) or not trust.times_before(turn, verdict.ranks):
        return restore, why
    older = holdings.newest_before(state, restore.step)
    if older is None:
        return restore, why
    return older, f"{why}; step {restore.step} brought it back, so the one before that is taken"


def _cause(state: State) -> str:
    if state.incident is not None and state.incident.verdict is not None:
        return state.incident.verdict.sentence
    return "the run starts" if state.generation < 0 else "the workers of the generation before have ended"


def _from_where(restore: Restore, world_size: int) -> str:
    if restore.path:
        return f"step {restore.step} is restored from the checkpoint {restore.path}"
    if restore.former_world:
        nodes = ", ".join(dict.fromkeys(fetch.node for fetch in restore.fetch))
        ranks = f"the snapshots that {restore.former_world} ranks took of it, in the memory of {nodes}"
        return f"step {restore.step} is spread over {world_size} ranks from {ranks}"
    if not restore.fetch:
        return f"every rank holds step {restore.step} in memory"
    by_node: dict[str, list[int]] = {}
    for fetch in restore.fetch:
        by_node.setdefault(fetch.node, []).append(fetch.rank)
    parts = [
        f"{ranks_text(ranks)} from the {'copy' if len(ranks) == 1 else 'copies'} on {node}"
        for node, ranks in by_node.items()
    ]
    others = ", the others from their own memory" if len(restore.fetch) < world_size else ""
    return f"step {restore.step} is restored: {', '.join(parts)}{others}"


def _cost(state: State, restore: Restore, is_corrupted: bool) -> str:
    """The completed steps that will be repeated, and which ranks cause that."""
    if state.incident is not None and state.incident.unheard:
        ranks = ranks_text(state.incident.unheard)
        return f"; how many steps are done again is not known: {ranks} had not reported how far they were"
    best = state.incident.best_step if state.incident is not None else None
    if best is None or best <= restore.step:
        return ""
    again = f"step {best} is" if best == restore.step + 1 else f"steps {restore.step + 1}-{best} are"
    if not is_corrupted and restore.step < _newest_step(state):
        return f"; {again} done again"  # newer ones exist, and are not wanted
    reason = _trust_limit(state, restore.step) if is_corrupted else _limit(state, best)
    return f"; {again} done again: {reason}"


def _newest_step(state: State) -> int:
    newest = holdings.newest(state)
    return -1 if newest is None else newest.step


def _trust_limit(state: State, step: int) -> str:
    newest = trust.newest_trusted(state)
    if newest is None or newest == step:
        return f"{trust.last_trusted(state)}, and nothing newer is trusted"
    return f"{trust.last_trusted(state)}, and of the steps up to there step {step} is the newest that every rank holds"


def _limit(state: State, best: int) -> str:
    """Explain what is missing for a newer step."""
    refused = holdings.newest(state, even_struck=True)
    struck = [each for each in state.struck if refused is not None and each.step == refused.step <= best]
    if struck and refused is not None and refused != holdings.newest(state):
        return f"step {refused.step} could not be restored ({struck[-1].why})"
    newest = holdings.newest_by_rank(state)
    gone = [rank for rank, found in newest.items() if found is None]
    if gone:
        return f"no memory holds {ranks_text(gone)}"
    behind = [(found[0], rank, found[1]) for rank, found in newest.items() if found is not None and found[0] < best]
    if not behind:
        return "no newer step is held by every rank"
    step, rank, node = min(behind)
    return f"the newest snapshot of rank {rank} is of step {step}, on {node}"


def _struck_text(state: State) -> str:
    """The newest ones; all of them are on record."""
    newest = sorted(state.struck, key=lambda each: -each.step)[:_MAX_NAMED]
    parts = [f"{_place(each)}: {each.why}" for each in newest]
    more = len(state.struck) - len(newest)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _place(struck: Struck) -> str:
    if struck.path:
        return f"the checkpoint {struck.path}"
    where = f"copied to {struck.node}" if struck.node else "in its own memory"
    return f"step {struck.step} of rank {struck.rank} {where}"


def _from_nothing(state: State) -> str:
    if former := holdings.former_sizes(state):
        sizes = " or ".join(map(str, former))
        return f"; no step of all {sizes} ranks is in memory, so nothing is restored"
    if any(held.steps for held in state.held.values()):
        return f"; no step is held by every rank, so nothing is restored ({_holdings(state)})"
    if state.generation < 0:
        return ""
    return "; no rank holds a snapshot, so the program restores itself as it does under torchrun"


def _holdings(state: State) -> str:
    world = range(state.spec.world_size if state.spec is not None else 0)
    parts = [f"rank {rank}: {list(state.held[rank].steps) if rank in state.held else []}" for rank in world]
    return ", ".join(parts[:8]) + (", ..." if len(parts) > 8 else "")
