"""TlsTransport: TLS over a ByteSocket, using two memory buffers.

    socket --recv--> incoming --SSLObject.read--> channel
    socket <--send-- outgoing <--SSLObject.write-- channel

OpenSSL never uses the socket itself. If the socket accepts only part of the ciphertext, the rest stays in `_unsent`, so
OpenSSL need not be called again with the same buffer. The transport works over any ByteSocket, such as a scripted one
in tests. docs/decisions/0002-tls-transport.md compares this design with a wrapped socket.

Plaintext counts as accepted once it has been encrypted; its segments are not read again. The channel, however, reports
a send as complete only once the socket has accepted its last byte. Small segments share TLS records of up to 16 KB.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import DisconnectedError, NetworkError, TlsError
from spark_kafka_sink.network.security.tls_errors import describe_tls_error
from spark_kafka_sink.network.system import Buffer, ByteSocket
from spark_kafka_sink.network.transport import receive_into, send_segments

MAX_RECORD_BYTES = 16 * 1024
"""The most plaintext that one TLS record can hold."""

ENCRYPTED_BYTES_PER_WRITE = 256 * 1024
"""Number of plaintext bytes to encrypt before writing the ciphertext to the socket."""

RECEIVE_BUFFER_BYTES = 32 * 1024
"""The maximum number of ciphertext bytes to receive at once."""


class TlsTransport:
    """TLS transport for a client or a server.

    `server_hostname`: the host name that a client sends in SNI and checks the certificate against; None for a server.
    """

    def __init__(self, sock: ByteSocket, context: ssl.SSLContext, *, server_hostname: str | None) -> None:
        self.socket = sock
        self.is_ready = False
        self._hostname = server_hostname or ""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._unsent = memoryview(b"")  # ciphertext that the socket has not accepted yet
        self._receive_buffer = bytearray(RECEIVE_BUFFER_BYTES)
        self._has_received_plaintext = False
        self._tls = self._create_ssl_object(context, server_hostname)

    @property
    def has_buffered_output(self) -> bool:
        return bool(self._unsent) or self._outgoing.pending > 0

    @property
    def has_buffered_input(self) -> bool:
        return self._incoming.pending > 0 or self._tls.pending() > 0

    @property
    def version(self) -> str | None:
        """The negotiated TLS version, such as `TLSv1.3`; None until it has been negotiated."""
        return self._tls.version()

    def peer_certificate(self, *, as_der: bool = False) -> Any:
        """Return the peer's certificate, as a dict (see `SSLSocket.getpeercert`) or as DER bytes."""
        return self._tls.getpeercert(as_der)

    def handshake(self) -> None:
        self.flush()
        while not self.is_ready and self._run_handshake_step():
            pass
        self.flush()

    def read_into(self, buffer: memoryview) -> int:
        while True:
            try:
                count = self._read(buffer)
            except ssl.SSLWantReadError:
                if not self._receive():
                    return 0
                continue
            except ssl.SSLError as error:
                raise self._to_connection_error(error) from error
            if count == 0:
                raise DisconnectedError("the peer closed the TLS connection")
            self._has_received_plaintext = True
            return count

    def write(self, segments: Sequence[Buffer]) -> int:
        """Encrypt the segments, up to about ENCRYPTED_BYTES_PER_WRITE, and send what the socket accepts.

        Return the number of plaintext bytes encrypted. 0 means that earlier ciphertext was still unsent: the caller
        tries again when the socket is writable.
        """
        if self.has_buffered_output:
            # Encrypt nothing more before the earlier ciphertext is sent. Otherwise, the unsent part would keep growing
            # while the socket accepts less than each call adds.
            self.flush()
            return 0
        accepted_bytes = 0
        try:
            for record in _split_into_records(segments):
                accepted_bytes += self._encrypt(record)
                if accepted_bytes >= ENCRYPTED_BYTES_PER_WRITE:
                    break
        except ssl.SSLError as error:
            raise self._to_connection_error(error) from error
        self.flush()
        return accepted_bytes

    def flush(self) -> None:
        if not self._unsent and self._outgoing.pending:
            self._unsent = memoryview(self._outgoing.read())
        if self._unsent:
            sent_bytes = send_segments(self.socket, [self._unsent])
            self._unsent = self._unsent[sent_bytes:]

    def close(self) -> None:
        if self.is_ready and not self.has_buffered_output:
            # Send close_notify, so that the peer can tell the end of the stream from a truncation. Sending it is
            # pointless while the socket does not accept earlier ciphertext. Do not wait for the peer's close_notify.
            with contextlib.suppress(OSError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self.flush()
        self._unsent = memoryview(b"")
        self.socket.close()

    def _create_ssl_object(self, context: ssl.SSLContext, hostname: str | None) -> ssl.SSLObject:
        """Create the SSLObject: for a server if `hostname` is None, and for a client otherwise.

        Raise DisconnectedError if TLS cannot verify the host name.
        """
        if hostname is None:
            return context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        try:
            # Host names may end in a dot, but names in certificates never do.
            return context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname.rstrip("."))
        except (ValueError, TypeError) as error:
            # wrap_bio raises TypeError if the name contains a NUL character.
            raise DisconnectedError(f"TLS cannot verify the host name {sanitize(hostname)!r}: {error}") from error

    def _run_handshake_step(self) -> bool:
        """Continue the handshake. Return True if it finished or should be continued at once.

        Return False if it is blocked waiting for bytes from the peer.
        """
        try:
            self._tls.do_handshake()
            self.is_ready = True
        except ssl.SSLWantReadError:
            self.flush()
            return self._receive() > 0
        except ssl.SSLError as error:
            # OpenSSL has prepared an alert that tells the peer the reason. Send it.
            with contextlib.suppress(OSError):
                self.flush()
            raise TlsError(describe_tls_error(error, self._hostname)) from error
        return True

    def _read(self, buffer: memoryview) -> int:
        # If `read` gets a writable buffer, it fills the buffer and returns a count. The type stub lacks this overload.
        read: Callable[[int, memoryview], int] = cast(Any, self._tls.read)
        return read(len(buffer), buffer)

    def _encrypt(self, record: Buffer) -> int:
        """Encrypt the whole record and return its plaintext size."""
        remaining = memoryview(record)
        while remaining:
            # One write accepts the whole record unless the peer has negotiated smaller records.
            accepted_bytes = self._tls.write(remaining)
            remaining = remaining[accepted_bytes:]
        return len(record)

    def _receive(self) -> int:
        """Receive ciphertext for OpenSSL to read, and return the number of bytes received."""
        try:
            received_bytes = receive_into(self.socket, memoryview(self._receive_buffer))
        except DisconnectedError as error:
            if self.is_ready:
                raise
            raise DisconnectedError(
                "the peer closed the connection during the TLS handshake: "
                "the listener may expect plaintext, or may have rejected the certificate or the offered TLS versions"
            ) from error
        self._incoming.write(memoryview(self._receive_buffer)[:received_bytes])
        return received_bytes

    def _to_connection_error(self, error: ssl.SSLError) -> TlsError | NetworkError:
        """Convert an SSLError raised after the handshake.

        Return a TlsError if the peer rejected the certificate, and a DisconnectedError for any other reason.
        """
        # A TLS 1.3 server verifies the client's certificate only after the client has completed the handshake. So an
        # alert that arrives before any data concerns the certificate. A later alert is treated as a lost connection.
        is_alert = bool(error.reason) and "ALERT" in error.reason
        if is_alert and not self._has_received_plaintext:
            return TlsError(describe_tls_error(error, self._hostname))
        return DisconnectedError(f"the TLS connection failed: {error.reason or error}")


def _split_into_records(segments: Sequence[Buffer]) -> Iterator[Buffer]:
    """Split the segments into records of MAX_RECORD_BYTES; the last record may be shorter.

    A full record that comes from one segment is a view of it. Other records are copies.
    """
    record_parts: list[memoryview] = []
    free_bytes = MAX_RECORD_BYTES  # in the current record
    for segment in segments:
        remaining = memoryview(segment)
        while remaining:
            part, remaining = remaining[:free_bytes], remaining[free_bytes:]
            record_parts.append(part)
            free_bytes -= len(part)
            if not free_bytes:
                yield record_parts[0] if len(record_parts) == 1 else b"".join(record_parts)
                record_parts = []
                free_bytes = MAX_RECORD_BYTES
    if record_parts:
        yield b"".join(record_parts)
