"""A transfer's connection with TLS 1.3, for nodes on several hosts. The handshake of the run's token, inside,
authenticates the other end.

All nodes of a run have one certificate and its key, from the first host. A caller takes no other certificate, so a man
in the middle cannot answer in a node's place. Bytes go through this process on their way, which the kernel's sendfile
spares a plain connection.
"""

import hashlib
import os
import socket
import ssl
import tempfile

from everstep.checkpoint.transport.stream import Stream, StreamError

_BLOCK_BYTES = 256 << 10


class Tls:
    """The TLS contexts of a node's connections."""

    def __init__(self, certificate: str, key: str) -> None:
        """Both PEM. Raises OSError, ValueError when they cannot be used."""
        self._fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).digest()
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client.check_hostname = False
        self._client.verify_mode = ssl.CERT_NONE  # the one certificate is known
        for context in (self._server, self._client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.NamedTemporaryFile("w") as file:  # 0600, and the library reads files only
            file.write(certificate + key)
            file.flush()
            self._server.load_cert_chain(file.name)

    @classmethod
    def of(cls, certificate: str, key: str) -> "Tls | None":
        """None: there is no certificate, so connections are not encrypted. Raises OSError, ValueError."""
        return cls(certificate, key) if certificate else None

    def answered(self, sock: socket.socket, patience_s: float) -> Stream:
        """The stream of an incoming connection."""
        wrapped = self._server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return _TlsStream(wrapped, patience_s, fingerprint=None)

    def called(self, sock: socket.socket, patience_s: float) -> Stream:
        """The stream of a connection that this node made."""
        sock.settimeout(patience_s)  # or it is wrapped as one that never waits
        wrapped = self._client.wrap_socket(sock, do_handshake_on_connect=False)
        return _TlsStream(wrapped, patience_s, fingerprint=self._fingerprint)


class _TlsStream(Stream):
    """Limits are Python's own: the kernel's would be retried inside the library."""

    def __init__(self, sock: ssl.SSLSocket, patience_s: float, *, fingerprint: bytes | None) -> None:
        """`fingerprint`: of the certificate that the other side must have."""
        self._tls = sock
        self._wanted = fingerprint
        self._is_greeted = False
        super().__init__(sock, patience_s)

    def send_file(self, fd: int, offset: int, num_bytes: int) -> None:
        end = offset + num_bytes
        while offset < end:
            block = os.pread(fd, min(_BLOCK_BYTES, end - offset), offset)
            if not block:
                raise StreamError(f"was to get bytes beyond the end of the memory at {offset}")
            self.send(block)
            offset += len(block)

    def _take(self, view: memoryview) -> int:
        return self._tls.recv_into(view)

    def _give(self, view: memoryview, *, more: bool) -> int:
        del more  # records have no such flag
        return self._tls.send(view)

    def _shut_down(self) -> None:
        socket.socket.shutdown(self._tls, socket.SHUT_RDWR)  # without a word, which could block

    def _keep_time(self) -> None:
        super()._keep_time()
        if self._is_greeted:
            return
        try:
            self._tls.do_handshake()
        except (OSError, ValueError) as error:
            raise self._failed(error if isinstance(error, OSError) else None) from error
        certificate = self._tls.getpeercert(binary_form=True) or b""
        if self._wanted is not None and hashlib.sha256(certificate).digest() != self._wanted:
            raise StreamError("has another certificate than the nodes of this run")
        self._is_greeted = True

    def _wait_at_most(self, wait_s: float) -> None:
        self._tls.settimeout(max(wait_s, 0.001))

    def _failed(self, error: OSError | None) -> StreamError:
        if isinstance(error, TimeoutError):
            return super()._failed(BlockingIOError())
        return super()._failed(error)
