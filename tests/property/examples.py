"""How many examples a property test draws.

`make test` draws the same ones each time, so more of them guard little: a share is enough to see that changed code
still holds. `make search` draws all, new ones in each run, and looks where nobody has looked.
"""

from hypothesis import settings

SHARE = 10
LEAST = 50


def examples(number: int) -> int:
    """All of them in `make search`; elsewhere a tenth, and not fewer than 50 where there are so many."""
    if settings.get_current_profile_name() == "search":
        return number
    return max(number // SHARE, min(number, LEAST))
