"""Where the job's state is kept, and what a fault would cost now: the view behind `everstep status` and `ckpt ls`.

Pure. A number is given only where it is known. How old a copy is, is as old as the last report of its rank.
"""

from collections.abc import Iterable
from itertools import accumulate

import msgspec

from everstep.analyzer.observations.words import fold
from everstep.journal.kept import Written
from everstep.journal.view import GenerationView, RunView
from everstep.model.facts import Checkpoint
from everstep.report.parts.units import NOT_MEASURED, ago, count, duration, plural, written_text

MAX_RACKS = 8
"""That are named on a screen."""

_SPARE_BUFFERS = 3
"""Buffers of a rank that do not hold the newest steps: the one that is written, the trusted one, the one that waits for
its digest. The others hold those; a copy that is older may have no counterpart on the ranks that live."""


class NodeCopies(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots of one node's ranks. Ages are in steps since each rank's own newest, by one report: nodes do not
    report at the same moment, so the newest steps of two nodes do not show which is behind."""

    node: str
    ranks: tuple[int, ...]
    snapshot_step: int | None  # newest that each of its ranks holds
    backup_step: int | None  # newest of which other nodes hold a copy, of each of its ranks
    backup_nodes: tuple[str, ...]
    snapshot_age: int | None  # of the oldest of its ranks
    backup_age: int | None


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that would have to be done again, and where the job would resume."""

    steps: int | None  # None: not known
    resume_step: int | None = None  # None: from the beginning, or not known
    source: str = ""  # "memory" | "checkpoint" | "nothing"
    why: str = ""  # why it is not known, or more than a copy would cost


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    last_step: int | None
    nodes: tuple[NodeCopies, ...]
    trusted_step: int | None
    checkpoint: Checkpoint | None  # the newest
    checkpoints: tuple[Checkpoint, ...]
    writing: Written | None  # to the persistent tier, now
    racks: dict[str, tuple[str, ...]]  # rack -> its nodes, as far as it is known
    if_node_dies: Loss
    if_rack_dies: Loss

    @property
    def backup_step(self) -> int | None:
        """Newest step of which every rank has a copy on another node; None where some rank has none."""
        steps = [node.backup_step for node in self.nodes]
        known = [step for step in steps if step is not None]
        return min(known) if known and len(known) == len(steps) else None


def view(run: RunView) -> Copies:
    generation = run.generation
    nodes = _nodes(run, generation) if generation is not None else ()
    last = None if generation is None else generation.last_step
    if last is None and generation is not None:
        last = generation.resume_step
    checkpoint = run.kept.checkpoints[-1] if run.kept.checkpoints else None
    written = run.kept.written
    return Copies(
        last_step=last,
        nodes=nodes,
        trusted_step=run.kept.trusted_step,
        checkpoint=checkpoint,
        checkpoints=tuple(run.kept.checkpoints),
        writing=written if written is not None and written.is_under_way else None,
        racks=_racks(run),
        if_node_dies=_worst(run, nodes, last, checkpoint),
        if_rack_dies=_worst_rack(run, nodes, last, checkpoint),
    )


def lines(run: RunView, now: float, known: Copies | None = None) -> list[tuple[str, str]]:
    """(name, text) for a status screen; nothing for a run without nodes to copy to and without a persistent tier."""
    copies, found = view(run) if known is None else known, []
    backup = backup_text(run, copies)
    if backup:
        found.append(("backup", backup))
    disk = disk_text(run, copies, now)
    if disk:
        found.append(("disk", disk))
    if copies.trusted_step is not None:
        found.append(("trusted", f"step {count(copies.trusted_step)}: all replicas held the same after it"))
    if copies.last_step is not None and (backup or disk):
        found.append(("at risk", f"if a node dies now: {loss_text(copies.if_node_dies)}"))
        found.append(("", f"if a rack dies: {loss_text(copies.if_rack_dies)}"))
    if copies.racks:
        found.append(("racks", racks_text(copies)))
    return found


def racks_text(copies: Copies) -> str:
    named = [f"{rack}: {fold_names(mine)}" for rack, mine in copies.racks.items()]
    more = f"; and {len(named) - MAX_RACKS} more" if len(named) > MAX_RACKS else ""
    return "; ".join(named[:MAX_RACKS]) + more


def backup_text(run: RunView, copies: Copies) -> str:
    if "backup" not in run.policy or not copies.nodes:
        return ""  # a journal of an older version, or nothing runs
    if len(copies.nodes) < 2:
        return "none: the job has one node"
    if not run.policy["backup"]:
        return "none: switched off (policy backup)"
    if not run.kept.backups:
        return "none yet: copies begin when every rank runs"
    whom = ", ".join(f"{node.node} -> {fold_names(node.backup_nodes)}" for node in copies.nodes[:4])
    more = f", and {len(copies.nodes) - 4} more nodes" if len(copies.nodes) > 4 else ""
    if copies.backup_step is None:
        without = sum(node.backup_step is None for node in copies.nodes)
        return f"{plural(without, 'node')} of {len(copies.nodes)} without a complete copy yet   ({whom}{more})"
    return f"step {count(copies.backup_step)} of every rank on another node   ({whom}{more})"


def disk_text(run: RunView, copies: Copies, now: float) -> str:
    spec = run.spec
    if spec is None or not spec.checkpoint_dir:
        return ""
    newest = copies.checkpoint
    parts = [f"no checkpoint in {spec.checkpoint_dir} yet"]
    if newest is not None:
        trusted = ", trusted" if newest.is_trusted else ""
        parts = [f"step {count(newest.step)} in {spec.checkpoint_dir} ({ago(newest.at, now)}{trusted})"]
    if copies.writing is not None:
        missing = [node for node in copies.writing.nodes if node not in copies.writing.parts]
        on = f"waits for {fold_names(tuple(missing))}" if missing else "is being committed"
        parts.append(f"step {count(copies.writing.step)} {on}, for {duration(max(0.0, now - copies.writing.begun_at))}")
    if run.kept.last_failure:
        parts.append(f"the last one failed: {run.kept.last_failure}")
    return "; ".join(parts)


def loss_text(loss: Loss) -> str:
    if loss.steps is None:
        return f"not known ({loss.why})" if loss.why else NOT_MEASURED
    why = f"; {loss.why}" if loss.why else ""
    if loss.source == "checkpoint":
        return f"{plural(loss.steps, 'step')}, from the checkpoint of step {count(loss.resume_step)}{why}"
    if loss.source == "nothing":
        return f"all {plural(loss.steps, 'step')}{why}"
    return f"{plural(loss.steps, 'step')}{why}"


def committed_text(run: RunView, written: Written, checkpoint: Checkpoint) -> str:
    """The line for a step that has arrived: "checkpoint of step 400 in DIR: 12 MB written of 500 MB, 1.3s"."""
    where = run.spec.checkpoint_dir if run.spec is not None else checkpoint.path
    amount = written_text(written.written_bytes, written.total_bytes)
    took = "" if written.took_s is None else f", {duration(written.took_s)}"
    trusted = ", trusted" if checkpoint.is_trusted else ""
    return f"checkpoint of step {count(checkpoint.step)} in {where}: {amount}{took}{trusted}"


def fold_names(names: tuple[str, ...], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else NOT_MEASURED


def _nodes(run: RunView, generation: GenerationView) -> tuple[NodeCopies, ...]:
    ranks_of: dict[str, list[int]] = {}
    for rank, node in sorted(generation.node_of.items()):
        ranks_of.setdefault(node, []).append(rank)
    found = []
    for node, ranks in ranks_of.items():
        accounts = [generation.accounts.get(rank) for rank in ranks]
        published = [
            a.published_step if a is not None and a.published_step is not None else generation.resume_step
            for a in accounts
        ]
        backed_up = [a.backed_up_step if a is not None else None for a in accounts]
        lasts = [a.last_step if a is not None else None for a in accounts]
        are_copied = all(rank in run.kept.backups for rank in ranks)
        found.append(
            NodeCopies(
                node=node,
                ranks=tuple(ranks),
                snapshot_step=_least(published),
                backup_step=_least(backed_up) if are_copied else None,
                backup_nodes=tuple(dict.fromkeys(run.kept.backups[r] for r in ranks if r in run.kept.backups)),
                snapshot_age=_oldest(lasts, published),
                backup_age=_oldest(lasts, backed_up) if are_copied else None,
            )
        )
    return tuple(found)


class _Held(msgspec.Struct, frozen=True):
    """How old the snapshots are that some nodes hold, together. A fleet asks this of every node but one, so it must not
    cost a walk over all of them."""

    num: int = 0
    is_known: bool = True  # of each of them
    least: int | None = None
    most: int | None = None

    def __add__(self, other: "_Held") -> "_Held":
        if not self.num or not other.num:
            return self if self.num else other
        is_known = self.is_known and other.is_known
        if self.least is None or self.most is None:
            return _Held(self.num + other.num, is_known, other.least, other.most)
        if other.least is None or other.most is None:
            return _Held(self.num + other.num, is_known, self.least, self.most)
        least = self.least if self.least <= other.least else other.least
        return _Held(self.num + other.num, is_known, least, self.most if self.most >= other.most else other.most)


def _without_each(groups: list[list[NodeCopies]]) -> list[_Held]:
    """For each group, what all others hold."""
    held = [_held_by(nodes) for nodes in groups]
    before = list(accumulate(held, initial=_Held()))
    after = list(accumulate(reversed(held), initial=_Held()))[::-1]
    return [before[place] + after[place + 1] for place in range(len(held))]


def _held_by(nodes: list[NodeCopies]) -> _Held:
    ages = [node.snapshot_age for node in nodes]
    known = [age for age in ages if age is not None]
    return _Held(len(nodes), len(known) == len(nodes), min(known, default=None), max(known, default=None))


def _worst(run: RunView, nodes: tuple[NodeCopies, ...], last: int | None, checkpoint: Checkpoint | None) -> Loss:
    """The most expensive loss of a node."""
    if last is None or not nodes:
        return Loss(steps=None, why="no step is known of every rank")
    others = _without_each([[node] for node in nodes])
    return _worst_of(_loss(run, node, rest, last, checkpoint) for node, rest in zip(nodes, others, strict=True))


def _worst_of(losses: Iterable[Loss]) -> Loss:
    return max(losses, key=lambda loss: loss.steps if loss.steps is not None else -1)


def _racks(run: RunView) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for node in run.nodes.values():
        if node.rack and node.lost is None:
            found.setdefault(node.rack, []).append(node.node)
    return {rack: tuple(nodes) for rack, nodes in sorted(found.items())}


def _worst_rack(run: RunView, nodes: tuple[NodeCopies, ...], last: int | None, checkpoint: Checkpoint | None) -> Loss:
    """The most expensive loss of a rack. A node whose rack is unknown may be in any."""
    racks = _racks(run)
    if not racks:
        return Loss(steps=None, why="nothing says which nodes share a rack")
    if last is None or not nodes:
        return Loss(steps=None, why="no step is known of every rank")
    rack_of = {node: rack for rack, mine in racks.items() for node in mine}
    untold = tuple(node.node for node in nodes if node.node not in rack_of)
    if untold:
        return Loss(steps=None, why=f"{fold_names(untold)} did not report the rack")
    homes: dict[str, list[NodeCopies]] = {rack: [] for rack in racks}
    for node in nodes:
        homes[rack_of[node.node]].append(node)
    homes = {rack: mine for rack, mine in homes.items() if mine}
    others = _without_each(list(homes.values()))
    return _worst_of(
        _rack_loss(run, rack, mine, set(racks[rack]), rest, last, checkpoint)
        for (rack, mine), rest in zip(homes.items(), others, strict=True)
    )


def _rack_loss(
    run: RunView,
    rack: str,
    lost: list[NodeCopies],
    gone: set[str],
    others: _Held,
    last: int,
    checkpoint: Checkpoint | None,
) -> Loss:
    if not others.num:
        return _from_disk(last, checkpoint, f"the whole job is in rack {rack}")
    together = [r for n in lost for r in n.ranks if run.kept.backups.get(r) in gone]
    if together:
        what = f"rank {together[0]}" if len(together) == 1 else f"ranks {fold(together)}"
        return _from_disk(last, checkpoint, f"both copies of {what} are in rack {rack}")
    return _worst_of(_loss(run, node, others, last, checkpoint) for node in lost)


def _loss(run: RunView, node: NodeCopies, others: _Held, last: int, checkpoint: Checkpoint | None) -> Loss:
    if others.is_known and node.backup_age is not None:
        age = node.backup_age if others.most is None else max(node.backup_age, others.most)
        newest, behind = last - age, age - (age if others.least is None else others.least)
        if behind <= max(0, int(run.policy.get("snapshot_buffers", 2)) - _SPARE_BUFFERS):
            if checkpoint is None or newest >= checkpoint.step:
                return Loss(steps=age, resume_step=newest, source="memory")
        else:
            why = f"the copy of {node.node} is {plural(behind, 'step')} old, and the others may hold no step so old"
            return _from_disk(last, checkpoint, why)
    return _from_disk(last, checkpoint, "" if others.num else "the job has one node")


def _from_disk(last: int, checkpoint: Checkpoint | None, why: str) -> Loss:
    if checkpoint is None:
        return Loss(steps=last + 1, source="nothing", why=why or "there is no other copy")
    steps = max(0, last - checkpoint.step)
    return Loss(steps=steps, resume_step=checkpoint.step, source="checkpoint", why=why)


def _oldest(lasts: list[int | None], held: list[int | None]) -> int | None:
    """Where a rank has not stepped yet it begins with what is held."""
    if None in held:
        return None
    known = [step for step in held if step is not None]
    ages = ((step if last is None else last) - step for last, step in zip(lasts, known, strict=True))
    return max(0, *ages)


def _least(steps: list[int | None]) -> int | None:
    known = [step for step in steps if step is not None]
    return min(known) if known and len(known) == len(steps) else None
