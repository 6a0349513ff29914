"""Flight records from raw data, and who is blamed. NCCL's records are built from its documented keys."""

import msgspec
import pytest

from everstep.analyzer.flights.localise import localise
from everstep.analyzer.observations.groups import kind_of, shared_by
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import ParallelGroup
from everstep.analyzer.reading.flight import normalise
from everstep.analyzer.reading.pickled import UnreadableError

WORLD = {"0": ("default_pg", [0, 1, 2, 3])}
TP = {"1": ("mesh_tp", [0, 1]), "2": ("mesh_tp", [2, 3])}


class Nccl:
    """A job whose ranks record what they enter, as ProcessGroupNCCL does."""

    def __init__(self, groups, num_ranks=4):
        self.groups = groups
        self.entries = {rank: [] for rank in range(num_ranks)}
        self.counts = {}

    def run(self, group, ranks=None, op="all_reduce", size=8, dtype="Float", state="completed", name=None):
        for rank in self.groups[group][1] if ranks is None else ranks:
            key = rank, group
            self.counts[key] = self.counts.get(key, 0) + 1
            self.entries[rank].append({
                "record_id": len(self.entries[rank]), "pg_id": int(group),
                "process_group": (group, self.groups[group][0]),
                "collective_seq_id": self.counts[key], "p2p_seq_id": 0, "op_id": self.counts[key], "is_p2p": False,
                "profiling_name": name or f"nccl:{op}", "time_created_ns": 1_000_000_000 * len(self.entries[rank]),
                "input_sizes": [[size]], "input_dtypes": [dtype], "output_sizes": [[size]], "output_dtypes": [dtype],
                "state": state, "time_discovered_started_ns": 1 if state != "scheduled" else None,
                "time_discovered_completed_ns": 2 if state == "completed" else None, "retired": state == "completed",
                "timeout_ms": 600_000, "frames": [{"name": "step", "filename": "/home/u/train.py", "line": 7}],
            })  # fmt: skip
        return self

    def p2p(self, group, rank, name, state="started"):
        self.run(group, ranks=[rank], state=state, name=f"nccl:{name}")
        self.counts[rank, group] -= 1
        self.entries[rank][-1].update(is_p2p=True, p2p_seq_id=1)
        return self

    def raw(self, rank):
        config = {
            name: {"name": name, "desc": desc, "ranks": str(ranks)}
            for name, (desc, ranks) in self.groups.items()
            if rank in ranks
        }
        return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": self.entries[rank]}

    def findings(self, without=()):
        records = [normalise(self.raw(rank), rank) for rank in self.entries if rank not in without]
        return localise(Positions(records), 0.0)


def steps(job, count=4):
    for _ in range(count):
        job.run("1").run("2").run("0")
    return job


def only(findings):
    assert findings
    return findings[0]


def test_a_job_that_moves_has_no_finding():
    assert steps(Nccl(WORLD | TP)).findings() == []


def test_the_rank_that_never_entered_is_named():
    job = steps(Nccl(WORLD | TP)).run("0", ranks=[0, 1, 3], state="started")
    found = only(job.findings())
    assert (found.code, found.ranks, found.waiting, found.confidence) == ("ES-H02", (2,), (0, 1, 3), "high")
    assert found.sentence == "rank 2 never entered all_reduce #5 in default_pg; ranks 0-1,3 wait there."


def test_ranks_that_wait_behind_are_innocent():
    """3 waits for 2 in tp, 0 and 1 wait for 2 and 3 in the world: 3 is behind too, and torchfrtrace blames it."""
    job = steps(Nccl(WORLD | TP))
    job.run("1").run("2", ranks=[3], state="started").run("0", ranks=[0, 1], state="started")
    found = only(job.findings())
    assert (found.code, found.ranks) == ("ES-H02", (2,))
    assert 3 in found.waiting


def test_scheduled_ones_behind_a_started_one_wait_as_well():
    job = steps(Nccl(WORLD | TP)).run("0", ranks=[0, 1, 3], state="started").run("0", ranks=[0], state="scheduled")
    assert only(job.findings()).ranks == (2,)


def test_a_missing_record_is_a_suspect_only_when_nobody_else_is():
    job = steps(Nccl(WORLD | TP)).run("0", ranks=[0, 1, 3], state="started")
    gone = only(job.findings(without=[2]))
    assert (gone.code, gone.ranks, gone.confidence) == ("ES-H10", (2,), "medium")
    other = only(job.findings(without=[1]))
    assert (other.code, other.ranks, other.confidence) == ("ES-H02", (2,), "medium")
    two = only(job.findings(without=[1, 2]))
    assert (two.ranks, two.confidence) == ((1, 2), "low")


def test_another_operation_at_the_same_place():
    job = steps(Nccl(WORLD | TP)).run("0", ranks=[0, 1, 3], state="started")
    job.run("0", ranks=[2], op="broadcast", state="started")
    found = only(job.findings())
    assert (found.code, found.ranks, found.place) == ("ES-H03", (2,), "train.py:7 step")


