"""What carries the bytes of a channel: a plain socket, or TLS over one (`tls.py`).

All calls return at once. Nothing to read is 0 bytes, the end of the stream is a DisconnectedError, and OSErrors of the
socket pass through: the channel knows its peer and says so.
"""

from __future__ import annotations

import os
import socket
from collections import deque
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


# IoCounts: what a Selector has done since it was made, as plain numbers, for metrics.
#
# Its thread adds to them, any thread may read them. Bytes are those of frames, without TLS and without the
# conversations of SASL, as in the Java client. A connection counts when it stands; an attempt that failed was never
# open.


SEND_SIZES_MAX = 100_000


class IoCounts:
    """Times in milliseconds."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "connections_closed",
        "connections_opened",
        "io_ms",
        "operations",
        "receives",
        "selects",
        "send_sizes",
        "sends",
        "wait_ms",
    )

    def __init__(self) -> None:
        self.bytes_received = self.bytes_sent = 0
        self.operations = 0  # reads and writes that moved bytes
        self.receives = self.sends = 0  # whole frames
        self.connections_opened = self.connections_closed = 0
        self.selects = 0
        self.wait_ms = self.io_ms = 0.0  # waiting for sockets; reading, writing and connecting
        self.send_sizes: deque[int] = deque(maxlen=SEND_SIZES_MAX)
        """Of each send that was written; removed by the caller that computes their average."""

    @property
    def connections_open(self) -> int:
        return self.connections_opened - self.connections_closed

    def select(self, wait_ms: float, io_ms: float) -> None:
        self.selects += 1
        self.wait_ms += wait_ms
        self.io_ms += io_ms

    def received(self, size: int) -> None:
        self.operations += 1
        self.bytes_received += size

    def sent(self, size: int) -> None:
        if size:
            self.operations += 1
            self.bytes_sent += size

    def completed_send(self, size: int) -> None:
        self.sends += 1
        self.send_sizes.append(size)
