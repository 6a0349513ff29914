"""Retries for what could not be read and may be whole: a storage or a peer that does not answer is asked again, a few
times.

Reading again costs a restart, the next best candidate costs steps. Asked by `damage`, and by the rules of `recovery`
for their reasons. Pure.
"""

from everstep.core.state.schema import State, Unread
from everstep.core.state.turn import Turn

MAX_RETRIES = 3
"""In a row, for one step from one place; each is a restart, so the budget of restarts bounds them as well."""


def note_unread(turn: Turn) -> None:
    """Some rank of this generation could not read what all were to resume from. Counted once for each generation."""
    formation, before, generation = turn.state.formation, turn.state.unread, turn.state.generation
    if formation is None or formation.resume_step is None:
        return
    step, path = formation.resume_step, formation.restore_path
    if before is None or (before.step, before.path) != (step, path):
        turn.set(unread=Unread(step=step, path=path, generation=generation, count=1))
    elif before.generation != generation:
        turn.set(unread=Unread(step=step, path=path, generation=generation, count=before.count + 1))


def is_worn_out(state: State) -> bool:
    """It was tried often enough."""
    return state.unread is not None and state.unread.count > MAX_RETRIES


def is_read_again(state: State) -> bool:
    """The next generation tries the same, as far as this one knows: no rank of it has found damage."""
    if state.unread is None or state.unread.generation != state.generation or is_worn_out(state):
        return False
    return not any(struck.generation == state.generation and not struck.is_untrusted for struck in state.struck)


def attempt_text(state: State) -> str:
    count = state.unread.count if state.unread is not None else 0
    return f"retry {count} of {MAX_RETRIES}"
