"""Deliveries: what becomes of a batch. It is complete, sent again, split or failed.

For each batch whose request has ended, in this order:

    batch.off_wire          no socket reads its bytes any more: memory may return (rule 5)
    idempotence             it is stored; or its place among the partition's open requests is free
    outcome.decide          Done | Retry | Split | Fail
    batch.complete          or reenqueue, split, fail; nothing of it if the batch has expired or was aborted before

`fail` is the one way in which a batch fails, whatever the reason. Futures and callbacks are a user's code: whatever one
of them raises, those of all other records are still called.

Sender thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.client.client_request import ClientResponse
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.metadata_merge import LeaderHint
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.client.versions import NodeApiVersions
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.row_origins import StoredRows
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.futures import by_itself
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sending.delivery_errors import (
    attempt_error,
    final_error,
    record_errors,
    split_error,
    with_doubt,
)
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.producer.sending.outcome import SUCCESSES, BatchFacts, Done, Fail, Outcome, Retry, Split, decide
from spark_kafka_sink.producer.sending.produce_exchange import Answer, SentBatches, answers_of
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.messages.produce import ProduceResponse

if TYPE_CHECKING:  # a producer without a transactional.id does not load it
    from spark_kafka_sink.producer.transactions.manager import TransactionManager

_log = logging.getLogger(__name__)


class UnobservedFailures(NamedTuple):
    """Failed records whose futures no caller could read any more."""

    records: int
    first_error: KafkaSinkError


class Deliveries:
    """See the module's docstring."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        idempotence: Idempotence,
        metadata: Metadata,
        metrics: ProducerMetrics,
        transactions: TransactionManager | None,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._idempotence = idempotence
        self._metadata = metadata
        self._metrics = metrics
        self._transactions = transactions
        self._stored: list[ProducerBatch] = []
        """Complete, but not reported yet."""
        self._stored_ms = 0.0
        self.unwatched = False
        """The producer was dropped: what fails from now on is added to `loss`, for the log."""
        self.loss: UnobservedFailures | None = None

    # --- answers

    def answered(self, response: ClientResponse, sent: SentBatches) -> KafkaSinkError | None:
        """Carry out what the end of a request means for its batches; `report_stored` must follow. Returns the error
        that ends the producer."""
        now, message = response.received_ms, response.message
        if isinstance(message, ProduceResponse):
            node_id, latency_ms = response.request.node_id, response.latency_ms
            self._metrics.request_answered(node_id, latency_ms, message.throttle_time_ms, now)
            self._take_leader_hints(message, sent)
        self._stored_ms = now
        return self._carry_out(response, sent, now)

    def report_stored(self) -> None:
        """Complete the futures of what is stored: once for all answers that have come together. A call with many
        partitions has a share in the answer of every broker, and so it gets all of them at once."""
        batches = self._stored
        if not batches:
            return
        handed = shares_of_calls(batches)  # if there is no memory for it, nothing was handed over (`fail_unreported`)
        self._stored = []
        try:
            self._metrics.batches_stored(batches, self._stored_ms)  # before their futures: callers see the count
        finally:
            complete_futures(handed)
            self._accumulator.remove_completed(*batches)  # behind them: a flush returns when futures are complete

    def fail_unreported(self, error: KafkaSinkError) -> None:
        """The sender has failed before it could report these. They are stored, and their offsets are lost."""
        batches, self._stored = self._stored, []
        for batch in batches:
            fail_futures(batch, with_doubt(error))
            self._accumulator.remove_completed(batch)

    def _carry_out(self, response: ClientResponse, sent: SentBatches, now: float) -> KafkaSinkError | None:
        """Batches that are complete are noted, to be reported; the others are sent again, split or failed."""
        connection = self._idempotence.connection(response.request.node_id)
        fatal: KafkaSinkError | None = None
        for batch, answer in answers_of(response, sent, self._config.acks):
            outcome = self._outcome(batch, answer, connection, now)
            if batch.is_done:
                self._answered_late(batch, outcome)
            elif isinstance(outcome, Done):
                batch.complete(-1 if outcome.duplicate else answer.base_offset, answer.log_append_time)
                self._stored.append(batch)
                if self._transactions is not None:
                    topic = batch.topic_partition.topic
                    self._transactions.batch_stored(topic, sent.snapshot.topic_id(topic))
            elif isinstance(outcome, Retry):
                self._send_again(batch, answer, outcome, now)
            elif isinstance(outcome, Split):
                self._split(batch, now)
            else:
                error = self._give_up(batch, answer, outcome, now)
                fatal = error if outcome.fatal else fatal
        return fatal

    def _outcome(self, batch: ProducerBatch, answer: Answer, connection: NodeApiVersions | None, now: float) -> Outcome:
        batch.mark_request_ended()
        success = SUCCESSES.get(answer.code)
        if success is not None:
            self._idempotence.stored(batch, connection)
            return success
        self._idempotence.off_wire(batch, in_doubt=lookup_error_code(answer.code).in_doubt)
        return decide(self._facts(batch, now), answer.code, answer.log_start_offset)

    def _facts(self, batch: ProducerBatch, now: float) -> BatchFacts:
        return BatchFacts(
            record_count=batch.record_count,
            attempts=batch.attempts,
            retries_max=self._config.retries,
            expired=batch.has_reached_delivery_timeout(now),
            idempotent=batch.has_sequence,
            is_head=self._idempotence.is_head(batch),
            in_doubt=self._idempotence.is_in_doubt(batch),
            transactional=batch.transactional,
        )

    def _answered_late(self, batch: ProducerBatch, outcome: Outcome) -> None:
        """Handle the late answer to a batch that has failed already: it still says which sequences are stored."""
        if not isinstance(outcome, Done):
            self._idempotence.answered_late(batch)
        self._accumulator.unmute(batch.topic_partition)

    def _send_again(self, batch: ProducerBatch, answer: Answer, outcome: Retry, now: float) -> None:
        error = attempt_error(batch, answer)
        _log.debug("%r is sent again: %s", batch, error)
        if outcome.refresh_metadata:
            self._metadata.request_update()
        self._metrics.count_retries(batch.topic_partition.topic, batch.record_count, now)
        self._idempotence.retried(batch, new_sequence=outcome.new_sequence)
        self._accumulator.reenqueue(batch, now, error)

    def _split(self, batch: ProducerBatch, now: float) -> None:
        try:
            children = self._accumulator.split_and_reenqueue(batch, now)
        except Exception as error:  # as a rule for want of memory: its records are decoded, and encoded again
            self.fail(batch, split_error(batch, error), now, in_doubt=False)
            return
        self._idempotence.split(batch, children)
        self._metrics.batch_split(now)

    def _give_up(self, batch: ProducerBatch, answer: Answer, outcome: Fail, now: float) -> KafkaSinkError:
        error = final_error(batch, answer, outcome)
        if outcome.refresh_metadata:
            self._metadata.request_update()
        named, innocent = record_errors(batch, answer)
        # After a lost response the records that the broker did not name may be stored: they may not be sent again.
        of_others = error if outcome.in_doubt or innocent is None else innocent
        self.fail(batch, of_others, now, in_doubt=outcome.in_doubt, by_record=named)
        return error

    # --- failures

    def may_be_stored(self, batch: ProducerBatch) -> bool:
        """Whether a batch without an outcome may be in the log: its request is open, or an answer was lost."""
        return batch.has_request_in_flight or self._idempotence.is_in_doubt(batch)

    def fail(
        self,
        batch: ProducerBatch,
        error: KafkaSinkError,
        now: float,
        *,
        in_doubt: bool,
        by_record: Mapping[int, KafkaSinkError] | None = None,
    ) -> None:
        """A batch will not be sent again: its records fail, those in `by_record` with errors of their own."""
        self.report_stored()  # what came before them in their partition
        if self._transactions is not None:
            from spark_kafka_sink.producer.transactions.failures import fail_transaction  # not for others

            fail_transaction(self._transactions, batch, error, by_record)
        if not batch.is_done:  # the accumulator has failed those that it gives up itself
            batch.fail(error)
        self._idempotence.failed(batch, in_doubt=in_doubt)
        self._metrics.records_failed(batch.topic_partition.topic, batch.record_count, now)
        if self.unwatched:
            before = self.loss or UnobservedFailures(0, error)
            self.loss = before._replace(records=before.records + batch.record_count)
        fail_futures(batch, error, by_record)
        self._accumulator.remove_completed(batch)

    def fail_all(self, batches: list[ProducerBatch], error: KafkaSinkError, now: float) -> None:
        """Fail batches for a reason outside of them: a fatal error, or the end of the producer."""
        for batch in batches:
            in_doubt = self.may_be_stored(batch)
            self.fail(batch, with_doubt(error) if in_doubt else error, now, in_doubt=in_doubt)

    # --- leaders

    def _take_leader_hints(self, message: ProduceResponse, sent: SentBatches) -> None:
        """Brokers that do not lead a partition any more say who does (KIP-951)."""
        hints = [
            LeaderHint(sent.name(topic), row.index, row.current_leader.leader_id, row.current_leader.leader_epoch)
            for topic in message.responses
            for row in topic.partition_responses
            if row.current_leader is not None and row.current_leader.leader_id >= 0
        ]
        if hints:
            nodes = [Node(one.node_id, one.host, one.port, one.rack) for one in message.node_endpoints]
            self._metadata.update_leaders(hints, nodes)


