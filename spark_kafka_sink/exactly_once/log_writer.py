"""LogWriter: writes records in a transaction of their own, under a producer id and an epoch that the caller holds.

    1. AddPartitionsToTxn    transactions of version 1 only
    2. Produce               one batch, acks=all
    3. EndTxn                commit, or abort

`start` sends the second step and does not wait, so that a caller can ask other things at the same time, and then say
how it ends.

No producer and no thread: the questions go over the connections that the caller has. Each is repeated, as the same
bytes, while its answer is lost or says that it may be asked again; leader and coordinator are looked up anew. A broker
that has the batch already says so by its sequence, and that is a success.

A refused batch ends nothing: another holder of the same id and epoch may own the transaction that is open. An end that
is carried out late would end the next transaction, so where an answer was lost in version 1 the next one begins under a
new epoch, as it does after an upgrade to version 2.
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
from spark_kafka_sink.records.batch_slicing import consecutive_slices
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec, compress
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.records.header import TRANSACTIONAL, encode_header
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.init_producer_id import InitProducerId, producer_id_and_epoch
from spark_kafka_sink.requests.produce_versions import produce_versions
from spark_kafka_sink.requests.request import Leader, Request
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

REPLICATION_MS_MAX = 2_000
"""How long a leader waits for its followers before it responds that they are late: less than NODE_TIMEOUT_MS of
clients.py."""

_ALL_IN_SYNC = -1
_LOST = OWNERSHIP_LOST_ERRORS | {codes.OUT_OF_ORDER_SEQUENCE_NUMBER}
"""Refusals which say that the id, the epoch or the next sequence is not the caller's any more."""
_LOST_BATCH = {1: BATCH_OWNERSHIP_LOST_ERRORS | _LOST, 2: _LOST}
"""By version, of a batch. In version 1 leaders also say that its transaction is not open: another one that holds the
epoch has ended it. In version 2 the batch begins it, and they say the same where the cluster is back at version 1."""

KeyValue = tuple[bytes, "bytes | None"]
ResponseT = TypeVar("ResponseT", bound=Message)


class Held(NamedTuple):
    """An identity of the driver, and the sequence of the next record that it writes into the log."""

    driver: ProducerIdAndEpoch
    sequence: int = 0


