"""Lines of the out-of-memory killer. The kernel log covers the whole machine, so most processes in it are not of this
run.

A line about one of our ranks names the rank. It is a record only. Whether the killer ended a rank is judged from the
rank's own exit (`probes.oom`): at once, and also if pids differ by namespace. One kill must not become two incidents.
"""

import re
from collections.abc import Callable

from everstep.knowledge.findings import Finding
from everstep.model.facts import Alert

OUT_OF_MEMORY = frozenset({"ES-HM01", "ES-HM03", "ES-HM06"})
_VICTIM = re.compile(r"Killed process (\d{1,9})(?: \(([^)]{1,64})\))?|\bpid=(\d{1,9})\b")


def oom_alert(finding: Finding, now: float, source: str, rank_of: Callable[[int], int | None]) -> Alert | None:
    """The alert; None if the line names no victim: another line of the same kill does."""
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
