"""`everstep run`, from the arguments to the exit code. Everything that can be known to be wrong is found before the
first process starts. Called by `cli.run`.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from everstep import health
from everstep.agent.streams.streams import of_this_process
from everstep.controller.record.spec_file import READ_TOKEN_NAME
from everstep.engines.network import Network, is_of_its_own, open_network
from everstep.engines.slurm.batch import note_exit_code
from everstep.errors import ConfigError
from everstep.journal.beside import continued
from everstep.journal.runs import home
from everstep.launcher import error_file
from everstep.launcher.arguments import checkpoints, checks, machine
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.arguments.settings import Settings, resolve
from everstep.launcher.early_signals import EarlySignals
from everstep.launcher.foreign.translating import Translated
from everstep.launcher.narration import Narration
from everstep.launcher.output.notifying import end_notifier, start_exporter, start_notifier
from everstep.launcher.output.room import Room
from everstep.launcher.output.shown import check_streams
from everstep.launcher.output.terminal import Terminal
from everstep.launcher.reach import token as tokens
from everstep.launcher.reach.place import claim
from everstep.launcher.rundir.rundir import Prepared, prepare
from everstep.launcher.showing import shown, tails_of
from everstep.launcher.stores.stores import Stores, stores_for
from everstep.launcher.supervise import End, Supervisor
from everstep.launcher.versions import versions
from everstep.launcher.versions.old_copies import remove_old_copies
from everstep.linux import heap
from everstep.linux.logs import PrivateLog
from everstep.model.names import own_machine_name
from everstep.model.spec import RunSpec
from everstep.version import __version__

if TYPE_CHECKING:
    from everstep.launcher.hosts.first import First

_COPY_LIMIT_S = 2.0
"""How long the end of a run waits for the copy of its code, which will not be rolled back to."""


def launch(asked: Translated) -> int:
    """everstep's code of how it ended. Raises EverstepError for what is wrong with what was asked for."""
    settings = resolve(asked.given, os.environ)
    settings = msgspec.structs.replace(settings, unset=asked.unset, notes=(*asked.notes, *settings.notes))
    signals = signal_numbers(settings.signals)
    check_streams(settings.redirects, settings.tee, settings.nproc_per_node)
    if "TORCHELASTIC_SIGNALS_TO_HANDLE" not in settings.unset:
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(settings.signals)  # for the ranks, as torchrun does
    machine.check_limits()
    checks.check_program(settings)
    heap.keep_little()
    if settings.hosts is not None:
        return _launch_on_hosts(settings, settings.hosts, signals)
    return _launch(settings, signals, None)


def _launch_on_hosts(settings: Settings, hosts: Hosts, signals: tuple[int, ...]) -> int:
    """Act as the first host if this host owns the endpoint and its run does not continue elsewhere, else as one that
    joins."""
    from everstep.launcher.hosts.first import First  # most runs have one host, and load none of this
    from everstep.launcher.joining.joining import join
    from everstep.launcher.succession.returning import find_led

    token = tokens.given(os.environ)
    meeting = claim(hosts)
    if meeting is None:
        return join(settings, hosts, token, torch_version(), _cwd(), signals)
    with meeting:
        led = find_led(hosts, meeting.getsockname()[:2], settings.run_dir, token)
        if led is None:
            return _launch(settings, signals, First(hosts, meeting, token))
        return join(settings, led.hosts, led.token, torch_version(), _cwd(), signals, at_endpoint=meeting)


def _launch(settings: Settings, signals: tuple[int, ...], first: "First | None") -> int:
    checkpoints.check(settings.checkpoints)
    early = EarlySignals()
    with early.kept(signals):
        return _launch_signalled(settings, signals, first, early)


