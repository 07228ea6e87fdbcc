"""IoCounts: what a Selector has done since it was made, as plain numbers, for metrics.

Its thread adds to them, any thread may read them. Bytes are those of frames, without TLS and without the
conversations of SASL, as in the Java client. A connection counts when it stands; an attempt that failed was never
open. An authentication is a TLS handshake, a SASL conversation, or both; PLAINTEXT has none.
"""

from __future__ import annotations

from collections import deque

SEND_SIZES_MAX = 100_000


class TrafficCounts:
    """Frames and their bytes, of one channel id or of all."""

    __slots__ = ("bytes_received", "bytes_sent", "receives", "send_sizes", "sends")

    def __init__(self) -> None:
        self.bytes_received = self.bytes_sent = 0
        self.receives = self.sends = 0  # whole frames
        self.send_sizes: deque[int] = deque(maxlen=SEND_SIZES_MAX)
        """The size of each send that was written. The caller that computes their average removes them."""

    def received(self, size: int) -> None:
        self.bytes_received += size

    def sent(self, size: int) -> None:
        self.bytes_sent += size

    def completed_receive(self) -> None:
        self.receives += 1

    def completed_send(self, size: int) -> None:
        self.sends += 1
        self.send_sizes.append(size)


class IoCounts(TrafficCounts):
    """The counts of all channels. Times in milliseconds."""

    __slots__ = (
        "channels",
        "connections_closed",
        "connections_opened",
        "failed_authentications",
        "failed_reauthentications",
        "io_ms",
        "operations",
        "selects",
        "successful_authentications",
        "successful_reauthentications",
        "wait_ms",
    )

    def __init__(self, *, counts_channels: bool = False) -> None:
        """`counts_channels`: count the traffic of each channel id as well, for a client, which has few of them."""
        super().__init__()
        self.channels: dict[str, TrafficCounts] | None = {} if counts_channels else None
        """The counts of each channel id. They outlive a channel and continue with the next channel of its id."""
        self.operations = 0  # reads and writes that moved bytes
        self.connections_opened = self.connections_closed = 0
        self.successful_authentications = self.failed_authentications = 0
        self.successful_reauthentications = self.failed_reauthentications = 0
        self.selects = 0
        self.wait_ms = self.io_ms = 0.0  # waiting for sockets; reading, writing and connecting

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
        self.operations += 1
        self.bytes_sent += size

    def channel(self, channel_id: str) -> TrafficCounts | None:
        """Return the counts of a channel id, if they are kept."""
        return None if self.channels is None else self.channels.setdefault(channel_id, TrafficCounts())
