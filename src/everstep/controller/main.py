"""One controller's life. Started, and started again, by the launcher.

Exit codes: 0 ended on SIGTERM; an EverstepError's code when it could not begin; 70 after a fault of its own.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from everstep.controller.api import Api
from everstep.controller.loop import Controller
from everstep.controller.peers.gate import Gate
from everstep.controller.peers.listening import Certificate, Place, check, serve
from everstep.controller.peers.readiness import allow_files, new_loop, spare_collector
from everstep.controller.record.copied import Copied
from everstep.controller.record.drafting import PoisonedError
from everstep.controller.record.ledger import Ledger
from everstep.controller.record.spec_file import ADDRESS_NAME, SECRET_NAME, Address, load_spec, save_json
from everstep.errors import ConfigError, EverstepError, JournalError
from everstep.linux import heap
from everstep.linux.logs import PrivateLog
from everstep.linux.parent import die_with_parent
from everstep.wire.credentials import RunSecret

EXIT_FAULT = 70

log = logging.getLogger("everstep.controller")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="everstep.controller")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--listen-fd", type=int, action="append", default=[], help="a socket on loopback")
    parser.add_argument("--tls-fd", type=int, action="append", default=[], help="a socket to listen on with TLS")
    parser.add_argument("--copied-fd", type=int, default=None, help="a socket that reports what other hosts have")
    parser.add_argument("--wait-fd", type=int, default=None, help="a socket that says when to begin; its end: never")
    parser.add_argument("--parent", type=int, default=0, help="process without which it must not run")
    parser.add_argument("--end-signal", type=int, default=int(signal.SIGTERM), help="what ends it in order")
    given = parser.parse_args(argv)
    if (
        given.end_signal != signal.SIGTERM
    ):  # a scheduler sends that to every process, and the launcher says what it means
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    if given.parent and not die_with_parent(given.parent, given.end_signal):
        return 0
    if given.wait_fd is not None and not _is_wanted(given.wait_fd):
        return 0
    heap.keep_little()
    run_dir: Path = given.run_dir
    _set_up_logging(run_dir / "controller.log")
    try:
        with contextlib.ExitStack() as opened:
            fds = [(fd, False) for fd in given.listen_fd] + [(fd, True) for fd in given.tls_fd]
            places = [Place(opened.enter_context(socket.socket(fileno=fd)), tls) for fd, tls in fds]
            fd = given.copied_fd
            copied = None
            if fd is not None:
                copied = opened.enter_context(contextlib.closing(Copied(socket.socket(fileno=fd))))
            return _run(run_dir, places, given.end_signal, copied)
    except EverstepError as error:
        log.error("%s", error)  # noqa: TRY400
        return error.exit_code
    except PoisonedError:
        return EXIT_FAULT  # said, with its traceback, where it happened
    except Exception:
        log.exception("the controller failed")
        return EXIT_FAULT


def _is_wanted(fd: int) -> bool:
    """Waits as long as that is not known."""
    with socket.socket(fileno=fd) as sock, contextlib.suppress(OSError):
        return bool(sock.recv(16))
    return False


def _run(run_dir: Path, places: list[Place], end_signal: int, copied: Copied | None) -> int:
    wanted = load_spec(run_dir)
    certificate = Certificate.of_run(run_dir)
    check(places, certificate)
    secret = RunSecret(_read(run_dir / SECRET_NAME), wanted.run)
    gate = Gate(secret, run=wanted.run, fingerprint=certificate.fingerprint if certificate is not None else "")
    ledger = Ledger.open(run_dir, wanted, pid=os.getpid(), at=time.time())
    try:
        allow_files(wanted.spec.num_slots + wanted.spec.num_standby)
        spare_collector()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            controller = Controller(run_dir, wanted, ledger, gate, copied)
            runner.run(_serve(controller, run_dir, places, certificate, end_signal))
    finally:
        ledger.close()
    return 0


async def _serve(
    controller: Controller, run_dir: Path, places: list[Place], certificate: Certificate | None, end_signal: int
) -> None:
    """Until `end_signal`, or SIGINT where that is SIGTERM. Raises PoisonedError."""
    await controller.settle()
    api = Api(controller)
    loop_task = asyncio.create_task(controller.run())
    works = (api.measure_lag(), controller.keep_live(), controller.keep_tables())
    aside = [asyncio.create_task(work) for work in works]
    for number in (end_signal, *([signal.SIGINT] if end_signal == signal.SIGTERM else [])):
        asyncio.get_running_loop().add_signal_handler(number, loop_task.cancel)
    runner = await serve(api.app(), places, certificate, gate=controller.gate, peers=controller.peers)
    try:
        spec = controller.ledger.state.spec
        is_wide = spec is not None and spec.on_hosts and places[-1].is_encrypted  # other hosts reach that one as well
        _announce(run_dir, places[-1] if is_wide else places[0], certificate)
        log.info("listening, journal at record %d", controller.ledger.journal.seq)
        with contextlib.suppress(asyncio.CancelledError):
            await loop_task
    finally:
        for task in aside:
            task.cancel()
        await asyncio.gather(*aside, return_exceptions=True)
        await runner.cleanup()


def _announce(run_dir: Path, place: Place, certificate: Certificate | None) -> None:
    host, port = place.sock.getsockname()[:2]
    fingerprint = certificate.fingerprint if place.is_encrypted and certificate is not None else ""
    try:
        save_json(run_dir / ADDRESS_NAME, Address(pid=os.getpid(), port=port, host=host, fingerprint=fingerprint))
    except JournalError as error:
        log.warning("%s; `everstep drill` and `approve` will not find this controller", error)


def _read(path: Path) -> str:
    try:
        secret = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if not secret:
        raise ConfigError(f"{path} is empty")
    return secret


def _set_up_logging(path: Path) -> None:
    """Everything into the file; what a person must know at once also to the launcher's terminal (stderr)."""
    logging.raiseExceptions = False  # a full disk must not turn log lines into tracebacks
    root, ours = logging.getLogger(), logging.getLogger("everstep")
    root.setLevel(logging.INFO)
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # strangers write its lines: they are counted instead
    with contextlib.suppress(OSError):
        to_file = PrivateLog(path)
        to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        root.addHandler(to_file)
    to_terminal = logging.StreamHandler(sys.stderr)
    to_terminal.setLevel(logging.WARNING)
    to_terminal.setFormatter(_Brief("everstep: controller: %(message)s"))
    ours.addHandler(to_terminal)


class _Brief(logging.Formatter):
    """Without tracebacks: they are in the file."""

    def formatException(self, ei: object) -> str:  # noqa: N802
        return ""
