"""Routes as text, one per line: `n0 leaf0 spine1 leaf2 n5`. `@3` at the end limits a route to priority 3."""

import itertools

import msgspec

from everstep.fabric.topology.values import FabricError

MAX_ROUTES = 2_000_000
ANY = -1


class Route(msgspec.Struct, frozen=True):
    nodes: tuple[str, ...]
    priority: int = ANY

    @property
    def label(self) -> str:
        ending = "" if self.priority == ANY else f" @{self.priority}"
        return " ".join(self.nodes) + ending


def read_routes(text: str, source: str) -> list[Route]:
    """Read the routes of a text. Raises FabricError for a bad line."""
    routes: list[Route] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        priority = ANY
        if words[-1].startswith("@"):
            last = words.pop()[1:]
            if last not in tuple("01234567"):
                raise FabricError(f"{source}:{number}: priority {last[:20]!r}: must be @0 to @7")
            priority = int(last)
        if len(words) < 2:
            raise FabricError(f"{source}:{number}: a route needs two nodes at least")
        for one, other in itertools.pairwise(words):
            if one == other:
                raise FabricError(f"{source}:{number}: {one} follows itself")
        routes.append(Route(tuple(words), priority))
        if len(routes) > MAX_ROUTES:
            raise FabricError(f"{source}: more than {MAX_ROUTES} routes")
    return routes
