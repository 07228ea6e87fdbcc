"""IoCounts: what a Selector has done since it was made, as plain numbers, for metrics.

Its thread adds to them, any thread may read them. Bytes are those of frames, without TLS and without the
conversations of SASL, as in the Java client. A connection counts when it stands; an attempt that failed was never
open.
"""

from __future__ import annotations

from collections import deque

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
