"""One notice to one receiver. Raises NoticeError with what went wrong, in a sentence without the address.

Nothing is followed, nothing is waited for longer than the receiver's `limit_s`, and of an answer little is read: a
receiver is a stranger.
"""

import asyncio
import contextlib
import os
import signal
import smtplib
import ssl
from collections.abc import Coroutine
from email.message import EmailMessage
from typing import IO, Any

import aiohttp
import msgspec

from everstep.notices.outbox import Due
from everstep.notices.settings import Receiver

MAX_ANSWER_BYTES = 64 << 10
_SLACK_MARKS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class NoticeError(Exception):
    """It did not arrive. `is_final`: trying again would not help."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final


class _Posted(msgspec.Struct):
    ok: bool = False
    error: str = ""
    ts: str = ""
    channel: str = ""


async def send(receiver: Receiver, due: Due, text: str) -> str | None:
    """What the message can be edited by, if it can."""
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
            await _in_time(2 * receiver.limit_s, asyncio.to_thread(_mail, receiver, due, text))
            return None
        case _:
            await _command(receiver, msgspec.json.encode(body))
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
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True, auto_decompress=False) as session:
            plain = {"Accept-Encoding": "identity"}  # little that is packed is much that is unpacked
            headers = {"Content-Type": "application/json; charset=utf-8", **plain, **headers}
            data = msgspec.json.encode(body)
            async with session.post(url, data=data, headers=headers, allow_redirects=False) as answer:
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


def _mail(receiver: Receiver, due: Due, text: str) -> None:
    mail = EmailMessage()
    mail["Subject"] = f"[everstep] {due.message.run} {due.message.key}: {due.message.state}"
    mail["From"], mail["To"] = receiver.sender, ", ".join(receiver.to)
    mail.set_content(f"{text}\n")
    try:
        with contextlib.closing(_server(receiver)) as server:  # without a QUIT: the mail is taken, whatever it answers
            if receiver.security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if receiver.user:
                server.login(receiver.user, receiver.password)
            server.send_message(mail)
    except smtplib.SMTPResponseException as error:
        raise NoticeError(f"it answered {error.smtp_code}", is_final=500 <= error.smtp_code < 600) from error
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise NoticeError(f"it cannot be reached: {type(error).__name__}") from error


def _server(receiver: Receiver) -> smtplib.SMTP:
    if receiver.security == "ssl":
        context = ssl.create_default_context()
        return _MailTls(receiver.host, receiver.port, timeout=receiver.limit_s, context=context)
    return _Mail(receiver.host, receiver.port, timeout=receiver.limit_s)


class _Little:
    """What a mail server says, up to a limit: its answers may have any number of lines, and all are kept."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, MAX_ANSWER_BYTES

    def readline(self, size: int) -> bytes:
        """Raises OSError."""
        line = self._file.readline(size)
        self._left -= len(line)
        if self._left < 0:
            raise OSError(f"it said more than {MAX_ANSWER_BYTES} bytes")
        return line

    def close(self) -> None:
        self._file.close()


class _Mail(smtplib.SMTP):
    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _Little(self.sock.makefile("rb"))
        return super().getreply()


class _MailTls(_Mail, smtplib.SMTP_SSL):
    pass


async def _in_time(limit_s: float, waiting: Coroutine[Any, Any, None]) -> None:
    """A thread cannot be ended: it is left alone, and the process ends without it."""
    task = asyncio.create_task(waiting)
    done, _ = await asyncio.wait([task], timeout=limit_s)
    if not done:
        raise NoticeError(f"no answer within {limit_s:g} s")
    task.result()


async def _command(receiver: Receiver, data: bytes) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *receiver.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise NoticeError(f"it cannot be started: {error}", is_final=True) from error
    try:
        async with asyncio.timeout(receiver.limit_s):
            await process.communicate(data)
    except TimeoutError as error:
        raise NoticeError(f"it did not end within {receiver.limit_s:g} s, and was killed") from error
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it left
        with contextlib.suppress(ProcessLookupError):
            await process.wait()
    if process.returncode:
        raise NoticeError(f"it ended with {process.returncode}")
