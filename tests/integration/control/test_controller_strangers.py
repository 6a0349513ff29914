"""The controller's port and an ordinary user of the same machine, or a web page that his browser opened."""

import contextlib
import json
import os
import re
import socket
from pathlib import Path

import pytest
from real_controller import TIMEOUT_S, Process

from everstep.journal.format import encode_record
from everstep.model.events import RuntimeFaulted
from everstep.model.record import Record


@pytest.fixture(scope="module")
def controller(tmp_path_factory):
    process = Process(tmp_path_factory.mktemp("run"))
    process.start()
    process.health()
    yield process
    process.process.kill()
    process.process.communicate()
    process.sock.close()


def ask(controller, request: str, *headers: str, body: bytes = b"") -> tuple[int, str, bytes]:
    """(status, headers, body), byte for byte as asked."""
    host = [] if any(line.lower().startswith("host:") for line in headers) else [f"Host: 127.0.0.1:{controller.port}"]
    head = "\r\n".join([request, *host, "Connection: close", *headers])
    with socket.create_connection(("127.0.0.1", controller.port), TIMEOUT_S) as sock:
        sock.sendall(head.encode() + b"\r\n\r\n" + body)
        answer = b""
        while data := sock.recv(65536):
            answer += data
    told, _, rest = answer.partition(b"\r\n\r\n")
    return int(told.split()[1]), told.decode(), rest


def bearer(controller, right="read"):
    return f"Authorization: Bearer {controller.secret.api_token(right)}"


READ = ["/", "/api/status", "/api/health", "/api/journal", "/api/journal?after=0", "/metrics", "/nothing", "/?token=x"]
READ += [
    "/api/overview",
    "/api/events",
    "/api/incidents/i1",
    "/incidents/i1/export",
    "/static/main.js",
    "/fleet",
    "/api/nodes/n0",
]


@pytest.mark.parametrize("path", READ)
@pytest.mark.parametrize(
    "more", [[], ["Authorization: Bearer x"], ["Cookie: everstep-read-80=x; a=b"], ["Cookie: =;;"]]
)
def test_nothing_can_be_read_without_the_token(controller, path, more):
    status, _, body = ask(controller, f"GET {path} HTTP/1.1", *more)
    assert status == 401
    assert b"train.py" not in body


@pytest.mark.parametrize(
    "path",
    ["/api/status", "/api/health", "/api/journal", "/metrics", "/", "/api/overview", "/static/main.js", "/fleet"],
)
def test_the_read_token_reads_everything_and_acts_on_nothing(controller, path):
    assert ask(controller, f"GET {path} HTTP/1.1", bearer(controller))[0] == 200
    assert ask(controller, f"GET {path} HTTP/1.1", bearer(controller, "act"))[0] == 200
    assert ask(controller, "POST /api/stop HTTP/1.1", bearer(controller), "Content-Length: 2", body=b"{}")[0] == 401


def test_the_printed_link_opens_the_page_and_leaves_a_cookie_that_only_reads(controller):
    token = controller.secret.api_token("read")
    status, told, page = ask(controller, f"GET /?token={token} HTTP/1.1")
    assert status == 200
    assert b'<script type="module" src="/static/main.js">' in page
    cookie = re.search(r"(?i)set-cookie: ([^;]+);(.*)", told)
    assert cookie is not None, told
    assert f"everstep-read-{controller.port}=" in cookie[1]
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie[2].split(";")}
    for path in ("/", "/api/status", "/api/journal"):
        assert ask(controller, f"GET {path} HTTP/1.1", f"Cookie: {cookie[1]}")[0] == 200
    act = ask(controller, "POST /api/stop HTTP/1.1", f"Cookie: {cookie[1]}", "Content-Length: 2", body=b"{}")
    assert act[0] == 401
    assert ask(controller, "GET /api/status?token=" + token + " HTTP/1.1")[0] == 401, "in a link, the page alone"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_name_that_was_made_to_lead_here_is_refused(controller, host, method):
    request = f"{method} /api/stop HTTP/1.1" if method == "POST" else "GET /api/status HTTP/1.1"
    status, _, body = ask(controller, request, f"Host: {host}", bearer(controller, "act"), "Content-Length: 0")
    assert status == 403
    assert b"evil" in body


def test_an_absolute_address_is_looked_at_too(controller):
    assert ask(controller, "GET http://evil.example/api/status HTTP/1.1", bearer(controller))[0] in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:9", "localhost:8080", "10.1.2.3"])
