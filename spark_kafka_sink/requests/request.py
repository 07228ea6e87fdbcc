"""Request: the base class of requests to the cluster. Each subclass has a route, a message and a verdict table.

The engine that sends requests until their responses are final is in pending.py.
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

GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator."""

ResponseT = TypeVar("ResponseT", bound=Message)


class CoordinatorKey(NamedTuple):
    """A route: the coordinator of a consumer group or of a transactional id."""

    key_type: int
    key: str


class Leader(NamedTuple):
    """A route: the leader of a partition."""

    topic: str
    partition: int


class Broker(NamedTuple):
    """A route: this broker and no other."""

    node: Node


class Role(Enum):
    """A route to the broker that is likely to respond first, or to the controller.

    While the controller is unknown, its requests go to any broker.
    """

    ANY_BROKER = "any broker"
    CONTROLLER = "controller"


Route = CoordinatorKey | Leader | Broker | Role


class Request(ABC, Generic[ResponseT]):
    """A request about one or more keys: transactional ids, topics, partitions, or other names in the response."""

    api_key: ClassVar[ApiKey]
    action: ClassVar[str]
    """The action of the request in error messages: "end the transaction"."""
    verdicts: ClassVar[VerdictTable] = {codes.NONE: Verdict.DONE}
    default_verdict: ClassVar[Verdict] = Verdict.FATAL
    """The verdict of codes that are neither listed in `verdicts` nor retriable."""

    @property
    @abstractmethod
    def keys(self) -> Sequence[str]:
        """The keys that the response has results for. The engine retries each key separately."""

    @abstractmethod
    def route(self, key: str) -> Route:
        """Return the route to the broker that handles this key."""

    @property
    def versions(self) -> VersionRange | None:
        """The versions in which the request may be sent; None for all versions."""
        return None

    @abstractmethod
    def build_message(self, version: int) -> Message: ...

    @abstractmethod
    def classify(self, response: ResponseT) -> Classification:
        """Return the classification of the request as a whole."""

    def classify_keys(self, response: ResponseT) -> Mapping[str, Classification]:
        """Return the classification of each key in the response."""
        return dict.fromkeys(self.keys, self.classify(response))

    def select_keys(self, keys: Sequence[str]) -> Request[ResponseT]:
        """Return the request reduced to these keys. Requests with a single key return themselves."""
        return self

    def classify_code(self, code: int, item: str = "") -> Classification:
        return classify(code, self.verdicts, self.default_verdict, item)

    def build_rejection_error(self, key: str, classification: Classification, advice: str | None = None) -> BrokerError:
        """Return the error for a response that rejects the request. `advice` replaces the error code's advice."""
        item = f" ({classification.item})" if classification.item else ""
        context = f"{self.describe_subject(key)}: the attempt to {self.action}{item} was rejected"
        return build_broker_error(classification.code, context, advice)

    def describe_subject(self, key: str) -> str:
        """Return the subject of error messages about this key."""
        return key
