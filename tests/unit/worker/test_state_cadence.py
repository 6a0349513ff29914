"""How often snapshots are copied, given how long optimizers wait for them. Pure, but for the last: a real store."""

import itertools

import pytest
from torch.distributed import HashStore

from everstep.worker.snapshots import cadence
from everstep.worker.snapshots.cadence import Cadence, StoreAgreement

STEP_S = 0.2


class Run:
    """Steps of one rank that waits the same share of each copied step."""

    def __init__(self, cadence: Cadence, share: float) -> None:
        self.cadence = cadence
        self.share = share
        self.step = -1
        self.copied: list[int] = []

    def go(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step += 1
            now = self.step * STEP_S
            self.cadence.step_done(now)
            if self.cadence.is_due(self.step):
                self.copied.append(self.step)
                self.cadence.waited(self.share * STEP_S, self.step, now)


@pytest.mark.parametrize(("share", "every"), [(0.0, 1), (0.009, 1), (0.011, 2), (0.05, 8), (0.3, 32), (5.0, 64)])
def test_as_often_as_one_percent_allows(share: float, every: int) -> None:
    run = Run(Cadence(None, may_relax=True), share)
    run.go(400)
    assert run.cadence.every == every
    assert all((step + 1) % every == 0 for step in run.copied if step > 100)


def test_a_busy_moment_is_no_reason() -> None:
    run = Run(Cadence(None, may_relax=True), 0.0)
    for _ in range(40):
        run.share = 0.0
        run.go(5)
        run.share = 2.0
        run.go(1)
    assert run.cadence.every == 1


def test_the_pace_comes_back_when_waits_are_gone_and_ever_later_when_that_was_wrong() -> None:
    run = Run(Cadence(None, may_relax=True), 0.05)
    run.go(200)
    assert run.cadence.every == 8
    run.share = 0.0
    run.go(5000)
    assert run.cadence.every == 1
    changes = []
    for _ in range(20000):
        run.share = 0.0 if run.cadence.every > 1 else 0.015  # looks free, and is not
        before = run.cadence.every
        run.go(1)
        if run.cadence.every > before:
            changes.append(run.step)
    assert len(changes) >= 3
    gaps = [later - earlier for earlier, later in itertools.pairwise(changes)]
    assert all(later > earlier for earlier, later in itertools.pairwise(gaps))


def test_a_pace_that_would_be_felt_at_the_next_faster_one_stays() -> None:
    run = Run(Cadence(None, may_relax=True), 0.012)
    run.go(20000)
    assert run.cadence.every == 2


class Shared:
    """A decision that reaches each rank at another time."""

    def __init__(self) -> None:
        self.decisions: list[tuple[int, int]] = []
        self.ends: list[End] = []


class End:
    why = ""

    def __init__(self, shared: Shared, delay: int) -> None:
        self.shared, self.delay, self.num_taken, self.num_looks = shared, delay, 0, 0

    def look(self) -> tuple[int, int] | None:
        self.num_looks += 1
        if self.num_looks % self.delay or self.num_taken == len(self.shared.decisions):
            return None
        self.num_taken += 1
        return self.shared.decisions[self.num_taken - 1]

    def propose(self, every: int, from_step: int) -> None:
        if self.num_taken == len(self.shared.decisions):
            self.shared.decisions.append((every, from_step))


def test_ranks_change_at_the_same_step_whoever_waits() -> None:
    shared = Shared()
    ranks = [Run(Cadence(End(shared, 1 + 9 * rank), may_relax=rank == 0), 0.03 * (rank == 1)) for rank in range(3)]
    for _ in range(250):
        for run in ranks:
            run.go(1)
    assert [run.cadence.every for run in ranks] == [4, 4, 4]
    assert ranks[0].copied == ranks[1].copied == ranks[2].copied
    for _ in range(10000):  # rank 0 waits for nothing, tries a faster pace now and then, and is told better
        for run in ranks:
            run.go(1)
    assert ranks[0].copied == ranks[1].copied == ranks[2].copied
    assert len(ranks[1].copied) < 0.35 * 10300


class Groups:
    """Stands where torch.distributed is."""

    def __init__(self, store: HashStore) -> None:
        self.store = store

    def is_initialized(self) -> bool:
        return True

    def _get_default_store(self) -> HashStore:
        return self.store


def test_the_first_proposal_in_a_store_counts_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cadence, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setitem(cadence.sys.modules, "torch.distributed.distributed_c10d", Groups(HashStore()))
    first, second, third = StoreAgreement(), StoreAgreement(), StoreAgreement()
    try:
        for each in (first, second, third):
            each._exchange()
            assert each.look() is None
        first._proposal, second._proposal = (4, 100), (8, 90)
        for each in (first, second, third):
            each._exchange()
        assert [each.look() for each in (first, second, third)] == [(4, 100)] * 3
        assert first.look() is None
        second._proposal = (8, 300)
        for each in (second, first, third):
            each._exchange()
        assert [each.look() for each in (first, second, third)] == [(8, 300)] * 3
        monkeypatch.setattr(first, "_exchange", lambda: 1 / 0)
        first._wake.set()
        first._thread.join(60)
        assert Cadence(first, may_relax=False).why == "ZeroDivisionError: division by zero"
        assert Cadence(second, may_relax=False).why == ""
    finally:
        for each in (first, second, third):
            each._end()
            assert not each._thread.is_alive()
