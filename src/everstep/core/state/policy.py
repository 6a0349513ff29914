"""Policy: every number and switch of the brain, as data. Frozen, validated once, recorded in the journal's header.

Presets: `conservative` restarts less and asks longer, `aggressive` the other way round.
"""

import msgspec

from everstep.errors import ConfigError


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "default"

    # Restarts and their budget

    max_restarts: int = 10
    """Restarts allowed within `budget_window_s`. torchrun's --max-restarts overrides it, with `exact_restarts`.
    Too low: a bad hour ends a healthy job. Too high: a broken job burns its machines for long."""

    exact_restarts: bool = False
    """Whether `max_restarts` counts over the whole run and nothing else ends a job that fails: what `--max-restarts N`
    means to torchrun, and sets. On: no wait grows, no examination holds up a run without standbys."""

    budget_window_s: float = 3600.0
    """A sliding window, so that a run of months is not ended by its total number of faults."""

    max_evicted_share: float = 0.25
    """Of slots and standbys, how many nodes may be evicted within `budget_window_s` (at least one): the circuit
    breaker. More at once is not bad luck: it is a wrong rule, a switch or a rack."""

    max_same_failure: int = 3
    """Same place in the user's code, without one new step in between: after so many failures it is certain."""

    # Stopping and starting

    stop_grace_s: float = 5.0
    """Between SIGTERM and SIGKILL before a restart, where every rank's state is in a snapshot. Only programs with a
    handler of their own use it; others end at once."""

    shutdown_s: float = 30.0
    """The same when the run ends, and before a restart of a job that may save itself in its handler: torchrun's time.
    --shutdown-timeout and TORCH_ELASTIC_SHUTDOWN_TIMEOUT override it."""

    settle_s: float = 0.4
    """How long to wait for the real culprit when the first exit looks like a consequence (peer closed connection).
    Too short: the victim is blamed. Too long: recovery waits."""

    start_timeout_s: float = 120.0
    """From StartWorkers until every rank has entered the user's program. Importing torch on a cold disk is slow."""

    fetch_timeout_s: float = 1800.0
    """Extra time for a start that first fetches snapshots from other nodes: 200 GB over 1 Gbit/s. The node that fetches
    notices a silent peer long before; this bounds an agent that reports nothing at all."""

    rendezvous_timeout_s: float = 600.0
    """From the first rank in init_process_group until the last one is out of it; torchrun's join timeout."""

    # What is looked for

    watch_hangs: bool = True
    """Whether hangs are looked for, and jobs that hang restarted: a false alarm costs a restart. On, ranks carry a
    thread of ours and torch's flight recorder."""

    watch_slowness: bool = True
    """Whether ranks that make the others wait are looked for. Only a machine that is to blame, with a standby ready to
    take its place, is evicted; everything else is explained. Needs the watch thread."""

    watch_links: bool = True
    """Whether the nodes of a run over several hosts probe each other over UDP, some packets a second, so that a hang
    can be told to be the network's. Nothing is evicted because of probes."""

    slow_round_s: float = 10.0
    """Between two rounds of the fail-slow vote (ByteRobust: five, ten seconds apart). Shorter: found earlier, and a
    busy minute is taken for a slow machine."""

    slow_trace_s: float = 3.0
    """How long a rank that a slow incident blames is traced by its own node, where nothing is done about it. 0: never.
    Longer: more steps in the trace, and a larger file."""

    max_slow_traces: int = 8
    """In a whole run, two at most for one rank and code. More: more of the disk, at most 8 MiB each."""

    watch_numbers: bool = True
    """Whether losses and gradient norms are looked at."""

    undo_nan: bool = True
    """Whether a job whose loss is NaN three times in a row goes back to a trusted step (ES-N07): it would otherwise
    compute for nothing until an operator looks. Off: only reported, as everything else about numbers."""

    digest_every: int = 50
    """Steps between two digests of the parameters. 0: none. Fewer: a flipped bit is found earlier, and a digest reads
    all parameters once."""

    # Snapshots and checkpoints

    snapshot_buffers: int = 5
    """Copies of its state that a rank's memory has room for: one is written, and the newest, the newest that waits for
    its digest, the newest trusted one and the one that is copied to a peer stay. 2: only the first two; no trust."""

    divide_replicas: bool = False
    """Whether the ranks of a node keep what all of them hold alike (parameters and optimizer state under
    DistributedDataParallel) once, each a part of it. A restart of one of them then reads the others' parts."""

    save_s: float = 2.0
    """How long ranks that live may take to complete the snapshot of their last step before they are stopped. Nothing
    waits when it is complete already."""

    backup: bool = True
    """Whether snapshots are copied to another node, if there is one. Without, a lost machine costs the steps since the
    last checkpoint on disk."""

    backup_rate_bytes_s: float = 0.0
    """Of one node, to its peers. 0: as fast as they take it."""

    notice_s: float = 25.0
    """From SIGTERM to the end of the machine, less a reserve: in it the last step goes to the persistent tier."""

    last_save_s: float = 600.0
    """How long the parts of the last step may take to the persistent tier when the run ends by itself. Shorter: a large
    state on a slow storage is lost at the end. Longer: machines wait for a storage that does not answer."""

    # Hangs

    hang_window_s: float = 2.0
    """No silence shorter than this is a hang, however short the steps. docs/hang-rule.md explains it."""

    hang_report_s: float = 5.0
    """A standstill that may end by itself is reported after so long. Nothing is done to the job because of it."""

    hang_outside_s: float = 30.0
    """Doubtful, and the job can go on from a snapshot: how long a wait may take (a socket, a file, a timer). Shorter: a
    store that answers late costs a restart. Longer: a server that died is noticed later."""

    hang_computing_s: float = 60.0
    """The same for a rank that works while the others wait. Shorter: an evaluation that was not announced costs a
    restart. Longer: a loop that never ends burns machines for longer."""

    hang_plain_s: float = 0.0
    """Doubtful, and nothing to go back to: how long a standstill may take. 0: as long as the collective that the others
    wait in, by its own time limit; torch itself ends it then. Shorter: found earlier, and a healthy job that waits
    for longer begins anew."""

    hang_limit_s: float = 1800.0
    """The time limit of a collective where it is not known: gloo's default."""

    hang_repeats: int = 2
    """How often a hang at one place is acted on. From the next one on it is only reported: a restart does not help."""

    evidence_timeout_s: float = 4.0
    """How long stacks and flight records of a hang may take. They name the culprit; the hang costs meanwhile."""

    hang_grace_s: float = 0.5
    """Between SIGTERM and SIGKILL of a job that hangs: ranks that do not move cannot clean up either."""

    # Faults without a culprit

    blind_restarts: int = 1
    """Restarts in place after faults without a culprit in a row, before machines are examined or evicted. 0: check
    first, as ByteRobust does. More: a machine that is broken costs more restarts until it is found."""

    course_s: float = 1800.0
    """How long a job has to train after a fault without a culprit until the next one counts as the first. Shorter: a
    machine that fails every hour is never examined. Longer: two strokes of bad luck on a day look like one cause."""

    examine: bool = True
    """Whether all machines are examined when faults without a culprit keep coming. The job stands still meanwhile."""

    exam_limit_s: float = 20.0
    """How long each examination may take; the checks are up to six. Shorter: a slow machine is not known. Longer: one
    that does not answer holds the job."""

    replay: bool = True
    """Whether the job's layout is replayed on groups of machines when faults come again after all else."""

    replay_limit_s: float = 300.0
    """How long each of the rounds of a replay may take: two, and those that confirm."""

    replay_detection: float = 0.3
    """Of all replays, the share in which the flakiest machine that has to be found computes wrongly."""

    replay_confidence: float = 0.95
    """With which probability such a machine is found: with the former, how often a replay is repeated (12 times)."""

    group_cooldown_s: float = 900.0
    """Between two evictions of whole groups. Shorter: hangs that no machine is behind use up the standbys."""

    backoff_s: float = 1.0
    """How long the third restart in a row without a new step waits; each after it twice as long, up to a minute. 0: no
    wait. Longer: whatever is wrong outside has time to pass, and the job stands still."""

    # Nodes

    node_timeout_s: float = 60.0
    """How long the engine may take to give a node before the run gives up for lack of capacity."""

    shrink_after_s: float = 30.0
    """`--nnodes MIN:MAX`: how long missing nodes are waited for, once MIN are there; torchrun's last_call_timeout.
    --rdzv-conf last_call_timeout=S overrides it. Shorter: a node that only reboots costs two changes of the size."""

    grow_after_s: float = 10.0
    """`--nnodes MIN:MAX`: how long a node that came waits for others before the job takes it in, which restarts all
    ranks. Twice as long for each further loss within `budget_window_s`, up to half an hour: nodes that come and go."""

    node_silent_s: float = 3.5
    """A node of which nothing was heard for so long is ended and lost, with its ranks. An agent says something every
    half second. Shorter: a machine that swaps for a moment loses its node. Longer: a cut or frozen node holds up all
    others for so long; decided within 5 s means at most 4."""

    # Approval and updates

    approval_timeout_s: float = 900.0
    """Mode advise: how long a proposal waits before the run ends."""

    update_after_s: float = 86400.0
    """How long an update that is not urgent waits for an interruption that comes anyway. Shorter: a restart is paid for
    it. Longer: a change that users count on is not there."""

    trained_steps: int = 5
    """New steps of every rank after which a version counts as one that trains, and can be rolled back to. Fewer: a
    version that fails at its first evaluation may be chosen. More: one that was fine may not."""

    trained_s: float = 60.0
    """The same for programs that report no steps: how long every rank has to have run."""

    @property
    def lease_s(self) -> float:
        """How long a node continues while none of its reports arrives. Its ranks stand still then, and are killed a
        second later. Shorter than `node_silent_s`, which counts from a later moment besides."""
        return 0.85 * self.node_silent_s

    @property
    def needs_watch_thread(self) -> bool:
        """Whether ranks carry a thread of ours and torch's flight recorder."""
        return self.watch_hangs or self.watch_slowness

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                continue
            if not value >= 0:
                raise ConfigError(f"policy {field.name} = {value!r}: must not be negative")
        if not 0 < self.replay_detection <= 1 or not 0 < self.replay_confidence < 1:
            shares = f"replay_detection = {self.replay_detection!r}, replay_confidence = {self.replay_confidence!r}"
            raise ConfigError(f"policy {shares}: probabilities above 0, and the confidence below 1")
        if self.max_same_failure < 1:
            raise ConfigError(f"policy max_same_failure = {self.max_same_failure!r}: must be at least 1")


