"""Real receivers on loopback: some take what they get, some hang, fail, redirect or are gone. None holds up another."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from everstep.journal.runs import RunDir
from everstep.notices import following as followed
from everstep.notices import notifier
from everstep.notices.counts import load_counts
from everstep.notices.errors import NoticeError
from everstep.notices.messages import Message
from everstep.notices.notifier import Notifier
from everstep.notices.outbox import Due
from everstep.notices.sending import send
from everstep.notices.settings import Receiver

GOLDEN = (Path(__file__).parents[2] / "golden/journal.jsonl").read_bytes().splitlines(keepends=True)
SECRET = "labels"  # of the program's own words: it must not be in any message


class Site:
    """A web server with a receiver of each kind."""

    def __init__(self):
        self.got = {}
        self.texts = {}  # Slack's messages as they are now
        self.odd = None  # what Slack answers in the place of its own words

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/{name}", self._take)
        app.router.add_post("/api/{verb}", self._slack)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _take(self, request):
        name = request.match_info["name"]
        self.got.setdefault(name, []).append(await request.json())
        if name == "hang":
            await asyncio.sleep(60)
        if name == "redirect":
            raise web.HTTPTemporaryRedirect("/taken")
        return web.Response(status=500 if name == "broken" else 200)

    async def _slack(self, request):
        assert request.headers["Authorization"] == "Bearer bot-token-1"
        body = await request.json()
        ts = body.get("ts") or str(len(self.texts))
        assert (request.match_info["verb"] == "chat.update") == ("ts" in body)
        self.texts[ts] = body["text"]
        if self.odd is not None:
            return web.Response(body=self.odd)
        return web.json_response({"ok": True, "ts": ts, "channel": "C1"})


async def follow(tmp_path, receivers, until=lambda: True):
    """A run that is told as it grows: first its head, then all of it."""
    run_dir = RunDir(tmp_path)
    run_dir.journal.write_bytes(b"".join(GOLDEN[:12]))
    following = asyncio.create_task(Notifier(run_dir, receivers, lambda: False).run())
    for end in (30, 45, len(GOLDEN)):
        await asyncio.sleep(0.1)
        run_dir.journal.write_bytes(b"".join(GOLDEN[:end]))
    await asyncio.wait_for(following, 90)
    return load_counts(tmp_path)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(notifier, "LOOK_S", 0.02)
    monkeypatch.setattr(notifier, "RETRY_S", (0.01,))
    monkeypatch.setattr(notifier, "LINGER_S", 60.0)


def hook(name, base):
    return Receiver(kind="webhook", name=name, url=f"{base}/{name}", limit_s=0.3 if name == "hang" else 60.0)


def slack(base):
    return Receiver(kind="slack", name="chat", token="bot-token-1", channel="ops", api=f"{base}/api", limit_s=60.0)


@pytest.mark.slow
def test_bad_receivers_cost_a_count_and_good_ones_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", SECRET)
    wrote = tmp_path / "told"
    program = f"cat >> {wrote}; sleep 77 & true"

    async def main():
        async with Site() as site:
            gone = Receiver(kind="webhook", name="gone", url="http://127.0.0.1:9/x")
            chat = slack(site.base)
            command = Receiver(kind="command", name="command", argv=("sh", "-c", program), limit_s=60.0)
            never = Receiver(kind="command", name="never", argv=("sleep", "60"), limit_s=0.3)
            none = Receiver(kind="command", name="none", argv=("/no/such/program",))
            mail = Receiver(kind="email", name="mail", host="127.0.0.1", port=9, sender="a@b.c", to=("d@e.f",))
            hooks = [hook(name, site.base) for name in ("good", "hang", "broken", "redirect")]
            counts = await follow(tmp_path, (*hooks, gone, chat, command, never, none, mail))
            return counts, site

    counts, site = asyncio.run(main())
    told = len(site.got["good"])
    assert told >= 2
    assert counts["good"] == {"sent": told}
    assert counts["command"] == {"sent": told}
    assert counts["chat"]["sent"] >= told
    for name in ("hang", "broken", "redirect", "gone", "never", "none", "mail"):
        assert counts[name] == {"failed": told}, name
    assert "taken" not in site.got, "a redirect is not followed"
    assert len(site.got["redirect"]) == told, "it is not tried again"
    assert len(site.got["broken"]) == 2 * told, "it is"
    keys = [each["id"] for each in site.got["good"]]
    assert len(set(keys)) == len(keys), "one message per incident"
    everything = msgspec.json.encode(site.got).decode() + str(site.texts) + wrote.read_text()
    assert SECRET not in everything
    assert "KeyError" in everything


@pytest.mark.parametrize("odd", [b'{"x":' + b"[" * 30_000, b"\xff", b"[]", b"", b'{"ok": 1}'])
def test_an_answer_that_is_none_is_said_and_tried_again(odd):
    async def main():
        async with Site() as site:
            site.odd = odd
            said = {"state": "open", "is_over": False, "needs_you": False, "code": "ES-P09", "node": "n0", "text": "x"}
            message = Message(run="r1", key="i1", at=1.8e9, **said)
            with pytest.raises(NoticeError, match="not Slack's"):
                await send(slack(site.base), Due(message=message, revision=1, handle=None, num_untold=0), "text")

    asyncio.run(main())


def test_a_message_in_a_chat_is_edited_in_place_and_its_text_is_text(tmp_path):
    async def main():
        async with Site() as site:
            chat = slack(site.base)
            return await follow(tmp_path, (chat,)), site.texts

    counts, texts = asyncio.run(main())
    assert len(texts) == counts["chat"]["sent"]
    assert any("recovered" in text for text in texts.values())
    assert not any("is disturbed" in text for text in texts.values()), "each says how it ended"
    assert not any(mark in text for text in texts.values() for mark in "<>")


def test_a_mail_arrives(tmp_path):
    mails = []

    async def serve(reader, writer):
        writer.write(b"220 x\r\n")
        lines, is_data = [], False
        while line := await reader.readline():
            if is_data:
                is_data = line != b".\r\n"
                lines.append(line)
                if not is_data:
                    mails.append(b"".join(lines).decode())
                    writer.write(b"250 ok\r\n")
            else:
                is_data = line.upper().startswith(b"DATA")
                writer.write(b"354 go\r\n" if is_data else b"250 ok\r\n")
        writer.close()
        await writer.wait_closed()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        mail = Receiver(
            kind="email", name="mail", host="127.0.0.1", port=port, security="none", sender="a@b.c", to=("d@e.f",)
        )
        mail = msgspec.structs.replace(mail, limit_s=60.0)
        counts = await follow(tmp_path, (mail,))
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.05)
        return counts

    counts = asyncio.run(main())
    assert counts["mail"] == {"sent": len(mails)}
    assert any("Subject: [everstep] r7f3 i2: recovered" in mail for mail in mails)


def test_a_controller_that_is_on_its_way_back_does_not_end_the_notifier(tmp_path, monkeypatch):
    monkeypatch.setattr(followed, "GONE_S", 3.0)
    run_dir, pid = RunDir(tmp_path), [None]
    run_dir.journal.write_bytes(b"".join(GOLDEN[:12]))
    monkeypatch.setattr(RunDir, "controller_pid", lambda _: pid[0])

    async def main():
        following = asyncio.create_task(Notifier(run_dir, (), lambda: True).run())
        for _ in range(4):
            await asyncio.sleep(0.1)
            pid[0] = 7  # it is there now and then
            await asyncio.sleep(0.05)
            pid[0] = None
            assert not following.done()
        await asyncio.wait_for(following, 60)

    asyncio.run(main())
