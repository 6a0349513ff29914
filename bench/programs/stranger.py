"""Another user of the machine, who does to a run whatever can be done without a credential. Started by bench/attack.py.

    python -P stranger.py SECONDS SHARED_DIR OUT      as that user; OUT: where to write what was achieved

It finds the run as anybody would: sockets that listen, processes, names in shared directories. Everything that it could
do is a line of OUT; everything that it could read is appended to OUT.read, in which the caller looks for secrets.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from pathlib import Path

CROWD = 150  # idle connections to each port
MOST_READ = 64 << 20
NEVER_OURS = 1 << 15  # ports of services that were there before are not attacked


class Stranger:
    def __init__(self, seconds: float, shared: Path, out: Path) -> None:
        self.until = time.monotonic() + seconds
        self.shared = shared
        self.out = out
        self.done: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self.num_read = 0
        self.lock = threading.Lock()

    def going(self) -> bool:
        return time.monotonic() < self.until

    def achieved(self, what: str) -> None:
        with self.lock:
            self.done[what] += 1

    def keep(self, data: bytes) -> None:
        with self.lock:
            if self.num_read < MOST_READ:
                self.num_read += len(data)
                with Path(f"{self.out}.read").open("ab") as file:
                    file.write(data)


def listening() -> list[int]:
    """Ports on which somebody listens; everybody may know."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


def others() -> list[int]:
    mine = os.getuid()
    pids = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            if Path(entry.path).stat().st_uid != mine and b"everstep" in Path(entry.path, "cmdline").read_bytes():
                pids.append(pid)
    return pids


def connected(port: int, wait_s: float = 2.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=wait_s)


def crowd(stranger: Stranger, ports: list[int]) -> None:
    """Idle connections, renewed when they are cut."""
    held: list[socket.socket] = []
    for port in itertools.cycle(ports):
        if not stranger.going():
            return
        with contextlib.suppress(OSError):
            sock = connected(port)
            sock.setblocking(False)
            held.append(sock)
            stranger.tried["idle connection"] += 1
        while len(held) > CROWD * len(ports):
            held.pop(0).close()
        time.sleep(0.01)


def garbage(stranger: Stranger, ports: list[int]) -> None:
    draw = random.Random(1)
    says = [
        lambda: draw.randbytes(draw.randrange(4000)),
        lambda: b"GET /link HTTP/1.1\r\nHost: x\r\nAuthorization: Everstep agent:n0:00\r\nUpgrade: websocket\r\n\r\n",
        lambda: b"POST /api/stop HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}",
        lambda: (
            b"GET /api/journal HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nCookie: a=b\r\n\r\n"
        ),
        lambda: b"GET http://evil.example/api/status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\r\n\r\n",
        lambda: b"GET /?token=" + draw.randbytes(12).hex().encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        lambda: b"GET / HTTP/1.1\r\nHo",
        lambda: b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\nffffffff\r\n",
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(300),
        lambda: b"EVTRANS\x01" + draw.randbytes(64),
        lambda: (1 << 30).to_bytes(4, "big") + b"x" * 65536,
        lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * (1 << 20),
    ]
    while stranger.going():
        port = draw.choice(ports)
        with contextlib.suppress(OSError):
            with connected(port) as sock:
                stranger.tried["garbage"] += 1
                sock.sendall(draw.choice(says)())
                sock.settimeout(0.3)
                answer = sock.recv(65536)
                stranger.keep(answer)
                if answer.startswith(b"HTTP/1.1 200") or b" 101 " in answer[:20]:
                    stranger.achieved(f"an answer: {answer[:60]!r}")
        time.sleep(0.005)


def joins(stranger: Stranger, ports: list[int]) -> None:
    """Hosts with a wrong token, and such as stop in the middle."""
    context = ssl._create_unverified_context()
    for port in itertools.cycle(ports):
        if not stranger.going():
            return
        with contextlib.suppress(OSError, ValueError):
            with context.wrap_socket(connected(port)) as sock:
                stranger.tried["TLS"] += 1
                sock.settimeout(0.5)
                sock.recv(4096)
                knock = b"\x85\xa1m\xa5Knock\xa8protocol\x01\xb0everstep_version\xa10\xa5nonce\xa1n\xa5proof\xa2ab"
                sock.sendall(len(knock).to_bytes(4, "big") + knock)
                stranger.keep(sock.recv(4096))
        time.sleep(0.02)


