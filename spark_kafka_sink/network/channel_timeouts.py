"""ChannelTimeouts: the time limits after which an idle, slow or unauthenticated channel is closed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.channel import ChannelState, ChannelStateKind, KafkaChannel


@dataclass(frozen=True)
class ChannelTimeouts:
    """Time limits of a channel, in milliseconds. The channel is closed when the first of them is exceeded."""

    idle_ms: float = 540_000.0
    """Maximum time without events on a channel. A negative value means no limit."""
    setup_ms: float = math.inf
    """Maximum time for connecting, the TLS handshake and authentication together, and for each re-authentication."""
    frame_ms: float = math.inf
    """Maximum time from a frame's first byte to its last. It starts again when reading resumes after a pause."""

    def compute_deadline_ms(self, channel: KafkaChannel) -> float:
        """Return the time at which the channel must be closed if it makes no progress before then."""
        setup_started_ms, frame_started_ms = channel.setup_started_ms, channel.frame_started_ms
        idle_deadline_ms = channel.last_active_ms + self.idle_ms if self.idle_ms >= 0 else math.inf
        setup_deadline_ms = math.inf if setup_started_ms is None else setup_started_ms + self.setup_ms
        frame_deadline_ms = math.inf if frame_started_ms is None else frame_started_ms + self.frame_ms
        return min(idle_deadline_ms, setup_deadline_ms, frame_deadline_ms)

    def find_expired(self, channels: Iterable[KafkaChannel], now_ms: float) -> list[tuple[KafkaChannel, ChannelState]]:
        """Return the channels whose deadline has passed, each with its final state."""
        return [
            (channel, self._build_final_state(channel, now_ms))
            for channel in channels
            if self.compute_deadline_ms(channel) <= now_ms
        ]

    def _build_final_state(self, channel: KafkaChannel, now_ms: float) -> ChannelState:
        """Return the state to close the channel with. Its kind is EXPIRED only if the channel was merely idle."""
        setup_started_ms, frame_started_ms = channel.setup_started_ms, channel.frame_started_ms
        kind = channel.state.kind
        if setup_started_ms is not None and setup_started_ms + self.setup_ms <= now_ms:
            reason = f"connecting or authenticating took longer than {self.setup_ms:.0f} ms"
        elif frame_started_ms is not None and frame_started_ms + self.frame_ms <= now_ms:
            reason = f"a frame was incomplete after {self.frame_ms:.0f} ms"
        else:
            kind = ChannelStateKind.EXPIRED
            reason = f"idle for {self.idle_ms:.0f} ms"
        return ChannelState(kind, DisconnectedError(f"connection closed: {reason}", address=str(channel.address)))