GROUPS = {
    "Restarts and their budget": "max_restarts",
    "Stopping and starting": "stop_grace_s",
    "What is looked for": "watch_hangs",
    "Snapshots and checkpoints": "snapshot_buffers",
    "Hangs": "hang_window_s",
    "Faults without a culprit": "blind_restarts",
    "Nodes": "node_timeout_s",
    "Approval and updates": "approval_timeout_s",
}
"""Each concern and the first of its keys: it has all keys from there to the next one. Keys in files are flat."""

PRESETS = {
    "conservative": Policy(name="conservative", max_restarts=3, stop_grace_s=30.0, settle_s=1.0, node_silent_s=15.0),
    "default": Policy(),
    "aggressive": Policy(name="aggressive", max_restarts=30, stop_grace_s=2.0, node_silent_s=2.5),
}


def keys_of(concern: str) -> tuple[str, ...]:
    names = [field.name for field in msgspec.structs.fields(Policy)]
    starts = [*(names.index(first) for first in GROUPS.values()), len(names)]
    number = list(GROUPS).index(concern)
    return tuple(names[starts[number] : starts[number + 1]])


def preset(name: str) -> Policy:
    """Raises ConfigError naming the presets."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ConfigError(f"no policy {name!r}; there are: {', '.join(PRESETS)}") from None
