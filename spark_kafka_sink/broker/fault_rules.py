"""Faults by rule: which requests a rule is for, and what it does to them.

A rule counts the requests that it is for, strikes the `nth` of them and the `times - 1` after it, then rests. What all
rules that strike one request want is gathered in its `Effects`; the core and the handlers do as they say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from spark_kafka_sink.protocol.message import ApiKey, Message

RequestPartitions = Collection[tuple[str, "int | None"]]
"""Topics and partitions of a request; None as the partition stands for all of the topic."""


class ResponseFault(Enum):
    NONE = "answer"
    DROP = "close the connection in place of an answer"
    CUT = "close the connection in the middle of the answer"
    RAW = "send other bytes in place of the answer"
    WRONG_CORRELATION_ID = "answer under the id of another request"
    NEVER = "keep the connection open and silent"


@dataclass(frozen=True)
class InjectedError:
    code: int
    topic: str | None
    partition: int | None
    after_applying: bool

    def concerns(self, topic: str | None, partition: int | None) -> bool:
        return (self.topic is None or topic is None or self.topic == topic) and (
            self.partition is None or partition is None or self.partition == partition
        )


@dataclass
class FaultEffects:
    """What is done to one request."""

    errors: list[InjectedError] = field(default_factory=list)
    apply: bool = True
    answer: ResponseFault = ResponseFault.NONE
    raw_bytes: bytes = b""
    close_after_raw: bool = False
    cut_at: float = 0.5
    delay_before_ms: float = 0.0
    delay_after_ms: float = 0.0
    throttle_ms: int = 0

    def error(self, topic: str | None = None, partition: int | None = None, *, after_applying: bool = False) -> int:
        """The code to answer with for this topic and partition; 0 for none."""
        for error in self.errors:
            if error.after_applying == after_applying and error.concerns(topic, partition):
                return error.code
        return 0


@dataclass(frozen=True)
class RequestFilter:
    """Which requests a rule is for. A field that is None matches everything."""

    api: ApiKey | None = None
    node: int | None = None
    topic: str | None = None
    partition: int | None = None
    client_id: str | None = None
    matches: Callable[[Message], bool] | None = None

    def fits(self, node: int, request: Message, client_id: str | None, touched: RequestPartitions) -> bool:
        return (
            (self.api is None or self.api == request.API_KEY)
            and (self.node is None or self.node == node)
            and (self.client_id is None or self.client_id == client_id)
            and (self.topic is None or any(self._touches(*one) for one in touched))
            and (self.matches is None or self.matches(request))
        )

    def _touches(self, topic: str, partition: int | None) -> bool:
        return topic == self.topic and (self.partition is None or partition is None or partition == self.partition)


class FaultRule:
    """One rule, and a handle on it: `struck` counts its strikes, `remove()` or the end of a `with` ends it."""

    def __init__(
        self,
        where: RequestFilter,
        nth: int,
        times: int | None,
        probability: float,
        effect: Callable[[FaultEffects, Random], None],
    ) -> None:
        self.struck = 0
        self.seen = 0
        self._where = where
        self._nth = nth
        self._times = times
        self._probability = probability
        self._effect = effect
        self._removed = False

    def __enter__(self) -> FaultRule:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        self._removed = True

    def consider(
        self,
        node: int,
        request: Message,
        client_id: str | None,
        touched: RequestPartitions,
        effects: FaultEffects,
        random: Random,
    ) -> None:
        if self._removed or not self._where.fits(node, request, client_id, touched):
            return
        self.seen += 1
        if self.seen < self._nth or (self._times is not None and self.struck >= self._times):
            return
        if self._probability < 1.0 and random.random() >= self._probability:
            return
        self.struck += 1
        self._effect(effects, random)
