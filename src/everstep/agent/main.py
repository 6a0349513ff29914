"""The agent process: `python -m everstep.agent --run-dir D --node N --controller URL --nproc K`.

Started by the launcher, once per node. It ties the parts together and ends them: on SIGTERM, on the controller's
Finish, or with its launcher. It imports neither torch nor the user's code.
"""

import argparse
import asyncio
import importlib
import json
import logging
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from everstep.agent.copies.copies import Copies
from everstep.agent.lease.clock import LOOK_S as LEASE_LOOK_S
from everstep.agent.lease.clock import Lease
from everstep.agent.lease.doubt import LeaseGate
from everstep.agent.lease.following import Following
from everstep.agent.memory.arenas import Memory
from everstep.agent.memory.kept_memory import KeptMemory
from everstep.agent.node import END_GRACE_S, PROGRESS_S, Node
from everstep.agent.processes.environment import base_environment
from everstep.agent.processes.error_reports import warm_up
from everstep.agent.processes.holding import Line, is_warden
from everstep.agent.processes.nccl_plugin import profiler_for
from everstep.agent.processes.reaping import Reaper
from everstep.agent.processes.signals import handle
from everstep.agent.ranks.bequest import Bequest
from everstep.agent.ranks.starting import Home
from everstep.agent.ranks.warden import Warden
from everstep.agent.senses.aside import aside
from everstep.agent.senses.links import Links
from everstep.agent.senses.starting import sense
from everstep.agent.streams.spool import Spool
from everstep.agent.streams.streams import Origin
from everstep.agent.watching import observing
from everstep.agent.watching.monitor import LOOK_S
from everstep.checkpoint.transport import Tls
from everstep.core.restore.racks import why_no_rack
from everstep.core.state.policy import Policy
from everstep.engines.lateness import BEAT_S
from everstep.engines.network.namespaces import INTERFACE, enter
from everstep.errors import ConfigError, EverstepError, LeaseOverError
from everstep.journal.runs import home
from everstep.linux import heap
from everstep.linux.logs import PrivateLog
from everstep.linux.parent import die_with_parent
from everstep.model import events
from everstep.model.spec import RunSpec
from everstep.wire.credentials import CREDENTIALS_NAME, Credentials
from everstep.wire.greeting import RejectedError
from everstep.wire.link import Link
from everstep.wire.local import Frame
from everstep.wire.messages import Command

_FLUSH_S = 1.0
_PROBES_AGAIN_S = 60.0
_WARM_UP_S = 3.0
_INSPECT_AFTER_S = 5.0
_ORPHAN_GRACE_S = 0.5
"""Time for the workers' own clean-up when the launcher was killed: a user can no longer end a stubborn one by hand."""

_log = logging.getLogger(__name__)


class _Options(argparse.Namespace):
    run_dir: Path
    node: str
    controller: str
    nproc: int
    run: str
    max_restarts: int
    parent: int
    end_signal: int
    keeper_fd: int | None
    address: str
    namespace_fd: int | None
    streams: str
    rack: str
    slot: int | None
    interface: str
    cwd: str