def _launch_signalled(settings: Settings, signals: tuple[int, ...], first: "First | None", early: EarlySignals) -> int:
    prepared = prepare(settings, _spec(settings))
    places: tuple[Path, ...] = ()
    try:
        network, said = open_network(settings.network) if first is None else first.network()
        if first is not None:
            prepared.keys.encrypt_snapshots()
            first, places = first.with_token(prepared.path)
        if settings.tls == "always" or is_of_its_own(network):
            prepared.keys.certify()
        is_encrypted = settings.tls == "always"
        prepared = msgspec.structs.replace(prepared, is_encrypted=is_encrypted, notes=(*prepared.notes, *said))
        prepared = msgspec.structs.replace(prepared, found=checkpoints.find(prepared.file.spec))
        with checks.bind(settings.ui_port, "--ui-port") as listener, _logging(prepared.path / "launcher.log"):
            stores = stores_for(settings, network)
            code = _supervise(settings, prepared, listener, stores, network, signals, first, early)
            on_slurm = settings.hosts is not None and settings.hosts.slurm is not None
            if on_slurm and not continued.is_elsewhere(prepared.path):  # else it is another host's to say
                note_exit_code(prepared.path, code)
            return code
    finally:
        tokens.forget(places)
        os.close(prepared.lock_fd)


@contextlib.contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Log what only helps to debug Everstep itself; never on the terminal."""
    root, handler = logging.getLogger(), PrivateLog(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.raiseExceptions = False  # a full disk must not turn log lines into tracebacks
    root.addHandler(handler)
    logging.getLogger("everstep").setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def signal_numbers(names: Sequence[str]) -> tuple[int, ...]:
    """Raises ConfigError for what is no signal, or cannot be handled."""
    numbers = []
    for name in names:
        number = getattr(signal, name, None)
        if not isinstance(number, signal.Signals) or number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise ConfigError(f"--signals-to-handle: {name!r} is not a signal that can be handled, as SIGTERM,SIGINT")
        numbers.append(int(number))
    return tuple(numbers)


def _supervise(
    settings: Settings,
    prepared: Prepared,
    listener: socket.socket,
    stores: Stores,
    network: Network,
    signals: tuple[int, ...],
    first: "First | None",
    early: EarlySignals,
) -> int:
    narration, room = Narration(prepared.path), Room(prepared.path)
    terminal = Terminal(lambda: [*narration.lines(), *room.lines()], narration.live)
    origin = of_this_process()
    fleet = first.fleet(prepared, terminal.say) if first is not None else None
    tails = tails_of(shown(settings, prepared.file.spec, prepared.path), terminal, is_one=origin.is_one)
    if fleet is not None:
        for tail in tails:
            tail.is_elsewhere = fleet.received.is_elsewhere
    for line in header(prepared, listener.getsockname()[1]):
        terminal.write(2, os.fsencode(line) + b"\n")  # a path as it is
    for note in (*settings.notes, *prepared.notes, *_health_notes(), *filter(None, [machine.unseen(os.environ)])):
        terminal.say(note)
    if prepared.file.attempt > 1:
        for tail in tails:
            tail.skip_existing()
        narration.skip_existing()
    terminal.start(*tails)
    copying = threading.Thread(target=_beside_the_start, args=(prepared, terminal), name="everstep-code", daemon=True)
    copying.start()
    tellers = (start_notifier(settings.notices, prepared.path), start_exporter(prepared.path, os.environ))
    end = End(exit_code=1, outcome="failed", why="the launcher failed")

    async def supervise() -> End:
        supervisor = Supervisor(
            prepared,
            listener=listener,
            stores=stores,
            network=network,
            signals=signals,
            terminal=terminal,
            origin=origin,
            what_is_left=settings.leftovers,
            fleet=fleet,
        )
        return await supervisor.run(early.take)

    try:
        end = asyncio.run(supervise())
    finally:
        for teller in tellers:
            end_notifier(teller)
        copying.join(_COPY_LIMIT_S)
        terminal.finish(lambda: narration.summary(end), is_hurried=end.exit_code > 128)
    if end.outcome == "stopped":
        error_file.write_error("SignalException", f"Process {os.getpid()} got signal: {end.why}", os.environ)
    elif end.exit_code:
        error_file.write_report_of(narration.view, prepared.path, os.environ)
    return end.exit_code


def _beside_the_start(prepared: Prepared, terminal: Terminal) -> None:
    """Do what takes long and nothing waits for, at a lower priority than the ranks."""
    if crowded := checks.crowded(prepared.file.spec.world_size):
        terminal.say(crowded)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    spec = prepared.file.spec
    why = versions.copy_start(spec) if spec.code_copy else ""
    with contextlib.suppress(ConfigError):  # no home: nothing of earlier runs is there
        remove_old_copies(home() / "runs")
    if why:
        terminal.say(f"no copy of the code is kept ({why}): a way back to it would run what is in the directory then")


def header(prepared: Prepared, port: int) -> list[str]:
    """The first lines on the terminal: what runs, under which rules, and where to look."""
    spec, policy = prepared.file.spec, prepared.file.policy
    scheme = "https" if prepared.is_encrypted else "http"
    nodes = f"{spec.num_slots} node{'s' if spec.num_slots > 1 else ''}"
    nodes = f"{spec.min_slots} to {nodes}" if spec.is_elastic else nodes
    ranks = f"{spec.world_size} rank{'s' if spec.world_size > 1 else ''}"
    attempt = f"  attempt {prepared.file.attempt}" if prepared.file.attempt > 1 else ""
    standby = f", {spec.num_standby} standby" if spec.num_standby else ""
    what = f"everstep {__version__}  run {prepared.file.run}{attempt}  policy {policy.name}  mode {spec.mode}"
    lines = [
        f"{what}      journal {prepared.path / 'journal.jsonl'}",
        f"  {nodes} x {spec.nproc_per_node} = {ranks}{standby}          ui {scheme}://127.0.0.1:{port}/{_token(prepared)}",
        checkpoints.header_line(spec, prepared.found),
    ]
    return [line for line in lines if line]


def _token(prepared: Prepared, fd: int = 2) -> str:
    """Return the query that makes the link open the page. If a file that other users may read takes the output, as a
    batch system's log often does, the query names the token's file instead of the token."""
    with contextlib.suppress(OSError):
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o044:
            return f"?token=<content of {prepared.path / READ_TOKEN_NAME}>"
    return f"?token={prepared.keys.read_token}"


def _health_notes() -> list[str]:
    """A quarantined machine is the user's own here, so it is used; but not without a word."""
    host = own_machine_name(socket.gethostname())
    known = health.state_of(host, time.time())
    if known is None or known.state is not health.State.QUARANTINED:
        return []
    return [f"this machine is quarantined ({known.why}): everstep node show {host}; the run starts all the same"]


