"""A scenario file: the shape of a run, and the faults that befall it, one after the other.

nodes 3
standby 2
ranks-per-node 1   # which is what it is without this line
kill-rank 2        a fault and its ranks, or its slot; "#" begins a comment
preempt            as the last line: whoever gave the nodes takes them all away, after a notice
"""

from dataclasses import dataclass

OF_RANKS = ("kill-rank", "stop-rank", "skip-collective")
OF_SLOTS = ("kill-agent", "lose-node", "drain", "power-off")


class ScenarioError(Exception):
    """A line that cannot be played; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    kind: str
    targets: tuple[int, ...]  # ranks, or slots

    def __str__(self) -> str:
        of = "rank" if self.kind in OF_RANKS else "slot"
        return f"{self.kind} {of}{'s' * (len(self.targets) > 1)} {', '.join(map(str, self.targets))}"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    nodes: int
    standby: int
    ranks_per_node: int
    faults: tuple[Fault, ...]
    is_preempted: bool = False  # in the end

    @property
    def lines(self) -> list[str]:
        """What a journal has decisions about, in order."""
        return [*map(str, self.faults), *(["preempt"] if self.is_preempted else [])]

    @property
    def num_ranks(self) -> int:
        return self.nodes * self.ranks_per_node


def parsed(text: str) -> Scenario:
    """Raises ScenarioError."""
    numbers, faults, is_preempted = {"nodes": 0, "standby": 0, "ranks-per-node": 1}, [], False
    for at, line in enumerate(text.splitlines(), 1):
        word, *rest = line.split("#")[0].split() or [""]
        if not word:
            continue
        if is_preempted:
            raise ScenarioError(f"line {at}: {word!r} after preempt, which ends the run")
        if word == "preempt" and not rest:
            is_preempted = True
            continue
        if not rest or not all(each.isdecimal() for each in rest):
            raise ScenarioError(f"line {at}: {word!r} needs numbers")
        targets = tuple(map(int, rest))
        if word in numbers and len(targets) == 1:
            numbers[word] = targets[0]
        elif word in OF_RANKS + OF_SLOTS:
            there = numbers["nodes"] * (numbers["ranks-per-node"] if word in OF_RANKS else 1)
            if max(targets) >= there or (len(targets) > 1 and word != "kill-rank"):
                raise ScenarioError(f"line {at}: {word} of {rest} in a run that has {there}")
            if word in OF_SLOTS and 0 in targets:
                raise ScenarioError(f"line {at}: slot 0 is the first host's, with which a run of hosts may end")
            faults.append(Fault(kind=word, targets=targets))
        else:
            raise ScenarioError(f"line {at}: no {word!r}; there are: {', '.join((*numbers, *OF_RANKS, *OF_SLOTS))}")
    if not numbers["nodes"] or not faults:
        raise ScenarioError("a scenario needs `nodes N` and a fault")
    return Scenario(
        nodes=numbers["nodes"],
        standby=numbers["standby"],
        ranks_per_node=numbers["ranks-per-node"],
        faults=tuple(faults),
        is_preempted=is_preempted,
    )
