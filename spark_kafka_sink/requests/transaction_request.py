"""TransactionRequest: the base class of a transactional producer's requests.

transactions.py and init_producer_id.py contain its subclasses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.requests.request import CoordinatorRoute, Request, ResponseT, Route
from spark_kafka_sink.requests.verdicts import COORDINATOR_VERDICTS, Classification, Verdict, VerdictTable


class TransactionListener(Protocol):
    """The part of a producer that is notified when the coordinator has executed a request.

    `on_ended` gets None if the producer keeps its id and epoch, as in version 1 transactions.
    """

    def on_initialized(self, id_and_epoch: ProducerIdAndEpoch) -> None: ...
    def on_partitions_added(self, partitions: Iterable[TopicPartition]) -> None: ...
    def on_group_added(self) -> None: ...
    def on_offsets_written(self, partitions: Iterable[TopicPartition]) -> None: ...
    def on_ended(self, next_id_and_epoch: ProducerIdAndEpoch | None) -> None: ...


class TransactionRequest(Request[ResponseT]):
    """A request to the coordinator of a transactional id or a consumer group.

    The class variables describe the effect of the request on the producer's transaction. Those that are true in each
    subclass (checked by test_docstring_lists_effects_of_each_request):

        AddPartitions, AddOffsets   may_open_transaction
        CommitOffsets               starts_v2_transaction, affects_next_transaction_if_late
        EndTransaction              ends_transaction, completes_abort, affects_next_transaction_if_late
        InitProducerId              completes_abort
    """

    verdicts: ClassVar[VerdictTable] = COORDINATOR_VERDICTS
    may_open_transaction: ClassVar[bool] = False
    """Whether this request may begin the transaction on the coordinator, even if its response is lost."""
    affects_next_transaction_if_late: ClassVar[bool] = False
    """Whether this request would change the next transaction if a broker executed it late under the same epoch.

    A request is late if its connection was lost before its response arrived, and its transaction has ended since.
    """
    ends_transaction: ClassVar[bool] = False
    """Whether nothing may be added to the transaction after this request."""
    completes_abort: ClassVar[bool] = False
    """Whether an abort is complete only after this request has been executed."""
    starts_v2_transaction: ClassVar[bool] = False
    """Whether this request starts a version 2 transaction on the brokers, as a batch does."""

    @property
    @abstractmethod
    def coordinator(self) -> CoordinatorRoute: ...

    @property
    def keys(self) -> Sequence[str]:
        return (self.coordinator.key,)

    def route(self, key: str) -> Route:
        return self.coordinator._replace(key=key)

    def on_partitions_executed(self, response: ResponseT, listener: TransactionListener) -> None:
        """Tell the listener for which partitions the request was executed. Other partitions may have to be retried."""

    def on_executed(self, response: ResponseT, listener: TransactionListener) -> None:
        """Tell the listener that the whole request was executed. Called after `on_partitions_executed`."""

    def describe_subject(self, key: str) -> str:
        return f"transactional id {key}"

    def build_rejection_error(self, key: str, classification: Classification, advice: str | None = None) -> BrokerError:
        """Build the error for a rejected request. Its code is PRODUCER_FENCED for every fenced producer.

        Brokers before 2.8 report INVALID_PRODUCER_EPOCH instead.
        """
        if classification.verdict is Verdict.FENCED:
            classification = classification._replace(code=codes.PRODUCER_FENCED)
        return super().build_rejection_error(key, classification, advice)


def may_be_stored(classification: Classification) -> bool:
    """Return whether the coordinator may have executed the request although it rejected it.

    This happens if the coordinator has written the request to its log, but its replicas did not respond in time.
    """
    return classification.verdict is Verdict.LOOK_UP or classification.code == codes.UNKNOWN_SERVER_ERROR
