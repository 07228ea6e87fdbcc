"""What the transport is to do with a request: answer now, or ask again later.

The transport is the socket server, or the simulated peers of the tests. While a request waits, its channel is muted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.network.system import Buffer


class ChannelAction(Enum):
    """What becomes of the connection after the answer."""

    UNMUTE = "the next request is read"
    CLOSE = "the connection is closed"
    KEEP_MUTED = "the connection stays, and nothing is read from it or written to it any more"


@dataclass(frozen=True, eq=False)
class ChannelResponse:
    """`frame` is written behind its length, `raw` just so; with neither of them nothing is written."""

    frame: Sequence[Buffer] | None = None
    raw_bytes: bytes | None = None
    action: ChannelAction = ChannelAction.UNMUTE


@dataclass(frozen=True, eq=False)
class DelayedRequest:
    """Call `resume` at `until_ms`; if `progress` is given, as soon as the cluster's progress is another one, too."""

    deadline_ms: float
    resume: Callable[[float], RequestOutcome]
    change_count: int | None = None


RequestOutcome = ChannelResponse | DelayedRequest
