"""Deadlines: when a connection is closed because its other end takes too long."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.channel import ChannelState, ChannelStateKind, KafkaChannel


@dataclass(frozen=True)
class Deadlines:
    """`idle_ms`: without any event, negative for no limit. `setup_ms`: until TLS and SASL are done. `frame_ms`: from a
    frame's first byte to its last, while its channel is being read."""

    idle_ms: float = 540_000.0
    setup_ms: float = math.inf
    frame_ms: float = math.inf

    def note(self, channel: KafkaChannel, now: float) -> float:
        """Note that a channel had its turn. Return when it must be closed if nothing more happens."""
        if channel.ready:
            channel.unready_since_ms = None
        elif channel.unready_since_ms is None:
            channel.unready_since_ms = now
        if not channel.is_reading_a_frame:
            channel.frame_since_ms = None
        elif channel.frame_since_ms is None:
            channel.frame_since_ms = now
        return self.next_ms(channel)

    def next_ms(self, channel: KafkaChannel) -> float:
        idle_ms = channel.last_active_ms + self.idle_ms if self.idle_ms >= 0 else math.inf
        unready, frame = channel.unready_since_ms, channel.frame_since_ms
        return min(
            idle_ms,
            math.inf if unready is None else unready + self.setup_ms,
            math.inf if frame is None else frame + self.frame_ms,
        )

    def overdue(self, channels: Iterable[KafkaChannel], now: float) -> list[tuple[KafkaChannel, ChannelState]]:
        """The channels that must be closed, each with the reason."""
        return [(channel, self._reason(channel, now)) for channel in channels if self.next_ms(channel) <= now]

    def _reason(self, channel: KafkaChannel, now: float) -> ChannelState:
        unready, frame = channel.unready_since_ms, channel.frame_since_ms
        if unready is not None and unready + self.setup_ms <= now:
            words, kind = f"it was not ready within {self.setup_ms:.0f} ms", channel.state.kind
        elif frame is not None and frame + self.frame_ms <= now:
            words, kind = f"a frame of it was not whole within {self.frame_ms:.0f} ms", channel.state.kind
        else:
            words, kind = f"it was idle for {self.idle_ms:.0f} ms", ChannelStateKind.EXPIRED
        return ChannelState(kind, DisconnectedError(f"closed because {words}", address=str(channel.address)))
