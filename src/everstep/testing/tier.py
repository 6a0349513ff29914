"""The persistent tier of a fake cluster: takes a node's part once its ranks have done the step, unless it fails."""

from collections.abc import Mapping

from everstep.model.actions import CommitCheckpoint, PersistSnapshot
from everstep.model.events import CheckpointCommitted, SnapshotPersisted
from everstep.model.facts import Checkpoint


class FakeTier:
    def __init__(self) -> None:
        self.why = ""  # nothing can be written, and this is why
        self._asked: list[PersistSnapshot] = []

    def ask(self, action: PersistSnapshot) -> None:
        """A later request of the same node takes the place of the earlier one."""
        self._asked = [*(each for each in self._asked if each.node != action.node), action]

    def answers(self, done: Mapping[int, int], at: float) -> list[SnapshotPersisted]:
        """Return the answers of the nodes all of whose ranks have done the step. `done`: rank -> newest step."""
        ready = [each for each in self._asked if all(done.get(rank, -1) >= each.step for rank in each.ranks)]
        self._asked = [each for each in self._asked if each not in ready]
        return [
            SnapshotPersisted(
                at=at,
                node=each.node,
                generation=each.generation,
                step=each.step,
                written_bytes=0 if self.why else 12 << 20,
                total_bytes=0 if self.why else 500 << 20,
                took_s=1.3,
                why=self.why,
            )
            for each in ready
        ]

    def commit(self, action: CommitCheckpoint, at: float) -> CheckpointCommitted:
        checkpoint = Checkpoint(
            step=action.step,
            path=f"{action.root}/step-{action.step}",
            world_size=action.world_size,
            at=at,
            is_trusted=action.is_trusted,
        )
        found = None if self.why else checkpoint
        return CheckpointCommitted(at=at, node=action.node, step=action.step, checkpoint=found, why=self.why)
