"""A program that ends because its launcher's own argument is missing."""

import pytest

from everstep.core.decide.program_ends import missed_launcher
from everstep.model.facts import Exit

ARGPARSE = "usage: x.py [-h] {0} N\nx.py: error: the following arguments are required: {1}\n"


@pytest.mark.parametrize(
    ("last", "launcher"),
    [
        (ARGPARSE.format("--local_rank", "--local_rank"), "run deepspeed"),
        (ARGPARSE.format("--local_rank", "--data, --local_rank"), "run deepspeed"),
        (ARGPARSE.format("--local-rank", "--local-rank, --data"), "run python -m torch.distributed.launch"),
        (ARGPARSE.format("--local-rank", "--data"), ""),
        ("x.py: error: unrecognized arguments: --local-rank=0", ""),
        ("", ""),
    ],
)
def test_the_launcher_that_gives_the_argument_is_named(last, launcher):
    said = missed_launcher(Exit(rank=0, at=1.0, code=2, last_output=last))
    assert (launcher in said) if launcher else not said
