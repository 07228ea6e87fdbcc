"""Deliveries: completes, retries, splits or fails the batches of a request that has ended.

An attempt is one request with the batch, and its response. After an attempt, each batch goes through these steps, in
this order:

    batch.mark_request_ended    no socket reads the bytes anymore, so the memory may be released (rule 5 of
                                docs/producer-guarantees.md)
    idempotence                 records that the batch is stored, or that it is no longer in flight
    decide_outcome              returns Done, Retry, Split or Fail (outcome.py)
    batch.complete              or reenqueue, split or fail; nothing if the batch has already failed

A batch is in doubt if a broker may have stored it although the producer received no acknowledgement.

Whatever the reason, batches fail only through `fail_batch`. When a future is completed, user callbacks run. If one of
them raises an exception, the callbacks of all other records still run.

Sender thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from spark_kafka_sink.client.client_request import ClientResponse
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.metadata_merge import LeaderHint
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import KafkaSinkError, mark_possibly_stored
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.row_groups import StoredRows
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.futures import complete_safely
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sending.delivery_errors import (
    build_attempt_error,
    build_final_error,
    build_record_errors,
    build_split_error,
)
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.producer.sending.outcome import (
    SUCCESS_OUTCOMES,
    BatchFacts,
    Done,
    Fail,
    Outcome,
    Retry,
    Split,
    decide_outcome,
)
from spark_kafka_sink.producer.sending.partition_states import ConnectionIdentity
from spark_kafka_sink.producer.sending.produce_exchange import (
    PartitionResponse,
    SentBatches,
    parse_partition_responses,
)
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.messages.produce import ProduceResponse

if TYPE_CHECKING:  # only loaded for producers with a transactional.id
    from spark_kafka_sink.producer.transactions.manager import TransactionManager

_log = logging.getLogger(__name__)


class UnobservedFailures(NamedTuple):
    """Failed records whose futures may never be read, because the producer ended without close()."""

    record_count: int
    first_error: KafkaSinkError


class Deliveries:
    """Applies responses to produce requests, and timeouts, to the batches, their futures and the metrics."""

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
        self._stored_batches: list[ProducerBatch] = []
        """Acknowledged batches whose futures are not completed yet."""
        self._last_response_ms: float | None = None
        """When the last response was received; None until the first response arrives."""
        self._is_counting_failures = False
        self.unobserved_failures: UnobservedFailures | None = None
        """The failures counted since `start_counting_failures` was called; None if there are none."""

    # --- responses

    def handle_response(self, response: ClientResponse, sent_batches: SentBatches) -> KafkaSinkError | None:
        """Apply the response to a produce request, or the loss of its connection, to the request's batches.

        The caller must call `complete_stored_batches` afterwards, once for all responses that were received together.

        Return the error that ends the producer, or None if the producer can continue.
        """
        now_ms, message = response.received_ms, response.message
        if isinstance(message, ProduceResponse):
            node_id, latency_ms = response.request.node_id, response.latency_ms
            self._metrics.record_response(node_id, latency_ms, message.throttle_time_ms, now_ms)
            self._update_leaders(message, sent_batches)
        self._last_response_ms = now_ms
        return self._apply_outcomes(response, sent_batches, now_ms)

    def complete_stored_batches(self) -> None:
        """Complete the futures of all batches that were stored according to `handle_response`.

        Call this once for all responses that were received together. The rows of a call may be spread over responses
        from several brokers. If these are handled together, the call receives all its results in one step.
        """
        batches = self._stored_batches
        if not batches:
            return
        # Collect the rows before the list is cleared: if that raises MemoryError, `fail_stored_batches` still finds the
        # batches.
        stored_rows = collect_stored_rows(batches)
        self._stored_batches = []
        try:
            assert self._last_response_ms is not None  # set by `handle_response`, which has added the batches
            # Update the metrics before the futures are completed, so that callers see the new counts.
            self._metrics.record_acknowledged_batches(batches, self._last_response_ms)
        finally:
            complete_futures(stored_rows)
            # Remove the batches last, because flush() returns then, and all futures must be complete by that time.
            self._accumulator.remove_completed(*batches)

    def fail_stored_batches(self, error: KafkaSinkError) -> None:
        """Fail the futures of stored batches that were not completed before the sender failed.

        The brokers have stored the records, but the producer can no longer report their offsets.
        """
        batches, self._stored_batches = self._stored_batches, []
        for batch in batches:
            fail_futures(batch, mark_possibly_stored(error))
            self._accumulator.remove_completed(batch)

    def _apply_outcomes(
        self, response: ClientResponse, sent_batches: SentBatches, now_ms: float
    ) -> KafkaSinkError | None:
        """Collect the batches of the request that were stored, and retry, split or fail its other batches.

        Return the error that ends the producer, or None if the producer can continue.
        """
        connection = self._idempotence.get_connection_identity(response.request.node_id)
        fatal_error: KafkaSinkError | None = None
        for batch, partition_response in parse_partition_responses(response, sent_batches, self._config.acks):
            topic_id = sent_batches.snapshot.topic_id(batch.topic_partition.topic)
            outcome = self._end_attempt(batch, partition_response, connection, topic_id, now_ms)
            if batch.is_done:
                self._handle_late_response(batch, outcome)
            elif isinstance(outcome, Done):
                # The offset of a duplicate was in the response to an earlier attempt, which was lost.
                base_offset = -1 if outcome.duplicate else partition_response.base_offset
                batch.complete(base_offset, partition_response.log_append_time)
                self._stored_batches.append(batch)
                if self._transactions is not None:
                    self._transactions.detect_recreated_topic(batch.topic_partition.topic, topic_id)
            elif isinstance(outcome, Retry):
                self._retry(batch, partition_response, outcome, now_ms)
            elif isinstance(outcome, Split):
                self._split(batch, now_ms)
            else:
                error = self._fail_after_response(batch, partition_response, outcome, now_ms)
                if outcome.fatal:
                    fatal_error = error
        return fatal_error

    def _end_attempt(
        self,
        batch: ProducerBatch,
        response: PartitionResponse,
        connection: ConnectionIdentity | None,
        topic_id: UUID | None,
        now_ms: float,
    ) -> Outcome:
        """Record the end of an attempt in the batch and in its partition's state, and return the outcome.

        `connection`: the current connection to the node; None if the connection was closed.
        `topic_id`: the topic's id in the metadata when the request was sent; None if it was unknown.
        """
        batch.mark_request_ended()
        success = SUCCESS_OUTCOMES.get(response.code)
        if success is not None:
            self._idempotence.handle_stored_batch(batch, connection, topic_id)
            return success
        # A response has the batch's offset only if the broker has appended the batch. If an error occurs while the
        # broker waits for its followers, for example because it is no longer the leader, they may have the batch, too.
        in_doubt = lookup_error_code(response.code).in_doubt or response.base_offset >= 0
        self._idempotence.handle_failed_attempt(batch, in_doubt=in_doubt)
        return decide_outcome(self._build_facts(batch, now_ms), response.code, response.log_start_offset)

    def _build_facts(self, batch: ProducerBatch, now_ms: float) -> BatchFacts:
        """Collect the facts about a batch that `decide_outcome` needs."""
        return BatchFacts(
            record_count=batch.record_count,
            failed_attempts=batch.failed_attempts,
            max_retries=self._config.retries,
            is_expired=batch.has_reached_delivery_timeout(now_ms),
            has_sequence=batch.has_sequence,
            is_head=self._idempotence.is_head(batch),
            is_in_doubt=self._idempotence.is_in_doubt(batch),
            is_transactional=batch.is_transactional,
        )

    def _handle_late_response(self, batch: ProducerBatch, outcome: Outcome) -> None:
        """Handle the response to a batch that has already failed.

        The futures do not change. But the state of the partition does, because the response shows whether the batch's
        sequences are stored.
        """
        if not isinstance(outcome, Done):
            self._idempotence.handle_late_failure(batch)
        self._accumulator.unmute(batch.topic_partition)

    def _retry(self, batch: ProducerBatch, response: PartitionResponse, outcome: Retry, now_ms: float) -> None:
        """Put a batch back into its queue after a failed attempt. Request new metadata if that may help."""
        error = build_attempt_error(batch, response)
        _log.debug("Retrying %r after an error: %s", batch, error)
        if outcome.should_refresh_metadata:
            self._metadata.request_update()
        self._metrics.record_retries(batch.topic_partition.topic, batch.record_count, now_ms)
        self._idempotence.handle_retry(batch, needs_new_sequence=outcome.needs_new_sequence)
        self._accumulator.reenqueue(batch, now_ms, error)

    def _split(self, batch: ProducerBatch, now_ms: float) -> None:
        """Replace a batch that was too large with smaller batches. If that is not possible, fail the batch."""
        try:
            children = self._accumulator.split_and_reenqueue(batch, now_ms)
        except Exception as error:  # usually a MemoryError from decoding and re-encoding the records
            _log.warning("%r could not be split", batch, exc_info=error)
            self.fail_batches([batch], build_split_error(batch, error), now_ms)
            return
        self._idempotence.handle_split(batch, children)
        self._metrics.record_batch_split(now_ms)

    def _fail_after_response(
        self, batch: ProducerBatch, response: PartitionResponse, outcome: Fail, now_ms: float
    ) -> KafkaSinkError:
        """Fail a batch, and return its error.

        Records that the broker rejected individually (KIP-467) fail with errors of their own.
        """
        error = build_final_error(batch, response, outcome)
        if outcome.fatal and self._transactions is not None:
            # Before the batch fails: a pending commit would otherwise report that the transaction can be aborted.
            self._transactions.transition_to_fatal_error(error)
        if outcome.should_refresh_metadata:
            self._metadata.request_update()
        errors_by_index, remaining_error = build_record_errors(batch, response)
        # `remaining_error` says that the record may be sent again. Do not use it if the batch is in doubt, because that
        # could duplicate the record.
        default_error = error if outcome.in_doubt or remaining_error is None else remaining_error
        self.fail_batch(batch, default_error, now_ms, in_doubt=outcome.in_doubt, record_errors=errors_by_index)
        return error

    # --- failures

    def start_counting_failures(self) -> None:
        """Count the records that fail from now on in `unobserved_failures`, because close() will not be called."""
        self._is_counting_failures = True

    def may_be_stored(self, batch: ProducerBatch) -> bool:
        """Return whether a broker may have stored a batch that is neither acknowledged nor failed.

        This is possible if the batch is in flight, or if an earlier attempt has left it in doubt.
        """
        return batch.has_request_in_flight or self._idempotence.is_in_doubt(batch)

    def fail_batch(
        self,
        batch: ProducerBatch,
        error: KafkaSinkError,
        now_ms: float,
        *,
        in_doubt: bool,
        record_errors: Mapping[int, KafkaSinkError] | None = None,
    ) -> None:
        """Fail the records of a batch that will not be sent again.

        `in_doubt`: whether a broker may have stored the batch.
        `record_errors`: errors of single records, keyed by index in the batch. All other records fail with `error`.
        """
        self.complete_stored_batches()  # earlier records of the partition must complete first
        # Fail the transaction before the futures, so that a caller who sees a failed future can no longer commit.
        if self._transactions is not None:
            from spark_kafka_sink.producer.transactions.failures import fail_transaction  # only for transactions

            fail_transaction(self._transactions, batch, error, record_errors, in_doubt=in_doubt)
        if not batch.is_done:  # batches that the accumulator aborts are already marked as failed
            batch.fail(error)
        self._idempotence.handle_failed_batch(batch, in_doubt=in_doubt)
        self._metrics.record_failures(batch.topic_partition.topic, batch.record_count, now_ms)
        if self._is_counting_failures:
            failures = self.unobserved_failures or UnobservedFailures(record_count=0, first_error=error)
            self.unobserved_failures = failures._replace(record_count=failures.record_count + batch.record_count)
        fail_futures(batch, error, record_errors)
        self._accumulator.remove_completed(batch)

    def fail_batches(self, batches: list[ProducerBatch], error: KafkaSinkError, now_ms: float) -> None:
        """Fail batches with one error, such as the error that ends the producer.

        If a batch may be stored, `possibly_stored` is set in its copy of the error.
        """
        for batch in batches:
            in_doubt = self.may_be_stored(batch)
            self.fail_batch(batch, mark_possibly_stored(error) if in_doubt else error, now_ms, in_doubt=in_doubt)

    # --- leaders

    def _update_leaders(self, message: ProduceResponse, sent_batches: SentBatches) -> None:
        """Update the metadata with the new leaders that the response names (KIP-951).

        If a broker no longer leads a partition, it may name the new leader in its response.
        """
        hints: list[LeaderHint] = []
        for topic_response in message.responses:
            for partition_response in topic_response.partition_responses:
                leader = partition_response.current_leader
                if leader is not None and leader.leader_id >= 0:  # -1 if the broker does not know the new leader
                    topic = sent_batches.topic_name(topic_response)
                    topic_id = sent_batches.snapshot.topic_id(topic)
                    hints.append(
                        LeaderHint(topic, topic_id, partition_response.index, leader.leader_id, leader.leader_epoch)
                    )
        if hints:
            nodes = [
                Node(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
                for endpoint in message.node_endpoints
            ]
            self._metadata.update_leaders(hints, nodes)


def collect_stored_rows(batches: Sequence[ProducerBatch]) -> list[StoredRows]:
    """Return the rows of acknowledged batches by call, with each partition's rows in order.

    For speed, rows that were encoded together (a row group, see row_groups.py) are processed together, even if they are
    in different batches. To keep each partition's rows in order nevertheless, the batches are processed in runs with at
    most one batch per partition, and within a run, the groups are processed in the order in which they were created.
    """
    stored_rows: list[StoredRows] = []
    for run in _split_into_runs(batches):
        ranges_by_group = ProducerBatch.collect_stored_ranges(run)
        for row_group in sorted(ranges_by_group, key=lambda row_group: row_group.group_number):
            stored_rows += row_group.split_stored_ranges(ranges_by_group[row_group])
    return stored_rows


def _split_into_runs(batches: Sequence[ProducerBatch]) -> Iterator[Sequence[ProducerBatch]]:
    """Split the batches into runs of consecutive batches, with at most one batch per partition in each."""
    start = 0
    partitions: set[TopicPartition] = set()
    for index, batch in enumerate(batches):
        if batch.topic_partition in partitions:
            yield batches[start:index]
            start = index
            partitions.clear()
        partitions.add(batch.topic_partition)
    yield batches[start:]


def complete_futures(stored_rows: Sequence[StoredRows]) -> None:
    """Pass stored rows, in order, to the calls that they belong to, which complete the futures and run callbacks.

    An exception from a user's callback is only logged.
    """
    for call, row_indices, stored_ranges, row_count in stored_rows:
        complete_safely(call.complete_rows, row_indices, stored_ranges, row_count)


def fail_futures(
    batch: ProducerBatch, error: KafkaSinkError, record_errors: Mapping[int, KafkaSinkError] | None = None
) -> None:
    """Fail the futures of all records of a batch.

    `record_errors`: errors of the records that the broker rejected individually, keyed by their index in the batch. All
    other records fail with `error`.
    """
    topic, partition = batch.topic_partition
    for call, row_indices, first_record_index in batch.split_rows_by_call():
        errors_by_position: dict[int, KafkaSinkError] = {}  # keyed by position in `row_indices`
        for record_index, record_error in (record_errors or {}).items():
            position = record_index - first_record_index
            if 0 <= position < len(row_indices):  # otherwise the record belongs to another call
                errors_by_position[position] = record_error
        complete_safely(call.fail_rows, FailedRows(row_indices, error, topic, partition), errors_by_position)
