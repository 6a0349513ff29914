"""`everstep drain NODE [--run RUN]`: a running job leaves a machine for a standby, because an operator needs it."""

import argparse

from everstep.cli.ask import post, who
from everstep.cli.reading import show_json
from everstep.journal.runs import find_run
from everstep.report.parts.ansi import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="as `everstep status` names it (n3), or its host")
    parser.add_argument("--run", metavar="RUN", help="id or directory; default: the latest run")
    parser.add_argument("--why", default="", metavar="TEXT", help="for those who wonder later")
    parser.add_argument("--undo", action="store_true", help="it may stay after all, if it is not left yet")
    parser.add_argument("--json", action="store_true", help="for programs: node, host, follows")


def run(given: argparse.Namespace) -> int:
    body = {"node": given.node, "why": given.why, "by": who(), "is_undone": given.undo}
    answer = post(find_run(given.run), "/api/drain", body)
    if given.json:
        show_json({key: answer.get(key) for key in ("node", "host", "follows")})
        return 0
    where = f"{answer.get('node')} on {answer.get('host')}"
    did = "is not drained any more" if given.undo else "is drained"
    print(printable(f"{where} {did}: {answer.get('follows')}      everstep status"))
    return 0
