"""How a producer's calls about transactions wait for what the sender's thread does.

Each call waits for at most max.block.ms. If that is over, the outcome is not known, and the same call may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.option_parsing import INT_MAX, parse_protocol_name
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.client.versions import TRANSACTION_VERSION
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
from spark_kafka_sink.producer.record import check_topic
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.producer.sending.cluster_requests import BlockingCall, ClusterRequests
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.states import DESCRIBE, PREPARE, Operation, mark_already_aborted
from spark_kafka_sink.requests.consumer_groups import GroupMetadata, OffsetAndMetadata, ensure_number
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import DescribeTransactions, descriptions

_log = logging.getLogger(__name__)

Offsets = Mapping[tuple[str, int], OffsetAndMetadata | int]
"""(topic, partition) -> the offset of the next record to read"""


class WaitContext(NamedTuple):
    """How a call waits, and where its time is counted."""

    loop: SenderLoop
    metrics: ProducerMetrics
    system: System


class ProducerTransactions:
    """Any thread. `manager` has the state."""

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
        self._loop, self._metrics, self._system = waits
        self._max_block_ms = max_block_ms

    def init(self, transactional_id: str | None) -> None:
        if transactional_id is not None:
            _check_id(transactional_id)
        self._wait(lambda: self.manager.init(transactional_id), "txn-init-time")

    def begin(self) -> None:
        started = self._system.now()
        features = self._client.finalized_features
        known = features.epoch >= 0
        self.manager.begin(features.levels.get(TRANSACTION_VERSION, 0) if known else None)
        self._accumulator.unmute()  # what could not leave before the transaction began may leave now
        self._metrics.record_wait("txn-begin-time", self._system.now() - started)

    def commit(self) -> None:
        self._wait(self.manager.commit, "txn-commit-time")

    def abort(self) -> None:
        self._wait(self.manager.abort, "txn-abort-time")

    def send_offsets(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        whole: dict[TopicPartition, OffsetAndMetadata] = {}
        for (topic, partition), each in offsets.items():
            ensure_number(f"a partition of topic {check_topic(topic)}", partition, 0, INT_MAX)
            position = each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
            whole[TopicPartition(topic, partition)] = position
        member = group if isinstance(group, GroupMetadata) else GroupMetadata(group)
        self._wait(lambda: self.manager.send_offsets(whole, member), "txn-send-offsets-time")

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        self._refuse_in_callback()
        wanted = list(transactional_ids)
        for transactional_id in wanted:
            _check_id(transactional_id)
        if not wanted:
            return {}
        request = DescribeTransactions(wanted)
        call = BlockingCall([request])
        self._requests.submit(call)
        try:
            self._client.wakeup()
            ended = self._loop.wait(call.ended, self._max_block_ms)
        finally:
            self._requests.cancel(call)
        if not ended:
            raise self._out_of_time(DESCRIBE, call.last_failure)
        return descriptions(request, call.results())

    def prepare(self) -> TransactionIdentity | None:
        self._refuse_in_callback()
        self.manager.stop_accepting_records()
        # Each record has an outcome after delivery.timeout.ms at the latest.
        self._accumulator.flush(lambda flushed: self._loop.wait(flushed, None))
        offsets = self.manager.last_offsets_operation()
        if offsets is not None and not self._loop.wait(offsets.done, self._max_block_ms):
            raise self._out_of_time(PREPARE, self.manager.last_failure)
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
        """Before the producer closes: abort an open transaction, and wait for one that is ending. Return the seconds
        that are left."""
        if self._loop.join(0):
            return timeout  # it was closed before, and no sender is there to end anything
        started = self._system.now()
        pending = self.manager.abort_if_open()
        if pending is not None:
            limit_ms = self._max_block_ms if timeout is None else min(timeout * 1000, self._max_block_ms)
            self._await(pending, limit_ms)
        return None if timeout is None else max(0.001, timeout - (self._system.now() - started) / 1000)

    def _abort_if_open(self) -> bool:
        """Abort after an error, and return whether that was done. An error of the abort is not raised: the caller must
        see the first one."""
        if not self.manager.is_open:
            return False
        try:
            self.abort()
        except KafkaSinkError as error:
            _log.warning("%r: the transaction could not be aborted: %s", self.manager, error)
            return False
        return True

    def _wait(self, begin: Callable[[], Operation], metric: str) -> None:
        self._refuse_in_callback()
        started = self._system.now()
        operation = begin()
        done = self._await(operation, self._max_block_ms)
        self._metrics.record_wait(metric, self._system.now() - started)
        if not done:
            raise self._out_of_time(operation.name, self.manager.last_failure)
        operation.result()

    def _out_of_time(self, call: str, failure: KafkaSinkError | None) -> TransactionTimeoutError:
        return TransactionTimeoutError(
            f"transactional id {self.manager.transactional_id}: {call}() was not answered within max.block.ms "
            f"({self._max_block_ms:.0f} ms). Call {call}() again to learn how it ended."
            + (f" The last request failed: {failure}" if failure is not None else "")
        )

    def _refuse_in_callback(self) -> None:
        if self._loop.is_current():
            raise IllegalStateError("A callback cannot wait for a transaction: it would wait for itself.")

    def _await(self, operation: Operation, timeout_ms: float) -> bool:
        """Wake the sender and wait for the operation. While the call waits, no batch lingers.

        It takes no lock of the accumulator: close() waits here in a signal handler, too.
        """
        with self._accumulator.without_linger():
            return self._loop.wait(operation.done, timeout_ms)


def _check_id(transactional_id: object) -> None:
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
    manager = TransactionManager(config.transactional_id or "", config.transaction_timeout_ms)
    return ProducerTransactions(manager, client, accumulator, requests, waits, config.max_block_ms)
