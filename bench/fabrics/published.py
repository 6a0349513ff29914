"""The flow model beside tables that others published or computed, and what explains the rest."""

from statistics import fmean

import numpy as np

from everstep.fabric.flows.network import Network
from everstep.fabric.flows.simulate import Request, simulate
from everstep.fabric.plan.build import build
from everstep.fabric.plan.clos import Wanted, plan_clos
from everstep.fabric.topology.graph import Graph
from fabrics.two_tiers import two_tiers

SEEDS = 5
RING = {  # connections: mean and slowest pair, of line rate; and in equal parts. An independent simulation
    1: (0.548, 0.180, 0.548, 0.180),
    2: (0.703, 0.294, 0.558, 0.271),
    4: (0.843, 0.465, 0.586, 0.336),
    16: (0.986, 0.809, 0.691, 0.523),
    64: (0.999, 0.945, 0.793, 0.696),
}
PACKETS = {  # htsim (packet level), run by us: 128 hosts, 100 Gbit/s, a permutation: Gbit/s, mean and slowest
    "RoCE, ECMP": ("ecmp", 43.4, 19.7, "PFC pauses flows that share no full link; go-back-N sends again"),
    "NDP, spray": ("spray", 91.3, 87.5, "headers, control packets and the ramp of 20 MB: no flow model has them"),
    "permuted spray": ("spray", 96.5, 96.4, "headers"),
}


def published() -> None:
    print("random ring, 16 leaves of 64 NICs, 64 spines, mean of line rate: found / published, off")
    network = Network(Graph(two_tiers(16, 64, 64)))
    orders = [np.random.default_rng(seed).permutation(1024).tolist() for seed in range(SEEDS)]
    worst = 0.0
    for number, row in RING.items():
        cells = []
        for is_split in (False, True):
            outcomes = [
                simulate(network, order, Request(connections=number, is_split=is_split, seed=seed))
                for seed, order in enumerate(orders)
            ]
            mean, slowest = fmean(each.mean for each in outcomes), fmean(each.slowest for each in outcomes)
            known = row[2 * is_split : 2 * is_split + 2]
            off = mean / known[0] - 1
            worst = max(worst, abs(off))
            how = "equal parts" if is_split else "shared"
            cells.append(f"{how} {mean:.3f} / {known[0]:.3f} {off:+.1%}, slowest {slowest:.3f} / {known[1]:.3f}")
        print(f"  {number:2} connections: {'; '.join(cells)}", flush=True)
    print(f"  means off by {worst:.1%} at most")
    two = fmean(simulate(network, order, Request(connections=2, seed=n)).mean for n, order in enumerate(orders))
    print(f"two connections, Baidu AIPod: {100 * two:.0f} of 100 Gbit/s, published about 70")
    plan = plan_clos(Wanted(chips=16_384, rails=8, radix=128))
    print(f"group of a 128-port leaf, Baidu AIPod: {plan.down * 8} chips, published 512")
    dual = network_of(Wanted(chips=128, rails=16, chips_per_host=16))
    print(f"one of 16 access links down, Alibaba HPN: {1 / len(dual.nics[0]):.2%} of a host, published 6.25%")
    packet_level()


def network_of(wanted: Wanted) -> Network:
    return Network(Graph(build(plan_clos(wanted))))


def packet_level() -> None:
    network = network_of(Wanted(chips=128, rails=1, chips_per_host=1, radix=8, bps=100e9))
    order = list(range(128))
    for name, (routing, mean, slowest, why) in PACKETS.items():
        outcomes = [
            simulate(network, order, Request(pattern="permutation", routing=routing, seed=n)) for n in range(20)
        ]
        own = 100 * fmean(each.mean for each in outcomes), 100 * fmean(each.slowest for each in outcomes)
        print(f"htsim, {name}: {own[0]:.1f} and {own[1]:.1f}, packets {mean} and {slowest}: {why}")
