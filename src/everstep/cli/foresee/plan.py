"""Choose numbers from data.

everstep plan standby --nodes 512                   from what everstep has seen on its machines (nodes.db)
everstep plan standby --nodes 512 --rate 0.0012     from a rate: faults of one machine in one day
everstep plan standby --nodes 512 --history FILE    from times of faults, one per line, ISO 8601 or seconds
"""

import argparse
from datetime import datetime
from pathlib import Path

import msgspec

from everstep.cli.reading import show, show_json
from everstep.errors import ConfigError
from everstep.health.rules import DEFAULT, Kind
from everstep.health.store import Store
from everstep.linux.regular import read_regular
from everstep.report.foresee.plan import standby_page
from everstep.simulate.standby import QUANTILE, Sizing, counts_per_window, size_by_history, size_by_rate

_DAY_S = 86400.0
_FAULTS = (Kind.INCIDENT, Kind.ALERT, Kind.EVICTION, Kind.CHECK_FAILED)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    standby = verbs.add_parser("standby", help="how many warm machines a fleet needs")
    standby.add_argument("--nodes", type=int, required=True, metavar="N", help="machines that train")
    source = standby.add_mutually_exclusive_group()
    source.add_argument("--rate", type=float, metavar="R", help="faults of one machine in one window")
    source.add_argument("--history", metavar="FILE", help="times of the fleet's faults, one per line")
    standby.add_argument("--window-days", type=float, default=1.0, metavar="D", help="until a used standby is replaced")
    standby.add_argument("--quantile", type=float, default=QUANTILE, metavar="Q", help=f"default {QUANTILE}")
    standby.add_argument("--json", action="store_true", help="for programs; keys in docs/standby.md")


def run(given: argparse.Namespace) -> int:
    if given.nodes <= 0 or given.window_days <= 0 or not 0 < given.quantile < 1:
        raise ConfigError("--nodes and --window-days must be above 0, --quantile between 0 and 1")
    sizing = _size(given)
    if given.json:
        show_json(msgspec.to_builtins(sizing))
    else:
        show(standby_page(sizing, given.window_days))
    return 0


def _size(given: argparse.Namespace) -> Sizing:
    if given.rate is not None:
        if not 0 <= given.rate <= 1:
            raise ConfigError(f"--rate {given.rate}: a share of machines per window, between 0 and 1")
        return size_by_rate(given.nodes, given.rate, given.quantile)
    times = _read_times(Path(given.history)) if given.history else _seen_here()
    if not times:
        where = given.history or "what everstep has seen ($EVERSTEP_HOME/nodes.db)"
        raise ConfigError(f"no fault in {where}: nothing to size from; say --rate, or --history FILE")
    counts = counts_per_window(times, given.window_days * _DAY_S)
    return size_by_history(counts, given.nodes, given.quantile)


def _read_times(path: Path) -> list[float]:
    try:
        lines = read_regular(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--history {path} cannot be read: {error}") from error
    return [_time(line.strip(), path, number) for number, line in enumerate(lines, 1) if line.strip()]


def _time(text: str, path: Path, number: int) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError(f"{path}:{number}: {text[:60]!r} is not a time; seconds or ISO 8601, one per line") from None


def _seen_here() -> list[float]:
    """Times of faults seen on machines: an alert, an incident and an eviction of one fault count once."""
    times: list[float] = []
    for host in Store().hosts(0.0):
        last = None
        for event in host.events:
            if event.kind in _FAULTS and (last is None or event.at - last > DEFAULT.episode_s):
                times.append(event.at)
                last = event.at
    return times
