"""LogWriter: writes records to the decision log, each write in its own transaction.

The caller is the driver of a query. It passes its own producer id and epoch, because only records with the driver's
producer id are valid in the log. A write sends these requests, and in two situations below first requests a new epoch:

    1. AddPartitionsToTxn    in version 1 transactions only
    2. Produce               one record batch, acks=all
    3. EndTxn                commit or abort

`begin_transaction` sends the Produce request without waiting for the response, so that the caller can send other
requests in the meantime. The caller then commits or aborts the transaction.

The writer has no producer and no thread of its own. It sends its requests over the connections of the caller's client.

    situation                                  what the writer does
    -----------------------------------------  -------------------------------------------------------------------------
    A response is lost or has a retriable      Look up the leader or coordinator again, and send the same bytes again.
    error.
    The leader has already stored the batch.   Nothing: the leader recognizes the batch by its sequence number, and
                                               responds as if it had just stored it. DUPLICATE_SEQUENCE_NUMBER, a
                                               response to older batches, also counts as success.
    The leader rejects the batch.              Leave the transaction open, because it may belong to another driver with
                                               the same producer id and epoch (query_transactions.py).
    Version 1: EndTxn got no response.         Retry it, and begin the next transaction with a new epoch. Under the same
                                               epoch, the delayed EndTxn could end that transaction, too
                                               (test_uses_new_epoch_after_unconfirmed_end).
    The cluster was upgraded to version 2      Begin the first transaction after the upgrade with a new epoch
    (KIP-890).                                 (test_uses_new_epoch_after_upgrade_to_version_2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple, TypeVar
from uuid import UUID

import pyarrow as pa

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError, ProducerFencedError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.batch_slicing import build_consecutive_slices
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec, compress
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.records.header import TRANSACTIONAL, encode_header
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.engine import Call
from spark_kafka_sink.requests.init_producer_id import InitProducerId, parse_producer_id_and_epoch
from spark_kafka_sink.requests.produce_versions import allowed_produce_versions
from spark_kafka_sink.requests.request import LeaderRoute, Request
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transaction_request import TransactionRequest
from spark_kafka_sink.requests.transactions import AddPartitions, DescribeTransactions, EndTransaction
from spark_kafka_sink.requests.verdicts import (
    BATCH_OWNERSHIP_LOST_ERRORS,
    MISSING_IN_RESPONSE,
    OWNERSHIP_LOST_ERRORS,
    Classification,
    Verdict,
    VerdictTable,
)

REPLICATION_TIMEOUT_MS = 2_000
"""The time that a leader waits for its followers before it responds with REQUEST_TIMED_OUT.

This must be less than NODE_TIMEOUT_MS (clients.py), after which the client disconnects an unresponsive broker.
"""

_ACKS_ALL = -1
_FENCING_ERRORS = OWNERSHIP_LOST_ERRORS | {codes.OUT_OF_ORDER_SEQUENCE_NUMBER}
"""Errors that show that another process has fenced the caller: it has a newer epoch or used the sequence number."""
_BATCH_FENCING_ERRORS = {1: BATCH_OWNERSHIP_LOST_ERRORS | _FENCING_ERRORS, 2: _FENCING_ERRORS}
"""The fencing errors of a Produce response, by transaction version.

BATCH_OWNERSHIP_LOST_ERRORS also contains TRANSACTION_ABORTABLE, with which a leader reports that the batch's
transaction is not open. In version 1, this means that another process with the same epoch has ended the transaction. In
version 2, the batch itself begins the transaction, so the error does not mean that the caller is fenced. It means that
the cluster was downgraded to version 1.
"""

KeyValue = tuple[bytes, "bytes | None"]
"""The key and value of a record. A value of None deletes the key from the log."""
ResponseT = TypeVar("ResponseT", bound=Message)


class WriterState(NamedTuple):
    """The identity and sequence number for a driver's next write to the log. Each write returns the next state."""

    id_and_epoch: ProducerIdAndEpoch
    """The driver's producer id and epoch."""
    next_sequence: int = 0
    """The sequence number of the next record. The first record of each epoch has 0."""


