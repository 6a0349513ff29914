"""A routed Clos network of namespaces: hosts, leaves and spines, each with its own stack, hash seed and routes.

Each cable leads through one namespace, which hands on to its other end what comes in at one. Losses are made there, by
a classic BPF program: one-way, and between what the two ports count, as on a real cable. Slow links are made by tbf at
the sending port. Needs root, iproute2, and a kernel with veth, clsact, cls_bpf, act_mirred and tbf. Nothing outlives
`close`.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
PORT = 28_700
_NEWNET = 0x40000000
_WIRES = "wires"
_ALL = "1,6 0 0 4294967295"


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()[:300]}")
    return done.stdout


class Clos:
    def __init__(self, hosts: int = 16, leaves: int = 4, spines: int = 2) -> None:
        self.tag = f"esf{os.getpid()}"
        self.hosts = [f"n{n}" for n in range(hosts)]
        self.leaves, self.spines = [f"leaf{n}" for n in range(leaves)], [f"spine{n}" for n in range(spines)]
        self.leaf_of = {host: self.leaves[n * leaves // hosts] for n, host in enumerate(self.hosts)}
        self.address = {host: f"10.20.{n * leaves // hosts}.{n + 1}" for n, host in enumerate(self.hosts)}
        self.cables = [(host, self.leaf_of[host]) for host in self.hosts]
        self.cables += [(leaf, spine) for leaf in self.leaves for spine in self.spines]
        self._rate: str | None = None
        self._made: list[str] = []
        self._pool: dict[str, ThreadPoolExecutor] = {}
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def ns(self, node: str) -> str:
        return f"{self.tag}-{node}"

    def close(self) -> None:
        for pool in self._pool.values():
            pool.shutdown()
        for node in self._made:
            with contextlib.suppress(OSError):
                _run("ip", "netns", "del", self.ns(node))
        self._made = []

    def _build(self) -> None:
        for node in [*self.hosts, *self.leaves, *self.spines, _WIRES]:
            _run("ip", "netns", "add", self.ns(node))
            self._made.append(node)
        for number, (below, above) in enumerate(self.cables):
            self._lay(number, below, above)
            base = f"10.21.{number // 64}."
            first = number % 64 * 4
            self._end(below, above, f"{base}{first + 1}", f"{base}{first + 2}", number, 1)
            self._end(above, below, f"{base}{first + 2}", f"{base}{first + 1}", number, 2)
            if below in self.leaf_of:
                self._ip(below, f"addr add {self.address[below]}/32 dev lo\n"
                                f"route add default via {base}{first + 2} src {self.address[below]}")  # fmt: skip
                self._ip(above, f"route add {self.address[below]}/32 via {base}{first + 1}")
        for seed, switch in enumerate([*self.leaves, *self.spines]):
            self.inside(switch, lambda seed=seed: self._set_up_switch(seed))
        for leaf in self.leaves:
            ways = " ".join(f"nexthop via {self._far(leaf, spine)}" for spine in self.spines)
            self._ip(leaf, f"route add 10.20.0.0/16 {ways}")
        for spine in self.spines:
            for number, leaf in enumerate(self.leaves):
                self._ip(spine, f"route add 10.20.{number}.0/24 via {self._far(spine, leaf)}")

    def _lay(self, number: int, below: str, above: str) -> None:
        ends = [f"w{number}-0", f"w{number}-1"]
        for (node, other), end in zip(((below, above), (above, below)), ends, strict=True):
            _run("ip", "link", "add", f"to-{other}", "netns", self.ns(node), "type", "veth",
                 "peer", "name", end, "netns", self.ns(_WIRES))  # fmt: skip
            self._ip(_WIRES, f"link set {end} up")
            self._tc(_WIRES, "qdisc", "add", "dev", end, "clsact")
        for end, far in zip(ends, ends[::-1], strict=True):
            self._tc(_WIRES, "filter", "add", "dev", end, "ingress", "pref", "20", "bpf", "bytecode", _ALL,
                     "action", "mirred", "egress", "redirect", "dev", far)  # fmt: skip

    def _end_of(self, one: str, other: str) -> str:
        """Of the wire: where packets from `one` to `other` come in."""
        number = next(n for n, cable in enumerate(self.cables) if set(cable) == {one, other})
        return f"w{number}-{self.cables[number].index(one)}"

    def _end(self, node: str, other: str, own: str, far: str, number: int, end: int) -> None:
        """Neighbours are entered by hand: ARP over a cable that loses one way would break the other way, too."""
        mac = f"02:00:00:00:{number:02x}:0"
        self._ip(node, f"link set to-{other} address {mac}{end}\naddr add {own}/30 dev to-{other}\n"
                       f"link set to-{other} up\nlink set lo up\n"
                       f"neigh replace {far} lladdr {mac}{3 - end} dev to-{other} nud permanent")  # fmt: skip

    @staticmethod
    def _set_up_switch(seed: int) -> None:
        for name, value in {
            "ip_forward": "1", "fib_multipath_hash_policy": "1", "fib_multipath_hash_seed": str(1000 + seed)
        }.items():  # fmt: skip
            with open(f"/proc/sys/net/ipv4/{name}", "w") as file:  # noqa: PTH123
                file.write(value)

    def _far(self, node: str, other: str) -> str:
        number = next(n for n, cable in enumerate(self.cables) if set(cable) == {node, other})
        return f"10.21.{number // 64}.{number % 64 * 4 + (2 if self.cables[number][0] == node else 1)}"

    def _ip(self, node: str, lines: str) -> None:
        _run("ip", "-n", self.ns(node), "-batch", "-", text=lines + "\n")

    def inside(self, node: str, make: Callable[[], T]) -> T:
        """In a thread that lives in the node's namespace: sockets made there stay there."""
        if node not in self._pool:
            self._pool[node] = ThreadPoolExecutor(1, initializer=self._enter, initargs=(node,))
        return self._pool[node].submit(make).result()

    def _enter(self, node: str) -> None:
        fd = os.open(f"/run/netns/{self.ns(node)}", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(fd, _NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)

    def path(self, one: str, other: str, source: int, target: int) -> tuple[str, ...]:
        """As the kernel of the first leaf chooses."""
        leaf, last = self.leaf_of[one], self.leaf_of[other]
        if leaf == last:
            return (one, leaf, other)
        text = _run("ip", "-n", self.ns(leaf), "route", "get", self.address[other], "from", self.address[one], "iif",
                    f"to-{one}", "ipproto", "udp", "sport", str(source), "dport", str(target))  # fmt: skip
        words = text.split()
        return (one, leaf, words[words.index("dev") + 1].removeprefix("to-"), last, other)

    # Faults: each returns what undoes it.

    def lose(self, one: str, other: str, percent: float) -> None:
        """Packets from `one` to `other`. 100: a port that swallows everything, and is up."""
        least = int((1 << 32) * percent / 100)
        code = "1,6 0 0 2" if percent >= 100 else f"4,32 0 0 4294963256,53 1 0 {least},6 0 0 2,6 0 0 4294967295"
        end = self._end_of(one, other)
        self._tc(_WIRES, "filter", "add", "dev", end, "ingress", "pref", "10", "bpf", "da", "bytecode", code)

    def unlose(self, one: str, other: str) -> None:
        with contextlib.suppress(OSError):
            self._tc(_WIRES, "filter", "del", "dev", self._end_of(one, other), "ingress", "pref", "10")

    def shape(self, rate: str) -> None:
        """What every cable carries, in words of tc."""
        self._rate = rate
        for one, other in self.cables:
            self.slow(one, other, rate)
            self.slow(other, one, rate)

    def slow(self, one: str, other: str, rate: str) -> None:
        words = ("tbf", "rate", rate, "burst", "4kb", "limit", "60kb")
        self._tc(one, "qdisc", "replace", "dev", f"to-{other}", "root", *words)

    def unslow(self, one: str, other: str) -> None:
        if self._rate is not None:
            self.slow(one, other, self._rate)
            return
        with contextlib.suppress(OSError):
            self._tc(one, "qdisc", "del", "dev", f"to-{other}", "root")

    def _tc(self, node: str, *words: str) -> None:
        _run("tc", "-n", self.ns(node), *words)