class LogWriter:
    """Used by one thread, which may put other questions to `client` in between."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        self._versions: dict[ProducerIdAndEpoch, int] = {}  # of the last transaction under each
        self._may_come_late: set[ProducerIdAndEpoch] = set()  # an end under these had no answer, and may come yet

    def start(self, transactional_id: str, held: Held, place: TopicPartition, records: Sequence[KeyValue]) -> OpenWrite:
        """Begin a transaction with these records, which are on their way when this returns.

        ProducerFencedError, whose `code` says why, from here or from the OpenWrite, if the id, the epoch or the
        sequence is not the caller's any more; the transaction is left as it is then.
        """
        self._client.topic(place.topic)  # then the cluster's features are known as well
        version = self._client.transaction_version
        now = self._next_epoch(transactional_id, held, version)
        self._versions = {now.driver: version}
        transaction = TransactionIdentity(transactional_id, *now.driver, version)
        if version < 2:
            self._done(AddPartitions(transaction, frozenset([place])))
        return OpenWrite(self, transaction, now.sequence, place, records)

    def _next_epoch(self, transactional_id: str, held: Held, version: int) -> Held:
        had_one_of_version_1 = self._versions.get(held.driver) == 1
        if not had_one_of_version_1 or (version == 1 and held.driver not in self._may_come_late):
            return held
        response = self._done(InitProducerId(transactional_id, self._timeout_ms(transactional_id), held.driver))
        return Held(producer_id_and_epoch(response))

    def _timeout_ms(self, transactional_id: str) -> int:
        """The timeout that the id has. A request for an epoch sets it: brokers may not grant another one, and all see
        it."""
        request = DescribeTransactions((transactional_id,))
        known = request.found(self._done(request))[transactional_id]
        if known is None:
            raise _error(build_broker_error(codes.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {transactional_id}"))
        return known.timeout_ms

    def _done(self, request: TransactionRequest[ResponseT]) -> ResponseT:
        response = self._client.send(request)
        _raise_rejection(request, response)
        return response

    def _end(self, transaction: TransactionIdentity, *, commit: bool, timeout_ms: float | None) -> EndTxnResponse:
        request = EndTransaction(transaction, commit)
        call = self._client.begin([request])
        try:
            (response,) = self._client.finish(call, timeout_ms).values()
        finally:
            if call.in_doubt:
                self._may_come_late = {transaction.id_and_epoch}
        _raise_rejection(request, response)
        return response


class OpenWrite:
    """Records on their way into the log, in a transaction that the caller commits or aborts."""

    def __init__(
        self,
        writer: LogWriter,
        transaction: TransactionIdentity,
        sequence: int,
        place: TopicPartition,
        records: Sequence[KeyValue],
    ) -> None:
        self._writer = writer
        self._client = writer._client
        self._transaction = transaction
        self._next_sequence = sequences.increment(sequence, len(records))
        self._place = place
        batch = _batch(Held(transaction.id_and_epoch, sequence), records, self._client.wall_ms())
        self._request = AppendBatch(self._client.metadata, transaction, place, batch)
        self._call = self._client.begin([self._request])

    def abandon(self) -> None:
        """Do not send the records again: the caller has failed, and ends the transaction in no way."""
        self._client.abandon(self._call)

    def wait(self) -> None:
        """Return when the records are stored."""
        (response,) = self._client.finish(self._call).values()
        lost = _LOST_BATCH[self._transaction.version]
        _raise_rejection(self._request, response, lost)

    def commit(self, timeout_ms: float | None = None) -> Held:
        """Durable, and visible to all, when this returns. Returns what the next transaction is to be written with.

        `timeout_ms`: how long the commit may be asked for. If the first answer was lost and the repeated commit is
        refused as fenced, only the log says whether it was committed.
        """
        answer = self._writer._end(self._transaction, commit=True, timeout_ms=timeout_ms)
        if self._transaction.version >= 2:
            return Held(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
        return Held(self._transaction.id_and_epoch, self._next_sequence)

    def abort(self) -> None:
        self._writer._end(self._transaction, commit=False, timeout_ms=None)


class AppendBatch(Request[ProduceResponse]):
    """Append one batch to a partition, in a transaction. A leader that has the batch already says so by its sequence,
    which is a success."""

    api_key = ApiKey.PRODUCE
    action = "append it"
    verdicts: ClassVar[VerdictTable] = {
        codes.NONE: Verdict.DONE,
        codes.DUPLICATE_SEQUENCE_NUMBER: Verdict.DONE,
        codes.UNKNOWN_SERVER_ERROR: Verdict.RETRY,
    }

    def __init__(
        self, metadata: Metadata, transaction: TransactionIdentity, place: TopicPartition, batch: bytes
    ) -> None:
        self._metadata = metadata
        self._transaction = transaction
        self._place = place
        self._batch = batch

    @property
    def keys(self) -> Sequence[str]:
        return (str(self._place),)

    def route(self, key: str) -> Leader:
        return Leader(*self._place)

    @property
    def versions(self) -> VersionRange:
        return produce_versions(self._transaction.version, by_name_only=self._topic_id is None)

    @property
    def _topic_id(self) -> UUID | None:
        return self._metadata.snapshot.topic_id(self._place.topic)

    def message(self, version: int) -> ProduceRequest:
        data = [PartitionProduceData(self._place.partition, [self._batch])]
        topic = TopicProduceData(name=self._place.topic, topic_id=self._topic_id or NO_TOPIC_ID, partition_data=data)
        return ProduceRequest(
            transactional_id=self._transaction.transactional_id,
            acks=_ALL_IN_SYNC,
            timeout_ms=REPLICATION_MS_MAX,
            topic_data=[topic],
        )

    def classify(self, response: ProduceResponse) -> Classification:
        rows = (row for topic in response.responses for row in topic.partition_responses)
        return next((self.classify_code(row.error_code) for row in rows), MISSING_IN_RESPONSE)

    def subject(self, key: str) -> str:
        return f"transactional id {self._transaction.transactional_id}: the batch for {self._place}"


def _batch(now: Held, records: Sequence[KeyValue], wall_ms: int) -> bytes:
    keys, values = zip(*records, strict=True)
    columns = RecordColumns(pa.array(values, pa.binary()), pa.array(keys, pa.binary()))
    (encoded,) = encode_records(columns, consecutive_slices([len(records)]), wall_ms)
    body = compress(Codec.GZIP, [encoded.data])
    header = encode_header(
        [body],
        attributes=Codec.GZIP | TRANSACTIONAL,
        last_offset_delta=len(records) - 1,
        base_timestamp=encoded.base_timestamps[0],
        max_timestamp=encoded.max_timestamps[0],
        producer_id=now.driver.producer_id,
        producer_epoch=now.driver.epoch,
        base_sequence=now.sequence,
        record_count=len(records),
    )
    return header + bytes(body)


def _raise_rejection(request: Request[ResponseT], response: ResponseT, lost: Collection[int] = _LOST) -> None:
    """Raise the error of a final response that rejects the request: ProducerFencedError for the codes in `lost`."""
    classification = request.classify(response)
    if classification.verdict is not Verdict.DONE:
        raise _error(request.rejection(request.keys[0], classification), lost)


def _error(error: BrokerError, lost: Collection[int] = _LOST) -> BrokerError:
    return ProducerFencedError(str(error), code=error.code, name=error.name) if error.code in lost else error
