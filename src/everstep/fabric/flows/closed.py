"""Closed forms that the simulator is held to: flows hashed on equal links, and times of collectives."""

import math


def no_collision(flows: int, links: int) -> float:
    """Probability that each flow has a link of its own."""
    return math.prod(1 - each / links for each in range(flows))


def busy_links(flows: int, links: int) -> float:
    """Expected number of links with at least one flow."""
    return links * (1 - (1 - 1 / links) ** flows)


def mean_throughput(flows: int, links: int) -> float:
    """Of line rate, when each flow could fill a link and only these links bind."""
    return busy_links(flows, links) / flows


def labels_for_coverage(links: int, probability: float) -> int:
    """Random source ports until all equal paths were used with that probability (each path by itself)."""
    if links <= 1:
        return 1
    missed = 1 - probability ** (1 / links)
    return math.ceil(math.log(missed) / math.log((links - 1) / links))


def ring_all_reduce_s(ranks: int, num_bytes: float, bps: float, latency_s: float = 0.0) -> float:
    if ranks < 2:
        return 0.0
    return 2 * (ranks - 1) * latency_s + 2 * (ranks - 1) / ranks * num_bytes * 8 / bps


def all_to_all_s(ranks: int, num_bytes: float, bps: float, latency_s: float = 0.0) -> float:
    """`num_bytes` of each rank, one share of it for each rank."""
    if ranks < 2:
        return 0.0
    return (ranks - 1) * latency_s + (ranks - 1) / ranks * num_bytes * 8 / bps


def speed_up(share: float, before: float, after: float) -> float:
    """Of a job that communicates that share of its time, when its bandwidth goes from `before` to `after`."""
    return 1 / ((1 - share) + share * before / after)
