"""Outcomes of a request: a response that the transport sends now, or a delayed request that it resumes later.

The transport is the socket server, or the simulated cluster of the tests. A channel is muted from the time its request
was read until the response has been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.network.system import Buffer


class ChannelAction(Enum):
    """The state of the channel after the response."""

    UNMUTE = "read the next request"
    CLOSE = "close the connection"
    KEEP_MUTED = "keep the connection open, and neither read from it nor write to it any more"


@dataclass(frozen=True, eq=False)
class ChannelResponse:
    """The bytes to write to the channel of a request, and the action that follows.

    A `frame` is preceded by its length on the wire; `raw_bytes` are written as they are. Nothing is written if both are
    None.
    """

    frame: Sequence[Buffer] | None = None
    raw_bytes: bytes | None = None
    action: ChannelAction = ChannelAction.UNMUTE


@dataclass(frozen=True, eq=False)
class DelayedRequest:
    """A request to resume at `deadline_ms`, or earlier if the cluster changes."""

    deadline_ms: float
    resume: Callable[[float], RequestOutcome]
    """Continues the request; takes the current time in milliseconds."""
    change_count: int | None = None
    """The cluster's `change_count` when the request was delayed. The request is due as soon as the cluster has another
    count. None: the request waits for its deadline only."""


RequestOutcome = ChannelResponse | DelayedRequest
