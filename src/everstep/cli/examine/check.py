"""`everstep check`: is this node fit to train? Measures it, compares it, and names what is wrong.

everstep check [--quick | --full | --burn-in HOURS]     this node; --quick is the default and ends within a minute
everstep check --compare A.json B.json ...              reports of several nodes: who differs from others of its kind
everstep check --serve PORT                             answers the network check of other nodes (their --peers)

Exit code 0: nothing is bad. 1: something is bad. 2: the command makes no sense. 130: Ctrl-C. See docs/check.md.
"""

import argparse
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from everstep import health
from everstep.errors import ConfigError, PortInUseError
from everstep.linux.regular import read_regular
from everstep.preflight.inspection import Wanted, inspect_node
from everstep.preflight.judge import Expectation, among_nodes
from everstep.preflight.registry import BY_NAME, CHECKS
from everstep.preflight.result import REPORT_VERSION, Judgement, Report, Value
from everstep.preflight.settings import Level, Settings
from everstep.preflight.shown.progress import shown
from everstep.preflight.shown.text import render_report
from everstep.report.parts.ansi import safe, safe_json, style_for
from everstep.report.parts.units import duration

EXIT_BAD = 1
EXIT_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--quick", action="store_true", help="within a minute (default)")
    how_long.add_argument("--full", action="store_true", help="minutes: larger sizes, every core, more repeats")
    how_long.add_argument("--burn-in", type=float, metavar="HOURS", help="repeat under load and watch for drift")
    how_long.add_argument("--compare", nargs="+", metavar="FILE", help="judge saved reports against each other")
    how_long.add_argument("--serve", type=int, metavar="PORT", help="be a peer for the network check of other nodes")
    parser.add_argument("--only", metavar="CHECK,...", help=f"some checks of: {', '.join(c.name for c in CHECKS)}")
    parser.add_argument("--disk-path", action="append", metavar="DIR", help="write here (default: current directory)")
    parser.add_argument("--peers", default="", metavar="HOST:PORT,...", help="nodes that run everstep check --serve")
    parser.add_argument("--baseline", nargs="+", default=[], metavar="FILE", help="saved reports of good nodes")
    parser.add_argument(
        "--expect", action="append", default=[], metavar="NAME=VALUE", help="also >= and <=; NAME may have *"
    )
    parser.add_argument("--kind", default="", help="name of the kind of machine, instead of its own")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDR", help="with --serve: address to listen on")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object; keys in docs/check.md")
    parser.add_argument("--html", metavar="FILE", help="write the report as one HTML file, too")
    parser.add_argument("--root", default="/", metavar="DIR", help="where the host's /proc, /sys and /dev are")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every result")


def run(given: argparse.Namespace) -> int:
    if given.compare:
        return _show([*among_nodes([read_report(name) for name in given.compare])], given)
    if given.serve is not None:
        return _serve(given)
    wanted = _wanted(given)
    with shown() as on_progress:
        report = inspect_node(wanted, on_progress)
    if given.burn_in is not None:
        report = _burn_in(wanted, given.burn_in, report)
    _remember(report, given)
    code = _show([report], given)
    return EXIT_INTERRUPTED if report.interrupted else code


def _remember(report: Report, given: argparse.Namespace) -> None:
    """In the memory of machines: a check of the whole node that passed lets it be readmitted."""
    if report.interrupted or given.only or given.root != "/":
        return
    bad = [result for result in report.results if result.verdict is Judgement.BAD]
    if bad:
        why = f"everstep check, {report.level}: {bad[0].name}: {bad[0].why}" + (
            f" and {len(bad) - 1} more" * (len(bad) > 1)
        )
        kind = health.Kind.CHECK_FAILED
        health.record(health.HealthEvent(host=report.node, at=report.at, kind=kind, why=why, by="everstep check"))
    else:
        health.passed(report.node, at=report.at, why=f"everstep check, {report.level}: {len(report.results)} results")


def _burn_in(wanted: Wanted, hours: float, first: Report) -> Report:
    from everstep.preflight.burn_in import Round, burn_in

    seconds = 3600 * hours
    with shown(until=time.monotonic() + seconds) as on_progress:

        def on_round(done: Round) -> None:
            if done.bad:
                left = duration(done.left_s)
                print(f"round {done.number}: {done.bad} bad, {left} left", file=sys.stderr, flush=True)

        return burn_in(wanted, seconds, on_progress, on_round, first)


