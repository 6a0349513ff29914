"""Change a running job's program. The change is recorded, looked at, and taken back if it does worse.

everstep update [RUN]                        the versions of the program, and what became of each
everstep update [RUN] --code DIR|GIT_REV     other code: a directory, or a revision of the program's repository
everstep update [RUN] --args "--lr 0.1"      other arguments, all of them
everstep update [RUN] --env NAME=VALUE       another environment variable; may be repeated
... --urgent                                 now, in place; else at the next interruption, after a day at the latest
"""

import argparse
import shlex
import time

from everstep.cli.ask import AnswerLostError, named, post, who
from everstep.cli.reading import open_run, show, show_json, style
from everstep.errors import ConfigError
from everstep.journal.load import Growing
from everstep.journal.runs import RunDir
from everstep.journal.view import RunView, UpdateView
from everstep.model.versions import Stage
from everstep.report.parts.ansi import printable
from everstep.report.updates import cold_text, cost_of, render_updates, update_line, updates_json

EXIT_FAIL = 1
_POLL_S = 0.02
_LOST_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="id or directory; default: the latest run")
    parser.add_argument("--code", metavar="DIR|GIT_REV", help="a directory, or a git revision")
    parser.add_argument("--args", metavar="TEXT", help="the program's arguments, as in a shell; replaces all of them")
    parser.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="may be repeated")
    parser.add_argument("--urgent", action="store_true", help="apply it now")
    parser.add_argument("--why", metavar="TEXT", default="", help="for the record")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument(
        "--timeout", type=float, default=180.0, metavar="S", help="how long to wait for what comes of it"
    )
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/updates.md")


def run(given: argparse.Namespace) -> int:
    """0: it waits, or it trains; 1: refused, rolled back, or nothing came of it in time."""
    opened = open_run(given.run, given.run_dir)
    if given.code is None and given.args is None and not given.env:
        if given.urgent or given.why:
            raise ConfigError(
                "what is to be changed? everstep update --code DIR|GIT_REV, --args TEXT, --env NAME=VALUE"
            )
        return _list(opened.view, as_json=given.json)
    if opened.view.is_over or opened.view.spec is None:
        raise ConfigError(f"run {opened.view.run} is over: start another one with `everstep run`")
    if opened.view.spec.on_hosts and (given.code is not None or given.env):
        what = "--code" if given.code is not None else "--env"
        raise ConfigError(
            f"{what}: run {opened.view.run} is on several hosts, and files of an update do not reach the others yet. "
            "Nothing was changed. --args works; else stop the run and start the new program on all hosts"
        )
    growing = Growing(opened.run_dir.journal)
    known = set(_view(growing).updates)
    try:
        version = _ask(opened.run_dir, opened.view, given)
    except AnswerLostError as lost:
        version = _on_record(growing, known, lost)
    return _tell(growing, version, given)


def _ask(run_dir: RunDir, view: RunView, given: argparse.Namespace) -> str:
    """Copy the code, ask for the update; its id. Raises ConfigError, UnreachableError."""
    assert view.spec is not None
    body: dict[str, object] = {"is_urgent": given.urgent, "by": who(), "why": given.why}
    if given.code is not None:
        from everstep.launcher.versions.versions import copy_for_update

        copied = copy_for_update(given.code, view.spec, run_dir.path)
        body |= {"source": copied.source, "code": copied.code, "root": copied.root}
    if given.args is not None:
        body["args"] = _split(given.args)
    body["env"] = dict(_pair(word) for word in given.env)
    return named(post(run_dir, "/api/update", body), "version")


def _on_record(growing: Growing, known: set[str], lost: AnswerLostError) -> str:
    """The controller was gone before it answered: the journal knows whether it took the request. Raises `lost`."""
    deadline = time.monotonic() + _LOST_S
    while time.monotonic() < deadline:
        mine = [u.version for name, u in _view(growing).updates.items() if name not in known]
        found = next((version.id for version in mine if version.by == who()), "")
        if found:
            return found
        time.sleep(_POLL_S)
    raise lost


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--args {text!r}: {error}") from error


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not name or not equals or "\0" in word:
        raise ConfigError(f"--env {word!r}: it is NAME=VALUE")
    return name, value


def _view(growing: Growing) -> RunView:
    """Up to now."""
    view = growing.look()
    if view is None:
        raise ConfigError("the journal holds nothing yet: the run has not begun")
    return view


def _tell(growing: Growing, version: str, given: argparse.Namespace) -> int:
    """Wait until it is clear what comes of it, and say so."""
    deadline = time.monotonic() + given.timeout
    view = _view(growing)
    update = view.updates.get(version)
    while update is None or not _is_settled(view, update):
        if time.monotonic() > deadline or (view.is_over and update is not None):
            break
        time.sleep(_POLL_S)
        update = _view(growing).updates.get(version)
    if update is None:
        raise ConfigError(f"{version} is not on record after {given.timeout:g} s: everstep update")
    if given.json:
        show_json(next(each for each in updates_json(view) if each["id"] == version))
    else:
        print(printable(update_line(view, update)))
        if why := cold_text(view, update):
            print(printable(f"  {why}"))
    return 0 if _is_well(view, update) else EXIT_FAIL


def _is_settled(view: RunView, update: UpdateView) -> bool:
    if update.stage is Stage.WAITING:
        return not update.version.is_urgent
    if update.stage is Stage.RUNNING:
        return cost_of(view, update).stepped_at is not None
    return update.stage is not Stage.CHECKING


def _is_well(view: RunView, update: UpdateView) -> bool:
    is_bad = update.stage in (Stage.REFUSED, Stage.ROLLED_BACK, Stage.SUPERSEDED)
    return _is_settled(view, update) and not is_bad


def _list(view: RunView, *, as_json: bool) -> int:
    if as_json:
        version = None if view.generation is None else view.generation.version
        show_json({"run": view.run, "version": version, "versions": updates_json(view)})
    else:
        show(render_updates(view, style()))
    return 0
