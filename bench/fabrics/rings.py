"""Real gloo all-reduces on hosts of the bed: a process on each, several rings at once."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fabrics.bed import Clos

RANK = """
import datetime, json, sys, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
address, master, is_master, size = sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4])
store = dist.TCPStore(master, 29500, size, is_master, timeout=datetime.timedelta(seconds=300))
for line in sys.stdin:
    asked = json.loads(line)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = datetime.timedelta(seconds=300)
    mine = dist.PrefixStore(asked["name"], store)
    group = dist.ProcessGroupGloo(mine, asked["rank"], asked["size"], options)
    values = torch.zeros(asked["numbers"])
    group.allreduce([torch.zeros(1)]).wait()
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    group.allreduce([values]).wait()
    print(time.monotonic() - began, flush=True)
"""


class Fleet:
    """One process on each host, for all rounds."""

    def __init__(self, bed: Clos, folder: Path) -> None:
        program = folder / "rank.py"
        program.write_text(RANK)
        self._processes = {}
        for host in bed.hosts:
            argv = [bed.address[host], bed.address[bed.hosts[0]], str(int(host == bed.hosts[0])), str(len(bed.hosts))]
            self._processes[host] = subprocess.Popen(
                ["ip", "netns", "exec", bed.ns(host), sys.executable, str(program), *argv],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip

    def reduce(self, name: str, rings: Sequence[Sequence[str]], numbers: int) -> float:
        """Seconds of the slowest ring, all at once."""
        hosts = [host for ring_ in rings for host in ring_]
        for number, ring_ in enumerate(rings):
            for rank, host in enumerate(ring_):
                asked = {"name": f"{name}-{number}", "rank": rank, "size": len(ring_), "numbers": numbers}
                self._tell(host, json.dumps(asked))
        for host in hosts:
            assert self._read(host) == "ready"
        for host in hosts:
            self._tell(host, "go")
        return max(float(self._read(host)) for host in hosts)

    def _tell(self, host: str, line: str) -> None:
        pipe = self._processes[host].stdin
        assert pipe is not None
        pipe.write(line + "\n")
        pipe.flush()

    def _read(self, host: str) -> str:
        pipe = self._processes[host].stdout
        assert pipe is not None
        return pipe.readline().strip()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()
