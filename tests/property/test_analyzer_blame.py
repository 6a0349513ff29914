"""Whatever the program, groups and moment: the rank that stops is named, and no rank that waits is."""

import msgspec
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.analyzer.flights.localise import localise
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Collective, Entries, FlightRecord, ParallelGroup

NUM_RANKS = 6


@st.composite
def jobs(draw):
    """Groups, a program (sequence of groups, the same on all ranks), who stops, and before which operation."""
    members = st.sets(st.integers(0, NUM_RANKS - 1), min_size=2)
    groups = [tuple(range(NUM_RANKS)), *(tuple(sorted(draw(members))) for _ in range(draw(st.integers(1, 4))))]
    program = draw(st.lists(st.integers(0, len(groups) - 1), min_size=3, max_size=30))
    culprit = draw(st.integers(0, NUM_RANKS - 1))
    stops_at = draw(st.integers(0, len(program)))
    return groups, program, culprit, stops_at, draw(st.booleans())


def run(groups, program, culprit, stops_at):
    """Blocking collectives: a rank leaves one when all of its group have entered. Returns the records and who waits."""
    queue = {r: [(i, g) for i, g in enumerate(program) if r in groups[g]] for r in range(NUM_RANKS)}
    queue[culprit] = [(i, g) for i, g in queue[culprit] if i < stops_at]
    at = dict.fromkeys(queue, 0)
    moved = True
    while moved:
        moved = False
        for rank, operations in queue.items():
            while at[rank] < len(operations):
                number, group = operations[at[rank]]
                if any((number, group) not in queue[r][: at[r] + 1] for r in groups[group]):
                    break
                at[rank] += 1
                moved = True
    return queue, at


def records(groups, queue, at, declared):
    named = tuple(
        ParallelGroup(name=str(n), ranks=ranks if declared else (), kind="" if n else "world", complete=declared)
        for n, ranks in enumerate(groups)
    )
    made = []
    for rank, operations in queue.items():
        counts = dict.fromkeys(range(len(groups)), 0)
        entries = []
        for number, (_, group) in enumerate(operations[: at[rank] + 1]):
            counts[group] += 1
            entries.append(
                Collective(
                    group=str(group), seq=counts[group], op="all_reduce", record_id=number, completed=number < at[rank]
                )
            )
        used = tuple(g for n, g in enumerate(named) if rank in groups[n] and (declared or counts[n]))
        made.append(FlightRecord(rank=rank, entries=Entries.of(entries), groups=used, world=tuple(range(NUM_RANKS))))
    return made


@given(jobs())
@settings(max_examples=examples(200), deadline=None)
def test_the_rank_that_stops_is_named_and_those_that_wait_are_not(job):
    groups, program, culprit, stops_at, declared = job
    queue, at = run(groups, program, culprit, stops_at)
    waiting = {rank for rank, operations in queue.items() if at[rank] < len(operations)}
    found = localise(Positions(records(groups, queue, at, declared)), 0.0)
    if not waiting:
        assert found == []
        return
    blamed = {rank for finding in found for rank in finding.ranks}
    assert not blamed & (waiting - {culprit})
    if declared:
        assert found[0].ranks == (culprit,)
        assert set(found[0].waiting) == waiting


@given(jobs())
@settings(max_examples=examples(200), deadline=None)
def test_without_the_culprits_record_only_ranks_without_one_are_suspected(job):
    groups, program, culprit, stops_at, declared = job
    queue, at = run(groups, program, culprit, stops_at)
    left = [record for record in records(groups, queue, at, declared) if record.rank != culprit]
    found = localise(Positions(left, range(NUM_RANKS)), 0.0)
    assert {rank for finding in found for rank in finding.ranks} <= {culprit}


@given(jobs(), st.integers(0, NUM_RANKS - 1), st.integers(1, 6))
@settings(max_examples=examples(200), deadline=None)
def test_a_ring_buffer_that_dropped_the_past_blames_no_waiting_rank(job, short, keep):
    groups, program, culprit, stops_at, declared = job
    queue, at = run(groups, program, culprit, stops_at)
    waiting = {rank for rank, operations in queue.items() if at[rank] < len(operations)}
    cut = [
        msgspec.structs.replace(record, entries=Entries.of(list(record.entries)[-keep:]))
        if record.rank == short
        else record
        for record in records(groups, queue, at, declared)
    ]
    found = localise(Positions(cut), 0.0)
    assert not {rank for f in found if f.code != "ES-H10" for rank in f.ranks} & (waiting - {culprit})
