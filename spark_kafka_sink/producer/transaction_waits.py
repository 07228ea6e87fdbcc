"""ProducerTransactions: the transactional methods of a producer, which wait for the sender thread.

A call begins an operation, such as a commit. The sender thread carries it out with the TransactionManager, and the call
waits for it, but at most for max.block.ms. After that, the outcome of the operation is unknown. If the call is
repeated, it does not begin a new operation, but waits for the same one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.option_parsing import INT_MAX, parse_protocol_name
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import (
    ConfigurationError,
    IllegalStateError,
    InvalidRecordError,
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
from spark_kafka_sink.producer.sending.call_executor import BlockingCall, CallExecutor
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.states import DESCRIBE, PREPARE, Operation, mark_already_aborted
from spark_kafka_sink.requests.consumer_groups import GroupMetadata, OffsetAndMetadata, ensure_integer_in_range
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import DescribeTransactions, collect_descriptions

_log = logging.getLogger(__name__)

_MIN_REMAINING_SECONDS = 0.001
"""Minimum time that close() leaves for the sender thread to shut down on its own, after waiting for a transaction.

With no time left, close() would force the thread to stop immediately.
"""

Offsets = Mapping[tuple[str, int], OffsetAndMetadata | int]
"""Maps (topic, partition) to the offset of the next record to read."""


class WaitContext(NamedTuple):
    """The objects that a blocking call needs for its wait."""

    loop: SenderLoop
    """The loop of the sender, which completes the operations."""
    metrics: ProducerMetrics
    """The metrics in which waiting times are recorded."""
    system: System
    """The clock."""


class ProducerTransactions:
    """The transactional calls of one producer. TransactionalProducer documents them.

    Thread-safe, because the state is in `manager`, which has its own lock. In a callback, a call that waits would wait
    for itself, so it raises IllegalStateError.
    """

    def __init__(
        self,
        manager: TransactionManager,
        client: NetworkClient,
        accumulator: RecordAccumulator,
        call_executor: CallExecutor,
        wait_context: WaitContext,
        max_block_ms: float,
    ) -> None:
        self.manager = manager
        """The state of the producer's transactions. The sender and the checks of send() use it directly."""
        self._call_executor = call_executor
        self._client = client
        self._accumulator = accumulator
        self._loop = wait_context.loop
        self._metrics = wait_context.metrics
        self._system = wait_context.system
        self._max_block_ms = max_block_ms

    def init(self, transactional_id: str | None) -> None:
        if transactional_id is not None:
            _validate_transactional_id(transactional_id)
        self._run_operation(lambda: self.manager.init(transactional_id), "txn-init-time")

    def begin(self) -> None:
        started_ms = self._system.now()
        features = self._client.finalized_features
        are_features_known = features.epoch >= 0  # the epoch is -1 until a broker has reported the features
        self.manager.begin(features.transaction_version if are_features_known else None)
        self._accumulator.unmute()  # batches that had to wait for the transaction may be sent now
        self._metrics.record_wait("txn-begin-time", self._system.now() - started_ms)

    def commit(self) -> None:
        self._run_operation(self.manager.commit, "txn-commit-time")

    def abort(self) -> None:
        self._run_operation(self.manager.abort, "txn-abort-time")

    def send_offsets(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Add the offsets of a consumer group to the transaction, and wait until brokers have written them.

        Raise InvalidRecordError for an invalid topic, partition, offset or group.
        """
        offsets_and_metadata = _validate_offsets(offsets)
        group_metadata = group if isinstance(group, GroupMetadata) else GroupMetadata(group)
        self._run_operation(
            lambda: self.manager.send_offsets(offsets_and_metadata, group_metadata), "txn-send-offsets-time"
        )

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Return the brokers' descriptions by transactional id.

        Raise ConfigurationError if an id is invalid, and TransactionTimeoutError if the descriptions do not arrive
        within max.block.ms.
        """
        self._ensure_not_in_callback()
        requested_ids = list(transactional_ids)
        for transactional_id in requested_ids:
            _validate_transactional_id(transactional_id)
        if not requested_ids:
            return {}
        request = DescribeTransactions(requested_ids)
        call = BlockingCall([request])
        self._call_executor.submit(call)
        try:
            self._client.wakeup()
            has_ended = self._loop.wait(call.done_event, self._max_block_ms)
        finally:
            self._call_executor.cancel(call)
        if not has_ended:
            raise self._build_timeout_error(DESCRIBE, call.last_failure)
        return collect_descriptions(request, call.results())

    def prepare(self) -> TransactionIdentity | None:
        """Wait until all records and offsets of the transaction are written, and leave the transaction open.

        Return its identity; None if nothing was written in the transaction, which is then ended.
        """
        self._ensure_not_in_callback()
        # The transaction must not grow while its records are being flushed.
        self.manager.stop_accepting_records()
        # No timeout is needed, because each record is acknowledged or has failed after delivery.timeout.ms at the
        # latest.
        self._accumulator.flush(lambda flush_event: self._loop.wait(flush_event, timeout_ms=None))
        operation = self.manager.find_last_offsets_operation()
        if operation is not None and not self._loop.wait(operation.done_event, self._max_block_ms):
            raise self._build_timeout_error(PREPARE, self.manager.last_failure)
        return self.manager.prepare()

    def abort_after(self, error: BaseException) -> None:
        """Abort the transaction, if one is open, after an error that its block or its commit has raised."""
        if self._abort_if_open() and isinstance(error, TransactionAbortableError):
            mark_already_aborted(error)

    def close(self, timeout_seconds: float | None) -> float | None:
        """Abort an open transaction before the producer closes. If an operation is pending, wait for it first.

        Wait for at most max.block.ms, and log a warning if the transaction has not ended by then.

        `timeout_seconds`: how long the producer may take to close; None if there is no limit.

        Return how many of these seconds remain; None if there is no limit.
        """
        has_sender_ended = self._loop.join(timeout_ms=0)
        if has_sender_ended:  # no thread is left that could abort the transaction
            return timeout_seconds
        started_ms = self._system.now()
        timeout_ms = self._max_block_ms if timeout_seconds is None else min(timeout_seconds * 1000, self._max_block_ms)
        while (operation := self.manager.abort_or_get_pending()) is not None:
            remaining_ms = max(0.0, timeout_ms - (self._system.now() - started_ms))
            is_done = self._await_operation(operation, remaining_ms)
            # A commit that was pending may have failed, and then the transaction is to be aborted.
            if not (is_done and self.manager.has_abortable_transaction):
                break
        if self.manager.leaves_transaction_open:
            _log.warning(
                "%r: close() has not ended the transaction. It stays open until the coordinator aborts it "
                "(transaction.timeout.ms), unless a commit or abort that was already sent still ends it. Until then, "
                "read_committed readers wait.",
                self.manager,
            )
        if timeout_seconds is None:
            return None
        elapsed_seconds = (self._system.now() - started_ms) / 1000
        return max(_MIN_REMAINING_SECONDS, timeout_seconds - elapsed_seconds)

    def _abort_if_open(self) -> bool:
        """Abort the transaction after an error. Return False if no transaction was open or if the abort has failed.

        The error of a failed abort is only logged, because the caller is about to raise the original error.
        """
        if not self.manager.has_abortable_transaction:
            return False
        try:
            self.abort()
        except KafkaSinkError as error:
            _log.warning("%r: could not abort the transaction: %s", self.manager, error)
            return False
        return True

    def _run_operation(self, begin: Callable[[], Operation], metric_name: str) -> None:
        """Begin an operation, or join the pending one, and wait until it is done.

        If the operation fails, raise its error. After max.block.ms, raise TransactionTimeoutError.

        `begin`: begins the operation, or returns the pending one.
        `metric_name`: the metric to which the time of the wait is added.
        """
        self._ensure_not_in_callback()
        started_ms = self._system.now()
        operation = begin()
        is_done = self._await_operation(operation, self._max_block_ms)
        self._metrics.record_wait(metric_name, self._system.now() - started_ms)
        if not is_done:
            raise self._build_timeout_error(operation.name, self.manager.last_failure)
        operation.read_result()  # raises the error of a failed operation

    def _build_timeout_error(self, call_name: str, last_failure: KafkaSinkError | None) -> TransactionTimeoutError:
        """Build the error of a call whose operation did not end within max.block.ms.

        `last_failure`: the error of the last request that was sent for the operation; None if no request failed.
        """
        return TransactionTimeoutError(
            f"transactional id {self.manager.transactional_id}: {call_name}() timed out after max.block.ms "
            f"({self._max_block_ms:.0f} ms). Call {call_name}() again to learn its outcome."
            + (f" The last request failed: {last_failure}" if last_failure is not None else "")
        )

    def _ensure_not_in_callback(self) -> None:
        """Raise IllegalStateError in a callback, because it runs on the thread that would have to end the wait."""
        if self._loop.is_current():
            raise IllegalStateError(
                "A transactional method cannot be called in a callback, because it would wait for itself."
            )

    def _await_operation(self, operation: Operation, timeout_ms: float) -> bool:
        """Wait until the operation has ended. Return whether it ended in time."""
        # Without linger, the batches that a commit waits for are sent immediately. `without_linger` also wakes the
        # sender. Nothing here may take the accumulator's lock, because close() may run in a signal handler, on a thread
        # that already holds it.
        with self._accumulator.without_linger():
            return self._loop.wait(operation.done_event, timeout_ms)


def _validate_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets by topic-partition. Raise InvalidRecordError for anything but a mapping like `Offsets`."""
    if not isinstance(offsets, Mapping):
        raise InvalidRecordError(f"the offsets must be a mapping of (topic, partition) to offset, not {offsets!a:.60}.")
    validated: dict[TopicPartition, OffsetAndMetadata] = {}
    for key, offset in offsets.items():
        if not isinstance(key, tuple) or len(key) != 2:
            raise InvalidRecordError(f"a key of the offsets must be a (topic, partition) tuple, not {key!a:.60}.")
        topic, partition = key
        ensure_integer_in_range(f"a partition of topic {validate_topic(topic)}", partition, 0, INT_MAX)
        validated[TopicPartition(topic, partition)] = (
            offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        )
    return validated


def _validate_transactional_id(transactional_id: object) -> None:
    """Raise ConfigurationError unless the id is a string that the protocol can carry."""
    try:
        parse_protocol_name(transactional_id)
    except ValueError as error:
        raise ConfigurationError(f"A transactional id {error}.") from None


def create_transactions(
    config: ProducerConfig,
    client: NetworkClient,
    accumulator: RecordAccumulator,
    call_executor: CallExecutor,
    wait_context: WaitContext,
) -> ProducerTransactions:
    """Create the transactional calls of a producer. Its `config` must have a transactional.id."""
    assert config.transactional_id is not None
    manager = TransactionManager(config.transactional_id, config.transaction_timeout_ms)
    return ProducerTransactions(manager, client, accumulator, call_executor, wait_context, config.max_block_ms)
