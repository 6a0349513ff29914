"""`everstep approve INCIDENT`: let a run in mode advise do what it proposes."""

import argparse

from everstep.cli.ask import post, who
from everstep.journal.runs import find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("incident", metavar="INCIDENT", help="id of the open incident, as i3")
    parser.add_argument("run", nargs="?", metavar="RUN", help="id or directory; default: the latest run")


def run(given: argparse.Namespace) -> int:
    run_dir = find_run(given.run)
    post(run_dir, "/api/approve", {"incident": given.incident, "by": who()})
    print(f"approved: {given.incident}      everstep status")
    return 0
