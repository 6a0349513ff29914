"""One notice to one receiver. Raises NoticeError with what went wrong, in a sentence without the address.

Nothing is followed, nothing is waited for longer than the receiver's `limit_s`, and of an answer little is read: a
receiver is a stranger.
"""

import functools
import ssl

import aiohttp
import msgspec

from everstep.notices.command import run_command
from everstep.notices.errors import NoticeError
from everstep.notices.mail import send_mail
from everstep.notices.outbox import Due
from everstep.notices.settings import Receiver
from everstep.notices.threads import Resolver, on_own_thread

MAX_ANSWER_BYTES = 64 << 10
_SLACK_MARKS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class _Posted(msgspec.Struct):
    ok: bool = False
    error: str = ""
    ts: str = ""
    channel: str = ""


async def send(receiver: Receiver, due: Due, text: str) -> str | None:
    """Send the notice. Return the handle by which it can be edited later; None: it cannot be edited."""
    body = _body(due, text)
    match receiver.kind:
        case "webhook":
            await _post(receiver, receiver.url, body, {})
            return body["id"]
        case "slack" if receiver.token:
            return await _slack(receiver, due, text)
        case "slack":
            await _post(receiver, receiver.url, {"text": text.translate(_SLACK_MARKS)}, {})
            return None
        case "email":
            await send_mail(receiver, due, text)
            return None
        case _:
            await run_command(receiver, msgspec.json.encode(body))
            return body["id"]


def _body(due: Due, text: str) -> dict[str, str]:
    shown = msgspec.to_builtins(due.message) | {"text": text}
    return {"id": f"{due.message.run}/{due.message.key}", "revision": due.revision, **shown}


async def _slack(receiver: Receiver, due: Due, text: str) -> str:
    """The bot's own message is edited; its place is the handle."""
    channel, _, ts = (due.handle or "").partition(" ")
    body = {"channel": channel or receiver.channel, "text": text.translate(_SLACK_MARKS)}
    verb = "chat.update" if ts else "chat.postMessage"
    data = await _post(receiver, f"{receiver.api.rstrip('/')}/{verb}", body | ({"ts": ts} if ts else {}),
                       {"Authorization": f"Bearer {receiver.token}"})  # fmt: skip
    try:
        posted = msgspec.json.decode(data, type=_Posted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoticeError("its answer is not Slack's") from error
    if not posted.ok:
        is_final = posted.error not in ("ratelimited", "service_unavailable", "internal_error", "")
        raise NoticeError(f"it said {posted.error[:60]!a}", is_final=is_final)
    return f"{posted.channel or body['channel']} {posted.ts or ts}"


async def _post(receiver: Receiver, url: str, body: object, headers: dict[str, str]) -> bytes:
    timeout = aiohttp.ClientTimeout(total=receiver.limit_s)
    try:
        names = aiohttp.TCPConnector(resolver=Resolver(receiver.limit_s), use_dns_cache=False)
        async with aiohttp.ClientSession(
            connector=names, timeout=timeout, trust_env=True, auto_decompress=False
        ) as session:
            plain = {"Accept-Encoding": "identity"}  # little that is packed is much that is unpacked
            headers = {"Content-Type": "application/json; charset=utf-8", **plain, **headers}
            data = msgspec.json.encode(body)
            trusted = await on_own_thread(receiver.limit_s, _authorities) if url.startswith("https:") else True
            async with session.post(url, data=data, headers=headers, allow_redirects=False, ssl=trusted) as answer:
                read = await answer.content.read(MAX_ANSWER_BYTES)
                if 300 <= answer.status < 400:
                    raise NoticeError(f"it answered {answer.status}: redirects are not followed", is_final=True)
                if answer.status >= 400:
                    is_final = answer.status < 500 and answer.status != 429
                    raise NoticeError(f"it answered {answer.status}", is_final=is_final)
                return read
    except TimeoutError as error:
        raise NoticeError(f"no answer within {receiver.limit_s:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoticeError(f"it cannot be reached: {type(error).__name__}") from error


@functools.cache
def _authorities() -> ssl.SSLContext:
    """Those whose certificates a receiver's has to come from. aiohttp's own are left out (`wire/lean_tls.py`)."""
    return ssl.create_default_context()
