"""`everstep run` on a host that does not own the endpoint, and `everstep agent --join`: join, work, end with it."""

import asyncio
import os
import socket
import sys

from everstep.agent.streams.streams import of_this_process
from everstep.engines.slurm.orphaned import end_job
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.arguments.settings import Settings
from everstep.launcher.heirs.finding import Noted, Search
from everstep.launcher.hosts.local_run import LocalRun
from everstep.launcher.joining.about import About, End
from everstep.launcher.joining.member import Member
from everstep.launcher.output.room import Room
from everstep.launcher.output.terminal import Terminal
from everstep.launcher.reach import token as tokens
from everstep.launcher.reach.munge import of_job
from everstep.launcher.showing import shown, tails_of
from everstep.report.parts.ansi import safe
from everstep.wire.joining import JoinToken, Proofs


def join(
    settings: Settings | None,
    hosts: Hosts,
    token: JoinToken | None,
    torch_version: str,
    cwd: str,
    signals: tuple[int, ...],
    at_endpoint: socket.socket | None = None,
) -> int:
    """everstep's code of how it ended. `settings`: None where the run's own are taken. `at_endpoint`: listens at the
    run's endpoint, of which this host was the first one before. Raises EverstepError."""
    about = About(torch_version=torch_version, cwd=cwd, rack=os.environ.get("EVERSTEP_RACK", ""))
    if settings is not None:
        about = About(
            num_hosts=hosts.num,
            nproc=settings.nproc_per_node,
            program=settings.program,
            args=settings.args,
            torch_version=torch_version,
            cwd=cwd,
            rack=settings.racks[0] if settings.racks else about.rack,
        )
    origin = of_this_process()
    terminal = _Shown(settings, is_one=origin.is_one)

    munge = of_job(hosts) if token is None else None

    def find_token() -> Proofs:
        found = token or tokens.shared(hosts, settings.run_dir if settings is not None else "") or munge
        if found is None:
            raise tokens.missing(hosts)
        return found

    noted = Noted.of(hosts, settings.run_dir if settings is not None else "")
    search = Search(noted)

    async def live() -> End:
        member = Member(
            hosts,
            about,
            find_token,
            signals=signals,
            say=terminal.say,
            show=terminal.begin,
            origin=origin,
            search=search,
            at_endpoint=at_endpoint,
        )
        return await member.run()

    end = None
    try:
        end = asyncio.run(live())
    finally:
        terminal.finish(end)
    if end.had_controller and hosts.slurm is not None:
        said = end_job(hosts.slurm.job, os.environ)
        if said:
            _say(said)
    return end.exit_code


class _Shown:
    """This host's terminal: plain lines until it is known what runs here, then the ranks' output."""

    def __init__(self, settings: Settings | None, *, is_one: bool) -> None:
        self._settings, self._is_one = settings, is_one
        self._terminal: Terminal | None = None

    def begin(self, local: LocalRun) -> Terminal:
        terminal = Terminal(Room(local.path).lines)
        tails = tails_of(shown(self._settings, local.file.spec, local.path), terminal, is_one=self._is_one)
        terminal.start(*tails)
        self._terminal = terminal
        return terminal

    def finish(self, end: End | None) -> None:
        if self._terminal is not None:
            lines = [] if end is None else [f"everstep: {_said(end)}"]
            self._terminal.finish(lambda: lines, is_hurried=end is None or end.exit_code > 128)

    def say(self, text: str) -> None:
        if self._terminal is not None:
            self._terminal.say(text)
        else:
            _say(text)


def _say(text: str) -> None:
    sys.stderr.write(safe(f"everstep: {text}\n"))
    sys.stderr.flush()


def _said(end: End) -> str:
    if end.is_own:
        return f"this host has left the run: {end.why}"
    return f"the run is over: {end.outcome}" + (f" ({end.why})" if end.why and end.exit_code else "")
