"""Runs of a directory: two hundred of them, damaged ones among them, and what is no run at all."""

import asyncio
import os
import shutil
from pathlib import Path

import aiohttp
import pytest

from everstep.journal.runs import JOURNAL_NAME
from everstep.web.library import Library
from everstep.web.server import listen, serve

JOURNAL = Path(__file__).parents[2] / "golden/journal.jsonl"
TOKEN = "t0ken"


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        (tmp_path / f"run{number}").mkdir()
        shutil.copy(JOURNAL, tmp_path / f"run{number}")
    return tmp_path


def damage(folder: Path) -> dict[str, bytes]:
    whole = JOURNAL.read_bytes()
    lines = whole.splitlines(keepends=True)
    return {
        "middle": b"".join(lines[:20] + lines[21:]),
        "garbage": os.urandom(4096),
        "empty": b"",
        "half": lines[0][:40],
        "newer": lines[0].replace(b'"v":1', b'"v":99') + b"".join(lines[1:]),
        "text": b"\xff\xfe<script>alert(1)</script>\n" * 50,
        "deep": lines[0] + b"[" * 100_000 + b"\n" + b"".join(lines[1:]),
    }


def test_a_damaged_journal_is_listed_as_damaged_and_the_others_work(folder):
    broken = damage(folder)
    for name, content in broken.items():
        (folder / name).mkdir()
        (folder / name / JOURNAL_NAME).write_bytes(content)
    (folder / "fifo").mkdir()
    os.mkfifo(folder / "fifo" / JOURNAL_NAME)
    (folder / "no run").mkdir()
    (folder / "file").write_text("x")
    (folder / "latest").symlink_to("run0")
    (folder / "again").symlink_to("run0")
    (folder / "lost").symlink_to("nowhere")
    rows = {row.name: row for row in Library(folder).rows(budget_s=60.0)}
    assert set(rows) == {"run0", "run1", "run2", "fifo", *broken}
    for name in (*broken, "fifo"):
        assert rows[name].status == "damaged", name
        assert rows[name].now
    for name in ("run0", "run1", "run2"):
        assert (rows[name].status, rows[name].step, rows[name].num_incidents) == ("gave-up", 155, 4)


def test_what_does_not_fit_into_the_time_is_read_when_asked_again(folder, monkeypatch):
    library = Library(folder)
    assert {row.status for row in library.rows(budget_s=-1.0)} == {"unread"}
    assert library.is_behind
    assert {row.status for row in library.rows(budget_s=60.0)} == {"gave-up"}
    assert not library.is_behind
    monkeypatch.setattr("everstep.web.library.load_run", None)
    assert {row.status for row in library.rows(budget_s=60.0)} == {"gave-up"}, "kept by size and time"


@pytest.mark.parametrize("name", ["", ".", "..", "../run0", "run0/../run1", "/etc", ".hidden", "latest\n", "x" * 200])
def test_no_name_leads_out_of_the_directory(folder, name):
    assert Library(folder).find(name) is None


class Client:
    def __init__(self, session, base):
        self.session, self.base = session, base

    async def get(self, path, **headers):
        headers = {"Authorization": f"Bearer {TOKEN}", **{key.replace("_", "-"): v for key, v in headers.items()}}
        async with self.session.get(self.base + path, headers={k: v for k, v in headers.items() if v}) as answer:
            return answer.status, await answer.read(), answer


def with_ui(folder, ask):
    async def main():
        stop, sock = asyncio.Event(), listen(0)
        base = f"http://127.0.0.1:{sock.getsockname()[1]}"
        task = asyncio.create_task(serve(folder, sock, TOKEN, stop))
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            try:
                return await ask(Client(session, base))
            finally:
                stop.set()
                await task

    return asyncio.run(main())


def test_the_pages_of_a_run_and_who_may_read_them(folder):
    async def ask(ui):
        told = {}
        for path in ("/", "/api/runs", "/runs/run0/", "/runs/run0/api/overview", "/runs/run0/api/status",
                     "/runs/run0/api/incidents/i2", "/runs/run0/incidents/i2/markdown",
                     "/runs/run0/incidents/i2/export",
                     "/runs/run0/api/nodes/n1", "/runs/run0/api/journal?after=70", "/static/main.js"):  # fmt: skip
            told[path] = (await ui.get(path))[0]
            assert (await ui.get(path, Authorization=None))[0] == 401, path
            assert (await ui.get(path, Host="evil.example"))[0] == 403, path
            assert (await ui.get(path, Origin="http://evil.example"))[0] == 403, path
        assert set(told.values()) == {200}, told
        for path in ("/runs/nothing/", "/runs/run0/api/incidents/i99", "/runs/run0/api/incidents/i2/ranks",
                     "/runs/run0/api/nodes/zz", "/static/..%2ffeed.py", "/nothing"):  # fmt: skip
            assert (await ui.get(path))[0] == 404, path
        status, _, link = await ui.get(f"/?token={TOKEN}", Authorization=None)
        assert status == 200
        cookie = link.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert (await ui.get("/api/runs", Authorization=None, Cookie=cookie.split(";")[0]))[0] == 200
        assert "script-src 'self'" in link.headers["Content-Security-Policy"]
        assert "unsafe" not in link.headers["Content-Security-Policy"]
        async with ui.session.post(ui.base + "/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
            assert answer.status == 405

    with_ui(folder, ask)


def test_events_go_on_where_the_reader_was(folder):
    async def ask(ui):
        async def first(**headers):
            headers = {"Authorization": f"Bearer {TOKEN}", **headers}
            async with ui.session.get(ui.base + "/runs/run0/api/events", headers=headers) as answer:
                assert answer.headers["Content-Type"].startswith("text/event-stream")
                told = (await answer.content.readuntil(b"\n\n")).decode()
                return told.split("\n")[0].removeprefix("id: "), told

        version, told = await first()
        assert '"reset":true' in told
        assert '"incident:i4"' in told
        again, told = await first(**{"Last-Event-ID": version})
        assert again == version
        assert '"reset":false,"rows":{}' in told
        _, told = await first(**{"Last-Event-ID": "other.7"})
        assert '"reset":true' in told

    with_ui(folder, ask)
