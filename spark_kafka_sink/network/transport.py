"""What carries the bytes of a channel: a plain socket, or TLS over one (`tls.py`).

All calls return at once. Nothing to read is 0 bytes, the end of the stream is a DisconnectedError, and OSErrors of the
socket pass through: the channel knows its peer and says so.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Protocol

from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.system import Buffer, ByteSocket

SEGMENTS_PER_WRITE = min(1024, os.sysconf("SC_IOV_MAX"))
"""As many segments as one sendmsg takes."""


class Transport(Protocol):
    @property
    def socket(self) -> ByteSocket: ...

    @property
    def ready(self) -> bool:
        """Payload may flow: there is no handshake, or it is done."""

    @property
    def has_output(self) -> bool:
        """Bytes are waiting here for the socket to take them."""

    @property
    def has_input(self) -> bool:
        """Bytes have left the socket and were not read yet: no poller will report them."""

    def handshake(self) -> None:
        """Go on with the handshake as far as the bytes that came allow."""

    def read_into(self, space: memoryview) -> int: ...

    def write(self, segments: Sequence[Buffer]) -> int:
        """One attempt. How many bytes of the segments were taken; none of those is read again."""

    def flush(self) -> None:
        """One attempt to write what waits here."""

    def close(self) -> None: ...


class PlaintextTransport:
    ready = True
    has_output = False
    has_input = False

    def __init__(self, sock: ByteSocket) -> None:
        self.socket = sock

    def handshake(self) -> None:
        """Does nothing: a plain connection has no handshake."""

    def read_into(self, space: memoryview) -> int:
        return receive(self.socket, space)

    def write(self, segments: Sequence[Buffer]) -> int:
        return send(self.socket, segments)

    def flush(self) -> None:
        """Nothing ever waits here."""

    def close(self) -> None:
        self.socket.close()


def connect_result(sock: ByteSocket) -> None:
    """What became of a connection once its socket is writable: an OSError if it failed."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code != 0:
        raise OSError(code, os.strerror(code))


def receive(sock: ByteSocket, space: memoryview) -> int:
    try:
        received = sock.recv_into(space)
    except (BlockingIOError, InterruptedError):
        return 0
    if received == 0:
        raise DisconnectedError("the other end closed the connection")
    return received


def send(sock: ByteSocket, segments: Sequence[Buffer]) -> int:
    try:
        return sock.sendmsg(segments)
    except (BlockingIOError, InterruptedError):
        return 0
