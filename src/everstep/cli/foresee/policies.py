"""Cost of a policy's patience: hangs found late beside healthy jobs hurt, over recorded standstills.

everstep policies                                     the standstills of everstep's own benchmarks
everstep policies --set hang_outside_s=10             another time, beside always 2 s, always 30 s and never
everstep policies --run RUN | --all --days 30         those of a run's journal, or of all that are known here

Also shared by `simulate` and `replay`: a policy from the command line is a preset, and `--set key=value`.
"""

import argparse
import time
from collections.abc import Sequence

import msgspec

from everstep.cli.reading import show, show_json
from everstep.cli.waiting import waiting
from everstep.core.state.policy import Policy, preset
from everstep.errors import ConfigError, EverstepError
from everstep.journal.reader import Reading, read_journal
from everstep.journal.runs import find_run, known_runs
from everstep.model.events import RunStarted
from everstep.model.record import Record
from everstep.report.foresee.policies import policies_page
from everstep.simulate.price import Standstill, prices
from everstep.simulate.standstills import benchmarked, recorded

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_DAY_S = 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", metavar="RUN", help="standstills of this run's journal: id, directory or file")
    parser.add_argument("--all", action="store_true", help="those of every run that is known here")
    parser.add_argument("--days", type=float, default=30.0, metavar="D", help="with --all: how far back; default: 30")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/replay.md")
    add_policy_arguments(parser)


def run(given: argparse.Namespace) -> int:
    policy = policy_with(given.policy or "default", given.set)
    source, standstills, failed = _standstills(given, policy)
    table = prices(standstills, policy)
    if given.json:
        show_json({"source": source, "policy": policy, "prices": table, "standstills": standstills, "failed": failed})
    else:
        show(policies_page(source, policy, table, failed))
    return 0


def _standstills(given: argparse.Namespace, policy: Policy) -> tuple[str, tuple[Standstill, ...], dict[str, str]]:
    """Where they are from, and what could not be read."""
    if not given.run and not given.all:
        return "everstep's own benchmarks (docs/benchmarks.md)", benchmarked(), {}
    if given.run:
        reading = read_journal(find_run(given.run).journal)
        return f"run {reading.header.run}", recorded(_records(reading, 0.0), policy), {}
    since = time.time() - given.days * _DAY_S
    found: list[Standstill] = []
    failed = {}
    names = known_runs()
    with waiting("read", len(names), "run") as bar:
        for name in bar.over(names):
            try:
                found += recorded(_records(read_journal(find_run(name).journal), since), policy)
            except EverstepError as error:
                failed[name] = str(error)
    return f"all runs of the last {given.days:g} days", tuple(found), failed


def _records(reading: Reading, since: float) -> list[Record]:
    """Nothing of a run that began before."""
    records = [each for each in reading.entries if isinstance(each, Record)]
    began_at = next((each.at for each in records if isinstance(each.event, RunStarted)), 0.0)
    return records if began_at >= since else []


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", default=None, metavar="NAME", help="conservative, default or aggressive")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one number of the policy; may be repeated"
    )


def policy_with(base: Policy | str, changes: Sequence[str]) -> Policy:
    """A preset by name, or a policy, with changes. Raises ConfigError with what there is."""
    policy = preset(base) if isinstance(base, str) else base
    fields = {field.name: field for field in msgspec.structs.fields(Policy) if field.name != "name"}
    for key, text in pairs(changes, "--set").items():
        if key not in fields:
            raise ConfigError(f"no policy setting {key!r}; there are: {', '.join(fields)}")
        policy = msgspec.structs.replace(policy, **{key: _value(key, text, fields[key].type)})
    return policy


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """KEY=VALUE, each. Raises ConfigError."""
    found = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"{flag} {text!r}: must be KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def _value(key: str, text: str, wanted: type) -> float | int | bool:
    try:
        if wanted is bool:
            if text.lower() not in (*_TRUE, *_FALSE):
                raise ValueError
            return text.lower() in _TRUE
        return int(text) if wanted is int else float(text)
    except ValueError:
        kind = {bool: "true or false", int: "a whole number"}.get(wanted, "a number")
        raise ConfigError(f"--set {key}={text}: must be {kind}") from None
