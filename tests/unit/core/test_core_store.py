"""The store of a generation is open no longer than that generation: nobody can write ahead into the next one's."""

from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster


def test_no_store_is_opened_while_ranks_of_an_earlier_generation_live():
    made = Cluster(RunSpec(program="train.py", num_slots=2, nproc_per_node=2, num_standby=1))
    made.start()
    for generation in range(3):
        made.train(10)
        assert made.state.generation == generation
        assert made.state.store_asked == generation, "not the next one's, while this one trains"
        made.kill(0)
