"""Hosts for tests: each a network, process, name and mount namespace of its own, on a switch that can be cut.

    with Bed() as bed:
        one, two = bed.add("one"), bed.add("two")
        first = one.start(["everstep", "run", "--nnodes", "2", "--rdzv-endpoint", f"{one.address}:29400", "train.py"])
        two.power_off()

Needs root; `Bed()` raises NetworkError where that is missing. Nothing of it is seen outside or outlives the `with`.
"""

import contextlib
import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from everstep.engines.network import Namespaces
from everstep.engines.network.namespaces import INTERFACE

_INSIDE = """
import ctypes, os, sys
fd, name = int(sys.argv[1]), sys.argv[2]  # then: the file of names, a mount point, the command
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(fd, 0x40000000):
    raise OSError(ctypes.get_errno(), "setns")
os.close(fd)
script = (
    'hostname "$0"; mount -t tmpfs tmpfs /dev/shm; mount --bind "$1" /etc/hosts; '
    'mount --bind /dev/null /etc/resolv.conf; '
    'mount -t sysfs sysfs "$2"; for net in class/net devices/virtual/net; do mount --bind "$2/$net" "/sys/$net"; done; '
    'umount -l "$2"; shift 2; exec "$@"'
)
unshare = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
os.execvp("unshare", [*unshare, "sh", "-c", script, name, *sys.argv[3:]])
"""


_ENTER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(int(sys.argv[1]), 0x40000000):
    raise OSError(ctypes.get_errno(), "setns")
