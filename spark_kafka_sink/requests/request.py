"""Request: what a request to the cluster is, which broker it is for, and what its response means.

One class for each kind of request. The engine that sends requests until their responses are final is in pending.py.
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
    """A route: the broker that is likely to respond first, or the controller, for which any broker does while it is
    unknown."""

    ANY_BROKER = "any broker"
    CONTROLLER = "controller"


Route = CoordinatorKey | Leader | Broker | Role


class Request(ABC, Generic[ResponseT]):
    """A request about one or more keys: transactional ids, topics, partitions, or whatever the response names."""

    api_key: ClassVar[ApiKey]
    action: ClassVar[str]
    """The attempt in words, for errors: "end the transaction"."""
    verdicts: ClassVar[VerdictTable] = {codes.NONE: Verdict.DONE}
    unlisted: ClassVar[Verdict] = Verdict.FATAL
    """The verdict of codes that are neither listed in `verdicts` nor retriable."""

    @property
    @abstractmethod
    def keys(self) -> Sequence[str]:
        """The names that the response has a result for. The engine retries each by itself."""

    @abstractmethod
    def route(self, key: str) -> Route:
        """Return which broker the request about this key is for."""

    @property
    def versions(self) -> VersionRange | None:
        """The versions in which it may be sent; None: in any."""
        return None

    @abstractmethod
    def message(self, version: int) -> Message: ...

    @abstractmethod
    def classify(self, response: ResponseT) -> Classification:
        """Return the classification of the request as a whole."""

    def classify_keys(self, response: ResponseT) -> Mapping[str, Classification]:
        """Return the classification of each key that the response names."""
        return dict.fromkeys(self.keys, self.classify(response))

    def subset(self, keys: Sequence[str]) -> Request[ResponseT]:
        """Return the same request about some of its keys. Most requests have one key only."""
        return self

    def classify_code(self, code: int, place: str = "") -> Classification:
        return classify(code, self.verdicts, self.unlisted, place)

    def rejection(self, key: str, classification: Classification, advice: str | None = None) -> BrokerError:
        """Return the error of a response that rejects the request. `advice` replaces the advice of the error code."""
        place = f" ({classification.place})" if classification.place else ""
        context = f"{self.subject(key)}: the attempt to {self.action}{place} was refused"
        return build_broker_error(classification.code, context, advice)

    def subject(self, key: str) -> str:
        """Return what the request is about, for errors."""
        return key
