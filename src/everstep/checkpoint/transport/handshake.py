"""Both sides prove that they know the run's token before either believes, allocates or writes anything.

    server -> client   magic and protocol version, 32 random bytes
    client -> server   magic and protocol version, 32 random bytes, HMAC-SHA256
    server -> client   verdict, HMAC-SHA256

Each proof covers its side, the run, the endpoint that was called and both sides' random bytes: a replayed one is
useless, one made for another server of the run is useless here, and a run's token does not open another run. It keeps
others out. It does not hide what is sent, and an attacker who sits on the path could change it after the handshake: a
network that is not the job's own needs a tunnel.
"""

import hashlib
import hmac
import os
import struct

from everstep.checkpoint.transport.stream import Stream

LIMIT_S = 5.0
"""Limit of the whole handshake: it is a few hundred bytes, and an unauthenticated peer may not hold a place longer."""

MAGIC = b"EVTRANS\x01"  # the last byte is the version of the protocol
_RANDOM_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_ACCEPTED, _REFUSED = b"\x00", b"\x01"


class HandshakeError(Exception):
    """The peer is none of ours. `kind` is what it is counted under."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Secret:
    """The secret that the members of one run share."""

    def __init__(self, token: str, run: str = "") -> None:
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._key = token.encode()
        self._run = run.encode()

    def proof(self, who: bytes, endpoint: str, server_random: bytes, client_random: bytes) -> bytes:
        message = b"".join(
            struct.pack("<I", len(part)) + part
            for part in (MAGIC, who, self._run, endpoint.encode(), server_random, client_random)
        )
        return hmac.digest(self._key, message, "sha256")


def admit(stream: Stream, secret: Secret, endpoint: str) -> None:
    """The server's side. Raises HandshakeError or StreamError."""
    ours = os.urandom(_RANDOM_BYTES)
    stream.hurry(LIMIT_S)
    stream.send(MAGIC + ours)
    magic = stream.receive(len(MAGIC))
    if magic != MAGIC:
        raise HandshakeError("version" if magic[:-1] == MAGIC[:-1] else "garbage", f"began with {magic!r}")
    theirs = stream.receive(_RANDOM_BYTES)
    proof = stream.receive(_PROOF_BYTES)
    if not hmac.compare_digest(proof, secret.proof(b"client", endpoint, ours, theirs)):
        stream.send(_REFUSED + bytes(_PROOF_BYTES))
        raise HandshakeError("proof", "does not know this run's token")
    stream.send(_ACCEPTED + secret.proof(b"server", endpoint, ours, theirs))
    stream.hurry(None)


def introduce(stream: Stream, secret: Secret, endpoint: str) -> None:
    """The client's side; `endpoint` exactly as the server gave it. Raises HandshakeError or StreamError."""
    stream.hurry(LIMIT_S)
    magic = stream.receive(len(MAGIC))
    if magic[:-1] != MAGIC[:-1]:
        raise HandshakeError("garbage", f"is not everstep: it began with {magic!r}")
    if magic != MAGIC:
        raise HandshakeError("version", f"speaks version {magic[-1]} of the protocol, this is version {MAGIC[-1]}")
    theirs = stream.receive(_RANDOM_BYTES)
    ours = os.urandom(_RANDOM_BYTES)
    stream.send(MAGIC + ours + secret.proof(b"client", endpoint, theirs, ours))
    verdict = stream.receive(1)
    proof = stream.receive(_PROOF_BYTES)
    if verdict != _ACCEPTED:
        raise HandshakeError("proof", "refused us: it is of another run, or not the endpoint that it reported")
    if not hmac.compare_digest(proof, secret.proof(b"server", endpoint, theirs, ours)):
        raise HandshakeError("proof", "could not prove that it is of this run")
    stream.hurry(None)
