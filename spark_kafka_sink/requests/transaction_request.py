"""TransactionRequest: a request of a transactional producer, and what its response changes in the producer.

The requests are in transactions.py, init_producer_id.py and find_coordinator.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.requests.request import CoordinatorKey, Request, ResponseT, Route
from spark_kafka_sink.requests.verdicts import COORDINATOR_VERDICTS, Classification, Verdict, VerdictTable


class Follower(Protocol):
    """The producer, as far as a request that was carried out changes it."""

    def initialized(self, id_and_epoch: ProducerIdAndEpoch) -> None: ...
    def partitions_added(self, partitions: Iterable[TopicPartition]) -> None: ...
    def group_added(self) -> None: ...
    def offsets_written(self, partitions: Iterable[TopicPartition]) -> None: ...
    def ended(self, next_id_and_epoch: ProducerIdAndEpoch | None) -> None: ...


class TransactionRequest(Request[ResponseT]):
    verdicts: ClassVar[VerdictTable] = COORDINATOR_VERDICTS
    adds_to_transaction: ClassVar[bool] = False
    """If the response is lost, brokers may know of the transaction."""
    unsafe_when_delayed: ClassVar[bool] = False
    """Carried out late, it would change the next transaction of the same epoch."""
    ends_transaction: ClassVar[bool] = False
    """Nothing may join the transaction afterwards."""
    completes_abort: ClassVar[bool] = False
    """An abort cannot end without it."""
    starts_v2_transaction: ClassVar[bool] = False
    """Brokers start a transaction of version 2 with this request, as with a batch. In version 1 other requests start
    it."""

    @property
    @abstractmethod
    def coordinator(self) -> CoordinatorKey: ...

    @property
    def keys(self) -> Sequence[str]:
        return (self.coordinator.key,)

    def route(self, key: str) -> Route:
        return self.coordinator._replace(key=key)

    def progress(self, response: ResponseT, follower: Follower) -> None:
        """Note the parts that were carried out, even if the request must be sent again for others."""

    def follow(self, response: ResponseT, follower: Follower) -> None:
        """Note that the request was carried out."""

    def subject(self, key: str) -> str:
        return f"transactional id {key}"

    def rejection(self, key: str, classification: Classification, advice: str | None = None) -> BrokerError:
        """Brokers before 2.8 use another code for a fenced producer: the error has today's."""
        if classification.verdict is Verdict.FENCED:
            classification = classification._replace(code=codes.PRODUCER_FENCED)
        return super().rejection(key, classification, advice)


def may_be_stored(classification: Classification) -> bool:
    """Return whether the coordinator may have written the rejected request into its log: so it does when its replicas
    were too slow for a response in time."""
    return classification.verdict is Verdict.LOOK_UP or classification.code == codes.UNKNOWN_SERVER_ERROR
