"""Ends of one rank, each with the party at fault: exceptions that are really raised here, exit codes and signals.

`EXCEPTIONS` are functions that raise; `RAISED` builds exceptions whose cause cannot be had without a broken machine.
Used by harmless_lines.py.
"""

import asyncio
import contextlib
import errno
import http.client
import importlib
import json
import os
import queue
import smtplib
import socket
import ssl
import struct
import subprocess
import threading
import time
import traceback
import urllib.request
import xmlrpc.client
from collections.abc import Callable, Iterator
from pathlib import Path

from everstep.model.facts import ErrorReport

Raising = Callable[[], object]
EXCEPTIONS: dict[str, tuple[str, Raising]] = {}
RANK_DIED_AT = 1000.0


def party(name: str) -> Callable[[Raising], Raising]:
    def keep(function: Raising) -> Raising:
        EXCEPTIONS[function.__name__.strip("_").replace("_", "-")] = (name, function)
        return function

    return keep


def reported(raising: Raising) -> ErrorReport:
    """What a rank would report of it."""
    try:
        raising()
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        return ErrorReport(
            kind=type(error).__name__, message=str(error), traceback=text, at=RANK_DIED_AT, place="t.py:3"
        )
    raise AssertionError(f"{raising} raised nothing")


@contextlib.contextmanager
def _server(reply: bytes, delay_s: float = 0.0, *, resets: bool = False) -> Iterator[int]:
    """Answers every request with `reply`, late, or by a reset."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                if reply or resets:
                    connection.recv(65536)
                if resets:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                time.sleep(delay_s)
                if reply:
                    connection.sendall(reply)
                connection.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.close()


def _get(port: int, scheme: str = "http") -> bytes:
    with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/shard", timeout=0.1) as answer:
        return bytes(answer.read())


def _closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@party("network")
def url_timeout() -> None:
    with _server(b"", 0.3) as port:
        _get(port)


@party("network")
def url_reset() -> None:
    with _server(b"", resets=True) as port:
        _get(port)


@party("network")
def url_closed() -> None:
    with _server(b"") as port:
        _get(port)


@party("network")
def url_truncated() -> None:
    with _server(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc") as port:
        _get(port)


@party("network")
def url_garbage() -> None:
    with _server(b"hello\r\n") as port:
        _get(port)


@party("network")
def url_503() -> None:
    with _server(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n") as port:
        _get(port)


@party("network")
def url_tls() -> None:
    with _server(b"hello\r\n") as port:
        _get(port, "https")


@party("network")
def url_name() -> None:
    urllib.request.urlopen("http://no-such.invalid/x", timeout=1)


@party("network")
def http_client_refused() -> None:
    http.client.HTTPConnection("127.0.0.1", _closed_port(), timeout=1).request("GET", "/")


@party("network")
def socket_timeout() -> None:
    with _server(b"", 0.3) as port:
        socket.create_connection(("127.0.0.1", port), 0.1).recv(1)


@party("network")
def socket_refused() -> None:
    socket.create_connection(("127.0.0.1", _closed_port()), 1)


@party("network")
def tls_timeout() -> None:
    with _server(b"", 0.3) as port:
        plain = socket.create_connection(("127.0.0.1", port), 0.1)
        ssl.create_default_context().wrap_socket(plain, server_hostname="x")


@party("network")
def smtp_closed() -> None:
    with _server(b"") as port:
        smtplib.SMTP("127.0.0.1", port, timeout=0.3)


@party("network")
def xmlrpc_gateway() -> None:
    with _server(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n") as port:
        xmlrpc.client.ServerProxy(f"http://127.0.0.1:{port}/").step()


@party("network")
def asyncio_refused() -> None:
    asyncio.run(_open(_closed_port()))


@party("network")
def asyncio_incomplete() -> None:
    with _server(b"ab") as port:
        asyncio.run(_open(port))


async def _open(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    return await reader.readexactly(10)


@party("network")
def wrapped_timeout() -> None:
    try:
        url_timeout()
    except OSError as error:
        raise RuntimeError("could not fetch shard 7") from error


@party("network")
def rewrapped_timeout() -> None:
    try:
        url_timeout()
    except OSError:
        raise RuntimeError("giving up on shard 7")  # noqa: B904 - many programs do


@party("user")
def handler_bug() -> None:
    try:
        url_timeout()
    except OSError:
        {}["weight"]


@party("user")
def bad_url() -> None:
    urllib.request.urlopen("htp:/x")


@party("user")
def key_error() -> None:
    {}["connection timeout"]


@party("user")
def index_error() -> None:
    [][3]


@party("user")
def value_error() -> None:
    int("12a")


@party("user")
def assertion() -> None:
    raise AssertionError("loss is not finite")


@party("user")
def runtime() -> None:
    raise RuntimeError("expected a batch of 32, got 31")


@party("user")
def shapes() -> None:
    import torch

    torch.ones(4, 8) @ torch.ones(4, 8)


@party("user")
def backward_twice() -> None:
    import torch

    weight = torch.ones(2, requires_grad=True)
    loss = (weight * weight).sum()
    loss.backward()
    loss.backward()


@party("user")
def no_file() -> None:
    Path("/nowhere/tokenizer.json").read_text()


@party("user")
def bad_json() -> None:
    json.loads("{'a'")


@party("user")
def no_module() -> None:
    importlib.import_module("flash_attention_of_nobody")


@party("user")
def recursion() -> None:
    def again() -> None:
        again()

    again()


@party("user")
def subprocess_failed() -> None:
    subprocess.run(["false"], check=True)


@party("user")
def queue_empty() -> None:
    queue.Queue().get(timeout=0.01)


@party("user|environment")
def memory_error() -> None:
    bytearray(1 << 60)


@party("user|environment")
def torch_memory() -> None:
    import torch

    torch.empty(1 << 50)


def _os_error(number: int, path: str) -> Raising:
    def raise_it() -> None:
        raise OSError(number, os.strerror(number), path)

    return raise_it


def _raise(error: BaseException) -> Raising:
    def raise_it() -> None:
        raise error

    return raise_it


_STORAGE = ("ENOSPC", "EDQUOT", "EIO", "ESTALE", "ENOTCONN", "EHOSTDOWN", "ETIMEDOUT", "EREMOTEIO", "ENODEV", "ENXIO")
for _name in _STORAGE:
    EXCEPTIONS[_name] = ("storage", _os_error(getattr(errno, _name), "/data/shard-0"))
for _name in ("EMFILE", "ENFILE", "EFBIG", "EAGAIN"):
    EXCEPTIONS[_name] = ("environment", _os_error(getattr(errno, _name), "/data/shard-0"))
EXCEPTIONS["EROFS"] = ("storage|environment", _os_error(errno.EROFS, "/mnt/ckpt/step-9.pt"))
EXCEPTIONS["EUCLEAN"] = ("storage|machine", _os_error(errno.EUCLEAN, "/data/shard-0"))
EXCEPTIONS["shm-full"] = ("environment", _os_error(errno.ENOSPC, "/dev/shm/torch_123"))

_LAST_WORDS = {
    "threads": ("environment", "can't start new thread"),
    "shm-files": (
        "environment",
        "unable to open shared memory object </torch_1_2_0> in read-write mode: Too many open files (24)",
    ),
    "bus-worker": (
        "environment",
        "DataLoader worker (pid 123) is killed by signal: Bus error. Its workers may lack shared memory.",
    ),
    "ancdata": ("environment", "received 0 items of ancdata"),
    "ecc": ("machine", "CUDA error: uncorrectable ECC error encountered"),
    "device-assert": ("user", "CUDA error: device-side assert triggered"),
    "cuda-memory": ("user", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB."),
}
for _name, (_party, _text) in _LAST_WORDS.items():
    EXCEPTIONS[_name] = (_party, _raise(RuntimeError(_text)))

ENDINGS: dict[str, tuple[str, dict[str, int]]] = {
    "exit-1": ("user", {"code": 1}),
    "exit-3": ("user", {"code": 3}),
    "exit-137": ("unknown", {"code": 137}),
    "segfault": ("user", {"signal": 11}),
    "abort": ("user", {"signal": 6}),
    "division": ("user", {"signal": 8}),
    "bus-error": ("unknown", {"signal": 7}),
    "illegal-instruction": ("unknown", {"signal": 4}),
    "killed": ("operator", {"signal": 9}),
    "terminated": ("operator", {"signal": 15}),
    "processor-time": ("environment", {"signal": 24}),
    "file-size": ("environment", {"signal": 25}),
}
"""Ends without words: exit codes and signals."""
