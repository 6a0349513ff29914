"""The question to one process of an examination, and its answer. JSON between the agent and its processes."""

import msgspec

from everstep.model.facts import ExamKind


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part: rank `rank` of `world_size`, the group's nodes one after another."""

    exam: str
    kind: ExamKind
    group: tuple[str, ...]
    group_index: int = 0
    position: int  # of this node in the group
    local_rank: int = 0
    num_ranks: int = 1  # per node
    store_host: str = "127.0.0.1"
    store_port: int = 0
    limit_s: float
    shape: tuple[tuple[str, int], ...] = ()
    num_rounds: int = 1
    inspection: str = ""  # file with the node's last inspection, against which counters are judged

    @property
    def rank(self) -> int:
        return self.position * self.num_ranks + self.local_rank

    @property
    def world_size(self) -> int:
        return len(self.group) * self.num_ranks

    @property
    def node(self) -> str:
        return self.group[self.position]

    def nodes_of(self, ranks: "list[int] | set[int]") -> tuple[str, ...]:
        """Without repeats, in the group's order."""
        return tuple(self.group[at] for at in sorted({rank // self.num_ranks for rank in ranks}))


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The process's answer, with the fields of NodeExamined."""

    passed: bool | None
    why: str
    blames: tuple[str, ...] = ()
    digest: str = ""
