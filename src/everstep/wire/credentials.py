"""Authentication of a peer, without ever sending its key.

    peer -> controller    the WebSocket's request, Authorization: Everstep <role>:<name>:<machine>:<knock>
    controller -> peer    Challenge: 32 random bytes, new for each connection
    peer -> controller    Hello: that challenge, 32 random bytes of its own, a proof
    controller -> peer    Welcome with a proof, or Reject with a sentence

Every peer has a key of its own, derived from the run's secret, so it cannot speak as another, nor call its machine
by another name than the launcher has given the key for. The knock is the same
each time: without it a connection never becomes a WebSocket, and costs next to nothing. A recording of a connection has
a knock that is good and a proof that is not, because the challenge is another one. Both proofs cover the certificate
that the connection was made with, which excludes a man in the middle. Pure: random bytes are passed in.
"""

import hashlib
import hmac
import re
import ssl
from pathlib import Path

import msgspec

from everstep.errors import ConfigError
from everstep.model.names import MachineName, is_name, machine_name

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a peer may be called."""

RANDOM_BYTES = 32
SCHEME = "Everstep"
CREDENTIALS_NAME = "credentials.json"
CERTIFICATE_NAME = "tls-cert.pem"
KEY_NAME = "tls-key.pem"
MAX_KNOCK_BYTES = 512
_LABEL = b"everstep link 2"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The names and keys with which one peer proves who it is. `credentials.json` of a node; only its owner may read
    it."""

    run: str
    role: str  # "agent" | "launcher"
    name: str
    link_key: str
    machine: str = ""  # that the agent runs on, by name; empty: the launcher
    snapshots_key: str = ""  # what agents prove to each other; the same for all of a run
    snapshots_certificate: str = ""  # PEM, of every node's snapshot server; empty: snapshots are not encrypted
    snapshots_certificate_key: str = ""  # its private key, PEM; only agents of this run have it
    fingerprint: str = ""  # SHA-256 of the controller's certificate, hex; empty: the link is not encrypted

    def __repr__(self) -> str:
        return f"Credentials({self.role} {self.name} of {self.run})"  # keys must not get into a log

    @property
    def knock(self) -> str:
        """The Authorization header of the link's request."""
        return f"{SCHEME} {self.role}:{self.name}:{self.machine}:{self._mac('knock')}"

    @classmethod
    def load(cls, path: Path) -> "Credentials":
        """Raises ConfigError."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ConfigError(f"{path} holds no credentials") from None

    def proof(self, who: str, challenge: str, nonce: str) -> str:
        """The proof of the peer ("hello") or of the controller ("welcome")."""
        return self._mac(who, self.fingerprint, challenge, nonce)

    def _mac(self, *parts: str) -> str:
        return mac(self.link_key, self.run, self.role, self.name, *parts)


class RunSecret:
    """The root from which everything else of a run is derived. Only the launcher and the controller have it."""

    def __init__(self, secret: str, run: str) -> None:
        if len(secret) < RANDOM_BYTES:
            raise ConfigError("the run's secret is too short to protect anything")
        self._secret = secret
        self._run = run

    def credentials(
        self, role: str, name: str, fingerprint: str = "", machine: MachineName | None = None
    ) -> Credentials:
        return Credentials(
            run=self._run,
            role=role,
            name=name,
            link_key=self._derive("link", role, name, machine or ""),
            machine=machine or "",
            snapshots_key=self._derive("snapshots") if role == "agent" else "",
            fingerprint=fingerprint,
        )

    def api_token(self, right: str) -> str:
        """The token for the HTTP API: "read", or "act", which may read as well."""
        return self._derive("api", right)[:RANDOM_BYTES]

    def _derive(self, *parts: str) -> str:
        return mac(self._secret, self._run, *parts)


def mac(key: str, *parts: str) -> str:
    """HMAC-SHA256 in hex. Lengths are part of it: "a", "bc" is not "ab", "c"."""
    texts = [part.encode() for part in parts]
    message = b"".join(len(text).to_bytes(4, "little") + text for text in (_LABEL, *texts))
    return hmac.digest(key.encode(), message, "sha256").hex()


def is_same(given: str, wanted: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(errors="surrogatepass"), wanted.encode())


def parse_knock(header: str) -> tuple[str, str, MachineName | None] | None:
    """(role, name, machine) that a header claims; None when it is none of ours. Nothing is proven by it."""
    if len(header) > MAX_KNOCK_BYTES:
        return None
    scheme, _, claim = header.partition(" ")
    role, _, rest = claim.partition(":")
    name, _, rest = rest.partition(":")
    machine, _, _ = rest.partition(":")
    if scheme != SCHEME or role not in ("agent", "launcher") or not NAME.fullmatch(name):
        return None
    if not machine:
        return role, name, None
    return (role, name, machine_name(machine)) if is_name(machine) else None


def fingerprint_of(certificate_pem: str) -> str:
    """SHA-256 of a certificate, hex. Raises ConfigError."""
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate_pem)).hexdigest()
    except ValueError as error:
        raise ConfigError(f"not a certificate: {error}") from error
