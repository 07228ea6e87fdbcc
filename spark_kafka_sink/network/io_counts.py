"""IoCounts: counters of a Selector's I/O, from which metrics are computed.

The Selector's thread updates the counters; any thread may read them. As in the Java client, byte counts cover frames
only, not TLS overhead or SASL exchanges. A connection is counted once it is established, so a failed attempt never
counts as open. An authentication is a TLS handshake, a SASL exchange or both; PLAINTEXT needs neither.
"""

from __future__ import annotations

from collections import deque

MAX_SEND_SIZES = 100_000
"""Maximum number of sizes to keep until their average is computed. The oldest ones are dropped."""


class TrafficCounts:
    """Counts of the frames and bytes sent and received, for one channel id or for all channels."""

    __slots__ = ("bytes_received", "bytes_sent", "receives", "send_sizes", "sends")

    def __init__(self) -> None:
        self.bytes_received = self.bytes_sent = 0
        self.receives = self.sends = 0  # complete frames
        self.send_sizes: deque[int] = deque(maxlen=MAX_SEND_SIZES)
        """The sizes of completed sends. The caller that computes their average must remove them."""

    def record_bytes_received(self, size: int) -> None:
        self.bytes_received += size

    def record_bytes_sent(self, size: int) -> None:
        self.bytes_sent += size

    def record_completed_receive(self) -> None:
        self.receives += 1

    def record_completed_send(self, size: int) -> None:
        self.sends += 1
        self.send_sizes.append(size)


class IoCounts(TrafficCounts):
    """Counts of a Selector's I/O across all of its channels."""

    __slots__ = (
        "channel_counts",
        "connections_closed",
        "connections_opened",
        "failed_authentications",
        "failed_reauthentications",
        "io_ms",
        "selects",
        "socket_transfers",
        "successful_authentications",
        "successful_reauthentications",
        "wait_ms",
    )

    def __init__(self, *, counts_per_channel: bool = False) -> None:
        """Create counters that start at 0.

        `counts_per_channel`: whether to also count traffic per channel id. Meant for clients, which have few channels.
        """
        super().__init__()
        self.channel_counts: dict[str, TrafficCounts] | None = {} if counts_per_channel else None
        """Traffic by channel id. A new channel with the same id adds to the existing counts."""
        self.socket_transfers = 0  # reads and writes that transferred bytes
        self.connections_opened = self.connections_closed = 0
        self.successful_authentications = self.failed_authentications = 0
        self.successful_reauthentications = self.failed_reauthentications = 0
        self.selects = 0  # calls that waited for sockets to become ready
        self.wait_ms = self.io_ms = 0.0  # time spent waiting for sockets, and time spent on I/O

    @property
    def open_connections(self) -> int:
        return self.connections_opened - self.connections_closed

    def record_select(self, wait_ms: float, io_ms: float) -> None:
        self.selects += 1
        self.wait_ms += wait_ms
        self.io_ms += io_ms

    def record_bytes_received(self, size: int) -> None:
        self.socket_transfers += 1
        self.bytes_received += size

    def record_bytes_sent(self, size: int) -> None:
        self.socket_transfers += 1
        self.bytes_sent += size

    def get_or_create_channel_counts(self, channel_id: str) -> TrafficCounts | None:
        """Return a channel's counts, created on first use. Return None if traffic is not counted per channel."""
        return None if self.channel_counts is None else self.channel_counts.setdefault(channel_id, TrafficCounts())
