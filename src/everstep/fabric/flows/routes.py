"""The links of each flow: by a hash per connection, by the least loaded port, or spread over all equal paths."""

from typing import Any

import numpy as np

from everstep.fabric.flows.network import Network
from everstep.fabric.topology.values import FabricError

Array = Any
_MAX_HOPS = 64
_GOLDEN, _ONE, _TWO = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(values: Array) -> Array:
    """A 64-bit hash of each value (splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.asarray(values, dtype=np.uint64) + np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_ONE)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_TWO)
        return z ^ (z >> np.uint64(31))


class Paths:
    """One entry per flow and link: the flow, the link, and the share of the flow on that link."""

    def __init__(self, flow: Array, link: Array, weight: Array) -> None:
        self.flow, self.link, self.weight = flow, link, weight


class Router:
    """Finds paths and caches them. The seed of each switch decides which link a hash selects."""

    def __init__(self, network: Network, *, seed: int = 0, same_hash: bool = False) -> None:
        """`same_hash`: all switches use one hash, so the second repeats the choice of the first (polarisation)."""
        self._network = network
        numbers = np.zeros(len(network.tiers)) if same_hash else np.arange(len(network.tiers))
        self._seeds = mixed(numbers.astype(np.uint64) + np.uint64(seed) * np.uint64(1_000_003))
        self._ways: dict[tuple[int, int, bool], Array] = {}

    def route(self, out: Array, into: Array, keys: Array, routing: str) -> Paths:
        """`out`, `into`: for each flow, the link that leaves its source host and the link that enters its target host.
        `keys`: for each flow, the number that stands for its addresses and ports in the hash. Raises FabricError if
        there is no path."""
        if routing == "spray":
            return self._sprayed(out, into)
        choose = self._hashed if routing == "ecmp" else self._least_loaded()
        return self._walked(out, into, mixed(keys), choose)

    def _walked(self, out: Array, into: Array, hashes: Array, choose: Any) -> Paths:  # noqa: ANN401
        network = self._network
        at, goal = network.head[out].copy(), network.tail[into]
        descending: Array = np.zeros(len(out), dtype=bool)
        flows, links = [np.arange(len(out)), np.arange(len(out))], [np.asarray(out), np.asarray(into)]
        for _ in range(_MAX_HOPS):
            (moving,) = np.nonzero(at != goal)
            if len(moving) == 0:
                whole = np.concatenate(links)
                return Paths(np.concatenate(flows), whole, np.ones(len(whole)))
            taken: Array = np.empty(len(moving), dtype=np.int64)
            code = (at[moving] * len(network.leaves) + network.leaf_number[goal[moving]]) * 2 + descending[moving]
            order = np.argsort(code, kind="stable")
            starts = np.nonzero(np.diff(code[order], prepend=-1))[0]
            for group in np.split(order, starts[1:]):
                first = moving[group[0]]
                node = int(at[first])
                ways = self._next(node, int(goal[first]), bool(descending[first]))
                taken[group] = choose(node, ways, hashes[moving[group]])
            descending[moving] |= network.tiers[network.head[taken]] < network.tiers[at[moving]]
            at[moving] = network.head[taken]
            flows.append(moving)
            links.append(taken)
        raise FabricError("routing: a path is longer than 64 hops")

    def _next(self, node: int, goal: int, is_descending: bool) -> Array:
        key = (node, goal, is_descending)
        ways = self._ways.get(key)
        if ways is None:
            network = self._network
            ways = network.next_links(node, int(network.leaf_number[goal]), is_descending=is_descending)
            if len(ways) == 0:
                names = network.graph.names
                raise FabricError(f"{network.graph.topology.source}: no path from {names[node]} to {names[goal]}")
            self._ways[key] = ways
        return ways

    def _hashed(self, node: int, ways: Array, hashes: Array) -> Array:
        high = mixed(hashes ^ self._seeds[node]) >> np.uint64(32)
        return ways[((high * np.uint64(len(ways))) >> np.uint64(32)).astype(np.int64)]

    def _least_loaded(self) -> Any:  # noqa: ANN401
        """Puts each flow, in turn, on the port of its switch with the fewest flows; the hash decides ties."""
        load: Array = np.zeros(len(self._network.tail), dtype=np.int64)

        def choose(node: int, ways: Array, hashes: Array) -> Array:
            taken: Array = np.empty(len(hashes), dtype=np.int64)
            turns = (hashes ^ self._seeds[node]) % np.uint64(len(ways))
            for number, turn in enumerate(turns.astype(np.int64).tolist()):
                loads = load[ways]
                best = ways[(int(np.argmin(np.roll(loads, -turn))) + turn) % len(ways)]
                load[best] += 1
                taken[number] = best
            return taken

        return choose

    def _sprayed(self, out: Array, into: Array) -> Paths:
        network = self._network
        shares: dict[tuple[int, int], tuple[Array, Array]] = {}
        flows, links, weights = [np.arange(len(out))] * 2, [np.asarray(out), np.asarray(into)], [np.ones(len(out))] * 2
        pairs = np.stack([network.head[out], network.tail[into]], axis=1)
        for flow, (start, goal) in enumerate(pairs.tolist()):
            if start == goal:
                continue
            if (start, goal) not in shares:
                shares[start, goal] = self._spread(start, goal)
            found, parts = shares[start, goal]
            flows.append(np.full(len(found), flow))
            links.append(found)
            weights.append(parts)
        return Paths(np.concatenate(flows), np.concatenate(links), np.concatenate(weights))

    def _spread(self, start: int, goal: int) -> tuple[Array, Array]:
        """The links between two leaves, and the share of the packets on each."""
        at: dict[tuple[int, bool], float] = {(start, False): 1.0}
        parts: dict[int, float] = {}
        for _ in range(_MAX_HOPS):
            following: dict[tuple[int, bool], float] = {}
            for (node, descending), amount in at.items():
                if node == goal:
                    continue
                ways = self._next(node, goal, descending)
                for link in ways.tolist():
                    far = int(self._network.head[link])
                    goes_down = descending or bool(self._network.tiers[far] < self._network.tiers[node])
                    parts[link] = parts.get(link, 0.0) + amount / len(ways)
                    following[far, goes_down] = following.get((far, goes_down), 0.0) + amount / len(ways)
            if not following:
                return np.array(list(parts), dtype=np.int64), np.array(list(parts.values()))
            at = following
        raise FabricError("routing: a path is longer than 64 hops")
