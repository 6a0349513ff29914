"""Figures of docs/simulate.md: what it takes to pass 99.5 %, cells against machines, and what a run takes.

python bench/simulate.py                     # 16,384 GPUs for 54 days, eight runs; the table, and the figure as SVG
python bench/simulate.py --svg docs/simulate.svg --days 10
"""

import argparse
import sys
import time
from pathlib import Path

import msgspec

from everstep.core.state.policy import Policy
from everstep.simulate.fleet.costs import BYTEROBUST, MEASURED, Costs, with_changes
from everstep.simulate.fleet.faults import LLAMA3
from everstep.simulate.fleet.setup import Setup
from everstep.simulate.outcome import Outcome
from everstep.simulate.run import simulate_once

STARTS_S = {"measured": (0.25, 10.0, 30.0, 60.0, 120.0), "byterobust": (10.0, 65.0, 120.0)}
WIDTH, HEIGHT, LEFT, TOP = 640, 320, 60, 20
LOWEST, HIGHEST = 0.95, 1.0


def setup_of(costs: Costs, days: float, num_nodes: int = 2048, num_cells: int = 128) -> Setup:
    policy = Policy(node_timeout_s=86400.0, start_timeout_s=600.0)
    return Setup(
        num_nodes=num_nodes,
        num_cells=num_cells,
        days=days,
        mix=LLAMA3,
        costs=costs,
        policy=policy,
        num_standby=12,
    )


def timed(setup: Setup, seed: int = 1) -> tuple[Outcome, float]:
    begin = time.process_time()
    outcome = simulate_once(setup, seed)
    return outcome, time.process_time() - begin


def starts(days: float) -> dict[str, list[tuple[float, float]]]:
    """ETTR by how long a start takes, with all other costs as measured, or of the paper."""
    lines: dict[str, list[tuple[float, float]]] = {}
    print("costs        a start takes      ETTR  restarts    CPU")
    for costs in (MEASURED, BYTEROBUST):
        for start_s in STARTS_S[costs.name]:
            outcome, took_s = timed(setup_of(with_changes(costs, {"initialise": str(start_s)}), days))
            lines.setdefault(costs.name, []).append((start_s, outcome.ettr))
            ettr = f"{100 * outcome.ettr:.3f}%"
            print(f"{costs.name:<12} {start_s:>9.2f} s {ettr:>12} {outcome.num_starts:>7} {took_s:>6.1f} s")
            sys.stdout.flush()
    return lines


def cells(days: float) -> None:
    """The same fleet, seen as fewer and fewer nodes."""
    print("\nnodes of 512 machines      ETTR  faults    CPU")
    rate = LLAMA3.per_node_day * 4
    mix = msgspec.structs.replace(LLAMA3, per_node_day=rate)
    for number in (512, 128, 32):
        setup = msgspec.structs.replace(setup_of(MEASURED, days, num_nodes=512, num_cells=number), mix=mix)
        done = [timed(setup, seed) for seed in (1, 2, 3)]
        ettrs = ", ".join(f"{100 * outcome.ettr:.3f}%" for outcome, _ in done)
        faults = sum(outcome.num_faults for outcome, _ in done)
        print(f"{number:>21}  {ettrs} {faults:>6} {sum(took_s for _, took_s in done):>6.1f} s")
        sys.stdout.flush()


def svg(lines: dict[str, list[tuple[float, float]]], target: float = 0.995) -> str:
    """A chart drawn by hand: seconds of a start to the right, ETTR upwards."""
    most = max(seconds for points in lines.values() for seconds, _ in points)

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - 110) * seconds / most

    def y(ettr: float) -> float:
        return TOP + (HEIGHT - TOP - 50) * (HIGHEST - max(LOWEST, ettr)) / (HIGHEST - LOWEST)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for ettr in (0.95, 0.96, 0.97, 0.98, 0.99, 1.0):
        out.append(f'<path d="M{LEFT} {y(ettr):.1f}H{x(most):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(ettr) + 4:.1f}" text-anchor="end">{100 * ettr:.0f}%</text>')
    out.append(f'<path d="M{LEFT} {y(target):.1f}H{x(most):.1f}" stroke="#888" stroke-dasharray="4"/>')
    out.append(f'<text x="{x(most) + 6:.1f}" y="{y(target) + 4:.1f}" fill="#666">99.5%</text>')
    for seconds in (0, 30, 60, 90, 120):
        out.append(f'<text x="{x(seconds):.1f}" y="{HEIGHT - 32}" text-anchor="middle">{seconds} s</text>')
    for (name, points), colour in zip(lines.items(), ("#0a6", "#c40"), strict=False):
        path = " ".join(f"{x(seconds):.1f},{y(ettr):.1f}" for seconds, ettr in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        last_s, last = points[-1]
        out.append(f'<text x="{x(last_s) + 6:.1f}" y="{y(last) + 4:.1f}" fill="{colour}">{name}</text>')
    said = "ETTR by how long a start takes; 16,384 GPUs, faults of Llama 3, other costs as named"
    out += [f'<text x="{LEFT}" y="{HEIGHT - 10}" fill="#444">{said}</text>', "</svg>"]
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=54.0)
    parser.add_argument("--svg", metavar="FILE", help="write the figure there")
    parser.add_argument("--only", choices=("starts", "cells"))
    given = parser.parse_args()
    if given.only != "cells":
        lines = starts(given.days)
        if given.svg:
            Path(given.svg).write_text(svg(lines))
    if given.only != "starts":
        cells(given.days)
    return 0


if __name__ == "__main__":
    sys.exit(main())