@pytest.mark.parametrize(("size", "dtype", "what"), [(9, "Float", "size [9]"), (8, "Half", "data type Half")])
def test_another_size_or_type_at_the_same_place(size, dtype, what):
    job = steps(Nccl(WORLD | TP)).run("0", ranks=[0, 1, 2], state="started")
    job.run("0", ranks=[3], size=size, dtype=dtype, state="started")
    found = only(job.findings())
    assert (found.code, found.ranks) == ("ES-H04", (3,))
    assert what in found.sentence


@pytest.mark.parametrize("op", ["all_to_all", "scatter", "gather", "all_gather_v", "coalesced"])
def test_operations_that_may_differ_in_size_accuse_nobody(op):
    job = steps(Nccl(WORLD | TP)).run("0", ranks=[0, 1, 2], op=op, state="started")
    job.run("0", ranks=[3], op=op, size=99, state="started")
    assert only(job.findings()).code == "ES-H11"


def test_of_two_ranks_the_one_that_broke_its_habit():
    job = Nccl({"0": ("default_pg", [0, 1])}, num_ranks=2)
    for _ in range(5):
        job.run("0", size=8).run("0", size=4)
    job.run("0", ranks=[0], size=8, state="started").run("0", ranks=[1], size=4, state="started")
    found = only(job.findings())
    assert (found.code, found.ranks) == ("ES-H04", (1,))


def test_of_two_new_ranks_nobody_can_tell():
    job = Nccl({"0": ("default_pg", [0, 1])}, num_ranks=2)
    job.run("0", ranks=[0], size=8, state="started").run("0", ranks=[1], size=4, state="started")
    found = only(job.findings())
    assert (found.code, found.ranks, found.confidence) == ("ES-H04", (0, 1), "low")
    assert "no majority" in found.sentence


def test_opposite_order_names_both_and_the_deviating_one_first():
    job = steps(Nccl({"0": ("default_pg", [0, 1, 2, 3]), **TP}))
    job.run("2").run("0", ranks=[1], state="started").run("1", ranks=[0], state="started")
    job.run("0", ranks=[2, 3], state="started")
    found = only(job.findings())
    assert (found.code, found.ranks) == ("ES-H05", (1, 0))


def test_a_collective_left_out_shows_where_it_should_have_been():
    """2 leaves out its tp collective and goes on through dp into the world: the end of its record looks as usual."""
    job = Nccl({"0": ("default_pg", [0, 1, 2, 3]), **TP, "3": ("mesh_dp", [0, 2]), "4": ("mesh_dp", [1, 3])})
    for _ in range(4):
        job.run("1").run("2").run("3").run("4").run("0")
    job.run("1").run("2", ranks=[3], state="started").run("3").run("4", ranks=[1], state="started")
    job.run("0", ranks=[0, 2], state="started")
    found = only(job.findings())
    assert (found.code, found.ranks[0], found.confidence) == ("ES-H05", 2, "high")
    assert found.sentence.startswith("rank 2 left out or put off all_reduce #5 in mesh_tp, unlike in its earlier steps")
    assert "; rank 3 waits there" in found.sentence


def test_all_entered_and_it_does_not_complete():
    found = only(steps(Nccl(WORLD | TP)).run("0", state="started").findings())
    assert (found.code, found.ranks) == ("ES-H11", ())


def test_point_to_point_waits_for_its_peer():
    job = steps(Nccl(WORLD | TP)).p2p("0", 3, "recv 3<-2").run("0", ranks=[0, 1], state="started")
    assert only(job.findings()).ranks == (2,)


def test_a_record_that_was_taken_earlier_blames_nobody():
    job = steps(Nccl(WORLD | TP))
    old = job.raw(2) | {"entries": list(job.entries[2])}
    steps(job).run("0", ranks=[0, 1, 3], state="started").run("0", ranks=[2], state="started")
    records = [normalise(job.raw(rank) if rank != 2 else old, rank) for rank in range(4)]
    positions = Positions(records)
    assert "taken earlier" in positions.stale[2]
    assert all(found.ranks != (2,) for found in localise(positions, 0.0))


def test_a_group_that_fell_out_of_the_buffer_is_unknown_and_not_behind():
    job = steps(Nccl(WORLD | TP)).run("0", ranks=[0, 1, 3], state="started")
    raw = job.raw(2)
    raw["entries"] = [e for e in raw["entries"][-6:] if e["process_group"][0] == "2"]
    records = [normalise(job.raw(rank) if rank != 2 else raw, rank) for rank in range(4)]
    assert only(localise(Positions(records), 0.0)).code == "ES-H10"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": "3.1"}, "version 3.1"),
        ({"version": None}, "without a version"),
        ({"version": 2}, "without a version"),
        ({"entries": {}}, "not a list"),
        ({"entries": [7]}, "not an object"),
        ({"entries": [{}]}, "has no"),
        ({"entries": [{"collective_seq_id": True, "record_id": 1}]}, "has no"),
        ({"entries": [{"collective_seq_id": 10**30, "record_id": 1}]}, "has no"),
        ({"entries": [[]] * 200_001}, "200,001 entries"),
    ],
)
def test_wrong_records_are_refused_in_words(change, why):
    raw = {"version": "2.10", "entries": [], "pg_config": {}} | change
    with pytest.raises(UnreadableError, match=why):
        normalise(raw, 0)


