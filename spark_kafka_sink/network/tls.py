"""TLS over a ByteSocket, by way of two memory buffers.

    socket --recv--> incoming --SSLObject.read--> the channel
    socket <--send-- outgoing <--SSLObject.write-- the channel

The cipher never touches the socket. So a write that the socket took only in part is a matter of bytes in `_unsent`, not
of calling OpenSSL again with the same buffer, and the transport runs over any ByteSocket, also a scripted one. (Why not
a wrapped socket, with figures: docs/decisions/0002-tls-transport.md.)

Plaintext that was encrypted counts as taken: its segments are not read again, although the channel reports a send as
complete only when the socket has the last byte. Small segments share a TLS record of up to 16 KB.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import DisconnectedError, NetworkError, TlsError
from spark_kafka_sink.network.security.tls_errors import explain
from spark_kafka_sink.network.system import Buffer, ByteSocket
from spark_kafka_sink.network.transport import receive, send

RECORD_BYTES = 16 * 1024
"""The most plaintext that one TLS record holds."""

ENCRYPTED_BYTES_PER_WRITE = 256 * 1024
"""How much is encrypted at a time, before it is written to the socket."""

RECEIVED_BYTES = 32 * 1024


class TlsTransport:
    """`server_hostname` is the name to send by SNI and to check the certificate against; None on the server's side."""

    def __init__(self, sock: ByteSocket, context: ssl.SSLContext, *, server_hostname: str | None) -> None:
        self.socket = sock
        self.ready = False
        self._hostname = server_hostname or ""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._unsent = memoryview(b"")
        self._space = bytearray(RECEIVED_BYTES)
        self._has_read = False
        self._tls = self._wrap(context, server_hostname)

    @property
    def has_output(self) -> bool:
        return bool(self._unsent) or self._outgoing.pending > 0

    @property
    def has_input(self) -> bool:
        return self._incoming.pending > 0 or self._tls.pending() > 0

    @property
    def version(self) -> str | None:
        """TLSv1.2 or TLSv1.3, once it is agreed upon."""
        return self._tls.version()

    def certificate(self, *, encoded: bool = False) -> Any:
        """The certificate of the other end: its fields as Python's ssl has them, or its bytes (DER)."""
        return self._tls.getpeercert(encoded)

    def handshake(self) -> None:
        self.flush()
        while not self.ready and self._handshake_step():
            pass
        self.flush()

    def read_into(self, space: memoryview) -> int:
        while True:
            try:
                count = self._read(space)
            except ssl.SSLWantReadError:
                if not self._receive():
                    return 0
                continue
            except ssl.SSLError as error:
                raise self._broken(error) from error
            if count == 0:
                raise DisconnectedError("the other end closed the TLS connection")
            self._has_read = True
            return count

    def write(self, segments: Sequence[Buffer]) -> int:
        if self.has_output:
            self.flush()
            return 0
        taken = 0
        try:
            for record in _records(segments):
                taken += self._encrypt(record)
                if taken >= ENCRYPTED_BYTES_PER_WRITE:
                    break
        except ssl.SSLError as error:
            raise self._broken(error) from error
        self.flush()
        return taken

    def flush(self) -> None:
        if not self._unsent and self._outgoing.pending:
            self._unsent = memoryview(self._outgoing.read())
        if self._unsent:
            self._unsent = self._unsent[send(self.socket, [self._unsent]) :]

    def close(self) -> None:
        if self.ready and not self.has_output:
            # Send the end of the stream, so that it is not mistaken for one cut off. The answer is not waited for.
            with contextlib.suppress(OSError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self.flush()
        self._unsent = memoryview(b"")
        self.socket.close()

    def _wrap(self, context: ssl.SSLContext, hostname: str | None) -> ssl.SSLObject:
        if hostname is None:
            return context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        try:
            # A name may end in a dot; certificates never do.
            return context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname.rstrip("."))
        except (ValueError, TypeError) as error:
            # TypeError: a NUL in it.
            raise DisconnectedError(f"{sanitize(hostname)!r} is not a host name that TLS can check: {error}") from error

    def _handshake_step(self) -> bool:
        """Whether it is worth to go on: done, or more bytes have come."""
        try:
            self._tls.do_handshake()
            self.ready = True
        except ssl.SSLWantReadError:
            self.flush()
            return self._receive() > 0
        except ssl.SSLError as error:
            # The alert that OpenSSL has prepared shows the other end what was wrong.
            with contextlib.suppress(OSError):
                self.flush()
            raise TlsError(explain(error, self._hostname)) from error
        return True

    def _read(self, space: memoryview) -> int:
        # Given a buffer, any writable one, `read` returns a count; its stub knows neither.
        read: Callable[[int, memoryview], int] = cast(Any, self._tls.read)
        return read(len(space), space)

    def _encrypt(self, record: Buffer) -> int:
        view = memoryview(record)
        while view:
            # Whole records, except where a peer has negotiated smaller ones.
            view = view[self._tls.write(view) :]
        return len(record)

    def _receive(self) -> int:
        """Ciphertext from the socket to where OpenSSL reads."""
        try:
            received = receive(self.socket, memoryview(self._space))
        except DisconnectedError as error:
            if self.ready:
                raise
            raise DisconnectedError(
                "the other end closed the connection during the TLS handshake: "
                "the listener may expect plaintext, or refuse the certificate or the TLS versions offered"
            ) from error
        self._incoming.write(memoryview(self._space)[:received])
        return received

    def _broken(self, error: ssl.SSLError) -> TlsError | NetworkError:
        # With TLS 1.3 a server looks at the client's certificate after the client's handshake is done. So an alert
        # that comes first of all is about authentication; later ones are as good as a lost connection.
        if not self._has_read and error.reason and "ALERT" in error.reason:
            return TlsError(explain(error, self._hostname))
        return DisconnectedError(f"the TLS connection broke: {error.reason or error}")


def _records(segments: Sequence[Buffer]) -> Iterator[Buffer]:
    """The segments' bytes in pieces of RECORD_BYTES: views where a segment is long enough, else joined."""
    small: list[memoryview] = []
    space = RECORD_BYTES
    for segment in segments:
        rest = memoryview(segment)
        while rest:
            piece, rest = rest[:space], rest[space:]
            small.append(piece)
            space -= len(piece)
            if not space:
                yield small[0] if len(small) == 1 else b"".join(small)
                small, space = [], RECORD_BYTES
    if small:
        yield b"".join(small)
