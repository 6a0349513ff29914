"""Takeover by an elected host: the controller runs here with this host's journal, its nodes, and the door at which the
other hosts find it. Called by `hosts.member`; from then on this host is the first one.
"""

import contextlib
import logging
import os
import re
from pathlib import Path

import msgspec

from everstep.agent.streams.streams import Origin
from everstep.controller.record.spec_file import SECRET_NAME
from everstep.engines.children import Children
from everstep.engines.hosts.door import Door
from everstep.engines.local import LocalEngine
from everstep.engines.memory_keeper import MemoryKeeper
from everstep.engines.network import Address
from everstep.engines.slurm.batch import note_exit_code
from everstep.engines.slurm.engine import Predecessor
from everstep.errors import PortInUseError
from everstep.journal.beside import continued
from everstep.journal.reader import read_journal
from everstep.journal.runs import RunDir, register
from everstep.launcher.arguments import checks
from everstep.launcher.arguments.hosts import Hosts, shown
from everstep.launcher.heirs.heir import Heir
from everstep.launcher.hosts.fleet import Fleet, Inherited
from everstep.launcher.hosts.local_run import LocalRun
from everstep.launcher.output.terminal import Terminal
from everstep.launcher.reach.munge import MungeToken
from everstep.launcher.rundir.keys import Keys
from everstep.launcher.rundir.rundir import Prepared, lock
from everstep.launcher.stores.stores import Stores
from everstep.launcher.succession.waiting import ReadyAddress, Waiting
from everstep.launcher.supervise import End, Supervisor, TakenOver
from everstep.linux.regular import read_regular
from everstep.model.events import NodeJoined
from everstep.model.record import Record
from everstep.wire.credentials import is_same
from everstep.wire.heirs import Legacy, Roster
from everstep.wire.joining import JoinToken

log = logging.getLogger("everstep.launcher")

SPARE_NUMBERS = 100
"""Nodes may have been named of which the journal does not know yet; a name is never given twice."""

_MAX_SECRET = 4096

SLACK_S = 0.3
"""On top of a node's lease, until its ranks stand still: an agent looks five times a second."""


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of this host, as one that joined."""

    hosts: Hosts
    local: LocalRun
    heir: Heir
    address: str
    token: JoinToken
    munge: MungeToken | None
    children: Children
    keeper: MemoryKeeper
    engine: LocalEngine
    terminal: Terminal
    signals: tuple[int, ...]
    origin: Origin
    waiting: Waiting | None


async def take_over(here: Here, epoch: int) -> End:
    """The rest of the run. Raises EverstepError."""
    heir, waiting, path = here.heir, here.waiting, here.local.path
    assert heir.legacy is not None
    inherited = _inherited(here, epoch)
    heir.replica.close()
    with contextlib.ExitStack() as opened:
        lock_fd = lock(RunDir(path))
        opened.callback(os.close, lock_fd)
        prepared = _prepared(here.local, heir.legacy, lock_fd)
        begun = begun_at(heir.legacy)
        if begun is not None:
            _lead_to(path, begun)
        fleet = Fleet(here.hosts, inherited.door.sock, here.token, here.munge, prepared, here.terminal.say, inherited)
        _listen_at_endpoint(here, inherited.door, heir.endpoints)
        listener = waiting.listener if waiting is not None else checks.bind(0, "the controller's port")
        opened.enter_context(listener)
        network = Address(here.address) if waiting is None else ReadyAddress(here.address, waiting.for_nodes)
        supervisor = Supervisor(
            prepared,
            listener=listener,
            stores=Stores(checks.bind(0, "the store's port", here.address), network, here.address),
            network=network,
            signals=here.signals,
            terminal=here.terminal,
            origin=here.origin,
            fleet=fleet,
            taken_over=_taken_over(here, epoch),
        )
        end = await supervisor.run()
        if begun is not None and here.hosts.slurm is not None and not end.is_deposed:
            note_exit_code(begun, end.exit_code)
        return end


def _inherited(here: Here, epoch: int) -> Inherited:
    """Return what the other hosts know of this one, and this one of them."""
    heir, waiting = here.heir, here.waiting
    assert heir.legacy is not None
    assert heir.roster is not None
    assert heir.door is not None
    earlier_epoch, size = heir.replica.age
    return Inherited(
        epoch=epoch,
        own=next(each for each in heir.roster.voters if each.session == heir.keys.own),
        session=heir.session,
        acquaintances=heir.keys,
        roster=heir.roster,
        endpoints=heir.endpoints,
        begins_at=size,
        earlier_epoch=earlier_epoch,
        door=heir.door,
        numbers={each.session: each.number for each in heir.roster.voters},
        copied=waiting.copied if waiting is not None else None,
        run_dir=heir.legacy.run_dir,
        predecessor=_predecessor(heir, heir.roster, heir.legacy),
    )


def _prepared(local: LocalRun, legacy: Legacy, lock_fd: int) -> Prepared:
    keys = Keys.inherited(local.path, local.file.run, legacy)
    register(local.file.run, RunDir(local.path))
    return Prepared(path=local.path, file=local.file, keys=keys, lock_fd=lock_fd)


def _taken_over(here: Here, epoch: int) -> TakenOver:
    """Return what of the run is on this host, or lost with the first one."""
    heir, waiting, policy = here.heir, here.waiting, here.local.file.policy
    return TakenOver(
        epoch=epoch,
        children=here.children,
        keeper=here.keeper,
        local=here.engine,
        first_number=_first_number(RunDir(here.local.path).journal),
        lost=heir.nodes,
        lost_after_s=max(0.0, policy.lease_s - heir.patience_s) + SLACK_S,
        begin=waiting.begin if waiting is not None else None,
    )


def begun_at(legacy: Legacy) -> Path | None:
    """The directory in which the run was begun, if this host sees it: another one may have the same name."""
    path = Path(legacy.run_dir)
    try:
        secret = read_regular(path / SECRET_NAME, _MAX_SECRET, follow=False).decode("ascii", "replace").strip()
    except OSError:
        return None
    return path if legacy.run_dir and is_same(secret, legacy.secret) else None


def _lead_to(path: Path, begun: Path) -> None:
    try:
        continued.point(begun, path)
    except OSError as error:
        log.warning("who names the run finds what %s has until now: %s", begun, error)


def _predecessor(heir: Heir, roster: Roster, legacy: Legacy) -> Predecessor | None:
    lost = next((each for each in roster.voters if each.session == heir.voting.leader), None)
    return None if lost is None else Predecessor(legacy.scheduler_node, legacy.scheduler_job, (lost.address, lost.port))


def _listen_at_endpoint(here: Here, door: Door, endpoints: tuple[tuple[str, int], ...]) -> None:
    """Hosts that start later know the lost host's address, and no other port of this one."""
    wanted = {number for _, number in endpoints} - {sock.getsockname()[1] for sock in door.more}
    for number in sorted(wanted):
        try:
            door.also_at(checks.bind(number, "the endpoint's port", here.address))
        except PortInUseError as error:
            log.info("hosts do not find this one at the endpoint's port: %s", error)
    address, port = (door.more or [door.sock])[0].getsockname()[:2]
    here.terminal.say(f"hosts that start later join at {shown(address, port)}")


def _first_number(journal: Path) -> int:
    names = [
        entry.event.node
        for entry in read_journal(journal).entries
        if isinstance(entry, Record) and isinstance(entry.event, NodeJoined)
    ]
    numbers = [int(match[1]) for name in names if (match := re.fullmatch(r"n(\d+)", name))]
    return max(numbers, default=-1) + 1 + SPARE_NUMBERS
