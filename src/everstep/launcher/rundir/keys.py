"""Protection of a run: its secret, what is derived from it, and its certificate. Made anew by each `everstep run`.

    RUN_DIR/secret        the root of everything else; the launcher and the controller read it
    RUN_DIR/token         for the HTTP API: may act (stop, approve, drill), and read
    RUN_DIR/token-read    for the HTTP API: may only read
    RUN_DIR/tls-cert.pem, tls-key.pem       only when something is encrypted
    RUN_DIR/nodes/<node>/credentials.json   all that this node's agent needs, and no more

All of them 0600. The certificate is made by the program `openssl`: it is wanted only beyond loopback, takes some ten
milliseconds, and the library that could do it instead would be the largest dependency (docs/adr/0015).
"""

import contextlib
import os
import secrets
import socket
import subprocess
import tempfile
from pathlib import Path

import msgspec

from everstep.controller.record.spec_file import READ_TOKEN_NAME, SECRET_NAME, TOKEN_NAME
from everstep.errors import ConfigError, JournalError
from everstep.model.names import MachineName, own_machine_name
from everstep.wire.credentials import (
    CERTIFICATE_NAME,
    CREDENTIALS_NAME,
    KEY_NAME,
    RANDOM_BYTES,
    Credentials,
    RunSecret,
    fingerprint_of,
)
from everstep.wire.heirs import Legacy

_LIMIT_S = 30.0
_REQUEST = """[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = everstep
[extensions]
basicConstraints = critical, CA:false
"""


class Keys:
    """The keys of one attempt of a run. `fingerprint` is empty as long as there is no certificate."""

    def __init__(self, run_dir: Path, run: str, root: str = "") -> None:
        """`root`: root of keys that were made before. Raises JournalError when they cannot be written."""
        self._run_dir = run_dir
        self._root = root = root or secrets.token_hex(RANDOM_BYTES)
        self._secret = RunSecret(root, run)
        self.fingerprint = ""
        self._snapshots = ("", "")  # certificate and key, PEM, of all nodes' snapshot servers; empty: not encrypted
        self.read_token = self._secret.api_token("read")
        for name in (CERTIFICATE_NAME, KEY_NAME):
            with contextlib.suppress(OSError):
                (run_dir / name).unlink()  # of an earlier attempt
        _write(run_dir / SECRET_NAME, root)
        _write(run_dir / TOKEN_NAME, self._secret.api_token("act"))
        _write(run_dir / READ_TOKEN_NAME, self.read_token)

    @classmethod
    def inherited(cls, run_dir: Path, run: str, legacy: Legacy) -> "Keys":
        """Return the same keys on another host that takes over the run. Raises JournalError, ConfigError."""
        made = cls(run_dir, run, root=legacy.secret)
        _write(run_dir / CERTIFICATE_NAME, legacy.certificate)
        _write(run_dir / KEY_NAME, legacy.key)
        made.fingerprint = fingerprint_of(legacy.certificate)
        made._snapshots = (legacy.snapshots_certificate, legacy.snapshots_key)
        return made

    def legacy(self) -> Legacy:
        """The keys for another host of the run that may take over. Raises JournalError."""
        try:
            certificate, key = (self._run_dir / name for name in (CERTIFICATE_NAME, KEY_NAME))
            return Legacy(
                secret=self._root,
                certificate=certificate.read_text(),
                key=key.read_text(),
                snapshots_certificate=self._snapshots[0],
                snapshots_key=self._snapshots[1],
            )
        except OSError as error:
            raise JournalError(f"the run's certificate cannot be read: {error}") from error

    def certify(self) -> None:
        """Make the run's certificate. Raises ConfigError when this machine cannot."""
        certificate, key = self._run_dir / CERTIFICATE_NAME, self._run_dir / KEY_NAME
        _make_certificate(certificate, key)
        self.fingerprint = fingerprint_of(certificate.read_text())

    def encrypt_snapshots(self) -> None:
        """Snapshots between nodes go over TLS, with a certificate that only nodes of this run have the key of. Raises
        ConfigError."""
        certificate, key = self._run_dir / "tls-snapshots-cert.pem", self._run_dir / "tls-snapshots-key.pem"
        try:
            _make_certificate(certificate, key)
            self._snapshots = (certificate.read_text(), key.read_text())
        finally:
            for path in (certificate, key):  # each node gets them with its credentials
                path.unlink(missing_ok=True)

    def of_launcher(self, name: str, *, is_encrypted: bool) -> Credentials:
        return self._secret.credentials("launcher", name, self.fingerprint if is_encrypted else "")

    def of_agent(self, node: str, machine: MachineName, *, is_encrypted: bool) -> Credentials:
        made = self._secret.credentials("agent", node, self.fingerprint if is_encrypted else "", machine)
        certificate, key = self._snapshots
        return msgspec.structs.replace(made, snapshots_certificate=certificate, snapshots_certificate_key=key)

    def equip(self, node: str, folder: Path, *, is_encrypted: bool) -> None:
        """Put a node's credentials into its folder, for its agent. Raises OSError."""
        try:
            here = own_machine_name(socket.gethostname())
            encoded = msgspec.json.encode(self.of_agent(node, here, is_encrypted=is_encrypted)).decode()
            _write(folder / CREDENTIALS_NAME, encoded)
        except JournalError as error:
            raise OSError(str(error)) from error


def _make_certificate(certificate: Path, key: Path) -> None:
    """Raises ConfigError, JournalError."""
    _write(key, "")  # before openssl writes into it: it is private from its first byte
    _write(certificate, "")
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as request:
        request.write(_REQUEST)
        request.flush()
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "3650", "-config", request.name, "-keyout", str(key), "-out", str(certificate)]
        try:
            subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise ConfigError(
                "what listens beyond this machine's loopback is encrypted, and the certificate for that is made by "
                "the program openssl, which is not installed here. Install it, or stay on loopback"
            ) from None
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
            raise ConfigError(f"openssl could not make a certificate: {said or error}") from error


def _write(path: Path, text: str) -> None:
    """Raises JournalError."""
    try:
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text + "\n" if text else "")
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}") from error
