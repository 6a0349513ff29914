"""A host that does not fit is refused with one sentence that says what to do."""

import msgspec
import pytest

from everstep.engines.hosts.admission import Known, Shape, objection
from everstep.wire.joining import Join

SHAPE = Shape(
    num_hosts=2, num_standby=1, nproc=4, program="train.py", everstep_version="0.1", torch_version="2.13.0+cpu"
)
JOIN = Join(session="s9", host="h9", address="10.0.0.9", everstep_version="0.1", torch_version="2.13.0+cpu")
HEAD = Known(session="head", host="h0", node_rank=0)


def changed(**fields):
    return msgspec.structs.replace(JOIN, **fields)


def test_a_host_that_fits_is_taken():
    full = changed(node_rank=1, num_hosts=2, nproc=4, program="train.py", args=("--lr", "1"))
    assert objection(SHAPE, [HEAD], full) == ""
    assert objection(SHAPE, [HEAD], JOIN) == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"everstep_version": "0.2"}, "has everstep 0.2, this run everstep 0.1"),
        ({"torch_version": "2.12"}, "has torch 2.12, this run torch 2.13.0+cpu"),
        ({"torch_version": ""}, "has torch (none)"),
        ({"num_hosts": 3}, "--nnodes is 3 on h9 and 2 in this run"),
        ({"nproc": 8}, "--nproc-per-node is 8 on h9 and 4"),
        ({"program": "other.py"}, "would run other.py"),
        ({"node_rank": 2}, "must be 0 to 1"),
        ({"node_rank": 0}, "so has h0, which came first"),
    ],
)
def test_a_host_that_differs_is_refused(fields, words):
    assert words in objection(SHAPE, [HEAD], changed(**fields))


@pytest.mark.parametrize("field", ["host", "scheduler_node", "scheduler_job", "address"])
@pytest.mark.parametrize("name", ["n[0-999]", "n1,n2", "--all", "ALL NODES", "n1\n", "\x1b[2J", "$(id)", "x" * 300])
def test_what_is_no_name_of_one_machine_is_told_to_no_scheduler_and_no_terminal(field, name):
    why = objection(SHAPE, [HEAD], changed(**{field: name}))
    assert "not a name" in why or "not one" in why
    assert why.isprintable()


def test_there_is_place_for_the_hosts_and_the_standbys():
    known = [HEAD, Known(session="s1", host="h1", node_rank=None)]
    assert objection(SHAPE, known, JOIN) == ""
    known.append(Known(session="s2", host="h2", node_rank=None))
    assert "has its 2 hosts and 1 standby, and no place for h9" in objection(SHAPE, known, JOIN)


def test_who_was_there_before_comes_back_also_where_all_places_are_taken():
    known = [HEAD, *(Known(session=f"s{n}", host=f"h{n}", node_rank=None) for n in (1, 9))]
    assert objection(SHAPE, known, changed(everstep_version="0.2")) == ""


def test_a_strangers_words_are_shown_only_as_far_as_they_can_be_printed():
    assert "\x1b" not in objection(SHAPE, [HEAD], changed(host="a\x1b[2J" + "b" * 500, nproc=1))
    assert len(objection(SHAPE, [HEAD], changed(host="b" * 5000, nproc=1))) < 300
