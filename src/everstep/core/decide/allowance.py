"""How many restarts are left. `--max-restarts N` is the user's word: N over the whole run, and nothing else ends it.
Without it `max_restarts` counts within a sliding window."""

from everstep.core.state.turn import Turn


def is_users_word(turn: Turn) -> bool:
    """Whether the user said how many restarts there are: no rule of ours ends the run sooner, or holds it up."""
    return turn.policy.exact_restarts


def counted(turn: Turn) -> tuple[float, ...]:
    """Times of the restarts that count."""
    if is_users_word(turn):
        return turn.state.restarts
    return tuple(at for at in turn.state.restarts if at > turn.at - turn.policy.budget_window_s)


def is_used_up(turn: Turn) -> bool:
    return len(counted(turn)) >= turn.policy.max_restarts


def used_up_text(turn: Turn) -> str:
    used, limit = len(counted(turn)), turn.policy.max_restarts
    if is_users_word(turn):
        return f"{used} restart{'' if used == 1 else 's'}, {limit} allowed (--max-restarts)"
    allowed = f"{limit} allowed (policy max_restarts, budget_window_s)"
    return f"{used} restarts within {turn.policy.budget_window_s:g} s, {allowed}"


def next_text(turn: Turn) -> str:
    """ "restart 3 of 10 in 3600 s": the one that is decided now."""
    text = f"restart {len(counted(turn)) + 1} of {turn.policy.max_restarts}"
    return f"{text} (--max-restarts)" if is_users_word(turn) else f"{text} in {turn.policy.budget_window_s:g} s"
