"""Receivers of notices on loopback, each with a fault of its own: real sockets, a thread for each connection."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Self

DRIBBLE_S = 1.0
_FINE = b'{"ok": true, "ts": "1.1", "channel": "C1"}'


class OddReceiver:
    """`kind`: a key of `KINDS`. `got`: what arrived, as far as it was read."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.got: list[bytes] = []
        self.over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/x"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            KINDS[self.kind](self, sock)


def _asked(receiver: OddReceiver, sock: socket.socket) -> bytes:
    """One request, whole."""
    data = b""
    while b"\r\n\r\n" not in data and (part := sock.recv(65536)):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    wanted = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < wanted and (part := sock.recv(65536)):
        body += part
    receiver.got.append(body)
    return body


def _answers(status: str, body: bytes = b"", more: str = "") -> Callable[[OddReceiver, socket.socket], None]:
    def serve(receiver: OddReceiver, sock: socket.socket) -> None:
        _asked(receiver, sock)
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
        sock.sendall(head.encode() + body)

    return serve


def _hangs(receiver: OddReceiver, _sock: socket.socket) -> None:
    receiver.over.wait()


def _closes(_receiver: OddReceiver, _sock: socket.socket) -> None:
    """At once, without a word."""


def _endless(receiver: OddReceiver, sock: socket.socket) -> None:
    _asked(receiver, sock)
    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not receiver.over.is_set():
        sock.sendall(b"x" * 65536)


def _dribbles(receiver: OddReceiver, sock: socket.socket) -> None:
    """A header without an end, always in time for the next byte."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not receiver.over.wait(DRIBBLE_S):
        sock.sendall(b"x")


def _mail(receiver: OddReceiver, sock: socket.socket) -> None:
    sock.sendall(b"220 here\r\n")
    mail: list[bytes] | None = None
    for line in sock.makefile("rb"):
        if mail is not None and line != b".\r\n":
            mail.append(line)
            continue
        if mail is not None:
            receiver.got.append(b"".join(mail))
            mail = None
        elif line.upper().startswith(b"DATA"):
            mail = []
        sock.sendall(b"354 go on\r\n" if mail is not None else b"250 fine\r\n")


def _mail_refuses(_receiver: OddReceiver, sock: socket.socket) -> None:
    sock.sendall(b"554 no\r\n")


def _mail_endless(receiver: OddReceiver, sock: socket.socket) -> None:
    while not receiver.over.is_set():
        sock.sendall(b"220-and more\r\n" * 512)


def _mail_dribbles(receiver: OddReceiver, sock: socket.socket) -> None:
    sock.sendall(b"220-")
    while not receiver.over.wait(DRIBBLE_S):
        sock.sendall(b"x")


KINDS: dict[str, Callable[[OddReceiver, socket.socket], None]] = {
    "fine": _answers("200 OK", _FINE),
    "500": _answers("500 Internal Server Error", b"sorry"),
    "redirects": _answers("307 Temporary Redirect", more="Location: http://127.0.0.1:9/elsewhere\r\n"),
    "garbage": _answers("200 OK", b"[" * 60_000),
    "hangs": _hangs,
    "closes": _closes,
    "endless": _endless,
    "dribbles": _dribbles,
    "mail": _mail,
    "mail-refuses": _mail_refuses,
    "mail-endless": _mail_endless,
    "mail-dribbles": _mail_dribbles,
}


def keys_of(receiver: OddReceiver) -> list[str]:
    """Of the incidents that a web hook was told, in order."""
    return [json.loads(body)["key"] for body in receiver.got]
