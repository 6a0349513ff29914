"""Lines of the out-of-memory killer. The kernel log is the whole machine's: most processes in it are somebody
else's.

A line about one of our ranks names the rank. It is on record only: whether a rank was ended by the killer is judged
from its own end (`probes.oom`), at once, and also where pids differ by namespace; one kill must not become two
incidents.
"""

import re
from collections.abc import Callable

from everstep.knowledge.findings import Finding
from everstep.model.facts import Alert

OUT_OF_MEMORY = frozenset({"ES-HM01", "ES-HM03", "ES-HM06"})
_VICTIM = re.compile(r"Killed process (\d{1,9})(?: \(([^)]{1,64})\))?|\bpid=(\d{1,9})\b")


def oom_alert(finding: Finding, now: float, source: str, rank_of: Callable[[int], int | None]) -> Alert | None:
    """None for lines that name no victim: another line of the same kill does."""
    match = _VICTIM.search(finding.text)
    if match is None:
        return None
    pid = int(match[1] or match[3])
    rank = rank_of(pid)
    name = f" ({match[2]})" if match[2] else ""
    who = f"rank {rank}, process {pid}{name}," if rank is not None else f"process {pid}{name}, no rank of this node,"
    return Alert(
        at=now,
        code=finding.code,
        sentence=f"the kernel ended {who} for lack of memory",
        component=finding.component,
        blame=finding.blame,
        severity="warning",
        action=finding.action,
        role=finding.role,
        source=source,
        line=finding.text,
        device=f"pid {pid}",
        rank=rank,
        count=finding.count,
    )
