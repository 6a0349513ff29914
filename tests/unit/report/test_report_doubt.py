"""A node that was not heard for a moment: told where another could take its place, and nowhere else."""

import msgspec
import pytest

from everstep.core.state.policy import Policy
from everstep.model.events import NodeInDoubt
from everstep.model.record import Header
from everstep.model.spec import RunSpec
from everstep.report.now.narrate import Narrator
from everstep.testing import Cluster


@pytest.mark.parametrize(("num_slots", "num_standby", "is_told"), [(1, 0, False), (2, 0, True), (1, 1, True)])
def test_a_late_node_is_told_only_where_another_could_take_its_place(num_slots, num_standby, is_told):
    cluster = Cluster(RunSpec(program="t", num_slots=num_slots, num_standby=num_standby), Policy())
    cluster.start()
    cluster.train(2)
    cluster.feed(NodeInDoubt(at=cluster.records[-1].at, node="n0", number=1, silent_s=3.2))
    narrator = Narrator(Header(run="r1", everstep_version="test", policy=msgspec.to_builtins(Policy())))
    lines = [line for record in cluster.records for line in narrator.tell(record)]
    assert any("was not heard" in line for line in lines) is is_told