os.execvp(sys.argv[2], sys.argv[2:])
"""
_TABLE = "everstep"


class Host:
    """One machine. Its home is a folder that no other host uses."""

    def __init__(self, network: Namespaces, name: str, folder: Path, names: Path) -> None:
        """`names`: what all hosts have as /etc/hosts. No other server answers for names or addresses."""
        self.name = name
        self.folder = folder
        self._names = names
        self._is_closed, self._is_filtered, self._is_throttled = False, False, False
        self._network = network
        plug = network.plug(name)
        self.address = plug.address
        assert plug.namespace_fd is not None
        self._namespace_fd = plug.namespace_fd
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        out: IO[bytes] | None = None,
        err: IO[bytes] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """A command on this host; each has a process namespace of its own."""
        inside = [sys.executable, "-P", "-c", _INSIDE, str(self._namespace_fd), self.name]
        inside += [str(self._names), str(self.folder / "sys")]
        process = subprocess.Popen(
            [*inside, *command],
            pass_fds=(self._namespace_fd,),
            stdin=subprocess.DEVNULL,
            stdout=out if out is not None else subprocess.DEVNULL,
            stderr=err if err is not None else subprocess.DEVNULL,
            cwd=cwd or self.folder,
            env={**os.environ, "EVERSTEP_HOME": str(self.folder / "home"), **(env or {})},
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def pids(self) -> list[int]:
        """List the pids of all processes that live here, as the outside sees them."""
        here = f"net:[{os.fstat(self._namespace_fd).st_ino}]"
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if os.readlink(entry / "ns" / "net") == here:  # noqa: PTH115 - no file is behind it
                        found.append(int(entry.name))
        return found

    def power_off(self) -> None:
        """Without a word: the link is gone before the processes are."""
        self.cut()
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def cut(self) -> None:
        self._network.cut(self.name, is_cut=True)

    def heal(self) -> None:
        """The link is up, and nothing is dropped or held back."""
        self._network.cut(self.name, is_cut=False)
        if self._is_throttled:
            self._is_throttled = False
            self._inside("tc", "qdisc", "del", "dev", INTERFACE, "root")
        if self._is_filtered:
            self._is_filtered = False
            self._filter(f"delete table inet {_TABLE}")

    def deafen(self, to: "Host | None" = None, but_ports: Sequence[int] = ()) -> None:
        """It is heard, and hears nothing; or nothing of that host, or nothing but of those TCP ports. Like `mute` and
        `drop` it needs Debian's nftables; raises OSError."""
        listens = "".join(f"tcp sport {port} accept; tcp dport {port} accept; " for port in but_ports)
        self._drop("input", listens + ("" if to is None else f"ip saddr {to.address}"))

    def mute(self) -> None:
        """It hears, and is not heard."""
        self._drop("output", "")

    def drop(self, percent: int) -> None:
        """So much of what comes in, and of what goes out, by chance."""
        by_chance = f"numgen random mod 100 < {percent}"
        self._drop("input", by_chance)
        self._drop("output", by_chance)

    def lose(self, percent: int, to: "Host") -> None:
        """So much of what goes to that host, by chance, until that one heals. On its side: a kernel that drops what it
        sends itself knows of it, counts nothing as lost, and sends it again at once."""
        to._drop("input", f"ip saddr {self.address} numgen random mod 100 < {percent}")

    def swallow(self, to: "Host") -> None:
        """Its port drops what goes to that host, and counts it, until `heal`. Needs iproute2; raises OSError."""
        self._is_throttled = True
        self._inside("tc", *f"qdisc add dev {INTERFACE} root handle 1: htb".split())
        is_to = f"4,32 0 0 30,21 0 1 {int(ipaddress.ip_address(to.address))},6 0 0 2,6 0 0 4294967295"  # ld, jeq, drop
        self._inside("tc", *f"filter add dev {INTERFACE} parent 1: bpf da bytecode".split(), is_to)

    def throttle(self, bytes_per_s: int) -> None:
        """So much goes out in a second; until `heal`. Needs iproute2; raises OSError."""
        self._is_throttled = True
        rate = f"{bytes_per_s * 8}bit"
        self._inside("tc", *f"qdisc add dev {INTERFACE} root tbf rate {rate} burst 16kb limit 512kb".split())

    def fill_disk(self) -> None:
        """Nothing more can be written to its home; only with `Bed.add(..., disk_mib=...)`."""
        with (self.folder / "home" / "filler").open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    def _drop(self, hook: str, which: str) -> None:
        self._is_filtered = True
        own = "iifname lo accept" if hook == "input" else "oifname lo accept"
        chain = f"type filter hook {hook} priority 0; policy accept; {own}; {which} drop"
        self._filter(f"table inet {_TABLE} {{\nchain {hook} {{\n{chain}\n}}\n}}")

    def _filter(self, rules: str) -> None:
        self._inside("nft", rules)

    def _inside(self, *command: str) -> None:
        subprocess.run(
            [sys.executable, "-P", "-c", _ENTER, str(self._namespace_fd), *command],
            pass_fds=(self._namespace_fd,),
            check=True,
            timeout=20,
        )

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._signal(signal.SIGKILL)
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self._network.unplug(self.name)
        os.close(self._namespace_fd)

    def _signal(self, number: int) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Bed:
    """A switch and the hosts on it. Raises NetworkError where that cannot be made."""

    def __init__(self) -> None:
        self._network = Namespaces()
        self._folder = Path(tempfile.mkdtemp(prefix="everstep-hosts-"))
        self._names = self._folder / "hosts"
        self._names.write_text("127.0.0.1 localhost\n")
        self.hosts: list[Host] = []
        self._disks: list[str] = []

    def __enter__(self) -> "Bed":
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.close()
        for disk in self._disks:
            subprocess.run(["umount", "-l", disk], check=False, timeout=20)
        self._network.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, name: str, disk_mib: int = 0) -> Host:
        """`disk_mib`: its home is a disk of its own, of that size."""
        folder = self._folder / name
        (folder / "home").mkdir(parents=True)
        # where its own ports are mounted from: /sys shows those of the namespace that mounted it
        (folder / "sys").mkdir()
        if disk_mib:
            disk = str(folder / "home")
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "tmpfs", disk], check=True, timeout=20)
            self._disks.append(disk)
        host = Host(self._network, name, folder, self._names)
        with self._names.open("a") as file:
            file.write(f"{host.address} {name}\n")
        self.hosts.append(host)
        return host