class LogWriter:
    """A writer of records to the decision log. Not thread-safe; the same thread may use `client` for other requests."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        # The version of the last transaction, by the epoch under which it was written.
        self._transaction_versions: dict[ProducerIdAndEpoch, int] = {}
        # Epochs under which an EndTxn request got no response. A broker may still execute it later.
        self._unconfirmed_ends: set[ProducerIdAndEpoch] = set()

    def begin_transaction(
        self,
        transactional_id: str,
        writer_state: WriterState,
        topic_partition: TopicPartition,
        records: Sequence[KeyValue],
    ) -> LogTransaction:
        """Begin a transaction, and send these records without waiting for the Produce response.

        This method and the returned transaction's methods raise ProducerFencedError if the caller's producer id, epoch
        or sequence number is no longer valid, because another process has fenced it. That process is not necessarily a
        newer driver. The error's `code` shows the reason. An open transaction is then left as it is.
        """
        # Looking up the topic also fetches the finalized features, which contain the transaction version.
        self._client.wait_for_topic(topic_partition.topic)
        version = self._client.transaction_version
        writer_state = self._ensure_safe_epoch(transactional_id, writer_state, version)
        self._transaction_versions = {writer_state.id_and_epoch: version}
        transaction = TransactionIdentity(transactional_id, *writer_state.id_and_epoch, version)
        if version < 2:
            self._send(AddPartitions(transaction, frozenset([topic_partition])))
        batch = _encode_batch(writer_state, records, self._client.wall_ms())
        append_request = AppendBatch(self._client.metadata, transaction, topic_partition, batch)
        next_sequence = sequences.increment(writer_state.next_sequence, len(records))
        append_call = self._client.begin([append_request])
        return LogTransaction(self, self._client, transaction, next_sequence, append_request, append_call)

    def _ensure_safe_epoch(self, transactional_id: str, writer_state: WriterState, version: int) -> WriterState:
        """Return the state for the next write, with a new epoch if it is not safe to use the current one.

        The current epoch is not safe if a delayed EndTxn request for the last transaction could end the next one, or if
        the cluster was upgraded from transaction version 1 to 2 since the last transaction.

        `version`: the transaction version of the cluster.
        """
        has_used_version_1 = self._transaction_versions.get(writer_state.id_and_epoch) == 1
        was_upgraded = has_used_version_1 and version >= 2
        may_be_ended_late = has_used_version_1 and writer_state.id_and_epoch in self._unconfirmed_ends
        if not was_upgraded and not may_be_ended_late:
            return writer_state
        timeout_ms = self._fetch_transaction_timeout_ms(transactional_id)
        response = self._send(InitProducerId(transactional_id, timeout_ms, writer_state.id_and_epoch))
        return WriterState(parse_producer_id_and_epoch(response))

    def _fetch_transaction_timeout_ms(self, transactional_id: str) -> int:
        """Fetch the transaction timeout of a transactional id, for an InitProducerId request that must not change it.

        InitProducerId always sets the timeout, so the current value must be sent again. Brokers might reject a
        different value. Also, the last digits of the current value may be a mark that other clients read
        (timeout_marks.py). Raise BrokerError if the brokers do not know the id.
        """
        request = DescribeTransactions((transactional_id,))
        description = request.parse_descriptions(self._send(request))[transactional_id]
        if description is None:
            context = f"transactional id {transactional_id}"
            raise _convert_fencing_error(build_broker_error(codes.TRANSACTIONAL_ID_NOT_FOUND, context))
        return description.timeout_ms

    def _send(self, request: TransactionRequest[ResponseT]) -> ResponseT:
        """Send a request to its coordinator, with retries, and return the response.

        Raise ProducerFencedError if the request is rejected because another process has fenced the caller, and
        BrokerError if it is rejected for another reason.
        """
        response = self._client.send(request)
        _raise_if_rejected(request, response)
        return response

    def _end_transaction(
        self, transaction: TransactionIdentity, *, commit: bool, timeout_ms: float | None
    ) -> EndTxnResponse:
        """Commit or abort a transaction, with retries.

        If a response was lost, remember the epoch, because a broker may still execute the request later.
        """
        request = EndTransaction(transaction, commit)
        call = self._client.begin([request])
        try:
            (response,) = self._client.finish(call, timeout_ms).values()
        finally:
            if call.in_doubt_keys:
                self._unconfirmed_ends = {transaction.id_and_epoch}
        _raise_if_rejected(request, response)
        return response


class LogTransaction:
    """An open transaction whose records have been sent to the decision log. The caller must commit or abort it."""

    def __init__(
        self,
        writer: LogWriter,
        client: BlockingClient,
        transaction: TransactionIdentity,
        next_sequence: int,
        append_request: AppendBatch,
        append_call: Call[ProduceResponse],
    ) -> None:
        """Wrap a transaction that `LogWriter.begin_transaction` has begun.

        `next_sequence`: the sequence number of the first record after those in `append_request`.
        `append_call`: the call that sends `append_request`. It is in flight.
        """
        self._writer = writer
        self._client = client
        self._transaction = transaction
        self._next_sequence = next_sequence
        self._append_request = append_request
        self._append_call = append_call

    def abandon(self) -> None:
        """Stop waiting for the leader, and stop retrying. Call this if neither `commit` nor `abort` will be called.

        The transaction stays open until it times out or the next driver aborts it.
        """
        self._client.abandon(self._append_call)

    def wait(self) -> None:
        """Wait until the leader has stored the records, retrying if necessary.

        Call this before `commit`, which would otherwise commit the transaction without the records.
        """
        (response,) = self._client.finish(self._append_call).values()
        _raise_if_rejected(self._append_request, response, _BATCH_FENCING_ERRORS[self._transaction.version])

    def commit(self, timeout_ms: float | None = None) -> WriterState:
        """Commit the transaction, and return the state for the next one.

        When this returns, the records are durable and will become visible to read_committed consumers. Raise
        ProducerFencedError if another process has fenced the caller. If an earlier response was lost, the transaction
        may be committed nevertheless; only the log shows whether it is.

        `timeout_ms`: how long to retry the commit without progress; defaults to the client's timeout.
        """
        response = self._writer._end_transaction(self._transaction, commit=True, timeout_ms=timeout_ms)
        if self._transaction.version >= 2:
            return WriterState(parse_producer_id_and_epoch(response))
        return WriterState(self._transaction.id_and_epoch, self._next_sequence)

    def wait_and_commit(self) -> WriterState:
        """Commit the transaction once the leader has stored the records. Return the state for the next one."""
        self.wait()
        return self.commit()

    def abort(self) -> None:
        """Abort the transaction, so that readers ignore its records."""
        self._writer._end_transaction(self._transaction, commit=False, timeout_ms=None)


class AppendBatch(Request[ProduceResponse]):
    """Append one transactional batch to a partition. It counts as success if the batch is already stored."""

    api_key = ApiKey.PRODUCE
    action = "append the batch"
    verdicts: ClassVar[VerdictTable] = {
        codes.NONE: Verdict.DONE,
        codes.DUPLICATE_SEQUENCE_NUMBER: Verdict.DONE,
        codes.UNKNOWN_SERVER_ERROR: Verdict.RETRY,
    }

    def __init__(
        self, metadata: Metadata, transaction: TransactionIdentity, topic_partition: TopicPartition, batch: bytes
    ) -> None:
        self._metadata = metadata
        self._transaction = transaction
        self._topic_partition = topic_partition
        self._batch = batch

    @property
    def keys(self) -> Sequence[str]:
        return (str(self._topic_partition),)

    def route(self, key: str) -> LeaderRoute:
        return LeaderRoute(*self._topic_partition)

    @property
    def versions(self) -> VersionRange:
        return allowed_produce_versions(self._transaction.version, needs_topic_names=self._topic_id is None)

    @property
    def _topic_id(self) -> UUID | None:
        return self._metadata.snapshot.topic_id(self._topic_partition.topic)

    def build_message(self, version: int) -> ProduceRequest:
        partition_data = [PartitionProduceData(self._topic_partition.partition, [self._batch])]
        topic_data = TopicProduceData(
            name=self._topic_partition.topic, topic_id=self._topic_id or NO_TOPIC_ID, partition_data=partition_data
        )
        return ProduceRequest(
            transactional_id=self._transaction.transactional_id,
            acks=_ACKS_ALL,
            timeout_ms=REPLICATION_TIMEOUT_MS,
            topic_data=[topic_data],
        )

    def classify(self, response: ProduceResponse) -> Classification:
        partitions = (partition for topic in response.responses for partition in topic.partition_responses)
        return next((self.classify_code(partition.error_code) for partition in partitions), MISSING_IN_RESPONSE)

    def describe_subject(self, key: str) -> str:
        return f"transactional id {self._transaction.transactional_id}, {self._topic_partition}"


def _encode_batch(writer_state: WriterState, records: Sequence[KeyValue], timestamp_ms: int) -> bytes:
    """Encode the records as one gzip-compressed, transactional record batch.

    `timestamp_ms`: the timestamp of all records, in milliseconds since the epoch.
    """
    keys, values = zip(*records, strict=True)
    columns = RecordColumns(pa.array(values, pa.binary()), pa.array(keys, pa.binary()))
    (encoded,) = encode_records(columns, build_consecutive_slices([len(records)]), timestamp_ms)
    body = compress(Codec.GZIP, [encoded.data])
    header = encode_header(
        [body],
        attributes=Codec.GZIP | TRANSACTIONAL,
        last_offset_delta=len(records) - 1,
        base_timestamp=encoded.base_timestamps[0],
        max_timestamp=encoded.max_timestamps[0],
        producer_id=writer_state.id_and_epoch.producer_id,
        producer_epoch=writer_state.id_and_epoch.epoch,
        base_sequence=writer_state.next_sequence,
        record_count=len(records),
    )
    return header + bytes(body)


def _raise_if_rejected(
    request: Request[ResponseT], response: ResponseT, fencing_errors: Collection[int] = _FENCING_ERRORS
) -> None:
    """Raise BrokerError if the response rejects the request; for a fencing error, its subclass ProducerFencedError.

    `response`: the final response, after all retries.
    `fencing_errors`: the error codes that show that another process has fenced the caller.
    """
    classification = request.classify(response)
    if classification.verdict is not Verdict.DONE:
        raise _convert_fencing_error(request.build_rejection_error(request.keys[0], classification), fencing_errors)


def _convert_fencing_error(error: BrokerError, fencing_errors: Collection[int] = _FENCING_ERRORS) -> BrokerError:
    """Return a ProducerFencedError if the error's code is one of `fencing_errors`. Otherwise, return it unchanged."""
    if error.code in fencing_errors:
        return ProducerFencedError(str(error), code=error.code, name=error.name)
    return error
