"""One simulated run, from its setup and a seed to what became of it. Pure."""

import math
from collections import Counter
from collections.abc import Sequence

from everstep.goodput.buckets import Bucket
from everstep.simulate.fleet.setup import Setup
from everstep.simulate.fleet.world import World
from everstep.simulate.outcome import EXAMINING, PARTS, PRODUCTIVE, RESUBMITTING, STEPS, STOPPING, WAITING, Outcome


def simulate_once(setup: Setup, seed: int) -> Outcome:
    world = World(setup, seed)
    world.run()
    goodput = world.ledger.goodput(world.now)
    seconds, parts = goodput.seconds, world.ledger.parts
    waited_s = seconds[Bucket.SCHEDULE]
    told = {PRODUCTIVE: seconds[Bucket.PRODUCTIVE]}
    told |= {part: seconds[bucket] for part, bucket in PARTS.items()}
    told |= {
        STOPPING: max(0.0, waited_s - parts.exam_s - parts.node_s - parts.resubmit_s),
        EXAMINING: parts.exam_s,
        WAITING: parts.node_s,
        RESUBMITTING: min(waited_s, parts.resubmit_s),
    }
    counts = Counter(fault.cause.name for fault in world.trouble.faults)
    costs = {name: math.fsum(buckets.values()) for name, buckets in goodput.incidents.items()}
    return Outcome(
        seed=seed,
        wall_s=goodput.wall_s,
        ettr=goodput.ettr or 0.0,
        seconds=told,
        num_faults=len(world.trouble.faults),
        num_incidents=world.num_incidents,
        num_starts=world.ledger.num_generations,
        num_evictions=world.num_evictions,
        num_resubmits=world.num_resubmits,
        num_events=world.num_events,
        solved_by=dict(Counter(_solved_by(fault.rules, fault.is_solved_by_person) for fault in world.trouble.faults)),
        by_cause={name: (number, costs.get(name, 0.0)) for name, number in counts.items()},
    )


def _solved_by(rules: Sequence[str], by_person: bool) -> str:
    """The last thing that was done because of it: after that it did not come again."""
    if by_person:
        return "people"
    if not rules:
        return "not over"
    return STEPS.get(rules[-1], rules[-1])
