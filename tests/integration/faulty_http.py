"""An HTTP proxy in front of a real server that can be away, slow or overloaded, as an object store is now and
then. For tests."""

import http.client
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.'
    b"</Message><RequestId>1</RequestId></Error>"
)


class FaultyProxy(http.server.ThreadingHTTPServer):
    """`fault`: "" | "away" (connections are cut) | "busy" (503) | "half-busy" (every other one). `delay_s`: before each
    answer."""

    daemon_threads = True

    def __init__(self, upstream_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream_port = upstream_port
        self.fault = ""
        self.delay_s = 0.0
        self.num_requests = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def works(self) -> None:
        self.fault, self.delay_s = "", 0.0

    def next_fault(self) -> str:
        """Of the request that has come in."""
        with self._lock:
            self.num_requests += 1
            if self.fault == "half-busy":
                return "busy" if self.num_requests % 2 else ""
            return self.fault


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.next_fault()
        time.sleep(self.server.delay_s)
        if fault == "away":
            self.close_connection = True
            self.connection.close()
        elif fault == "busy":
            self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
        else:
            self._forward(body)

    def _forward(self, body: bytes) -> None:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream_port, timeout=60)
        try:
            upstream.request(self.command, self.path, body=body, headers=dict(self.headers.items()))
            answer = upstream.getresponse()
            headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in ("transfer-encoding", "connection")]
            self._answer(answer.status, headers, answer.read())
        finally:
            upstream.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def faulty_proxy(upstream_port: int) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(upstream_port)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join(60)
