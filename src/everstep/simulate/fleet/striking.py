"""When faults come. Independent, in bursts, or as a trace of a real fleet tells. Pure: the dice are passed in."""

import math
from random import Random

from everstep.simulate.fleet.setup import DAY_S, Setup, Strike


def draw_strikes(setup: Setup, dice: Random) -> list[Strike]:
    """All faults of the run, in order; those of a trace, or drawn from the mix."""
    if setup.strikes is not None:
        return [strike for strike in setup.strikes if strike.at_s < setup.wall_s]
    causes, weights = range(len(setup.mix.causes)), [cause.count for cause in setup.mix.causes]
    strikes: list[Strike] = []
    for day in range(math.ceil(setup.days)):
        rate = setup.mix.per_node_day * setup.num_nodes * _weather(setup, dice)
        at_s = day * DAY_S
        while rate > 0:
            at_s += dice.expovariate(rate) * DAY_S
            if at_s >= min((day + 1) * DAY_S, setup.wall_s):
                break
            strikes.append(Strike(at_s=at_s, cause=dice.choices(causes, weights)[0]))
    return strikes


def _weather(setup: Setup, dice: Random) -> float:
    """How much worse than the mean this day is: gamma, so that counts of a day are negative binomial."""
    mean = setup.mix.per_node_day * setup.num_nodes
    if setup.burst <= 1.0 or mean <= 0:
        return 1.0
    excess = (setup.burst - 1.0) / mean
    return dice.gammavariate(1.0 / excess, excess)
