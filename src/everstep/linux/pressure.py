"""How hard processes wait for a CPU, as the kernel says (PSI): on the machine, or in the cgroup of this process."""

import re

from everstep.linux import proc

_SOME = re.compile(rb"^some avg10=([0-9.]{1,8}) ", re.MULTILINE)


def cpu_wait_share() -> float | None:
    """Share of the last ten seconds in which something that could run waited for a CPU, 0 to 1: the larger one of the
    machine's and the cgroup's. None: the kernel does not say."""
    found = [share for path in _paths() if (share := _share(proc.read_or_nothing(path))) is not None]
    return max(found, default=None)


def _paths() -> list[str]:
    """In a container the cgroup's path may be the host's, and its own files lie at the root."""
    own = proc.read_or_nothing("/proc/self/cgroup").decode(errors="replace").splitlines()
    folders = [line[3:].strip("/") for line in own if line.startswith("0::")]
    groups = [f"/sys/fs/cgroup/{folder}/cpu.pressure" for folder in folders if folder]
    groups += ["/sys/fs/cgroup/cpu.pressure"] if folders else []
    return ["/proc/pressure/cpu", *groups]


def _share(text: bytes) -> float | None:
    match = _SOME.search(text)
    return min(1.0, float(match[1]) / 100) if match and match[1].count(b".") < 2 and match[1] != b"." else None
