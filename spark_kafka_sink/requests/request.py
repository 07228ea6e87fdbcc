"""Request: the base class of requests to the cluster.

A request has one or more keys, such as topics, partitions or transactional ids, and the response contains a result for
each key. The engine (engine.py) sends and retries the request until each result is final. Each subclass defines:

    api_key, action  the kind of request, and its name in error messages
    keys             the keys of the request
    route            the broker that handles a key
    build_message    the message to send
    classify         the verdict on a response, usually found in `verdicts`
    verdicts         what to do about each error code, if it differs from the usual verdict (verdicts.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import ClassVar, Generic, NamedTuple, TypeVar

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.verdicts import Classification, Verdict, VerdictTable, classify

GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE = 0, 1
"""Key types of FindCoordinator, as numbered in Kafka's protocol."""

ResponseT = TypeVar("ResponseT", bound=Message)


class CoordinatorRoute(NamedTuple):
    """A route to the coordinator of a consumer group or transactional id."""

    key_type: int
    """GROUP_KEY_TYPE or TRANSACTION_KEY_TYPE."""
    key: str
    """The group id or transactional id."""


class LeaderRoute(NamedTuple):
    """A route to the leader of a partition."""

    topic: str
    partition: int


class BrokerRoute(NamedTuple):
    """A route to this broker and no other."""

    node: Node


class Role(Enum):
    """A route to any broker, preferably one that will respond soon, or a route to the controller.

    While the controller is unknown, requests to the controller are sent to any broker.
    """

    ANY_BROKER = "any broker"
    CONTROLLER = "controller"


Route = CoordinatorRoute | LeaderRoute | BrokerRoute | Role


class Request(ABC, Generic[ResponseT]):
    """A request with one or more keys, such as transactional ids, topics or partitions.

    The response contains a result for each key.
    """

    api_key: ClassVar[ApiKey]
    action: ClassVar[str]
    """The action named in error messages, for example "end the transaction"."""
    verdicts: ClassVar[VerdictTable] = {codes.NONE: Verdict.DONE}
    default_verdict: ClassVar[Verdict] = Verdict.FATAL
    """The verdict for codes that are neither listed in `verdicts` nor retriable."""

    @property
    @abstractmethod
    def keys(self) -> Sequence[str]:
        """The keys for which the response contains results. The engine retries each key separately."""

    @abstractmethod
    def route(self, key: str) -> Route:
        """Return the route to the broker that handles this key."""

    @property
    def versions(self) -> VersionRange | None:
        """The versions in which the request may be sent; None for all versions."""
        return None

    @abstractmethod
    def build_message(self, version: int) -> Message:
        """Build the message in this version of the request."""

    @abstractmethod
    def classify(self, response: ResponseT) -> Classification:
        """Classify the response as a whole."""

    def classify_keys(self, response: ResponseT) -> Mapping[str, Classification]:
        """Classify each key in the response. Keys that are not in the result count as MISSING_IN_RESPONSE."""
        return dict.fromkeys(self.keys, self.classify(response))

    def select_keys(self, keys: Sequence[str]) -> Request[ResponseT]:
        """Return a request for these keys only.

        The base class returns the request itself. Override this if the keys of a request may be sent or retried
        separately.
        """
        return self

    def classify_code(self, code: int, item: str = "") -> Classification:
        """Classify an error code by this request's verdict table.

        `item`: the partition or id that has this code, if the request covers several.
        """
        return classify(code, self.verdicts, self.default_verdict, item)

    def build_rejection_error(self, key: str, classification: Classification, advice: str | None = None) -> BrokerError:
        """Build the error for a response that rejects the request. `advice` replaces the error code's own advice."""
        item = f" ({classification.item})" if classification.item else ""
        context = f"{self.describe_subject(key)}: the attempt to {self.action}{item} was rejected"
        return build_broker_error(classification.code, context, advice)

    def describe_subject(self, key: str) -> str:
        """Return the beginning of error messages about this key, for example "transactional id x"."""
        return key
