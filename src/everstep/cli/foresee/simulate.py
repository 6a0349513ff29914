"""Simulate a fleet: months of faults in virtual time, decided by the same rules as a real run.

everstep simulate --gpus 16384 --days 54 --faults llama3
everstep simulate --gpus 9600 --days 90 --faults byterobust --costs byterobust --runs 5
everstep simulate --gpus 3200 --days 30 --faults trace --trace fault_trace.json --checkpoint 1800
everstep simulate --gpus 16384 --days 54 --faults llama3 --cost initialise=60 --target 99.5
"""

import argparse
import math
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random

import msgspec

from everstep.cli.foresee.policies import add_policy_arguments, pairs, policy_with
from everstep.cli.reading import show, show_json
from everstep.cli.waiting import Waiting, waiting
from everstep.core.state.policy import Policy
from everstep.errors import ConfigError
from everstep.linux.regular import MOST_BYTES, read_regular
from everstep.report.foresee.simulate import simulate_page
from everstep.simulate.fleet.costs import COSTS, with_changes
from everstep.simulate.fleet.faults import MIXES, Mix, Sign
from everstep.simulate.fleet.setup import DAY_S, GPUS_PER_NODE, MAX_CELLS, Lemons, Setup, Strike
from everstep.simulate.fleet.trace import NUM_NODES, read_trace, strikes_of
from everstep.simulate.outcome import Outcome, Summary, summarise
from everstep.simulate.price import Fleet, fleet_prices
from everstep.simulate.run import simulate_once
from everstep.simulate.standby import size_by_rate
from everstep.simulate.standstills import benchmarked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help=f"that train; {GPUS_PER_NODE} a machine")
    parser.add_argument("--days", type=float, required=True, metavar="D", help="of wall time")
    faults = [*MIXES, "trace"]
    parser.add_argument("--faults", choices=faults, default="llama3", help="published mix; default: llama3")
    parser.add_argument("--trace", metavar="FILE", help="with --faults trace: InfiniteHBD's fault_trace.json")
    parser.add_argument("--trace-nodes", type=int, default=NUM_NODES, metavar="N", help="machines of it; default: 400")
    parser.add_argument("--rate", type=float, metavar="R", help="faults of one machine in a day, instead of the mix's")
    parser.add_argument("--bursts", type=float, default=1.0, metavar="V", help="variance over mean of a day's faults")
    parser.add_argument("--lemons", default="0:1", metavar="SHARE:TIMES", help="machines that fail more: 0.0575:6.25")
    parser.add_argument("--costs", choices=[*COSTS], default="measured", help="what a fault costs; default: measured")
    parser.add_argument(
        "--cost", action="append", default=[], metavar="KEY=SECONDS", help="one of them: initialise=60, detect.hang=5"
    )
    parser.add_argument("--standby", type=int, metavar="N", help="warm machines; default: as everstep plan standby")
    parser.add_argument("--spares", type=int, metavar="N", help="machines that can be had besides; default: no limit")
    parser.add_argument(
        "--checkpoint", default="every-step", metavar="every-step|SECONDS", help="in memory, or on storage only"
    )
    parser.add_argument("--step-s", type=float, default=6.0, metavar="S", help="of one step; default: 6")
    parser.add_argument("--target", type=float, default=99.5, metavar="PERCENT", help="ETTR to be passed")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="with seeds N, N+1, ...; default: 3")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes; default: one per CPU")
    parser.add_argument("--cells", type=int, default=MAX_CELLS, metavar="N", help="nodes that the rules see at most")
    parser.add_argument("--waits", type=float, default=1.0, metavar="N", help="healthy waits in a day; default: 1")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/simulate.md")
    add_policy_arguments(parser)


def run(given: argparse.Namespace) -> int:
    setup = _setup(given)
    outcomes = _simulate(setup, range(given.seed, given.seed + given.runs), given.jobs)
    summary = summarise(outcomes, given.target / 100)
    fleet = _patience(setup, summary, given.waits)
    if given.json:
        told = {"summary": summary, "runs": outcomes, "policy": setup.policy, "costs": setup.costs, "patience": fleet}
        show_json(told)
    else:
        show(simulate_page(setup, summary, outcomes, fleet, given.waits))
    return 0


