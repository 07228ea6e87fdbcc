"""Outcomes of a request: a response that the transport sends now, or a delayed request that it resumes later.

The transport is the socket server or the tests' simulated cluster. It mutes a channel after reading a request from it,
and unmutes the channel once the response has been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.network.system import Buffer


class ChannelAction(Enum):
    """The action to take on a channel after the response."""

    UNMUTE = "read the next request"
    CLOSE = "close the connection"
    KEEP_MUTED = "keep the connection open, and neither read from it nor write to it any more"


@dataclass(frozen=True, eq=False)
class ChannelResponse:
    """The bytes to write to a request's channel, and the action to take afterwards.

    A `frame` is written with a length prefix, and `raw_bytes` as they are. If both are None, nothing is written.
    """

    frame: Sequence[Buffer] | None = None
    raw_bytes: bytes | None = None
    action: ChannelAction = ChannelAction.UNMUTE


@dataclass(frozen=True, eq=False)
class DelayedRequest:
    """A request to resume at `deadline_ms`, or earlier if it waits for a change and the cluster changes."""

    deadline_ms: float
    resume: Callable[[float], RequestOutcome]
    """Function that continues the request. It takes the current time in milliseconds."""
    change_count: int | None = None
    """The cluster's `change_count` before the request was handled. The request is due as soon as the cluster's count
    differs. None: the request waits only for its deadline, because an injected fault delays it."""


RequestOutcome = ChannelResponse | DelayedRequest
