"""A producer's transactional calls, which wait for operations on the sender thread.

An operation is awaited for at most max.block.ms. After that, its outcome is unknown and the call may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.option_parsing import INT_MAX, parse_protocol_name
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import (
    ConfigurationError,
    IllegalStateError,
    KafkaSinkError,
    TransactionAbortableError,
    TransactionTimeoutError,
)
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.record import validate_topic
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.producer.sending.cluster_requests import BlockingCall, ClusterRequests
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.states import DESCRIBE, PREPARE, Operation, mark_already_aborted
from spark_kafka_sink.requests.consumer_groups import GroupMetadata, OffsetAndMetadata, ensure_number
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import DescribeTransactions, collect_descriptions

_log = logging.getLogger(__name__)

_MIN_REMAINING_SECONDS = 0.001
"""Minimum time left for the sender after the wait for a transaction, so that the sender can still end by itself."""

Offsets = Mapping[tuple[str, int], OffsetAndMetadata | int]
"""Maps (topic, partition) to the offset of the next record to read."""


class WaitContext(NamedTuple):
    """The dependencies of waiting calls: the sender's loop, the metrics for wait times, and the clock."""

    loop: SenderLoop
    metrics: ProducerMetrics
    system: System


class ProducerTransactions:
    """The transactional calls of one producer, as documented in TransactionalProducer.

    Thread-safe; `manager` holds the state.
    """

    def __init__(
        self,
        manager: TransactionManager,
        client: NetworkClient,
        accumulator: RecordAccumulator,
        requests: ClusterRequests,
        waits: WaitContext,
        max_block_ms: float,
    ) -> None:
        self.manager = manager
        self._requests = requests
        self._client = client
        self._accumulator = accumulator
        self._loop = waits.loop
        self._metrics = waits.metrics
        self._system = waits.system
        self._max_block_ms = max_block_ms

    def init(self, transactional_id: str | None) -> None:
        if transactional_id is not None:
            _validate_transactional_id(transactional_id)
        self._run_operation(lambda: self.manager.init(transactional_id), "txn-init-time")

    def begin(self) -> None:
        started_ms = self._system.now()
        features = self._client.finalized_features
        are_features_known = features.epoch >= 0  # -1 until a broker has reported them
        self.manager.begin(features.transaction_version if are_features_known else None)
        self._accumulator.unmute()  # batches that had to wait for the transaction may be sent now
        self._metrics.record_wait("txn-begin-time", self._system.now() - started_ms)

    def commit(self) -> None:
        self._run_operation(self.manager.commit, "txn-commit-time")

    def abort(self) -> None:
        self._run_operation(self.manager.abort, "txn-abort-time")

    def send_offsets(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Validate the offsets, add them to the transaction, and wait until they are written."""
        offsets_and_metadata: dict[TopicPartition, OffsetAndMetadata] = {}
        for (topic, partition), offset in offsets.items():
            ensure_number(f"a partition of topic {validate_topic(topic)}", partition, 0, INT_MAX)
            if not isinstance(offset, OffsetAndMetadata):
                offset = OffsetAndMetadata(offset)
            offsets_and_metadata[TopicPartition(topic, partition)] = offset
        group_metadata = group if isinstance(group, GroupMetadata) else GroupMetadata(group)
        self._run_operation(
            lambda: self.manager.send_offsets(offsets_and_metadata, group_metadata), "txn-send-offsets-time"
        )

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Request descriptions and wait for them. Raise TransactionTimeoutError after max.block.ms."""
        self._reject_in_callback()
        ids = list(transactional_ids)
        for transactional_id in ids:
            _validate_transactional_id(transactional_id)
        if not ids:
            return {}
        request = DescribeTransactions(ids)
        call = BlockingCall([request])
        self._requests.submit(call)
        try:
            self._client.wakeup()
            has_ended = self._loop.wait(call.done_event, self._max_block_ms)
        finally:
            self._requests.cancel(call)
        if not has_ended:
            raise self._build_timeout_error(DESCRIBE, call.last_failure)
        return collect_descriptions(request, call.results())

    def prepare(self) -> TransactionIdentity | None:
        self._reject_in_callback()
        self.manager.stop_accepting_records()
        # No timeout is needed: each record is acknowledged or has failed after delivery.timeout.ms at the latest.
        self._accumulator.flush(lambda flush_event: self._loop.wait(flush_event, timeout_ms=None))
        operation = self.manager.find_last_offsets_operation()
        if operation is not None and not self._loop.wait(operation.done_event, self._max_block_ms):
            raise self._build_timeout_error(PREPARE, self.manager.last_failure)
        return self.manager.prepare()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.begin()
        try:
            yield
            self.commit()
        except BaseException as error:
            if self._abort_if_open() and isinstance(error, TransactionAbortableError):
                mark_already_aborted(error)
            raise

    def close(self, timeout: float | None) -> float | None:
        """Abort an open transaction before the producer closes, or wait for a pending operation.

        Return what remains of `timeout`, in seconds; None if there is no timeout.
        """
        if self._loop.join(timeout_ms=0):
            return timeout  # the sender has ended, so it cannot end the transaction
        started_ms = self._system.now()
        operation = self.manager.abort_or_get_pending()
        if operation is not None:
            wait_ms = self._max_block_ms if timeout is None else min(timeout * 1000, self._max_block_ms)
            self._await_operation(operation, wait_ms)
        if timeout is None:
            return None
        elapsed_seconds = (self._system.now() - started_ms) / 1000
        return max(_MIN_REMAINING_SECONDS, timeout - elapsed_seconds)

    def _abort_if_open(self) -> bool:
        """Abort the transaction after an error, and return whether the abort succeeded.

        If the abort fails, its error is logged instead of raised, because the caller raises the original error.
        """
        if not self.manager.has_abortable_transaction:
            return False
        try:
            self.abort()
        except KafkaSinkError as error:
            _log.warning("%r: could not abort the transaction: %s", self.manager, error)
            return False
        return True

    def _run_operation(self, begin: Callable[[], Operation], metric: str) -> None:
        """Begin an operation, or join the pending one, and wait for it. Raise its error or TransactionTimeoutError."""
        self._reject_in_callback()
        started_ms = self._system.now()
        operation = begin()
        is_done = self._await_operation(operation, self._max_block_ms)
        self._metrics.record_wait(metric, self._system.now() - started_ms)
        if not is_done:
            raise self._build_timeout_error(operation.name, self.manager.last_failure)
        operation.read_result()

    def _build_timeout_error(self, call: str, failure: KafkaSinkError | None) -> TransactionTimeoutError:
        return TransactionTimeoutError(
            f"transactional id {self.manager.transactional_id}: {call}() timed out after max.block.ms "
            f"({self._max_block_ms:.0f} ms). Call {call}() again to learn its outcome."
            + (f" The last request failed: {failure}" if failure is not None else "")
        )

    def _reject_in_callback(self) -> None:
        if self._loop.is_current():
            raise IllegalStateError(
                "A transactional method cannot be called in a callback, because it would wait for itself."
            )

    def _await_operation(self, operation: Operation, timeout_ms: float) -> bool:
        """Wake the sender and wait for the operation, without linger. Return False after the timeout.

        This takes no lock of the accumulator, because close() may call it in a signal handler.
        """
        with self._accumulator.without_linger():
            return self._loop.wait(operation.done_event, timeout_ms)


def _validate_transactional_id(transactional_id: object) -> None:
    try:
        parse_protocol_name(transactional_id)
    except ValueError as error:
        raise ConfigurationError(f"A transactional id {error}.") from None


def create_transactions(
    config: ProducerConfig,
    client: NetworkClient,
    accumulator: RecordAccumulator,
    requests: ClusterRequests,
    waits: WaitContext,
) -> ProducerTransactions:
    """Create the transactional calls of a producer that has a transactional.id."""
    assert config.transactional_id is not None
    manager = TransactionManager(config.transactional_id, config.transaction_timeout_ms)
    return ProducerTransactions(manager, client, accumulator, requests, waits, config.max_block_ms)
