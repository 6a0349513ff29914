"""Result of a simulation. Plain values, so that the pages read them without numpy."""

import msgspec

CAVEAT = (
    "max-min fair flows: no packets, no PFC. Real RoCE with collisions is worse, because pauses spread to other flows"
)


class HotLink(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    flows: int
    load: float  # share of the capacity


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    pattern: str
    routing: str
    connections: int
    is_split: bool
    num_hosts: int
    num_flows: int
    rails_used: tuple[int, ...]
    rails_left_out: tuple[int, ...]  # a NIC has no path, so the whole rail carries nothing
    mean: float  # share of line rate, mean over the pairs
    slowest: float
    p01: float  # 1 % of pairs have less
    seconds: float  # until the collective is complete
    ideal_s: float  # the same at line rate
    busy_links: int
    num_links: int  # between switches, each way
    hot: tuple[HotLink, ...]
    took_s: float = 0.0
    caveat: str = CAVEAT
