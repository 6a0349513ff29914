"""Asks a run's controller for something (drill, approve, stop) over its HTTP port. No torch, no event loop.

The port comes from `controller.json` and the token from `token` in the run directory, so only somebody who may read
the directory can ask.
"""

import http.client
import time
from typing import Any

import msgspec

from everstep.controller.spec_file import Address
from everstep.errors import ConfigError, UnreachableError
from everstep.journal.runs import RunDir

RETRY_FOR_S = 5.0
"""A controller that was killed is back well within this; a run without one for longer needs a look, not patience."""

ABSENT_FOR_S = 1.5
"""Nobody holds the journal for so long: the run is over. A controller that was killed is replaced sooner."""

_TIMEOUT_S = 30.0


def post(run_dir: RunDir, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer. Raises UnreachableError when no controller answers, ConfigError when it does not want to."""
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


def _post_once(run_dir: RunDir, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Raises OSError for whatever keeps us from an answer."""
    try:
        address = msgspec.json.decode(run_dir.controller.read_bytes(), type=Address)
        token = run_dir.token.read_text().strip()
    except msgspec.MsgspecError as error:
        raise OSError(f"{run_dir.controller} is damaged: {error}") from error
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=_TIMEOUT_S)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", path, msgspec.json.encode(body), headers)
        response = connection.getresponse()
        answer = msgspec.json.decode(response.read())
    except (http.client.HTTPException, msgspec.MsgspecError) as error:
        raise OSError(f"no proper answer: {error}") from error
    finally:
        connection.close()
    return response.status, answer if isinstance(answer, dict) else {}
