"""Process groups: their members, their purpose, and which one all suspects share.

NCCL's records list the ranks of each group. gloo's do not, so a group's ranks are then those whose records show an
operation in it: a lower bound, good enough to find which rank is behind, not to exclude other members.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from everstep.analyzer.observations.records import FlightRecord, ParallelGroup

_KINDS = (
    ("ep", r"\bep\b|expert"),
    ("tp", r"\btp\b|tensor"),
    ("pp", r"\bpp\b|pipe"),
    ("cp", r"\bcp\b|context"),
    ("dp", r"\bdp\b|data|fsdp|hsdp|replica|shard"),
    ("world", r"\bworld\b"),
)
_PREFERENCE = {"pp": 0, "tp": 1, "ep": 2, "cp": 3, "dp": 4, "": 5, "world": 6}
"""Among groups of one size. Pipeline first: a fault stops a pipeline before anything else (ByteRobust, figure 7)."""


def kind_of(desc: str) -> str:
    """Return the purpose of a group, from its description: mesh_tp, TENSOR_MODEL_PARALLEL_GROUP, dp_shard. Empty:
    unknown."""
    text = re.sub(r"[_\W\d]+", " ", desc.lower())
    if "default pg" in text:
        return "world"
    if "data parallel" in text:
        return "dp"  # Megatron: DATA_PARALLEL_GROUP_WITH_CP, EXPERT_DATA_PARALLEL_GROUP
    return next((kind for kind, pattern in _KINDS if re.search(pattern, text)), "")


def learn(records: Iterable[FlightRecord], world: Iterable[int]) -> dict[tuple[str, int], ParallelGroup]:
    """The group that (name, rank) means. Different groups may share a name where their ranks do not overlap."""
    known: dict[tuple[str, int], ParallelGroup] = {}
    users: defaultdict[str, set[int]] = defaultdict(set)
    descs: dict[str, ParallelGroup] = {}
    declared: dict[tuple[str, int], ParallelGroup] = {}
    for record in records:
        for group in record.groups:
            if group.ranks:
                # One object per group, although each of its ranks describes it: 10,000 ranks list 10,000 ranks each.
                known[group.name, record.rank] = declared.setdefault((group.name, id(group.ranks)), group)
            users[group.name].add(record.rank)
            descs.setdefault(group.name, group)
    for (name, _), group in declared.items():
        for rank in group.ranks:  # members without a record of their own
            known.setdefault((name, rank), group)
    everyone = set(world)
    for name, ranks in users.items():
        group = descs[name]
        members = ranks | everyone if group.kind == "world" else ranks
        complete = group.kind == "world"
        inferred = msgspec.structs.replace(group, ranks=tuple(sorted(members)), complete=complete)
        for rank in members:
            known.setdefault((name, rank), inferred)
    return known


def shared_by(ranks: Sequence[int], groups: Iterable[ParallelGroup]) -> ParallelGroup | None:
    """The smallest group that holds all of `ranks` and more than one rank, but not the whole job."""
    wanted = set(ranks)
    if not wanted:
        return None
    fitting = {
        (group.ranks, group.name): group
        for group in groups
        if len(group.ranks) > 1 and group.kind != "world" and wanted <= set(group.ranks)
    }
    return min(fitting.values(), key=lambda g: (len(g.ranks), _PREFERENCE.get(g.kind, 5), g.name), default=None)
