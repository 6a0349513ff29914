"""Rejection of requests that a foreign web page makes a browser on this machine send to us.

The Host header gives away a name that was made to lead to 127.0.0.1 (DNS rebinding), the Origin header a page of
another origin. A browser proves who it is with a cookie, which it got for the token in the printed link. Called by
`gate` and `api`.
"""

import ipaddress
import re
from urllib.parse import urlsplit

from aiohttp import web

_HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})(?:%[\w.~-]{1,30})?\]|(?P<name>[\w.-]{1,253}))(?::(?P<port>[0-9]{0,5}))?",
    re.ASCII,
)
_LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})
COOKIE = "everstep-read-"
"""Followed by the port: cookies ignore ports, and two runs are two ports of one host."""


def why_foreign(request: web.Request) -> str:
    """Why this request may come from a foreign page; "" if not."""
    hosts = request.headers.getall("Host", [])
    if request.raw_path and "://" in request.raw_path.partition("?")[0]:
        hosts = [*hosts, urlsplit(request.raw_path).netloc]
    for host in hosts:
        if not _is_ours(host):
            return f"a request for host {host[:60]!r}; ask by the address or as localhost"
    for origin in request.headers.getall("Origin", []):
        if not hosts or urlsplit(origin).netloc.lower() != hosts[0].lower():
            return f"a request by a page of {origin[:60]!r}"
    return ""


def cookie_name(request: web.Request) -> str:
    """The cookie for the port that the browser knows, which is another one behind `ssh -L`."""
    whole = _HOST.fullmatch(request.headers.get("Host", ""))
    return f"{COOKIE}{(whole and whole['port']) or 80}"


def admit(request: web.Request, response: web.StreamResponse, token: str) -> None:
    """From now on this browser may read, until it is closed."""
    response.set_cookie(cookie_name(request), token, httponly=True, samesite="Strict", secure=request.secure, path="/")


def _is_ours(host: str) -> bool:
    """Whether the host is one of ours. An address cannot be rebound, a name can; which of our addresses it is does not
    matter. What is not of the form of a host is foreign."""
    whole = _HOST.fullmatch(host)
    if whole is None:
        return False
    try:
        ipaddress.ip_address(whole["six"] or whole["name"])
    except ValueError:
        return whole["six"] is None and whole["name"].lower().rstrip(".") in _LOCAL_NAMES
    return True