def shares_of_calls(batches: Sequence[ProducerBatch]) -> list[StoredRows]:
    """The rows of acknowledged batches, call by call, and those of each partition in their order.

    Rows that were grouped together are handed over together: of one batch of each partition, the groups in the order in
    which they were made. The next batches of these partitions come after them.
    """
    return [
        rows
        for groups in map(ProducerBatch.collect_shares, _runs(batches))
        for origins in sorted(groups, key=lambda origins: origins.group_number)
        for rows in origins.split_shares_by_call(groups[origins])
    ]


def _runs(batches: Sequence[ProducerBatch]) -> Iterator[Sequence[ProducerBatch]]:
    """Cut the batches into runs in which no partition has two."""
    begin, partitions = 0, set[TopicPartition]()
    for number, batch in enumerate(batches):
        if batch.topic_partition in partitions:
            yield batches[begin:number]
            begin = number
            partitions.clear()
        partitions.add(batch.topic_partition)
    yield batches[begin:]


def complete_futures(handed: Sequence[StoredRows]) -> None:
    for call, row_indices, shares, count in handed:
        by_itself(call.stored, row_indices, shares, count)


def fail_futures(
    batch: ProducerBatch, error: KafkaSinkError, by_record: Mapping[int, KafkaSinkError] | None = None
) -> None:
    """Hand the rows of a failed batch to their calls; `by_record` has the records that the broker named (rule 6)."""
    topic, partition = batch.topic_partition
    for call, row_indices, first_delta in batch.rows_by_call():
        numbers = {delta - first_delta: reason for delta, reason in (by_record or {}).items()}
        named = {number: reason for number, reason in numbers.items() if 0 <= number < len(row_indices)}
        by_itself(call.failed, FailedRows(row_indices, error, topic, partition), named)
