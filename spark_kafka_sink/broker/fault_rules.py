"""Fault rules: filters that select requests, and the effects of injected faults on them.

A rule counts the requests that its filter accepts. It affects `times` of them, beginning with the `nth`. If several
rules affect a request, their effects are combined in its FaultEffects, which kafka_apis.py and the handlers carry out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from spark_kafka_sink.protocol.message import ApiKey, Message

TopicPartitions = Collection[tuple[str, "int | None"]]
"""Topics and partitions in a request. A partition of None stands for all of the topic's partitions."""


class ResponseFault(Enum):
    """A fault to inject into the response."""

    NONE = "send the response"
    DROP = "close the connection instead of responding"
    CUT = "close the connection in the middle of the response"
    RAW_BYTES = "send other bytes instead of the response"
    WRONG_CORRELATION_ID = "respond with a correlation id that does not match the request"
    NEVER = "keep the connection open and never respond"


@dataclass(frozen=True)
class InjectedError:
    """An error code to respond with. A topic or partition of None stands for all of them."""

    code: int
    topic: str | None
    partition: int | None
    execute_first: bool
    """Whether the request is executed before the error is returned."""

    def applies_to(self, topic: str | None, partition: int | None) -> bool:
        """Return whether to inject the error into this part of a response. None stands for all topics or partitions."""
        is_topic_included = self.topic is None or topic in (None, self.topic)
        is_partition_included = self.partition is None or partition in (None, self.partition)
        return is_topic_included and is_partition_included


@dataclass
class FaultEffects:
    """The combined effects of all rules that affect one request."""

    errors: list[InjectedError] = field(default_factory=list)
    should_execute: bool = True
    """Whether the handler is called."""
    response_fault: ResponseFault = ResponseFault.NONE
    raw_bytes: bytes = b""
    should_close_after_raw_bytes: bool = False
    cut_fraction: float = 0.5
    """Fraction of the response to send before closing the connection."""
    delay_before_ms: float = 0.0
    """Delay before the request is executed."""
    delay_after_ms: float = 0.0
    """Delay between the execution and the response."""
    throttle_ms: int = 0

    def find_rejection_code(self, topic: str | None = None, partition: int | None = None) -> int:
        """Return the code of the first error that replaces the execution for this topic and partition, or 0."""
        for error in self.errors:
            if not error.execute_first and error.applies_to(topic, partition):
                return error.code
        return 0


@dataclass(frozen=True)
class RequestFilter:
    """Conditions on a request. A condition of None accepts every request.

    `partition`: checked only together with `topic`.
    """

    api: ApiKey | None = None
    node: int | None = None
    topic: str | None = None
    partition: int | None = None
    client_id: str | None = None
    matches: Callable[[Message], bool] | None = None

    def accepts(self, node: int, request: Message, client_id: str | None, topic_partitions: TopicPartitions) -> bool:
        """Return whether the request meets all conditions. `matches` is called last, and only if the others are met."""
        return (
            (self.api is None or self.api == request.API_KEY)
            and (self.node is None or self.node == node)
            and (self.client_id is None or self.client_id == client_id)
            and (self.topic is None or any(self._accepts_partition(topic, index) for topic, index in topic_partitions))
            and (self.matches is None or self.matches(request))
        )

    def _accepts_partition(self, topic: str, partition: int | None) -> bool:
        # In a request, a partition of None stands for the whole topic, which includes every partition.
        return topic == self.topic and (self.partition is None or partition in (None, self.partition))


class FaultRule:
    """An injected fault and the requests that it affects, until `remove()` is called or its `with` block ends."""

    def __init__(
        self,
        request_filter: RequestFilter,
        nth: int,
        times: int | None,
        probability: float,
        add_fault: Callable[[FaultEffects, Random], None],
    ) -> None:
        """Create a rule for the requests that `request_filter` accepts.

        `nth`: the first accepted request that the rule may affect, counted from 1.
        `times`: maximum number of affected requests; None for no limit.
        `probability`: probability that the rule affects an accepted request, from the `nth` on.
        `add_fault`: adds the fault to the effects of an affected request.
        """
        self.affected_count = 0
        """Number of requests affected so far."""
        self.request_count = 0
        """Number of requests accepted by the filter so far."""
        self._filter = request_filter
        self._nth = nth
        self._times = times
        self._probability = probability
        self._add_fault = add_fault
        self._is_removed = False

    def __enter__(self) -> FaultRule:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """End the rule, so that it affects no further requests."""
        self._is_removed = True

    def accepts(self, node: int, request: Message, client_id: str | None, topic_partitions: TopicPartitions) -> bool:
        """Return whether the filter accepts the request. A removed rule accepts none."""
        return not self._is_removed and self._filter.accepts(node, request, client_id, topic_partitions)

    def apply_to(self, effects: FaultEffects, random: Random) -> None:
        """Count an accepted request. If the rule affects it, add the fault to its `effects`."""
        # Another thread may have removed the rule since `accepts` returned True.
        if self._is_removed:
            return
        self.request_count += 1
        has_reached_limit = self._times is not None and self.affected_count >= self._times
        if self.request_count < self._nth or has_reached_limit:
            return
        if self._probability < 1.0 and random.random() >= self._probability:
            return
        self.affected_count += 1
        self._add_fault(effects, random)
