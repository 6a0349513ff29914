"""Asks a run's controller for something (drill, approve, stop) over its HTTP port. No torch, no event loop.

The port comes from `controller.json` and the token from `token` in the run directory, so only a user who may read
the directory can ask.
"""

import hashlib
import http.client
import ssl
import time
from typing import Any

import msgspec

from everstep.controller.record.spec_file import Address
from everstep.errors import ConfigError, UnreachableError
from everstep.journal.runs import RunDir

RETRY_FOR_S = 5.0
"""A controller that was killed is back well within this; a run without one for longer needs a look, not patience."""

ABSENT_FOR_S = 1.5
"""Nobody holds the journal for so long: the run is over. A controller that was killed is replaced sooner."""

_TIMEOUT_S = 30.0

Answer = tuple[int, dict[str, Any]]  # HTTP status, decoded body


class AnswerLostError(UnreachableError):
    """The controller got the request and was gone before it answered; nobody knows from here what it did."""


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


def _post_once(run_dir: RunDir, path: str, body: dict[str, Any]) -> Answer:
    """Raises OSError for whatever keeps us from an answer."""
    try:
        address = msgspec.json.decode(run_dir.controller.read_bytes(), type=Address)
        token = run_dir.token.read_text().strip()
    except msgspec.MsgspecError as error:
        raise OSError(f"{run_dir.controller} is damaged: {error}") from error
    connection = _connection(address)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.connect()
        _check_certificate(connection, address)
        answer = _ask(connection, path, msgspec.json.encode(body), headers)
    except (http.client.HTTPException, msgspec.MsgspecError) as error:
        raise OSError(f"no proper answer: {error}") from error
    finally:
        connection.close()
    return answer


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
        data = response.read()
    except (ConnectionError, http.client.HTTPException) as error:
        raise AnswerLostError(f"the controller was gone before it answered: {error}") from error
    answer = msgspec.json.decode(data)
    return response.status, answer if isinstance(answer, dict) else {}
