"""The files of the page: read once, kept compressed, sent with headers that let a browser run nothing else.

One document for every path of the page, which asks for its data itself. Nothing comes from elsewhere, nothing is built.
"""

import gzip
import hashlib
from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).with_name("static")

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the link holds a token
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}

LOCKED = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>everstep</title>
<p>This page needs its token. Open the link that <code>everstep run</code> printed beside <code>ui</code>, or add
<code>?token=</code> and the content of <code>RUN_DIR/token-read</code> to this address.</p></html>
"""

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_SMALL = 1024


class Files:
    def __init__(self) -> None:
        self._plain = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in _TYPES}
        self._packed = {name: gzip.compress(data, 9) for name, data in self._plain.items()}
        self._tags = {name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in self._plain.items()}

    def answer(self, request: web.Request, name: str) -> web.Response:
        if name not in self._plain:
            return web.json_response({"error": "no such file"}, status=404)
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": self._tags[name], "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == self._tags[name]:
            return web.Response(status=304, headers=headers)
        kind = _TYPES[Path(name).suffix]
        return packed(request, self._plain[name], kind, headers, self._packed[name])


def packed(
    request: web.Request, data: bytes, kind: str, headers: dict[str, str], ready: bytes | None = None
) -> web.Response:
    """Compressed for one who can read that. `ready`: what it is then, if it is known."""
    if "gzip" not in request.headers.get("Accept-Encoding", "") or len(data) < _SMALL:
        return web.Response(body=data, content_type=kind, charset="utf-8", headers=headers)
    body = ready if ready is not None else gzip.compress(data, 5)
    return web.Response(body=body, content_type=kind, charset="utf-8", headers={**headers, "Content-Encoding": "gzip"})