def _serve(given: argparse.Namespace) -> int:
    """Raises ConfigError, PortInUseError. Ends with Ctrl-C."""
    from everstep.preflight.peer import listen, serve

    token = os.environ.get("EVERSTEP_CHECK_TOKEN", "")
    if not token and given.host not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(
            f"--host {given.host} can be reached from outside: set EVERSTEP_CHECK_TOKEN to the same secret here and on "
            "the nodes that ask (for example: export EVERSTEP_CHECK_TOKEN=$(openssl rand -hex 16))"
        )
    try:
        listener = listen(given.host, given.serve)
    except OSError as error:
        raise PortInUseError(f"cannot listen on {given.host}:{given.serve}: {error.strerror or error}") from error
    with listener:
        print(f"answering checks on {given.host}:{listener.getsockname()[1]}; Ctrl-C ends it", flush=True)
        with suppress(KeyboardInterrupt):
            serve(listener, token)
    return 0


def _wanted(given: argparse.Namespace) -> Wanted:
    """Raises ConfigError."""
    if given.burn_in is not None and not 0 < given.burn_in < 10_000:
        raise ConfigError(f"--burn-in {given.burn_in:g}: not a number of hours")
    level = Level.FULL if given.full else Level.QUICK
    settings = Settings(
        level=level,
        disk_paths=tuple(str(Path(path).resolve()) for path in given.disk_path or ["."]),
        peers=tuple(peer for peer in given.peers.split(",") if peer),
        token=os.environ.get("EVERSTEP_CHECK_TOKEN", ""),
        root=given.root,
    )
    return Wanted(
        settings=settings,
        checks=_checks(given.only),
        level=level.value,
        kind=given.kind,
        expectations=tuple(expectation(text) for text in given.expect),
        baselines=tuple(read_report(name) for name in given.baseline),
    )


def _checks(only: str | None) -> tuple[str, ...]:
    if not only:
        return tuple(BY_NAME)
    names = [name.strip() for name in only.split(",")]
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise ConfigError(f"--only: no check {unknown[0]!r}; there are: {', '.join(BY_NAME)}")
    return tuple(check.name for check in CHECKS if check.name in names)


def expectation(text: str) -> Expectation:
    """ "gpu.count=8", "nic.*.mtu>=9000". Raises ConfigError."""
    for sign in (">=", "<=", "="):
        name, found, value = text.partition(sign)
        if found and name and value:
            return Expectation(pattern=name.strip(), sign=sign, value=_value(value.strip(), sign, text))
    raise ConfigError(f"--expect {text!r}: not of the form NAME=VALUE, NAME>=VALUE or NAME<=VALUE")


def _value(text: str, sign: str, whole: str) -> Value:
    words: dict[str, Value] = {"true": True, "yes": True, "false": False, "no": False}
    if sign == "=" and text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        if sign == "=":
            return text
        raise ConfigError(f"--expect {whole!r}: {text!r} is not a number") from None


def read_report(name: str) -> Report:
    """Raises ConfigError."""
    try:
        report = msgspec.json.decode(read_regular(name), type=Report)
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is not a report of everstep check --json: {error}") from error
    if report.version > REPORT_VERSION:
        raise ConfigError(f"{name} was written by everstep {report.everstep_version}, which is newer than this one")
    return report


def _show(reports: list[Report], given: argparse.Namespace) -> int:
    if given.html:
        from everstep.preflight.shown.html import render_html

        try:
            Path(given.html).write_text(render_html(reports))
        except OSError as error:
            raise ConfigError(f"--html {given.html}: {error.strerror or error}") from error
    if given.json:
        shape = reports if given.compare else reports[0]
        sys.stdout.write(safe_json(msgspec.json.format(msgspec.json.encode(shape), indent=1).decode()) + "\n")
    else:
        style = style_for(sys.stdout)
        sys.stdout.write(safe("\n".join(render_report(report, style, every=given.verbose) for report in reports)))
    return EXIT_BAD if any(report.count(Judgement.BAD) for report in reports) else 0
