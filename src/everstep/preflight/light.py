"""Inspection of a node that is training: reads the kernel's files, starts no process, sends nothing.

Meant for an agent that calls it every minute or so: some milliseconds. Remote filesystems are left out, because asking
a dead server blocks for ever; so are GPUs (NVML has probes of its own). Counters are compared with the inspection
before, when it is given.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from everstep.preflight.checks.reading import container, cpu, infiniband, kernel, memory, nic, sensors, storage
from everstep.preflight.judge import by_limits, worse
from everstep.preflight.result import Doing, Judgement, Result, Yielded
from everstep.preflight.settings import Settings
from everstep.preflight.sources import parts

BEFORE = "inspection before"  # source of a comparison with it
_UNITS_THAT_COUNT = ("times", "errors", "packets", "pages", "rows")
_WORSE_WHEN_GROWING = (
    "_errors", "errors", "_dropped", "oom_kill", "oom_kills", "corrected", "uncorrected", "link_downed", "throttled",
    "symbol_error", "link_error_recovery", "carrier_changes", "io_errors", "discards", "link_integrity", "overrun",
)  # fmt: skip


def inspect(before: Sequence[Result] = (), *, root: str = "/") -> list[Result]:
    """Judged results. With `before`, a counter is bad news only if it has grown since."""
    results = by_limits(_only_results(_measure(Settings(root=root))))
    return since(results, before) if before else results


def _measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    reads = (
        cpu.loads, memory.sizes, memory.counted, memory.shared, memory.errors, kernel.taints, kernel.pressures,
        container.groups, nic.protocols,
    )  # fmt: skip
    yield from parts("light", *(read(root) for read in reads), kernel.clock(), sensors.measure(settings))
    for name in nic.interfaces(root):
        yield from parts("light", nic.counters(root, name))
    for device, port in infiniband.ports(root):
        yield infiniband.state(root, device, port)
        yield from parts("light", infiniband.counters(root, device, port))
    for mount in storage.mounts(root):
        if not mount.is_remote:
            yield from parts("light", storage.filesystem(root, mount))


def _only_results(yielded: Iterable[Yielded]) -> list[Result]:
    return [item for item in yielded if not isinstance(item, Doing)]


def since(results: Sequence[Result], before: Sequence[Result]) -> list[Result]:
    """Pure. Counters judged by their growth; a counter that fell was reset, and proves nothing."""
    then = {result.name: result.value for result in before}
    return [_since(result, then[result.name]) if result.name in then else result for result in results]


def _since(result: Result, then: object) -> Result:
    if result.unit not in _UNITS_THAT_COUNT or not result.name.endswith(_WORSE_WHEN_GROWING):
        return result
    if not isinstance(result.value, int) or not isinstance(then, int):
        return result
    grown = result.value - then
    if grown > 0:
        fresh = msgspec.structs.replace(result, verdict=Judgement.NOTED)
        return worse(fresh, Judgement.WARN, f"{grown} more than in the inspection before", then, BEFORE)
    why = "no more than in the inspection before" if grown == 0 else "the counter was reset since the inspection before"
    verdict = Judgement.OK if grown == 0 else Judgement.NOTED
    return msgspec.structs.replace(result, verdict=verdict, why=why, baseline=then, baseline_from=BEFORE)
