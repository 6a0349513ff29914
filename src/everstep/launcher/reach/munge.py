"""Joining by munge, where the nodes of a Slurm job share no directory: Slurm's own authentication.

A munge credential proves which user of the cluster made it, and can be read once, by that user only. What it carries
covers the certificate and the random bytes of both sides, as the proofs of a join token do (docs/adr/0021), and the
job: a process of the same user in another job does not get in. libmunge is called in this process: a launcher waits for
all of its children itself, so it starts no helpers for a moment.
"""

import ctypes
import os
import re
import subprocess

from everstep.launcher.arguments.hosts import Hosts
from everstep.wire.credentials import is_same
from everstep.wire.joining import JoinToken, Proofs

LIBRARY = "libmunge.so.2"
MARK = "MUNGE:"
MAX_CREDENTIAL_CHARS = 2048
_SOCKET, _UID_RESTRICTION = 8, 9  # munge_opt of munge.h
_ASK_S = 10.0


class MungeToken:
    """In the place of a JoinToken. When munge does not work, every proof is wrong."""

    is_of_job = True  # Slurm's own word for who the user is, who may end the job

    def __init__(self, about: str, socket: str = "") -> None:
        """`about`: what the two sides have in common. `socket`: munged's; the default one else. Raises OSError where
        there is no libmunge."""
        self._munge = ctypes.CDLL(LIBRARY)
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]
        self._munge.munge_ctx_create.restype = ctypes.c_void_p
        self._about, self._socket = about, socket.encode()

    def __repr__(self) -> str:
        return "MungeToken()"

    @property
    def voter(self) -> str:
        return ""

    def of_kind(self, proof: str) -> "MungeToken":
        return self

    def proof(self, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> str:
        text = self._text(who, fingerprint, head_nonce, host_nonce)
        context, made = self._context(), ctypes.c_void_p()
        try:
            if self._munge.munge_encode(ctypes.byref(made), context, text, len(text)) != 0 or not made.value:
                return MARK
            return (ctypes.string_at(made.value)).decode("ascii", "replace")
        finally:
            self._free(made)
            self._munge.munge_ctx_destroy(context)

    def is_right(self, proof: str, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> bool:
        """Made by this very user for these two sides; a second look at the same one says no."""
        if not proof.startswith(MARK) or len(proof) > MAX_CREDENTIAL_CHARS:
            return False
        context, data, length, uid = self._context(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint()
        credential = proof.encode("ascii", "replace")
        try:
            failed = self._munge.munge_decode(
                credential, context, ctypes.byref(data), ctypes.byref(length), ctypes.byref(uid), None
            )
            said = ctypes.string_at(data.value, length.value) if data.value else b""
        finally:
            self._free(data)
            self._munge.munge_ctx_destroy(context)
        text = self._text(who, fingerprint, head_nonce, host_nonce)
        return failed == 0 and uid.value == os.geteuid() and is_same(said.decode("ascii", "replace"), text.decode())

    def _context(self) -> ctypes.c_void_p:
        context = ctypes.c_void_p(self._munge.munge_ctx_create())
        if self._socket:
            self._munge.munge_ctx_set(context, _SOCKET, ctypes.c_char_p(self._socket))
        self._munge.munge_ctx_set(context, _UID_RESTRICTION, ctypes.c_uint(os.geteuid()))
        return context

    def _text(self, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> bytes:
        words = ["everstep join", self._about, who, fingerprint, head_nonce, host_nonce]
        return "\n".join(words).encode("ascii", "replace")


class Either:
    """The first host of a Slurm job takes both, and answers as it was asked."""

    is_of_job = False

    def __init__(self, token: JoinToken, munge: MungeToken) -> None:
        self._token, self._munge = token, munge

    @property
    def voter(self) -> str:
        return ""

    def of_kind(self, proof: str) -> Proofs:
        return self._munge if proof.startswith(MARK) else self._token

    def proof(self, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> str:
        return self._token.proof(who, fingerprint, head_nonce, host_nonce)

    def is_right(self, proof: str, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> bool:
        return self.of_kind(proof).is_right(proof, who, fingerprint, head_nonce, host_nonce)


def of_job(hosts: Hosts) -> MungeToken | None:
    """None: not in a Slurm job, or there is no munge on this host. Call it before the event loop runs."""
    if hosts.slurm is None:
        return None
    try:
        return MungeToken(f"job {hosts.slurm.job} {hosts.endpoint}", _socket_of_slurm())
    except OSError:
        return None


def _socket_of_slurm() -> str:
    """Where Slurm's own munged listens, if its configuration sets another place; "" if unknown."""
    try:
        said = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, timeout=_ASK_S, check=True, text=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"^AuthInfo\s*=.*\bsocket=([^,\s]+)", said.stdout, re.MULTILINE)
    return found[1] if found else ""
