"""Follows a run's journal and notifies its receivers, each in its own task: one that hangs delays no other.

A process of its own with the lowest priority. It only reads, so nothing that happens here reaches training.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from everstep.journal.beside.secrets import secret_values
from everstep.journal.runs import RunDir
from everstep.notices.counts import save_counts
from everstep.notices.errors import NoticeError
from everstep.notices.following import Following
from everstep.notices.messages import Message, messages_of
from everstep.notices.outbox import Due, Outbox
from everstep.notices.sending import send
from everstep.notices.settings import Receiver
from everstep.report.handing.masking import Mask

LOOK_S = 1.0
LINGER_S = 20.0
"""After the run's end: what is still to be told gets so long."""

RETRY_S = (1.0, 5.0)

log = logging.getLogger("everstep.notices")


class Notifier:
    """`is_alone()`: the parent is gone."""

    def __init__(self, run_dir: RunDir, receivers: tuple[Receiver, ...], is_alone: Callable[[], bool]) -> None:
        self._run_dir = run_dir
        self._own = {value for each in receivers for value in (each.url, each.token, each.password) if value}
        self._following = Following(run_dir, is_alone)
        self._outboxes = [Outbox(receiver) for receiver in receivers]
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until the run is over, or the parent is gone, and all messages are delivered."""
        first = self._messages()
        for outbox in self._outboxes:
            for message in first:
                if message.is_over:
                    outbox.know(message)
        over_at: float | None = None
        while True:
            messages = self._messages()
            busy = [self._tell(outbox, messages) for outbox in self._outboxes]
            if over_at is None and self._following.is_over():
                over_at = time.monotonic()
            if over_at is not None and (not any(busy) or time.monotonic() - over_at > LINGER_S):
                break
            await asyncio.sleep(LOOK_S)
        await self._give_up()
        self._save()

    async def _give_up(self) -> None:
        """Give up the notices that are not sent by now, and count them as any other failure."""
        under_way = [task for task in self._tasks.values() if not task.done()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        messages = self._messages()
        for outbox in self._outboxes:
            while (due := outbox.due(messages, time.time())) is not None:
                log.warning("%s: %s was not sent: the run was over", outbox.receiver.name, due.message.key)
                outbox.settle(due, time.time(), due.handle, is_sent=False)

    def _messages(self) -> list[Message]:
        view = self._following.view()
        return [] if view is None else messages_of(view)

    def _tell(self, outbox: Outbox, messages: list[Message]) -> bool:
        """Whether something is under way for this receiver."""
        name = outbox.receiver.name
        task = self._tasks.get(name)
        if task is not None and not task.done():
            return True
        before = sum(outbox.counts.values())
        due = outbox.due(messages, time.time())
        if sum(outbox.counts.values()) != before:
            self._save()
        if due is None:
            return False
        self._tasks[name] = asyncio.create_task(self._send(outbox, due))
        return True

    async def _send(self, outbox: Outbox, due: Due) -> None:
        handle, is_sent = due.handle, False
        try:
            handle, is_sent = await self._try(outbox, due)
        except Exception:
            log.exception("%s: a fault of everstep's own", outbox.receiver.name)
        finally:  # also when the end of the run has cut it short
            outbox.settle(due, time.time(), handle, is_sent=is_sent)
            self._save()

    async def _try(self, outbox: Outbox, due: Due) -> tuple[str | None, bool]:
        """(what it can be edited by, whether it was sent)"""
        text = self._text(outbox.receiver, due)
        for pause_s in (*RETRY_S, None):
            try:
                return await send(outbox.receiver, due, text), True
            except NoticeError as error:
                what = f"{outbox.receiver.name}: {due.message.key} was not sent: {error}"
                log.warning("%s", self._mask(what))
                if error.is_final or pause_s is None:
                    break
                await asyncio.sleep(pause_s)
        return due.handle, False

    def _text(self, receiver: Receiver, due: Due) -> str:
        message = due.message
        more = f" ({due.num_untold} before it were not sent: too many)" if due.num_untold else ""
        link = receiver.link.replace("{run}", message.run).replace("{incident}", message.key)
        return self._mask(message.text) + more + (f" {link}" if link else "")

    def _mask(self, text: str) -> str:
        """Mask what is secret now: an update may have brought variables. Anyone with a receiver's address can write
        there."""
        return Mask(secret_values(self._run_dir.path, os.environ) | self._own)(text)

    def _save(self) -> None:
        counts = {outbox.receiver.name: {str(o): n for o, n in outbox.counts.items()} for outbox in self._outboxes}
        save_counts(self._run_dir.path, counts)


def log_to(path: Path | None) -> None:
    """None: stderr."""
    logging.raiseExceptions = False
    handler: logging.Handler = logging.StreamHandler() if path is None else logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("everstep").addHandler(handler)
    logging.getLogger("everstep").setLevel(logging.INFO)
