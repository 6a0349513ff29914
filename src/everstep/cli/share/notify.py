"""Sends notices about the incidents of a run to people: webhook, Slack, e-mail, a command (docs/notices.md).

`everstep run --config FILE` does it by itself when FILE has [[notices]]; this is for a run without.
everstep notify [RUN] --config FILE     until the run ends
everstep notify --config FILE --test    one message to each receiver, now
"""

import argparse
import asyncio
import time
from pathlib import Path

from everstep.cli.reading import show
from everstep.errors import ConfigError
from everstep.journal.runs import find_run
from everstep.notices.errors import NoticeError
from everstep.notices.messages import Message
from everstep.notices.notifier import Notifier, log_to
from everstep.notices.outbox import Due
from everstep.notices.sending import send
from everstep.notices.settings import Receiver, load_receivers

EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="id, directory or journal file; default: the latest")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument("--config", metavar="FILE", required=True, help="TOML with [[notices]]")
    parser.add_argument(
        "--test", action="store_true", help="send one message to each receiver and say what became of it"
    )


def run(given: argparse.Namespace) -> int:
    """Raises ConfigError."""
    receivers = load_receivers(Path(given.config))
    if not receivers:
        raise ConfigError(f"{given.config} has no [[notices]]: docs/notices.md")
    if given.test:
        return asyncio.run(_test(receivers))
    log_to(None)
    asyncio.run(Notifier(find_run(given.run, given.run_dir), receivers, lambda: True).run())
    return 0


async def _test(receivers: tuple[Receiver, ...]) -> int:
    code = 0
    for receiver in receivers:
        text = "a test of everstep's notices: nothing happened"
        message = Message(key="test", run="test", at=time.time(), state="test", is_over=True, needs_you=False,
                          code="", node="", text=text)  # fmt: skip
        try:
            await send(receiver, Due(message=message, handle=None, revision=1, num_untold=0), text)
            show(f"{receiver.name}: sent\n")
        except NoticeError as error:
            code = EXIT_FAILED
            show(f"{receiver.name}: not sent: {error}\n")
    return code
