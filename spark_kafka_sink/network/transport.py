"""Transport: a channel's byte stream, over a plain socket or over TLS (`tls.py`).

No call blocks. A read returns 0 if no bytes are available, and raises DisconnectedError at the end of the stream. The
socket's OSErrors propagate; the Selector adds the peer's address to them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Protocol

from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.system import Buffer, ByteSocket

MAX_SEGMENTS_PER_WRITE = min(1024, os.sysconf("SC_IOV_MAX"))
"""The maximum number of segments to pass to one sendmsg call."""


class Transport(Protocol):
    """A nonblocking stream of bytes over a connected socket."""

    @property
    def socket(self) -> ByteSocket: ...

    @property
    def is_ready(self) -> bool:
        """Whether payload can be sent and received, because no handshake is needed or the handshake is complete."""

    @property
    def has_buffered_output(self) -> bool:
        """Whether the transport holds bytes that the socket has not accepted yet."""

    @property
    def has_buffered_input(self) -> bool:
        """Whether the transport holds unread bytes that have left the socket, so no poller reports them."""

    def handshake(self) -> None:
        """Continue the handshake until it is complete or needs more bytes from the peer."""

    def read_into(self, buffer: memoryview) -> int:
        """Read available bytes into the buffer and return how many were read; 0 if none are available."""

    def write(self, segments: Sequence[Buffer]) -> int:
        """Try once to write the segments and return the number of bytes accepted.

        0 means that the socket was not writable, or that the transport first had to write bytes that it already held.
        Try again when the socket is writable.

        The transport does not read accepted bytes from the segments again.
        """

    def flush(self) -> None:
        """Try once to write the bytes that the transport holds."""

    def close(self) -> None: ...


class PlaintextTransport:
    """A transport without encryption. It passes all bytes to the socket and buffers none."""

    is_ready = True
    has_buffered_output = False
    has_buffered_input = False

    def __init__(self, sock: ByteSocket) -> None:
        self.socket = sock

    def handshake(self) -> None:
        """Do nothing, because a plaintext connection has no handshake."""

    def read_into(self, buffer: memoryview) -> int:
        return receive_into(self.socket, buffer)

    def write(self, segments: Sequence[Buffer]) -> int:
        return send_segments(self.socket, segments)

    def flush(self) -> None:
        """Do nothing, because this transport buffers no bytes."""

    def close(self) -> None:
        self.socket.close()


def raise_if_connect_failed(sock: ByteSocket) -> None:
    """Raise OSError if the connection attempt failed. Call this once the socket is writable."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code != 0:
        raise OSError(code, os.strerror(code))


def receive_into(sock: ByteSocket, buffer: memoryview) -> int:
    """Receive available bytes and return how many. Raise DisconnectedError at the end of the stream."""
    try:
        received_bytes = sock.recv_into(buffer)
    except (BlockingIOError, InterruptedError):
        return 0
    if received_bytes == 0:
        raise DisconnectedError("the peer closed the connection")
    return received_bytes


def send_segments(sock: ByteSocket, segments: Sequence[Buffer]) -> int:
    """Send as many bytes as the socket accepts and return how many it accepted."""
    try:
        return sock.sendmsg(segments)
    except (BlockingIOError, InterruptedError):
        return 0
