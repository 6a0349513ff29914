"""Policy: every number and switch of the brain, as data. Frozen, validated once, recorded in the journal's header.

Presets: `conservative` restarts less and asks longer, `aggressive` the other way round.
"""

import msgspec

from everstep.errors import ConfigError


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "default"

    max_restarts: int = 10
    """Restarts allowed within `budget_window_s`. torchrun's --max-restarts overrides it.
    Too low: a bad hour ends a healthy job. Too high: a broken job burns its machines for long."""

    budget_window_s: float = 3600.0
    """A sliding window, so that a run of months is not ended by its total number of faults."""

    max_same_failure: int = 3
    """Same place in the user's code, without one new step in between: after so many failures it is certain."""

    stop_grace_s: float = 5.0
    """Between SIGTERM and SIGKILL. Only programs with a handler of their own use it; others end at once."""

    settle_s: float = 0.4
    """How long to wait for the real culprit when the first exit looks like a consequence (peer closed connection).
    Too short: the victim is blamed. Too long: recovery waits."""

    start_timeout_s: float = 120.0
    """From StartWorkers until every rank has entered the user's program. Importing torch on a cold disk is slow."""

    rendezvous_timeout_s: float = 600.0
    """From the first rank in init_process_group until the last one is out of it; torchrun's join timeout."""

    watch_hangs: bool = False
    """Whether hangs are looked for, and jobs that hang restarted. Off until it has been proven on hours of irregular
    healthy jobs: a false alarm costs a restart. On, ranks carry a thread of ours and torch's flight recorder."""

    hang_window_s: float = 2.0
    """No silence shorter than this is a hang, however short the steps. docs/hang-rule.md explains it."""

    hang_unsaved_window_s: float = 30.0
    """The same for a job of which some rank holds no snapshot: there a false alarm costs the steps since its last
    checkpoint, so more patience is worth it."""

    evidence_timeout_s: float = 4.0
    """How long stacks and flight records of a hang may take. They name the culprit; the hang costs meanwhile."""

    hang_grace_s: float = 0.5
    """Between SIGTERM and SIGKILL of a job that hangs: ranks that do not move cannot clean up either."""

    node_timeout_s: float = 60.0
    """How long the engine may take to give a node before the run gives up for lack of capacity."""

    node_silent_s: float = 15.0
    """An agent whose link is gone for so long is lost, with its workers."""

    approval_timeout_s: float = 900.0
    """Mode advise: how long a proposal waits before the run ends."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                continue
            if not value >= 0:
                raise ConfigError(f"policy {field.name} = {value!r}: must not be negative")
        if self.max_same_failure < 1:
            raise ConfigError(f"policy max_same_failure = {self.max_same_failure!r}: must be at least 1")


PRESETS = {
    "conservative": Policy(name="conservative", max_restarts=3, stop_grace_s=30.0, settle_s=1.0),
    "default": Policy(),
    "aggressive": Policy(name="aggressive", max_restarts=30, stop_grace_s=2.0, node_silent_s=8.0),
}


def preset(name: str) -> Policy:
    """Raises ConfigError naming the presets."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ConfigError(f"no policy {name!r}; there are: {', '.join(PRESETS)}") from None
