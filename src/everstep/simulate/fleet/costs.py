"""Costs of a fault in seconds, phase by phase: figures of this system, or of a paper. Data, each with its source.

They are means; every draw is exponential around what varies (`spread` 1) or exact (0), so a mean stays a mean.
"""

import math

import msgspec

from everstep.errors import ConfigError
from everstep.simulate.fleet.faults import Cause, Sign


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    detect_s: dict[str, float]  # value of Sign, or name of a cause -> from the fault until it is known
    diagnose_s: dict[str, float]  # ... from there until the decision
    stop_s: float  # ending all ranks
    initialise_s: float  # from StartWorkers to the first step: processes, imports, rendezvous, communicators, model
    initialise_by_gpus: tuple[tuple[int, float], ...] = ()  # where it is known by size, instead
    restore_s: float  # of every rank's own snapshot, from memory
    fetch_s: float  # of a lost machine's snapshots, from another node
    load_s: float  # of a checkpoint, from storage
    exam_s: float  # one round of stop-time checks
    replay_s: float  # one round of dual-phase replay
    stall_s: float  # of training, for every snapshot in memory
    save_stall_s: float  # of training, for every checkpoint on storage (`--checkpoint SECONDS`)
    persist_s: float  # until a checkpoint on storage is whole
    backup_s: float  # until a snapshot's copy is on another node
    provision_s: float  # until a machine that was asked for is a warm standby
    evict_s: float  # until an evicted machine is certainly gone
    resubmit_s: float  # a run that gave up: looked at, repaired, queued and scheduled again
    update_s: float  # a change of the code, beside the restart

    def detect(self, cause: Cause) -> float:
        return _known(self.detect_s, cause)

    def diagnose(self, cause: Cause) -> float:
        return _known(self.diagnose_s, cause)

    def initialise(self, num_gpus: int) -> float:
        """Between sizes by the logarithm of their number; beyond the last one as from the last two."""
        table = self.initialise_by_gpus
        if not table:
            return self.initialise_s
        if num_gpus <= table[0][0]:
            return table[0][1]
        upper = next((n for n, (size, _) in enumerate(table) if size >= num_gpus), len(table) - 1)
        (small, less), (large, more) = table[upper - 1], table[upper]
        return less + (more - less) * math.log(num_gpus / small) / math.log(large / small)


MEASURED = Costs(
    name="measured",
    source="this system, docs/benchmarks.md: four gloo ranks on two cores. NCCL, CUDA and the model's own start are\n"
    "not in it, and it is not measured at this size",
    detect_s={
        Sign.ALERT: 1.0,  # a line of the kernel log
        Sign.LOST: 3.6,  # a machine that is cut off or frozen (docs/run.md)
        Sign.EXIT: 0.01,
        Sign.MEMORY: 0.01,
        Sign.RAISE: 0.01,
        Sign.HANG: 2.35,
        Sign.SLOW: 45.0,
        Sign.WRONG: 2.35,
        Sign.CHANGE: 0.0,
    },
    diagnose_s={"": 0.0, Sign.HANG: 0.29},  # stacks 0.06 s, clustering of 16,384 ranks 0.23 s
    stop_s=0.05,
    initialise_s=0.25,
    restore_s=0.36,  # State(...) of 500 MB
    fetch_s=2.0,
    load_s=60.0,
    exam_s=30.0,
    replay_s=120.0,
    stall_s=0.0078,
    save_stall_s=0.0078,
    persist_s=60.0,
    backup_s=2.0,
    provision_s=600.0,
    evict_s=0.1,
    resubmit_s=1800.0,
    update_s=1.0,
)
"""Not measured here, and taken as they are: fetch, load, exam, replay, persist, backup, provision, resubmit."""

BYTEROBUST = Costs(
    name="byterobust",
    source="ByteRobust (SOSP 2025): detection of Table 3, localisation of Table 6 (means), restart of Table 7\n"
    "(hot update by size); snapshots of Table 8 (0.89 % of a step of 6 s)",
    detect_s={
        Sign.ALERT: 10.0,
        Sign.LOST: 2.0,
        Sign.EXIT: 10.0,
        Sign.MEMORY: 10.0,
        Sign.RAISE: 10.0,
        Sign.HANG: 600.0,  # no RDMA traffic for ten minutes
        Sign.SLOW: 50.0,  # five rounds, ten seconds apart
        Sign.WRONG: 600.0,
        Sign.CHANGE: 0.0,
        "Infiniband": 30.0,
    },
    diagnose_s={
        "": 60.0,
        "CUDA error": 93.0,
        "Infiniband": 60.0,
        "HDFS": 58.0,
        "kernel panic": 109.0,
        "GPU memory": 10.0,
        "GPU unavailable": 10.0,
        "NaN": 4289.0,
        "silent data corruption": 4289.0,
        "code or data adjustment": 0.0,  # its 57 s are the restart itself
    },
    stop_s=0.0,
    initialise_s=65.0,
    initialise_by_gpus=((2048, 46.0), (4096, 51.0), (8192, 54.0), (16384, 65.0)),
    restore_s=0.0,
    fetch_s=0.0,
    load_s=60.0,
    exam_s=0.0,  # is in the localisation
    replay_s=0.0,
    stall_s=0.0534,
    save_stall_s=12.98,
    persist_s=0.0,
    backup_s=2.0,
    provision_s=768.0,
    evict_s=0.0,
    resubmit_s=768.0,
    update_s=0.0,
)
"""Localisation and restart are added although the first may contain the second: the cautious reading."""

COSTS = {costs.name: costs for costs in (MEASURED, BYTEROBUST)}


def with_changes(costs: Costs, changes: dict[str, str]) -> Costs:
    """`initialise=60`, `detect.hang=10`. Raises ConfigError with what there is."""
    for key, text in changes.items():
        try:
            value = float(text)
        except ValueError:
            raise ConfigError(f"cost {key} = {text!r}: must be seconds") from None
        if not value >= 0 or math.isinf(value):
            raise ConfigError(f"cost {key} = {text!r}: must not be negative")
        costs = _with(costs, key, value)
    return costs


def _with(costs: Costs, key: str, value: float) -> Costs:
    field, _, of = key.partition(".")
    now = getattr(costs, f"{field}_s", None)
    if isinstance(now, dict):
        return msgspec.structs.replace(costs, **{f"{field}_s": {**now, of: value} if of else {"": value}})
    if not isinstance(now, float) or of:
        known = [name.removesuffix("_s") for name in costs.__struct_fields__ if name.endswith("_s")]
        raise ConfigError(f"no cost {key!r}; there are: {', '.join(known)}; detect and diagnose also as detect.hang")
    changes: dict[str, object] = {f"{field}_s": value}
    if field == "initialise":
        changes["initialise_by_gpus"] = ()
    return msgspec.structs.replace(costs, **changes)


def _known(table: dict[str, float], cause: Cause) -> float:
    """By its own name, by the name that it goes under, by its sign, or else what holds for all."""
    for name in (cause.name, cause.on, cause.sign):
        if name and name in table:
            return table[name]
    return table.get("", 0.0)
