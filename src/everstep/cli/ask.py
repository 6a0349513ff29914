"""Asks a run's controller for something (drill, approve, stop) over its HTTP port. No torch, no event loop.

The port comes from `controller.json` and the token from `token` in the run directory, so only a user who may read
the directory can ask.
"""

import contextlib
import getpass
import hashlib
import http.client
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from everstep.controller.record.spec_file import Address
from everstep.errors import ConfigError, UnreachableError
from everstep.journal.runs import RunDir
from everstep.linux.regular import read_regular

RETRY_FOR_S = 5.0
"""A controller that was killed is back well within this; a run without one for longer needs a look, not patience."""

ABSENT_FOR_S = 1.5
"""How long the journal may be without a writer: after that the run is over. A killed controller is replaced sooner."""

_TIMEOUT_S = 30.0
_ANSWER_S = 60.0  # for the whole answer
_MAX_ANSWER = 16 << 20
_MAX_FILE = 64 << 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,200}")

Answer = tuple[int, dict[str, Any]]  # HTTP status, decoded body


class AnswerLostError(UnreachableError):
    """The controller got the request and was gone before it answered; what it did is unknown here."""


def post(run_dir: RunDir, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer. Raises UnreachableError when no controller answers, ConfigError when it does not want to.

    What was sent is never sent twice: a connection that breaks afterwards is AnswerLostError.
    """
    begun = time.monotonic()
    while True:
        try:
            status, answer = _post_once(run_dir, path, body)
            break
        except OSError as error:
            waited_s = time.monotonic() - begun
            if waited_s > ABSENT_FOR_S and run_dir.controller_pid() is None:
                raise UnreachableError(f"the run in {run_dir.path} has no controller: it is over") from error
            if waited_s > RETRY_FOR_S:
                raise UnreachableError(f"the controller of {run_dir.path} does not answer: {error}") from error
            time.sleep(0.1)
    if status != http.HTTPStatus.OK:
        raise ConfigError(str(answer.get("error", f"the controller answered with status {status}")))
    return answer


def named(answer: dict[str, Any], key: str) -> str:
    """Return the name under `key` of something that the controller made. Files get this name: one of any other form
    raises UnreachableError."""
    name = answer.get(key)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UnreachableError(f"the answer names no {key}")
    return name


def _post_once(run_dir: RunDir, path: str, body: dict[str, Any]) -> Answer:
    """Raises OSError for whatever keeps us from an answer."""
    address, token = _known(run_dir)
    connection = None
    try:
        connection = _connection(address)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.connect()
        _check_certificate(connection, address)
        with _hurried(connection.sock):
            answer = _ask(connection, path, msgspec.json.encode(body), headers)
    except (http.client.HTTPException, msgspec.MsgspecError, RecursionError) as error:
        raise OSError(f"no proper answer: {error}") from error
    except (ValueError, OverflowError) as error:
        raise OSError(f"{run_dir.controller} is damaged: {error}") from error
    finally:
        if connection is not None:
            connection.close()
    return answer


def _known(run_dir: RunDir) -> tuple[Address, str]:
    """Address and token, both from one open directory, which may be another user's.

    A link in the place of its token would send a file of ours to where its `controller.json` points, and so would a
    directory that is exchanged in between."""
    at = os.open(run_dir.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        address = msgspec.json.decode(
            read_regular(run_dir.controller.name, _MAX_FILE, follow=False, at=at), type=Address
        )
        token = read_regular(run_dir.token.name, _MAX_FILE, follow=False, at=at).decode("ascii", "replace").strip()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OSError(f"{run_dir.controller} is damaged: {error}") from error
    finally:
        os.close(at)
    if not _TOKEN.fullmatch(token):
        raise OSError(f"{run_dir.token} holds no token")
    return address, token


@contextlib.contextmanager
def _hurried(sock: socket.socket) -> Iterator[None]:
    """Cut off a server that answers a byte now and then."""

    def cut() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_ANSWER_S, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _connection(address: Address) -> http.client.HTTPConnection:
    if not address.fingerprint:
        return http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is known by its fingerprint
    return http.client.HTTPSConnection(address.host, address.port, timeout=_TIMEOUT_S, context=context)


def _check_certificate(connection: http.client.HTTPConnection, address: Address) -> None:
    """Before anything is sent. Raises OSError."""
    if address.fingerprint:
        certificate = (
            connection.sock.getpeercert(binary_form=True) if isinstance(connection.sock, ssl.SSLSocket) else b""
        )
        if hashlib.sha256(certificate or b"").hexdigest() != address.fingerprint:
            raise OSError("who answers there does not have this run's certificate")


def _ask(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        data = response.read(_MAX_ANSWER + 1)
    except (ConnectionError, http.client.HTTPException) as error:
        raise AnswerLostError(f"the controller was gone before it answered: {error}") from error
    if len(data) > _MAX_ANSWER:
        raise http.client.HTTPException(f"more than {_MAX_ANSWER:,} bytes")
    answer = msgspec.json.decode(data)
    return response.status, answer if isinstance(answer, dict) else {}


def who() -> str:
    """The user's name, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return ""
