"""One notice by e-mail. Raises NoticeError. A mail server is a stranger: what it says is read up to a limit, and for as
long as its receiver's `limit_s` says, whatever it sends meanwhile."""

import contextlib
import smtplib
import socket
import ssl
import time
from email.message import EmailMessage
from typing import Any

from everstep.notices.errors import NoticeError
from everstep.notices.outbox import Due
from everstep.notices.settings import Receiver
from everstep.notices.threads import on_own_thread

MAX_ANSWER_BYTES = 64 << 10


async def send_mail(receiver: Receiver, due: Due, text: str) -> None:
    limit_s = 2 * receiver.limit_s  # it is several answers
    deadline = time.monotonic() + limit_s
    try:
        await on_own_thread(limit_s, lambda: _mail(receiver, due, text, deadline))
    except TimeoutError as error:
        raise NoticeError(f"no answer within {limit_s:g} s") from error


def _mail(receiver: Receiver, due: Due, text: str, deadline: float) -> None:
    mail = EmailMessage()
    mail["Subject"] = f"[everstep] {due.message.run} {due.message.key}: {due.message.state}"
    mail["From"], mail["To"] = receiver.sender, ", ".join(receiver.to)
    mail.set_content(f"{text}\n")
    try:
        with contextlib.closing(_server(receiver, deadline)) as server:  # without a QUIT: the mail is taken
            if receiver.security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if receiver.user:
                server.login(receiver.user, receiver.password)
            server.send_message(mail)
    except smtplib.SMTPResponseException as error:
        raise NoticeError(f"it answered {error.smtp_code}", is_final=500 <= error.smtp_code < 600) from error
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise NoticeError(f"it cannot be reached: {type(error).__name__}") from error


def _server(receiver: Receiver, deadline: float) -> smtplib.SMTP:
    if receiver.security == "ssl":
        return _MailTls(receiver, deadline, context=ssl.create_default_context())
    return _Mail(receiver, deadline)


class _Little:
    """Reader of a mail server's answers, limited in bytes and time. Without it, an answer may have any number of lines,
    which are all kept, and each of its bytes may come just before the socket's own limit."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline, self._limit_s = sock, deadline, sock.gettimeout() or 0.0
        self._left, self._kept = MAX_ANSWER_BYTES, b""

    def readline(self, size: int) -> bytes:
        """Raises OSError; TimeoutError is one."""
        while b"\n" not in self._kept and len(self._kept) < size:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0.0:
                raise TimeoutError("it talks on")
            self._sock.settimeout(min(left_s, self._limit_s))
            part = self._sock.recv(4096)
            if not part:
                break
            self._kept += part
        end = min(size, self._kept.find(b"\n") + 1 or len(self._kept))
        line, self._kept = self._kept[:end], self._kept[end:]
        self._left -= len(line)
        if self._left < 0:
            raise OSError(f"it said more than {MAX_ANSWER_BYTES} bytes")
        return line

    def close(self) -> None:
        """The socket is its owner's."""


class _Mail(smtplib.SMTP):
    def __init__(self, receiver: Receiver, deadline: float, **more: Any) -> None:  # noqa: ANN401 - TLS has its own
        self._deadline = deadline  # the first answer is read while this is made
        super().__init__(receiver.host, receiver.port, timeout=receiver.limit_s, **more)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _Little(self.sock, self._deadline)
        return super().getreply()


class _MailTls(_Mail, smtplib.SMTP_SSL):
    pass