def test_addresses_and_localhost_are_let_in_whatever_port_leads_here(controller, host):
    assert ask(controller, "GET /api/status HTTP/1.1", f"Host: {host}", bearer(controller))[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
def test_a_page_of_another_origin_is_refused_also_with_the_cookie(controller, origin):
    cookie = f"Cookie: everstep-read-{controller.port}={controller.secret.api_token('read')}"
    assert ask(controller, "GET /api/status HTTP/1.1", cookie)[0] == 200
    assert ask(controller, "GET /api/status HTTP/1.1", cookie, f"Origin: {origin}")[0] == 403
    own = f"Origin: http://127.0.0.1:{controller.port}"
    assert ask(controller, "GET /api/status HTTP/1.1", cookie, own)[0] == 200


def test_garbage_is_counted_and_hardly_logged(controller):
    log = controller.run_dir / "controller.log"
    before, counted = log.stat().st_size, controller.health()["dropped"].get("garbage", 0)
    for number in range(150):
        with socket.create_connection(("127.0.0.1", controller.port), TIMEOUT_S) as sock:
            sock.sendall(b"GET / HTTP/9.9\r\nHost: \x00" + bytes([65 + number % 26]) * 8000 + b"\r\n\r\n")
            with contextlib.suppress(ConnectionError):  # it may hang up before it has read all of it
                while sock.recv(65536):
                    pass
    assert controller.health()["dropped"]["garbage"] >= counted + 150
    assert log.stat().st_size - before < 3000


def test_its_files_are_for_its_user_alone(controller):
    for name in ("journal.jsonl", "journal.lock", "controller.log", "controller.json"):
        assert (controller.run_dir / name).stat().st_mode & 0o077 == 0, name


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A controller with a journal of 20 MiB."""
    process = Process(tmp_path_factory.mktemp("long"))
    process.start()
    process.health()
    process.stop()
    path = process.run_dir / "journal.jsonl"
    first = len(path.read_bytes().splitlines())
    event = RuntimeFaulted(at=1.0, node="n0", rank=-1, generation=-1, where="x", why="x" * 1000)
    more = [encode_record(Record(seq=seq, at=1.0, gen=-1, event=event)) for seq in range(first, first + 20_000)]
    with path.open("ab") as file:
        file.write(b"".join(more))
    process.start()
    process.health()
    yield process
    process.process.kill()
    process.process.communicate()
    process.sock.close()


def rss_mib(process):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.process.pid}/status").read_text())[1]) / 1024


def test_a_page_of_a_long_journal_is_small_and_leads_to_the_next(long_run):
    first = long_run.get("/api/journal")
    assert len(first) < 3 << 20
    page = json.loads(first)
    assert [one["seq"] for one in page["records"]] == list(range(1, len(page["records"]) + 1))
    following = json.loads(long_run.get(f"/api/journal?after={page['records'][-1]['seq']}"))
    assert following["records"][0]["seq"] == page["records"][-1]["seq"] + 1
    assert json.loads(long_run.get(f"/api/journal?after={page['last']}"))["records"] == []


def test_sixty_that_ask_for_all_of_it_and_read_nothing_cost_no_memory_and_delay_nobody(long_run):
    before = rss_mib(long_run)
    request = f"GET /api/journal HTTP/1.1\r\nHost: localhost\r\n{bearer(long_run)}\r\n\r\n".encode()
    sockets = []
    for _ in range(60):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", long_run.port))
        sock.sendall(request * 20)
        sockets.append(sock)
    for _ in range(10):
        assert long_run.health()["journal_writable"]
    assert rss_mib(long_run) - before < 120
    for sock in sockets:
        sock.close()
    while "records" not in (page := json.loads(long_run.get("/api/journal?after=19990"))):
        assert "ask again later" in page["error"]  # until it has seen that they are gone
    assert page["records"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's processes")
def test_a_crowd_of_another_user_takes_an_eighth_of_the_places_and_none_of_ours(controller):
    connected, wait = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            crowd = [socket.create_connection(("127.0.0.1", controller.port)) for _ in range(700)]
            os.write(connected[1], b"%d" % len(crowd))
            os.close(wait[1])
            os.read(wait[0], 1)
        finally:
            os._exit(0)
    try:
        os.close(wait[0])
        assert os.read(connected[0], 10) == b"700"
        for _ in range(20):
            counted = controller.health()["dropped"].get("crowd", 0)
        assert counted >= 700 - 4096 // 8
        assert controller.post("/api/drill", {"kind": "none such"})[0] == 400
    finally:
        for fd in (wait[1], *connected):
            os.close(fd)
        os.waitpid(child, 0)
