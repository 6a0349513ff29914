"""`everstep restart [RUN]`: restart a job that stands still now, without waiting until its time is over."""

import argparse

from everstep.cli.ask import post, who
from everstep.journal.runs import find_run
from everstep.report.parts.ansi import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="id or directory; default: the latest run")


def run(given: argparse.Namespace) -> int:
    answer = post(find_run(given.run), "/api/restart", {"by": who()})
    print(printable(f"restarting because of {answer.get('incident', 'the standstill')}      everstep status"))
    return 0
