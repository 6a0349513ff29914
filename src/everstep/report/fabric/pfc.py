"""The pages of `everstep fabric deadlock` and `everstep fabric storms`."""

from collections.abc import Mapping

from everstep.fabric.pfc.deadlock import Cycle, Deadlocks
from everstep.fabric.pfc.storms import StormWatch
from everstep.report.parts.layout import field, text_of
from everstep.report.parts.units import count

_MOST = 10


def deadlock_page(source: str, found: Deadlocks) -> str:
    number = count(len(found.cycles)) if found.is_complete else f"more than {count(len(found.cycles))}"
    head = f"{source}: {number} cycle{'' if len(found.cycles) == 1 else 's'}" if found.cycles else f"{source}: no cycle"
    lines = [f"{head} among {count(found.num_buffers)} buffers with {count(found.num_waits)} waits", ""]
    for cycle in found.cycles[:_MOST]:
        lines += _cycle(cycle)
    if len(found.cycles) > _MOST:
        lines += field("", f"and {count(len(found.cycles) - _MOST)} more", width=10)
    for route, node in found.bounces[:_MOST]:
        lines += field("turn", f"{route.label}: goes down and up again at {node}", width=10)
    if found.cycles:
        advice = (
            "drop a route that turns, or raise the priority at the turn" if found.bounces else "break one of the routes"
        )
        lines += field("advice", advice, width=10)
    return text_of(lines)


def _cycle(cycle: Cycle) -> list[str]:
    names = " > ".join(f"{one}-{other}" for one, other, _ in (*cycle.buffers, cycle.buffers[0]))
    lines = field("cycle", f"priority {cycle.buffers[0][2]}: {names}", width=10)
    for route in dict.fromkeys(cycle.routes):
        lines += field("", f"by route {route.label}", width=10)
    return lines


def storms_page(source: str, watch: StormWatch, roots: Mapping[str, str], num_samples: int) -> str:
    storms = watch.storms
    head = f"{source}: {count(len(storms))} storm{'' if len(storms) == 1 else 's'}" if storms else f"{source}: no storm"
    lines = [f"{head} in {count(num_samples)} samples", ""]
    for storm in storms[:40]:
        over = "still there" if storm.over is None else f"over at {storm.over:.3f}"
        text = f"{storm.switch}:{storm.port} priority {storm.priority}: since {storm.began:.3f}, {over}"
        lines += field("storm", text, width=10)
    for node, why in roots.items():
        lines += field("root", f"{node}: {why}", width=10)
    lines += _not_judged(watch)
    if any(storm.over is None for storm in storms):
        todo = "isolate the root's port; until then drop this priority on the paused port (pfcwd start --action drop)"
        lines += field("advice", todo, width=10)
    return text_of(lines)


def _not_judged(watch: StormWatch) -> list[str]:
    lines = []
    if watch.num_unknown:
        some = f"{count(watch.num_unknown)} of {count(watch.num_judged + watch.num_unknown)} intervals"
        lines += field("not judged", f"{some}: counters are missing, went back, or count the impossible", width=12)
    ports = [f"{switch}:{port} priority {priority}" for switch, port, priority in watch.never_judged]
    if ports:
        more = f", and {count(len(ports) - _MOST)} more" if len(ports) > _MOST else ""
        lines += field("not known", f"{', '.join(ports[:_MOST])}{more}", width=12)
    return lines
