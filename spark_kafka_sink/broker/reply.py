"""What the transport is to do with a request: answer now, or ask again later.

The transport is the socket server, or the simulated peers of the tests. While a request waits, its channel is muted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.network.system import Buffer


class Then(Enum):
    """What becomes of the connection after the answer."""

    READ_ON = "the next request is read"
    CLOSE = "the connection is closed"
    SILENCE = "the connection stays, and nothing is read from it or written to it any more"


@dataclass(frozen=True, eq=False)
class Reply:
    """`frame` is written behind its length, `raw` just so; with neither of them nothing is written."""

    frame: Sequence[Buffer] | None = None
    raw: bytes | None = None
    then: Then = Then.READ_ON


@dataclass(frozen=True, eq=False)
class Later:
    """Call `resume` at `until_ms`; if `progress` is given, as soon as the cluster's progress is another one, too."""

    until_ms: float
    resume: Callable[[float], Outcome]
    progress: int | None = None


Outcome = Reply | Later
