"""Max-min fair rates: a flow can gain only if a flow with the same or a smaller rate loses.

The method is water filling, at all local bottlenecks in one step. If a link has the smallest fair share of all links on
the paths of its flows, it fixes the rates of these flows: the shares of other links only grow afterwards. A step costs
one pass over the paths, and few steps are needed.
"""

from typing import Any

import numpy as np

Array = Any
_TIE = 1 + 1e-9


def fair_rates(
    capacity: Array, flow_of: Array, link_of: Array, num_flows: int, *, weight: Array = None, demand: Array = None
) -> Array:
    """Return the rate of each flow, shape (num_flows,), in the unit of `capacity`. `flow_of`, `link_of` and `weight`
    have one entry per pair of a flow and a link on its path; `weight` is the share of the flow's rate that crosses the
    link (1: all). A flow without a link gets its demand, or infinity."""
    rates = np.zeros(num_flows)
    limit = np.full(num_flows, np.inf) if demand is None else np.asarray(demand, dtype=float)
    share_of = np.ones(len(link_of)) if weight is None else np.asarray(weight, dtype=float)
    left = np.asarray(capacity, dtype=float).copy()
    open_flow: Array = np.ones(num_flows, dtype=bool)
    flows, links, shares = np.asarray(flow_of), np.asarray(link_of), share_of
    while True:
        load = np.bincount(links, weights=shares, minlength=len(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            fair = np.where(load > 0, np.maximum(left, 0) / load, np.inf)
        smallest = limit.copy()
        np.minimum.at(smallest, flows, fair[links])
        # A link fixes its flows if none of them has a smaller share elsewhere.
        lowest = np.full(len(left), np.inf)
        np.minimum.at(lowest, links, smallest[flows])
        decided = fair <= lowest * _TIE
        fixed: Array = np.zeros(num_flows, dtype=bool)
        fixed[flows[decided[links]]] = True
        fixed |= limit <= smallest
        fixed &= open_flow
        if not fixed.any():
            rates[open_flow] = limit[open_flow]
            return rates
        rates[fixed] = smallest[fixed]
        open_flow &= ~fixed
        gone = fixed[flows]
        left -= np.bincount(links[gone], weights=(rates[flows] * shares)[gone], minlength=len(left))
        flows, links, shares = flows[~gone], links[~gone], shares[~gone]
        if len(flows) == 0 and not open_flow.any():
            return rates
