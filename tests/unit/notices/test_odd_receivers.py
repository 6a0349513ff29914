"""What a receiver does to be waited for, against what it costs: one attempt, no place of another's, no process."""

import asyncio
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from lateness import Lateness
from odd_receivers import OddReceiver

from everstep.journal.runs import RunDir
from everstep.linux import proc
from everstep.notices import notifier
from everstep.notices.counts import load_counts
from everstep.notices.errors import NoticeError
from everstep.notices.messages import Message
from everstep.notices.notifier import Notifier
from everstep.notices.outbox import Due
from everstep.notices.sending import send
from everstep.notices.settings import Receiver

GOLDEN = (Path(__file__).parents[2] / "golden/journal.jsonl").read_bytes().splitlines(keepends=True)
SAID = {"state": "recovered", "is_over": True, "needs_you": False, "code": "ES-P09", "node": "n0", "text": "x"}
DUE = Due(message=Message(run="r1", key="i1", at=1.8e9, **SAID), revision=1, handle=None, num_untold=0)


def tell(receiver):
    """How long it took, with the end of the loop and of its threads, and what went wrong."""
    began = time.monotonic()
    with Lateness() as late:
        try:
            asyncio.run(send(receiver, DUE, "text"))
            why = ""
        except NoticeError as error:
            why = str(error)
    return time.monotonic() - began - late.seconds, why


def mail(port, limit_s=0.5):
    return Receiver(
        kind="email", host="127.0.0.1", port=port, security="none", sender="a@b.c", to=("d@e.f",), limit_s=limit_s
    )


def notice_threads():
    return [thread for thread in threading.enumerate() if thread.name == "everstep-notice"]


@pytest.mark.parametrize("kind", ["mail-dribbles", "mail-endless", "hangs", "closes", "mail-refuses"])
def test_a_mail_server_is_left_in_time_and_its_thread_ends(kind):
    with OddReceiver(kind) as odd:
        took_s, why = tell(mail(odd.port))
        assert why
        assert took_s < 3.0, "twice the limit, and not as long as it likes to talk"
        deadline = time.monotonic() + 30.0
        while notice_threads():
            assert time.monotonic() < deadline, "a thread for each byte that comes in time"
            time.sleep(0.02)


@pytest.mark.parametrize("kind", ["hangs", "closes", "dribbles", "endless", "500", "redirects"])
def test_a_web_hook_is_left_in_time(kind):
    with OddReceiver(kind) as odd:
        took_s, why = tell(Receiver(kind="webhook", url=odd.url, limit_s=0.5))
        assert took_s < 3.0
        assert bool(why) == (kind != "endless"), "it has answered 200, and what it says then is nobody's business"


def test_names_that_are_not_resolved_keep_no_other_receiver_waiting(monkeypatch):
    release, whole = threading.Event(), socket.getaddrinfo

    def slow(host, *more, **named):
        if host.endswith(".invalid"):
            release.wait(60.0)
        return whole(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def story(url):
        lost = [Receiver(kind="webhook", url=f"http://n{k}.invalid/", limit_s=20.0) for k in range(40)]
        waiting = [asyncio.create_task(send(each, DUE, "text")) for each in lost]
        await asyncio.sleep(0.1)
        await send(Receiver(kind="webhook", url=url, limit_s=20.0), DUE, "text")
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    try:
        with OddReceiver("fine") as fine:
            began = time.monotonic()
            asyncio.run(story(f"http://localhost:{fine.port}/"))
            assert time.monotonic() - began < 20.0, "nor the end of the loop"
            assert len(fine.got) == 1
    finally:
        release.set()


LEAVES = {
    "a child in its own session": "setsid sleep {s} & exit 0",
    "a daemon": "(setsid sh -c 'setsid sleep {s} & sleep {s}' &) ; exit 0",
    "one that never ends": "setsid sleep {s}; sleep {s}",
    "one that forks on and on": "setsid sh -c 'while :; do setsid sleep {s} & sleep 0.02; done' & sleep {s}",
    "one that ended before": "setsid true; (setsid true &); exit 0",
}


@pytest.mark.parametrize("leaves", LEAVES)
def test_nothing_of_a_command_is_left(leaves):
    seconds = f"600.{os.getpid()}"
    mine = set(proc.children(os.getpid()))
    is_late = "never" in leaves or "forks" in leaves
    argv = ("sh", "-c", LEAVES[leaves].format(s=seconds))
    _, why = tell(Receiver(kind="command", argv=argv, limit_s=0.5 if is_late else 60.0))
    assert bool(why) == is_late, why
    assert not [pid for pid in proc.processes() if seconds.encode() in proc.read_or_nothing(f"/proc/{pid}/cmdline")]
    assert set(proc.children(os.getpid())) <= mine, "nor as a zombie"


def test_a_command_is_told_by_its_input_and_its_mark_reaches_nobody_else(tmp_path):
    assert tell(Receiver(kind="command", argv=("sh", "-c", f"cat > {tmp_path}/told"), limit_s=60.0))[1] == ""
    assert '"key":"i1"' in (tmp_path / "told").read_text()
    assert "EVERSTEP_NOTICE" not in os.environ


def test_what_cannot_be_sent_before_the_end_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(notifier, "LOOK_S", 0.02)
    monkeypatch.setattr(notifier, "LINGER_S", 1e9)
    run_dir = RunDir(tmp_path)

    async def main(receivers):
        run_dir.journal.write_bytes(b"".join(GOLDEN[:12]))
        following = asyncio.create_task(Notifier(run_dir, receivers, lambda: False).run())
        await asyncio.sleep(0.1)
        run_dir.journal.write_bytes(b"".join(GOLDEN))
        async with asyncio.timeout(60):
            while load_counts(tmp_path).get("fine") != {"sent": 2}:  # the other one never answers
                await asyncio.sleep(0.02)
            monkeypatch.setattr(notifier, "LINGER_S", 0.0)
            await following

    with OddReceiver("hangs") as odd, OddReceiver("fine") as fine:
        hook = [Receiver(kind="webhook", name=n, url=o.url, limit_s=50.0) for n, o in (("odd", odd), ("fine", fine))]
        asyncio.run(main(tuple(hook)))
    counts = load_counts(tmp_path)
    assert counts == {"odd": {"failed": 2}, "fine": {"sent": 2}}
    assert len(fine.got) == 2
