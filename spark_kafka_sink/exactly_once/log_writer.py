"""LogWriter: writes records in a transaction of their own, under a producer id and an epoch that the caller holds.

    1. AddPartitionsToTxn    transactions of version 1 only
    2. Produce               one batch, acks=all
    3. EndTxn                commit

No producer and no thread: the questions go over the connections that the caller has. Each is repeated, as the same
bytes, while its answer is lost or says that it may be asked again; leader and coordinator are looked up anew. A broker
that has the batch already says so by its sequence, and that is a success.

A refused batch ends nothing: another holder of the same id and epoch may own the transaction that is open. An end that
is carried out late would end the next transaction, so where an answer was lost in version 1 the next one begins under a
new epoch, as it does after an upgrade to version 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.client.versions import TRANSACTION_VERSION
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, NetworkError, ProducerFencedError
from spark_kafka_sink.exactly_once.coordinator_questions import PAUSE_MS_MAX, CoordinatorQuestions
from spark_kafka_sink.producer.produce_versions import produce_versions
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.topic_partition import TopicPartition
from spark_kafka_sink.producer.transactions.coordinators import COMPLETING_PAUSE_MS
from spark_kafka_sink.producer.transactions.requests import (
    AddPartitions,
    DescribeTransactions,
    EndTransaction,
    InitProducerId,
)
from spark_kafka_sink.producer.transactions.transaction_identity import TransactionIdentity
from spark_kafka_sink.producer.transactions.transaction_request import TransactionRequest
from spark_kafka_sink.producer.transactions.verdicts import NOT_THE_CALLERS, Verdict, may_pass
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.reader.blocking_client import BlockingClient
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec, compress
from spark_kafka_sink.records.cutting import BatchSlice, batch_slices
from spark_kafka_sink.records.encoder import encode_slices
from spark_kafka_sink.records.header import TRANSACTIONAL, BatchHeader, stamp_header

REPLICATION_MS_MAX = 2_000
"""How long a leader waits for its followers before it says that they are late. Less than the silence that is borne."""

_ALL_IN_SYNC = -1
_LOST = NOT_THE_CALLERS | {codes.OUT_OF_ORDER_SEQUENCE_NUMBER}
"""Refusals of a batch which say that the id, the epoch or the next sequence is not the caller's any more."""

KeyValue = tuple[bytes, "bytes | None"]
AnswerT = TypeVar("AnswerT", bound=Message)


class Written(NamedTuple):
    """What the next transaction of the id is to be written with."""

    id_and_epoch: ProducerIdAndEpoch
    next_sequence: int


