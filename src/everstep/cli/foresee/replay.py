"""Show what another policy would have done in a recorded run.

everstep replay RUN --policy aggressive
everstep replay RUN --set max_restarts=3
everstep replay --all --days 30 --policy conservative      every run of the last month: a table
"""

import argparse
import time
from contextlib import nullcontext

import msgspec

from everstep.cli.foresee.policies import add_policy_arguments, policy_with
from everstep.cli.reading import show, show_json
from everstep.cli.waiting import waiting
from everstep.core.state.policy import Policy
from everstep.errors import ConfigError, EverstepError
from everstep.journal.reader import read_journal
from everstep.journal.runs import RunDir, find_run, known_runs
from everstep.model.events import RunStarted
from everstep.model.record import Record
from everstep.report.foresee.replay import Replayed, replay_page, replay_table
from everstep.simulate.price import prices
from everstep.simulate.standstills import recorded as recorded_standstills
from everstep.simulate.whatif import what_if

_DAY_S = 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="id, directory or journal file; default: the latest")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument("--all", action="store_true", help="every run that is known here")
    parser.add_argument("--days", type=float, default=30.0, metavar="D", help="with --all: how far back; default: 30")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/replay.md")
    add_policy_arguments(parser)


def run(given: argparse.Namespace) -> int:
    if given.policy is None and not given.set:
        raise ConfigError("say which policy: --policy NAME, or --set KEY=VALUE on top of the recorded one")
    if given.all:
        return _run_all(given)
    replayed = _replay(find_run(given.run, given.run_dir), given, is_alone=True)
    if given.json:
        show_json(replayed)
    else:
        show(replay_page(replayed))
    return 0


def _run_all(given: argparse.Namespace) -> int:
    since = time.time() - given.days * _DAY_S
    replays, failed = [], []
    names = known_runs()
    with waiting("replayed", len(names), "run") as bar:
        for name in names:
            bar.step(says=name)
            try:
                replayed = _replay(find_run(name), given)
            except EverstepError as error:
                failed.append((name, str(error)))
                continue
            if replayed.began_at >= since:
                replays.append(replayed)
    if given.json:
        show_json({"runs": replays, "failed": dict(failed)})
    else:
        show(replay_table(replays, failed, given.days))
    return 0


def _replay(run_dir: RunDir, given: argparse.Namespace, *, is_alone: bool = False) -> Replayed:
    """`is_alone`: not one of many, which share a bar. Raises JournalError, ConfigError."""
    reading = read_journal(run_dir.journal)
    recorded = _recorded_policy(reading.header.policy)
    other = policy_with(given.policy if given.policy is not None else recorded, given.set)
    records = [entry for entry in reading.entries if isinstance(entry, Record)]
    began_at = next((record.at for record in records if isinstance(record.event, RunStarted)), 0.0)
    with waiting(f"replaying {reading.header.run}:", 2 * len(records), "record") if is_alone else nullcontext() as bar:
        seen = bar.over if bar is not None else iter
        compared = what_if(seen(records), recorded, other)
        standstills = recorded_standstills(seen(records), recorded)
    return Replayed(
        run=reading.header.run,
        began_at=began_at,
        changes=_changes(recorded, other),
        what_if=compared,
        prices=prices(standstills, other) if standstills else (),
    )


def _recorded_policy(values: dict[str, float | int | str | bool]) -> Policy:
    """Settings that this version does not know are left out, those that it adds have their defaults."""
    known = {field.name for field in msgspec.structs.fields(Policy)}
    return Policy(**{key: value for key, value in values.items() if key in known})  # type: ignore[arg-type]


def _changes(recorded: Policy, other: Policy) -> dict[str, tuple[str, str]]:
    """Setting -> recorded, other; the name is none."""
    before, after = msgspec.structs.asdict(recorded), msgspec.structs.asdict(other)
    return {key: (f"{before[key]}", f"{after[key]}") for key in before if before[key] != after[key] and key != "name"}