def slow(stranger: Stranger, ports: list[int]) -> None:
    """Asks much and reads nothing; says a byte now and then."""
    held: list[socket.socket] = []
    for port in itertools.cycle(ports):
        if not stranger.going():
            return
        with contextlib.suppress(OSError):
            sock = connected(port)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(b"GET /api/journal?after=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50 + b"G")
            sock.setblocking(False)
            held.append(sock)
            stranger.tried["slow reader"] += 1
        for other in held[-20:]:
            with contextlib.suppress(OSError):
                other.send(b"E")
        while len(held) > 400:
            held.pop(0).close()
        time.sleep(0.05)


def processes(stranger: Stranger) -> None:
    while stranger.going():
        for pid in others():
            for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGUSR1, signal.SIGRTMIN + 8):
                stranger.tried["signal"] += 1
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
                    stranger.achieved(f"signal {number}")
            for name in (
                "environ",
                "mem",
                "maps",
                "io",
                "stack",
                "syscall",
                "auxv",
                "cmdline",
                "status",
                "stat",
                "wchan",
            ):
                stranger.tried["/proc"] += 1
                with contextlib.suppress(OSError):
                    stranger.keep(read(f"/proc/{pid}/{name}"))
            with contextlib.suppress(OSError):
                for fd in Path(f"/proc/{pid}/fd").iterdir():
                    stranger.achieved(f"descriptors of {pid}")
                    stranger.keep(read(str(fd)))
        time.sleep(0.5)


def read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)


def files(stranger: Stranger) -> None:
    """Reads whatever is in reach of the shared directory, and plants: modules, links, names that will be used."""
    names = ["secrets.py", "random.py", "json.py", "queue.py", "torch.py", "everstep.py", "sitecustomize.py"]
    marker = stranger.out.with_suffix(".ran")
    while stranger.going():
        for top in (stranger.shared, Path("/dev/shm")):
            for folder, folders, found in os.walk(top):
                folders[:] = [each for each in folders if not each.startswith("of-the-stranger")]
                for name in found:
                    stranger.tried["file"] += 1
                    path = f"{folder}/{name}"
                    with contextlib.suppress(OSError):
                        if os.lstat(path).st_uid != os.getuid():
                            stranger.keep(read(path))
                            if not name.endswith(".py"):
                                stranger.achieved(f"read {name}")
                    with contextlib.suppress(OSError):
                        if os.lstat(path).st_uid != os.getuid():
                            os.close(os.open(path, os.O_WRONLY))
                            stranger.achieved(f"wrote {name}")
        for name in names:
            with contextlib.suppress(OSError):
                (stranger.shared / "work" / name).write_text(f"open({str(marker)!r}, 'a').write(__name__ + '\\n')\n")
                stranger.tried["planted"] += 1
        for name in ("run2", "runs", "latest", "everstep.lock", "torchelastic_ultra", "pymp-aaaa"):
            with contextlib.suppress(OSError):
                (stranger.shared / "tmp" / name).symlink_to("/etc/passwd")
        time.sleep(1.0)


def fill(stranger: Stranger) -> None:
    """The shared temporary directory, to the last byte, and its names."""
    path = stranger.shared / "tmp" / "of-the-stranger"
    while stranger.going():
        with contextlib.suppress(OSError):
            with path.open("ab") as file:
                while stranger.going():
                    file.write(bytes(1 << 20))
        stranger.tried["filled"] += 1
        time.sleep(0.5)


def main() -> int:
    seconds, shared, out, *wanted = sys.argv[1:]
    stranger = Stranger(float(seconds), Path(shared), Path(out))
    ports = [int(port) for port in wanted] or [port for port in listening() if port > NEVER_OURS]
    work = [(crowd, ports), (garbage, ports), (garbage, ports), (joins, ports), (slow, ports)]
    threads = [threading.Thread(target=each, args=(stranger, some), daemon=True) for each, some in work]
    threads += [threading.Thread(target=each, args=(stranger,), daemon=True) for each in (processes, files, fill)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.1, stranger.until - time.monotonic()) + 10)
    stranger.out.write_text(json.dumps({"tried": stranger.tried, "done": stranger.done}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
