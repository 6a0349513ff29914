"""`everstep stop [RUN]`: end a run as Ctrl-C in its terminal would."""

import argparse

from everstep.cli.ask import post
from everstep.journal.runs import find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="id or directory; default: the latest run")


def run(given: argparse.Namespace) -> int:
    run_dir = find_run(given.run)
    post(run_dir, "/api/stop", {"why": "everstep stop"})
    print("stopping; the launcher ends every process of the run")
    return 0