def _patience(setup: Setup, summary: Summary, waits_per_day: float) -> tuple[Fleet, ...]:
    """Return the cost of the rule for hangs to this fleet, beside simpler rules. It is taken from the benchmarks'
    standstills of jobs that have the same way back: snapshots, or nothing but checkpoints."""
    hangs = [cause.name for cause in setup.mix.causes if cause.sign is Sign.HANG]
    return fleet_prices(
        [each for each in benchmarked() if each.saved is setup.every_step],
        setup.policy,
        num_hangs=sum(summary.by_cause.get(name, (0.0, 0.0))[0] for name in hangs),
        num_waits=waits_per_day * setup.days,
        wall_s=setup.wall_s,
        resubmit_s=setup.costs.resubmit_s,
    )


def _setup(given: argparse.Namespace) -> Setup:
    """Raises ConfigError."""
    if not 0 <= given.waits < math.inf:
        raise ConfigError(f"--waits {given.waits}: must not be negative")
    if given.gpus < 1 or not 0 < given.days <= 3650 or given.runs < 1 or given.cells < 1 or given.step_s <= 0:
        raise ConfigError("--gpus, --days, --runs, --cells and --step-s must be positive, --days at most 3650")
    num_nodes = math.ceil(given.gpus / GPUS_PER_NODE)
    mix, strikes = _faults(given, num_nodes)
    costs = with_changes(COSTS[given.costs], pairs(given.cost, "--cost"))
    every_step = given.checkpoint == "every-step"
    return Setup(
        num_nodes=num_nodes,
        num_cells=math.ceil(num_nodes / math.ceil(num_nodes / given.cells)),
        days=given.days,
        mix=mix,
        costs=costs,
        policy=_policy(given),
        num_standby=_standby(given, mix, num_nodes) if given.standby is None else given.standby,
        num_spares=given.spares,
        step_s=given.step_s,
        every_step=every_step,
        save_every_s=600.0 if every_step else _seconds(given.checkpoint),
        strikes=strikes,
        burst=given.bursts,
        lemons=_lemons(given.lemons),
    )


def _faults(given: argparse.Namespace, num_nodes: int) -> tuple[Mix, tuple[Strike, ...] | None]:
    if given.faults != "trace":
        mix = MIXES[given.faults]
        return (mix if given.rate is None else msgspec.structs.replace(mix, per_node_day=given.rate)), None
    if not given.trace or given.rate is not None:
        raise ConfigError("--faults trace needs --trace FILE, and takes its rate from there")
    try:
        data = read_regular(given.trace, MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"--trace {given.trace} cannot be read: {error.strerror}") from error
    trace = read_trace(data, given.trace_nodes)
    return trace.mix, strikes_of(trace, num_nodes, given.days, Random(given.seed))


def _policy(given: argparse.Namespace) -> Policy:
    """Waiting for a machine is what a fleet does; a job of an hour would give up."""
    changes = [f"node_timeout_s={DAY_S:g}", *given.set]
    return policy_with(given.policy or "default", changes)


def _standby(given: argparse.Namespace, mix: Mix, num_nodes: int) -> int:
    machine = sum(cause.count for cause in mix.causes if cause.is_machine) / mix.total
    return size_by_rate(num_nodes, min(1.0, mix.per_node_day * machine)).num_standby


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ConfigError(f"--checkpoint {text!r}: must be every-step, or seconds") from None
    if not 1 <= seconds < math.inf:
        raise ConfigError(f"--checkpoint {text}: must be at least one second")
    return seconds


def _lemons(text: str) -> Lemons:
    share, _, times = text.partition(":")
    try:
        lemons = Lemons(share=float(share), times=float(times))
    except ValueError:
        raise ConfigError(f"--lemons {text!r}: must be SHARE:TIMES, as 0.0575:6.25") from None
    if not 0 <= lemons.share <= 1 or not lemons.times >= 1:
        raise ConfigError(f"--lemons {text}: a share between 0 and 1, and at least 1 times")
    return lemons


def _simulate(setup: Setup, seeds: range, jobs: int) -> list[Outcome]:
    jobs = min(len(seeds), jobs or os.cpu_count() or 1)
    with waiting("simulated", len(seeds), "run") as bar:
        if jobs == 1:
            return [_counted(simulate_once(setup, seed), bar) for seed in seeds]
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            return [_counted(outcome, bar) for outcome in pool.map(partial(simulate_once, setup), seeds)]


def _counted(outcome: Outcome, bar: Waiting) -> Outcome:
    bar.step()
    return outcome