def main(argv: Sequence[str] | None = None, line: Line | None = None) -> int:
    """Exit code: 0 after an orderly end, the error's own otherwise. `line`: the processes above this one, if there are
    any."""
    options = _parse(sys.argv[1:] if argv is None else argv)
    parent = line.parent if line is not None else options.parent or os.getppid()
    if not die_with_parent(parent, options.end_signal):
        return 0  # the launcher is gone
    heap.keep_little()
    if options.namespace_fd is not None:
        _move_to(options.namespace_fd)
    folder = options.run_dir / "nodes" / options.node
    folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        handlers=[PrivateLog(folder / "agent.log")],
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    ward = line.ward if line is not None else secrets.token_hex(16)
    warden = Warden(ward, line.done_fd if line is not None else -1)
    try:
        asyncio.run(_Agent(options, ward, warden, line).run())
    except EverstepError as error:
        _log.error("%s", error)
        print(f"everstep agent {options.node}: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    finally:
        warden.dismiss()
        logging.shutdown()
    return 0


def _move_to(namespace_fd: int) -> None:
    """Before there is a socket or another process: all that come live there, and so does the namespace."""
    enter(namespace_fd)
    os.close(namespace_fd)


class _Agent:
    """The parts of one agent, from the start of its event loop to its end."""

    def __init__(self, options: _Options, ward: str, warden: Warden, line: Line | None = None) -> None:
        self._options = options
        self._line = line
        self._warden = warden
        self._policy = _policy_of(options.run_dir)
        self._credentials = Credentials.load(options.run_dir / "nodes" / options.node / CREDENTIALS_NAME)
        self._lease = Lease(self._policy.lease_s, time.monotonic)
        self._following: Following | None = None
        self._home = Home(
            run=options.run,
            run_dir=options.run_dir,
            nproc=options.nproc,
            max_restarts=options.max_restarts,
            policy=self._policy,
            home=_home_or(options.run_dir),
            origin=Origin.inherited(options.streams) if options.streams else Origin(),
            rack=_rack_of(options.rack or os.environ.get("EVERSTEP_RACK", "")),
            slot=options.slot,
            spool=Spool(warden),
            base_env=base_environment(
                os.environ,
                options.nproc,
                ward,
                watches=self._policy.needs_watch_thread,
                interface=INTERFACE if options.namespace_fd is not None else options.interface,
                profiler=profiler_for(os.environ),
                unset=_unset_of(options.run_dir),
            ),
        )

    async def run(self) -> None:
        """Run until it is over. Raises EverstepError."""
        over, reaper, launcher = asyncio.Event(), Reaper(), os.getppid()
        loop = asyncio.get_running_loop()
        reaper.start()
        reaper.watch(self._warden.pid, lambda ended: _log.warning("the warden ended: %s", ended))
        for pid in filter(is_warden, reaper.adopted()):  # of the agent before, which copies the last of its output
            reaper.watch(pid, lambda ended: _log.info("the warden of an earlier agent ended: %s", ended))
        for signum in (signal.SIGTERM, signal.SIGINT):
            is_ours = self._options.end_signal == signal.SIGTERM  # else a scheduler's, which the launcher gets too
            handle(loop, signum, over.set if is_ours else _ignore)
        handle(loop, self._options.end_signal, over.set)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        words: list[Frame] = []  # frames that arrive before there is a receiver
        kept = KeptMemory(self._options.keeper_fd, lambda: node.report_joined(), lambda frame: on_word(frame))
        on_word = words.append
        memory = Memory(kept.keep, kept.tell_ranks)
        await kept.receive(memory)
        node, link, copies, gate = self._make(kept, memory, reaper, over)
        following = self._following = Following(self._lease, link, gate)
        on_word = following.take
        for frame in words:
            following.take(frame)
        await copies.start()
        works: list[Coroutine[Any, Any, Any]] = [link.run(), _beat(node, link), over.wait()]
        works += [_keep_lease(self._lease, gate, link, following), _show_life(kept)]
        if self._policy.needs_watch_thread:
            works.append(_watch(node, link))
        if self._policy.watch_slowness and self._policy.slow_round_s > 0:
            works.append(_rounds(node, link, self._policy.slow_round_s))
        if self._policy.watch_numbers:
            works.append(_observe(node, link))
        works.append(self._sense(node, link))
        works.append(_inspect(self._options.node, link.report, self._options.run_dir / "nodes" / self._options.node))
        works.append(_warm_up(over))
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            is_over = self._lease.is_over()
            if is_over:
                gate.end_ranks()
            hurrying = asyncio.create_task(_end_orphans(launcher, gate))
            await node.close(0.0 if is_over else END_GRACE_S)
            hurrying.cancel()
            await link.drain(0.0 if is_over else _FLUSH_S)
            self._home.spool.close()
        finally:
            kept.close()
            failures = await _cancel(*tasks)
        for failure in failures:
            raise failure

    async def _sense(self, node: Node, link: Link) -> None:
        options = self._options
        await sense(
            options.node,
            link.report,
            run_dir=options.run_dir,
            home=self._home.home,
            rank_of=node.rank_of,
            hurry=node.hurry,
        )

    def _make(
        self, kept: KeptMemory, memory: Memory, reaper: Reaper, over: asyncio.Event
    ) -> tuple[Node, Link, Copies, LeaseGate]:
        """They know each other."""
        options = self._options

        def report(event: events.Event) -> None:
            gate.report(event)

        copies = Copies(
            options.node,
            self._home,
            memory,
            reaper,
            report=report,
            host=options.address,
            key=self._credentials.snapshots_key,
            is_private=options.namespace_fd is not None,
            tls=Tls.of(self._credentials.snapshots_certificate, self._credentials.snapshots_certificate_key),
        )
        node = Node(
            options.node,
            self._home,
            reaper=reaper,
            warden=self._warden,
            snapshots=memory,
            copies=copies,
            report=report,
            on_finish=over.set,
            links=Links(options.node, options.run, self._credentials.snapshots_key, report),
            bequest=Bequest(self._line, self._warden),
        )

        def carry_out(command: Command) -> None:
            kept.catch_up()
            node.on_command(command)

        def on_welcome(spec: RunSpec) -> None:
            self._lease.begin(self._following.latest() if self._following is not None else math.inf)
            node.on_welcome(msgspec.structs.replace(spec, cwd=options.cwd) if options.cwd else spec)

        link = Link(
            url=options.controller,
            credentials=self._credentials,
            on_welcome=on_welcome,
            on_command=lambda command: gate.command(command),
        )
        gate = LeaseGate(options.node, self._lease, link, host=node, carry_out=carry_out)
        return node, link, copies, gate


async def _end_orphans(launcher: int, gate: LeaseGate) -> None:
    """If it was killed, ranks get less time. Its death is signalled when its first thread ends, and it is our parent
    until the last one has, which takes a starved machine a while."""
    while os.getppid() == launcher:
        await asyncio.sleep(0.01)
    await asyncio.sleep(_ORPHAN_GRACE_S)
    gate.end_ranks()


async def _beat(node: Node, link: Link) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        if link.is_flowing:  # accounts are cumulative: nothing is lost by not queueing them
            try:
                node.report_progress()
            except Exception:
                _log.exception("progress cannot be reported")  # the ranks continue, and the next beat may report it


async def _keep_lease(lease: Lease, gate: LeaseGate, link: Link, following: Following) -> None:
    """Send signs of life. When none arrives for the lease, stop the ranks and ask. Raises LeaseOverError."""
    while True:
        link.beat(lease.beat_s)
        lease.renew(following.heard_at())
        if lease.is_over():
            try:
                await gate.settle()
            except LeaseOverError:
                gate.end_ranks()
                raise
        await asyncio.sleep(LEASE_LOOK_S)


async def _show_life(kept: KeptMemory) -> None:
    while True:
        kept.beat()
        await asyncio.sleep(BEAT_S)


async def _warm_up(over: asyncio.Event) -> None:
    """Import what the first fault needs and takes long to load, after the ranks' own start has had the CPUs."""
    await asyncio.sleep(_WARM_UP_S)
    await aside(warm_up, "everstep-import")
    await over.wait()


async def _inspect(node: str, report: Callable[[events.Event], None], folder: Path) -> None:
    """Imported when the ranks' own start is over: no recovery waits for it. Never ends by itself: the agent would."""
    try:
        await asyncio.sleep(_INSPECT_AFTER_S)
        module = await aside(partial(importlib.import_module, "everstep.agent.senses.inspecting"), "everstep-import")
        await module.inspect(node, report, folder)
    except Exception:
        _log.exception("the node is not inspected")
    await asyncio.Event().wait()


async def _watch(node: Node, link: Link) -> None:
    """Run the probes. A fault of ours in a probe costs the probes, never the ranks."""
    again_s = LOOK_S
    while True:
        await asyncio.sleep(again_s)
        if link.is_flowing:  # stale signals are not queued
            try:
                again_s = node.report_signals()
            except Exception:
                _log.exception("the probes failed")
                await asyncio.sleep(_PROBES_AGAIN_S)


async def _observe(node: Node, link: Link) -> None:
    """Report the numbers of the live ranks, for as long as the agent runs."""
    while True:
        await asyncio.sleep(observing.LOOK_S)
        if link.is_flowing:
            try:
                node.report_numbers()
            except Exception:
                _log.exception("reading numbers failed")
                await asyncio.sleep(_PROBES_AGAIN_S)


async def _rounds(node: Node, link: Link, round_s: float) -> None:
    """At multiples of `round_s` on the wall clock, so that all nodes look at the same time."""
    number = 0
    while True:
        now = time.time()
        following = int(now // round_s) + 1
        number = following + (following == number)  # a sleep may end a moment early
        await asyncio.sleep(number * round_s - now)
        if link.is_flowing:
            try:
                await node.report_round(number)
            except Exception:
                _log.exception("a round of the fail-slow vote failed")
                await asyncio.sleep(_PROBES_AGAIN_S)


async def _cancel(*tasks: "asyncio.Task[Any]") -> list[BaseException]:
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [r for r in results if isinstance(r, Exception)]
    for failure in failures:
        if not isinstance(failure, RejectedError | LeaseOverError):
            _log.error("the agent failed", exc_info=failure)
    return list(failures)


def _home_or(run_dir: Path) -> Path:
    """Where this machine keeps what outlives a run; a user without a home keeps it with the run."""
    try:
        return home()
    except ConfigError:
        return run_dir / "home"


def _rack_of(name: str) -> str:
    """The rack of this node; empty if the name is unusable: unknown is allowed."""
    why = why_no_rack(name) if name else ""
    if why:
        _log.warning("rack of this node: unknown: %s", why)
    return "" if why else name


def _spec_of(run_dir: Path) -> tuple[str, int]:
    """Run id and --max-restarts from spec.json. Ranks get torchrun's 0 if it was not given."""
    try:
        raw = json.loads((run_dir / "spec.json").read_bytes())
        policy = raw["policy"]
        return str(raw["run"]), int(policy["max_restarts"]) if policy.get("exact_restarts") else 0
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0


def _policy_of(run_dir: Path) -> Policy:
    """The policy in spec.json: what is watched, and how often."""
    try:
        return msgspec.convert(json.loads((run_dir / "spec.json").read_bytes())["policy"], Policy)
    except (OSError, ValueError, KeyError, TypeError, ConfigError):  # msgspec's errors are ValueErrors
        return Policy()


def _unset_of(run_dir: Path) -> tuple[str, ...]:
    """Variables of torchrun's that ranks do not get, from spec.json."""
    try:
        return tuple(json.loads((run_dir / "spec.json").read_bytes())["spec"].get("unset", ()))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _ignore() -> None:
    """A handler of ours does not reach the ranks, as SIG_IGN would."""


def _parse(argv: Sequence[str]) -> _Options:
    parser = argparse.ArgumentParser(
        prog="everstep.agent", description="The agent of one node; the launcher starts it."
    )
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--node", required=True, help="this agent's id, unique for ever")
    parser.add_argument("--controller", required=True, help="ws://host:port/link")
    parser.add_argument("--nproc", type=int, required=True, help="ranks on this node")
    parser.add_argument("--run", default="", help="run id; default: EVERSTEP_RUN_ID, then the run directory's name")
    parser.add_argument("--max-restarts", type=int, default=None, help="only passed to the ranks")
    parser.add_argument("--address", default="127.0.0.1", help="where other nodes get this one's snapshots")
    parser.add_argument("--rack", default="", help="rack or switch of this node; default: EVERSTEP_RACK")
    parser.add_argument("--slot", type=int, default=None, help="slot that this node is meant for; default: any")
    parser.add_argument("--interface", default="", help="network interface that other hosts are reached through")
    parser.add_argument("--cwd", default="", help="where programs are started; default: where the launcher was")
    parser.add_argument("--namespace-fd", type=int, default=None, help="network namespace to live in")
    parser.add_argument("--streams", default="", help="the launcher's stdin, its terminals, and whether those are one")
    parser.add_argument("--parent", type=int, default=0, help="the launcher: without it the node ends")
    parser.add_argument("--end-signal", type=int, default=int(signal.SIGTERM), help="what ends this node in order")
    parser.add_argument("--keeper-fd", type=int, default=None, help="socket to the launcher's keeper")
    parser.add_argument("--holders-fd", type=int, default=None, help="socket to the launcher, of the line of holders")
    parser.add_argument("--holders", type=int, default=0, help="processes above this agent that keep its twins")
    options = parser.parse_args(argv, namespace=_Options())
    options.run_dir = options.run_dir.absolute()
    name, max_restarts = _spec_of(options.run_dir)
    options.run = options.run or name or os.environ.get("EVERSTEP_RUN_ID", "") or options.run_dir.name
    if options.max_restarts is None:
        options.max_restarts = max_restarts
    return options
