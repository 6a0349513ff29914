"""One screen, one answer: is the run moving, and if not, what is being done about it.

Works while the run lives and after it is gone. Never imports torch.
"""

import argparse

from everstep.cli.reading import add_run_arguments, open_run, show, show_json, style


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)


def run(given: argparse.Namespace) -> int:
    opened = open_run(given.run, given.run_dir)
    if given.json:
        from everstep.report.asjson import status_json

        show_json(status_json(opened.view, opened.goodput, opened.asked))
        return 0
    from everstep.report.now.status import render_status

    show(render_status(opened.view, opened.goodput, opened.asked, style()))
    return 0
