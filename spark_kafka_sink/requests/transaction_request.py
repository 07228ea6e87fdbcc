"""TransactionRequest: the base class of a transactional producer's requests.

Its subclasses are in transactions.py and init_producer_id.py.
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


class TransactionListener(Protocol):
    """The part of a producer that is notified of executed requests."""

    def on_initialized(self, id_and_epoch: ProducerIdAndEpoch) -> None: ...
    def on_partitions_added(self, partitions: Iterable[TopicPartition]) -> None: ...
    def on_group_added(self) -> None: ...
    def on_offsets_written(self, partitions: Iterable[TopicPartition]) -> None: ...
    def on_ended(self, next_id_and_epoch: ProducerIdAndEpoch | None) -> None: ...


class TransactionRequest(Request[ResponseT]):
    verdicts: ClassVar[VerdictTable] = COORDINATOR_VERDICTS
    adds_to_transaction: ClassVar[bool] = False
    """Whether brokers may know the transaction after this request, even if its response is lost."""
    unsafe_when_delayed: ClassVar[bool] = False
    """Whether a delayed execution would affect the next transaction under the same epoch."""
    ends_transaction: ClassVar[bool] = False
    """Whether nothing may be added to the transaction after this request."""
    completes_abort: ClassVar[bool] = False
    """Whether an abort is incomplete without this request."""
    starts_v2_transaction: ClassVar[bool] = False
    """Whether brokers start a version 2 transaction with this request, as with a batch."""

    @property
    @abstractmethod
    def coordinator(self) -> CoordinatorKey: ...

    @property
    def keys(self) -> Sequence[str]:
        return (self.coordinator.key,)

    def route(self, key: str) -> Route:
        return self.coordinator._replace(key=key)

    def apply_partial(self, response: ResponseT, listener: TransactionListener) -> None:
        """Notify the listener of the parts that were executed, even if others must be retried."""

    def apply(self, response: ResponseT, listener: TransactionListener) -> None:
        """Notify the listener that the request was executed."""

    def describe_subject(self, key: str) -> str:
        return f"transactional id {key}"

    def build_rejection_error(self, key: str, classification: Classification, advice: str | None = None) -> BrokerError:
        """Return the error. A fenced producer always gets PRODUCER_FENCED: brokers before 2.8 use another code."""
        if classification.verdict is Verdict.FENCED:
            classification = classification._replace(code=codes.PRODUCER_FENCED)
        return super().build_rejection_error(key, classification, advice)


def may_be_stored(classification: Classification) -> bool:
    """Return whether the coordinator may have executed the rejected request.

    It may write the request into its log and then reject it, because its replicas were too slow to respond in time.
    """
    return classification.verdict is Verdict.LOOK_UP or classification.code == codes.UNKNOWN_SERVER_ERROR