def test_odd_fields_do_no_harm():
    entry = {
        "collective_seq_id": "3", "record_id": 0, "process_group": [{}, 4], "profiling_name": 5,
        "input_sizes": [[1, "x"], 3], "input_dtypes": 9, "frames": [3, {"name": 1}],
        "time_created_ns": 10**40, "is_p2p": [], "state": {},
    }  # fmt: skip
    record = normalise({"version": "2.10", "entries": [entry], "pg_config": {"1": 3, "2": {"ranks": "[0, x]"}}}, 0)
    assert record.entries[0].seq == 3
    assert record.entries[0].input_sizes == ((1,),)


@pytest.mark.parametrize(
    ("desc", "kind"),
    [
        ("mesh_tp", "tp"), ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("pp", "pp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"), ("EXPERT_MODEL_PARALLEL_GROUP", "ep"), ("dp_shard", "dp"),
        ("undefined", ""), ("default_pg", "world"), ("mesh_dp_shard_cp", "cp"), ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_a_group_is_for(desc, kind):
    assert kind_of(desc) == kind


def test_the_group_that_all_outliers_share():
    """ByteRobust, figure 7: TP 2, PP 4, DP 4 on 16 machines; outliers 12-15 are one pipeline."""
    pp = [ParallelGroup(name=f"p{i}", kind="pp", ranks=tuple(range(4 * i, 4 * i + 4))) for i in range(4)]
    dp = [ParallelGroup(name=f"d{i}", kind="dp", ranks=tuple(range(i, 16, 4))) for i in range(4)]
    world = ParallelGroup(name="0", kind="world", ranks=tuple(range(16)))
    shared = shared_by([12, 13, 14, 15], [world, *dp, *pp])
    assert shared is not None
    assert shared.ranks == (12, 13, 14, 15)
    assert shared_by([0, 5], [world, *dp, *pp]) is None
    assert shared_by([], pp) is None


def test_records_can_be_journaled():
    record = normalise(steps(Nccl(WORLD | TP)).raw(0), 0)
    assert msgspec.json.decode(msgspec.json.encode(record), type=type(record)) == record


def test_of_two_ranks_the_one_that_does_otherwise_than_the_other_groups_of_its_kind():
    groups = {str(n): ("mesh_tp", [2 * n, 2 * n + 1]) for n in range(4)}
    job = Nccl(groups, num_ranks=8)
    for name in ("0", "1", "2"):
        job.run(name, op="reduce_scatter")
    job.run("3", ranks=[6], op="reduce_scatter", state="started").run("3", ranks=[7], op="all_gather", state="started")
    found = only(job.findings())
    assert (found.code, found.ranks, found.confidence) == ("ES-H03", (7,), "high")


class Gloo(Nccl):
    """Gloo's records: no send and no receive has an entry, and the status counts them with everything else."""

    def __init__(self, num_ranks):
        super().__init__({"0": ("default_pg", list(range(num_ranks)))}, num_ranks)
        self.unrecorded = dict.fromkeys(range(num_ranks), 0)

    def sends(self, *ranks):
        for rank in ranks:
            self.unrecorded[rank] += 1
        return self

    def run(self, group, ranks=None, **what):
        super().run(group, ranks, **what)
        for rank in self.groups[group][1] if ranks is None else ranks:
            entry = self.entries[rank][-1]
            entry.update(op_id=entry["collective_seq_id"] + self.unrecorded[rank], profiling_name="gloo:all_reduce")
            entry.update(state="scheduled", time_discovered_started_ns=0, time_discovered_completed_ns=0)
        return self

    def raw(self, rank):
        counted = len(self.entries[rank]) + self.unrecorded[rank]
        completed = counted - sum(not entry["retired"] for entry in self.entries[rank])
        status = {"last_enqueued_collective": str(counted), "last_completed_collective": str(completed)}
        config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return {"version": "2.10", "pg_config": config, "pg_status": {"0": status}, "entries": self.entries[rank]}


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("num_sends", [0, 1, 3])
@pytest.mark.parametrize("sends_last", [False, True])
def test_sends_that_gloo_only_counts_finish_no_collective(num_ranks, num_sends, sends_last):
    job = Gloo(num_ranks)
    for _ in range(5):
        for _ in range(num_sends):
            job.sends(*range(num_ranks))
        job.run("0", state="completed")
    if sends_last:
        job.sends(*range(num_ranks))
    job.run("0", ranks=range(num_ranks - 1), state="scheduled")
    (found, *_) = job.findings()
    assert (found.code, found.ranks) == ("ES-H02", (num_ranks - 1,))
