"""A web server on this machine that answers late, slowly, or not at all: /late, /slow, /refused; ?seconds=N.

Used by the benchmarks of healthy programs and of hangs.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        seconds = float(parse_qs(parts.query).get("seconds", ["0"])[0])
        with contextlib.suppress(OSError):
            if parts.path == "/refused":
                self.send_error(503)
            elif parts.path == "/slow":
                self._trickle(seconds)
            else:
                time.sleep(seconds)
                self._answer(b"ok")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.do_GET()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _trickle(self, seconds: float) -> None:
        """A few bytes now and then, until the time is over."""
        self.send_response(200)
        self.end_headers()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.wfile.write(b"some bytes ")
            self.wfile.flush()
            time.sleep(0.5)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def late_server() -> Iterator[str]:
    """Its address, for as long as the block lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