def _spec(settings: Settings) -> RunSpec:
    return RunSpec(
        program=settings.program,
        args=settings.args,
        launch=settings.launch,
        num_slots=settings.num_slots,
        min_slots=settings.min_slots,
        max_slots=settings.num_slots if settings.min_slots else 0,
        nproc_per_node=settings.nproc_per_node,
        num_standby=settings.num_standby,
        mode=settings.mode,
        role=settings.role,
        torch_version=torch_version(),
        cwd=_cwd(),
        redirects="0" if settings.log_dir == os.devnull else settings.redirects,
        tee="0" if settings.log_dir == os.devnull else settings.tee,
        shown_local_ranks=settings.shown_local_ranks,
        checkpoint_dir=settings.checkpoints.dir,
        checkpoint_every_s=settings.checkpoints.every_s,
        checkpoint_keep=settings.checkpoints.keep,
        init_from=settings.checkpoints.init_from,
        rdzv_id=settings.rdzv_id,
        on_hosts=settings.hosts is not None,
        virtual_local_rank=settings.virtual_local_rank,
        unset=settings.unset,
    )


def _cwd() -> str:
    """Empty for a directory whose name is not UTF-8: no message carries it, and agents start where the launcher did."""
    cwd = str(Path.cwd())
    try:
        cwd.encode()
    except UnicodeEncodeError:
        return ""
    return cwd


def torch_version() -> str:
    """The version of the installed torch, without importing it; empty: there is none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