class LogWriter:
    """Used by one thread, which may put other questions to `client` in between."""

    def __init__(self, client: BlockingClient, coordinated: CoordinatorQuestions) -> None:
        self._client = client
        self._coordinated = coordinated
        self._versions: dict[ProducerIdAndEpoch, int] = {}  # of the last transaction under each
        self._may_come_late: set[ProducerIdAndEpoch] = set()  # an end under these had no answer, and may come yet

    def write(
        self, transactional_id: str, before: Written, place: TopicPartition, records: Sequence[KeyValue]
    ) -> Written:
        """Write the records and commit them. Durable, and visible to all, when this returns.

        ProducerFencedError, whose `code` says why, if the id, the epoch or the sequence is not the caller's any more.
        Of a commit that is refused so after its first answer was lost, the log alone says whether it has happened.
        """
        self._client.topic(place.topic)  # then the cluster's features are known as well
        version = 2 if self._client.feature(TRANSACTION_VERSION) >= 2 else 1
        now = self._next_epoch(transactional_id, before, version)
        self._versions = {now.id_and_epoch: version}
        if version < 2:
            whole = TransactionIdentity(transactional_id, *now.id_and_epoch, version)
            self._answered(AddPartitions(whole, frozenset([place])))
        self._produce(transactional_id, now, place, records, version)
        return self._commit(transactional_id, now, len(records), version)

    def _next_epoch(self, transactional_id: str, before: Written, version: int) -> Written:
        had_one_of_version_1 = self._versions.get(before.id_and_epoch) == 1
        if not had_one_of_version_1 or (version == 1 and before.id_and_epoch not in self._may_come_late):
            return before
        answer = self._answered(
            InitProducerId(transactional_id, self._timeout_ms(transactional_id), before.id_and_epoch)
        )
        return Written(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch), 0)

    def _timeout_ms(self, transactional_id: str) -> int:
        """What the id has. To ask for an epoch sets it: brokers may not grant another one, and all see it."""
        request = DescribeTransactions((transactional_id,))
        known = request.found(self._answered(request))[transactional_id]
        if known is None:
            raise _error(broker_error(codes.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {transactional_id}"))
        return known.timeout_ms

    def _answered(self, request: TransactionRequest[AnswerT]) -> AnswerT:
        answer = self._coordinated.answer(request)
        judgement = request.judged(answer)
        if judgement.verdict is not Verdict.DONE:
            raise _error(request.refusal(request.coordinator.key, judgement))
        return answer

    def _produce(
        self, transactional_id: str, now: Written, place: TopicPartition, records: Sequence[KeyValue], version: int
    ) -> None:
        batch = _batch(now, records, self._client.wall_ms())
        what = f"transactional id {transactional_id}: the batch for {place}"
        patience, pause_ms = self._client.patience(what), COMPLETING_PAUSE_MS
        while True:
            self._client.topic(place.topic)
            try:
                code = self._ask_leader(transactional_id, place, batch, version)
                if code in (codes.NONE, codes.DUPLICATE_SEQUENCE_NUMBER):
                    return
                refusal = None if code is None else _error(broker_error(code, what))
                if refusal is not None and not may_pass(refusal.code):
                    raise refusal
                failure: KafkaSinkError | None = refusal
            except NetworkError as error:
                failure = error
            self._client.metadata.request_update()
            patience.wait(failure, pause_ms)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _ask_leader(self, transactional_id: str, place: TopicPartition, batch: bytes, version: int) -> int | None:
        """Return the code of the answer; None if no leader is known."""
        leader = self._client.leader(*place)
        if leader is None:
            return None
        topic_id = self._client.metadata.snapshot.topic_id(place.topic)
        data = [PartitionProduceData(place.partition, [batch])]
        message = ProduceRequest(
            transactional_id=transactional_id,
            acks=_ALL_IN_SYNC,
            timeout_ms=REPLICATION_MS_MAX,
            topic_data=[TopicProduceData(name=place.topic, topic_id=topic_id or NO_TOPIC_ID, partition_data=data)],
        )
        versions = produce_versions(version, by_name_only=topic_id is None)
        answer = self._client.ask(leader, ProduceResponse, message, versions=versions)
        return next(
            (row.error_code for topic in answer.responses for row in topic.partition_responses),
            codes.UNKNOWN_SERVER_ERROR,
        )

    def _commit(self, transactional_id: str, now: Written, records: int, version: int) -> Written:
        whole = TransactionIdentity(transactional_id, *now.id_and_epoch, version)
        self._coordinated.in_doubt.discard(transactional_id)
        try:
            answer = self._answered(EndTransaction(whole, commit=True))
        finally:
            if transactional_id in self._coordinated.in_doubt:
                self._may_come_late = {now.id_and_epoch}
        if version >= 2:
            return Written(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch), 0)
        return Written(now.id_and_epoch, sequences.add(now.next_sequence, records))


def _batch(now: Written, records: Sequence[KeyValue], wall_ms: int) -> bytes:
    keys, values = zip(*records, strict=True)
    columns = RecordColumns(pa.array(values, pa.binary()), pa.array(keys, pa.binary()))
    (encoded,) = encode_slices(columns, batch_slices([BatchSlice(0, 0, len(records))]), wall_ms)
    body = compress(Codec.GZIP, [encoded.segment])
    header = BatchHeader(
        attributes=Codec.GZIP | TRANSACTIONAL,
        last_offset_delta=len(records) - 1,
        base_timestamp=encoded.base_timestamp,
        max_timestamp=encoded.max_timestamp,
        producer_id=now.id_and_epoch.producer_id,
        producer_epoch=now.id_and_epoch.epoch,
        base_sequence=now.next_sequence,
        record_count=len(records),
    )
    return stamp_header(header, [body]) + bytes(body)


def _error(error: BrokerError) -> BrokerError:
    return ProducerFencedError(str(error), code=error.code, name=error.name) if error.code in _LOST else error
