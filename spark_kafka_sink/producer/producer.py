"""KafkaProducer: the public API. It validates rows, assigns them to partitions and stages them in the accumulator.

caller's thread     metadata -> serializers, partitioner -> accumulator (memory, staging, grouping)
sender thread       batches -> brokers -> results -> callbacks, futures

send() takes one record; send_columns() takes many rows as Arrow columns. The callbacks of staged records run on the
sender thread, which is also the thread that frees memory and updates the metadata. So a method that is called in such a
callback must never wait for memory or metadata, because the sender thread would wait for itself.
"""

from __future__ import annotations

import itertools
import logging
import operator
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import ClusterSnapshot, PartitionInfo
from spark_kafka_sink.client.metadata import create_metadata
from spark_kafka_sink.client.network_client import create_network_client
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import (
    BufferExhaustedError,
    IllegalStateError,
    InvalidRecordError,
    KafkaSinkError,
    ProducerClosedError,
)
from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.batching.staging import SingleRecord
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.config import ProducerConfig, merge_keywords
from spark_kafka_sink.producer.futures import Callback, ColumnsFuture, RecordFutures, SendFuture
from spark_kafka_sink.producer.interceptors import Interceptor, Interceptors
from spark_kafka_sink.producer.method_suggestions import (
    PRODUCER_METHODS,
    build_unexpected_argument_error,
    suggest_counterparts,
)
from spark_kafka_sink.producer.metrics import ProducerMetrics, build_client_gauges
from spark_kafka_sink.producer.partitioner import Partitioner, RecordPartitioner, strip_key_prefix
from spark_kafka_sink.producer.record import (
    EMPTY_FIELDS,
    MAX_RECORD_OVERHEAD_BYTES,
    AnyHeaders,
    ProducerRecord,
    check_columns,
    compute_max_headers_bytes,
    parse_send_arguments,
    validate_record,
    validate_topic,
)
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.producer.rows import (
    Rows,
    build_missing_partition_error,
    build_record_size_error,
    build_rows,
    ensure_partitions_requested,
    find_missing_partition_failures,
    find_row_failures,
)
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.producer.sending.call_executor import CallExecutor
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.producer.sending.sender_thread import SenderThread, abandon
from spark_kafka_sink.producer.serializers import HeaderSerializer, Serializer, Serializers
from spark_kafka_sink.producer.table_calls import TableCalls
from spark_kafka_sink.producer.topic_waits import TopicMetadataWaiter
from spark_kafka_sink.producer.totals import Totals
from spark_kafka_sink.producer.transactional import OpenTransactionCheck, TransactionalProducer
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.freed_memory import reuse_freed_memory
from spark_kafka_sink.records.header import HEADER_BYTES

if TYPE_CHECKING:  # Spark's workers import neither module
    from typing_extensions import Never, Unpack

    from spark_kafka_sink.producer.typed_options import ProducerOptions

_log = logging.getLogger(__name__)
_client_numbers = itertools.count(1)
"""Numbers for the default client ids of this process, as in `producer-1`."""
_FORCED_CLOSE_TIMEOUT_MS = 2_000.0
"""The time that close() waits for a sender thread that was forced to close.

Such a thread fails the remaining records immediately. It can hang only if close() was called in a signal handler, and
the call that the signal interrupted holds a lock that the thread needs.
"""


@suggest_counterparts(PRODUCER_METHODS)
class KafkaProducer(TransactionalProducer, TableCalls):
    """A client that writes records to Kafka. Thread-safe.

    The options are those of the Java producer, in a dictionary (`linger.ms`) or as keyword arguments (`linger_ms`).

    Example:

        with KafkaProducer(bootstrap_servers="localhost:9092", compression_type="zstd") as producer:
            producer.send("orders", b"12.50", key=b"o-1")

        async with KafkaProducer(bootstrap_servers="localhost:9092") as producer:
            await producer.send("orders", b"8.00", key=b"o-2")
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        key_serializer: Serializer | HeaderSerializer | None = None,
        value_serializer: Serializer | HeaderSerializer | None = None,
        interceptors: Sequence[Interceptor[ProducerRecord, RecordMetadata]] = (),
        partitioner: RecordPartitioner | None = None,
        flush_at_exit: float = 10.0,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Validate the options and start the sender thread. Raise ConfigurationError with all invalid options.

        - `config`: options by Java's names
        - `key_serializer`, `value_serializer`: convert keys and values to bytes; by default, these are bytes, str or
          None
        - `interceptors`: called with each record that is passed to send(), and with its result
        - `partitioner`: chooses the partition of each record that is passed to send() without a partition
        - `flush_at_exit`: how many seconds the interpreter waits at exit for the last records if the producer was not
          closed
        - `options`: options as keywords, with underscores instead of dots. Set each option either here or in `config`
        """
        parsed_config = ProducerConfig.parse(merge_keywords(config, options))
        reuse_freed_memory()
        self.config = replace(parsed_config, client_id=parsed_config.client_id or f"producer-{next(_client_numbers)}")
        self._system, self._loop, random = self._create_environment(flush_at_exit)
        self._serializers = Serializers(key_serializer, value_serializer)
        self._interceptors: Interceptors[ProducerRecord, RecordMetadata] | None = None
        if interceptors:
            self._interceptors = Interceptors(interceptors)
        self._record_partitioner = partitioner
        self._partitioner = Partitioner(self.config, random)
        client_config = self.config.client_config()
        self._metadata = create_metadata(client_config, system=self._system, rng=random)
        self._client = client = create_network_client(
            client_config, self._metadata, system=self._system, rng=random, counts_per_node=True
        )
        self._pool = BufferPool(self.config.buffer_memory, self._system.now)
        self._metrics = ProducerMetrics(
            self.config.metrics_sample_window_ms,
            self.config.metrics_num_samples,
            client.io_counts,
            self._pool,
            build_client_gauges(client, self._metadata),
        )
        self._accumulator = RecordAccumulator(
            self.config,
            self._pool,
            clock=self._system.now,
            wall_clock_ms=self._system.wall_ms,
            wake_sender=client.wakeup,
            wait_for_event=self._loop.wait,
            random=random,
            partitioner=self._partitioner,
            report_assigned_rows=self._metrics.record_row_sizes,
        )
        backoff = ExponentialBackoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, random)
        self._call_executor = CallExecutor(self._client, self._metadata, backoff)
        if self.config.transactional_id is not None:
            self._transactions = self._create_transactions()
        self._sender = Sender(
            self.config,
            self._client,
            self._metadata,
            self._accumulator,
            self._metrics,
            self._call_executor,
            system=self._system,
            transactions=None if self._transactions is None else self._transactions.manager,
        )
        self._topic_waiter = TopicMetadataWaiter(
            self._metadata,
            self._loop,
            self._metrics,
            wake_sender=client.wakeup,
            max_block_ms=self.config.max_block_ms,
            system=self._system,
        )
        self._pid = os.getpid()
        self._is_closed = False
        # The finalizer has a reference to the sender. A reference to the producer would keep the producer alive
        # forever.
        self._finalizer = weakref.finalize(self, abandon, self._sender, self._pid)
        self._finalizer.atexit = False  # at exit, the sender thread first delivers the last records (flush_at_exit)
        self._loop.start(self._sender, f"kafka-producer-network-thread | {self.config.client_id}")

    def _create_environment(self, flush_at_exit: float) -> tuple[System, SenderLoop, Random]:
        """Create the system (clock and network), the loop that runs the sender, and the random number generator.

        Tests override this method.
        """
        system = OperatingSystem()
        return system, SenderThread(system, flush_at_exit), Random()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"KafkaProducer({self.config.client_id}, {','.join(self.config.bootstrap_servers)}, {state})"

    def __reduce__(self) -> NoReturn:
        """Raise TypeError, because a producer cannot be passed to Spark tasks or other processes."""
        raise TypeError(
            "A KafkaProducer cannot be pickled: its thread and its connections belong to one process. In a Spark job, "
            "create one in each partition: in the function of foreachPartition, not around it. In a pool of "
            "processes, create one in each process."
        )

    def __enter__(self) -> KafkaProducer:
        return self

    def __exit__(self, exc_type: object, error: object, traceback: object) -> None:
        self.close()

    async def __aenter__(self) -> KafkaProducer:
        return self

    async def __aexit__(self, exc_type: object, error: object, traceback: object) -> None:
        """Close the producer in another thread, which does not block the event loop and outlives a cancelled task."""
        from asyncio import to_thread

        await to_thread(self.close)

    # --- sending

    def send(  # noqa: PLR0913 - one parameter per record field
        self,
        topic: str | ProducerRecord,
        value: object = None,
        key: object = None,
        headers: AnyHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        callback: Callback | None = None,
        **unexpected: Never,
    ) -> SendFuture:
        """Send one record, passed as a ProducerRecord or as separate arguments, and return its future.

        - `topic`: a topic name, or a ProducerRecord instead of all record fields
        - `value`, `key`: bytes, str, None, or what the serializer accepts
        - `headers`: a dict, or (name, value) pairs if a name occurs more than once
        - `partition`: by default determined by the key, or chosen by the producer if there is no key
        - `timestamp_ms`: milliseconds since 1970; by default, the time of the call
        - `callback`: called as callback(metadata, error) on the sender thread, or within send() if the record fails
          there; `error` is None if the record was stored

        The call waits at most max.block.ms for the topic's partitions and for memory. Errors are reported through the
        future; only invalid argument types and misuse, such as sending after close(), raise immediately.

        Example:

            future = producer.send("orders", b"12.50", key=b"o-1", headers={"trace": "8f3a"})
            print(future.result(timeout=60).offset)
        """
        transaction_check = self._build_transaction_check()
        try:
            if unexpected:
                raise build_unexpected_argument_error(unexpected)
            fields = (value, key, headers, partition, timestamp_ms)
            if fields == EMPTY_FIELDS and isinstance(topic, ProducerRecord):  # nothing to parse
                record = topic
            else:
                record, callback = parse_send_arguments(topic, fields, callback)
            return self._send_record(record, callback, transaction_check)
        except BaseException as error:  # the transaction must not be committed, even after a KeyboardInterrupt
            self._prevent_commit("send()", error, transaction_check)
            raise

    def _send_record(
        self, record: ProducerRecord, callback: Callback | None, transaction_check: OpenTransactionCheck | None
    ) -> SendFuture:
        """Validate a record, call the interceptors and send the record. Return its future.

        Only two kinds of errors are raised: InvalidRecordError if a field is invalid for any topic and serializer, and
        IllegalStateError or ProducerClosedError if the caller misuses the producer. Any other error of the record is
        reported through its future.
        """
        try:
            record = validate_record(record)
        except InvalidRecordError as error:  # interceptors do not see invalid records
            self._record_rejected_rows(error, transaction_check, row_count=1)
            raise
        callbacks = () if self._interceptors is None else self._interceptors.acknowledgement_callbacks
        try:
            if self._interceptors is not None:
                record = validate_record(self._interceptors.on_send(record))
            self._serializers.check_types(record)
        except InvalidRecordError as error:  # interceptors have seen the record, so they must learn that it has failed
            self._reject_record(record, error, callbacks, transaction_check)
            raise
        if callback is not None:
            callbacks = (*callbacks, callback)
        try:
            return self._serialize_and_stage(record, callbacks, transaction_check)
        except (ProducerClosedError, IllegalStateError):  # the caller has misused the producer; no record has failed
            raise
        except KafkaSinkError as error:
            return self._reject_record(record, error, callbacks, transaction_check)

    def _reject_record(
        self,
        record: ProducerRecord,
        error: KafkaSinkError,
        callbacks: tuple[Callback, ...],
        transaction_check: OpenTransactionCheck | None,
    ) -> SendFuture:
        """Count a record that was not accepted, run its callbacks, and return a future that has failed with `error`."""
        self._record_rejected_rows(error, transaction_check, row_count=1)
        return RecordFutures(record.topic).reject(record.partition, error, callbacks)

    def prefetch_topics(self, topics: Iterable[str]) -> set[str]:
        """Request metadata for those topics whose partitions are unknown, and return these topics without waiting.

        Call this method before sending the first rows to many topics, because one request can cover all of them.

        Example:

            unknown = producer.prefetch_topics(["orders", "payments"])
        """
        return self._topic_waiter.prefetch(topics, self._system.now())

    def send_columns(
        self,
        topic: str,
        columns: RecordColumns,
        partition: int | pa.Array | None = None,
        *,
        keep_row_indices: bool = False,
        ignored_key_bytes: int = 0,
    ) -> ColumnsFuture:
        """Send all rows of the columns and return one future. Its result contains the rows that were not written.

        - `topic`: the topic of all rows
        - `columns`: the values, and optionally the keys, headers and timestamps of the rows
        - `partition`: a partition for all rows, or an array with the partition of each row. If a row has no partition
          (null, or None for all rows), its key determines the partition. Without a key, the configured partitioner does
        - `keep_row_indices`: record in the result which rows each stored range contains. This takes 8 bytes per row
        - `ignored_key_bytes`: the number of bytes at the start of each key that do not affect its partition, such as
          the 5 bytes of a schema id

        Example:

            columns = RecordColumns(value=pa.array(["12.50", "8.00"]), key=pa.array(["o-1", "o-2"]))
            result = producer.send_columns("orders", columns).result(timeout=60)
            result.raise_for_failures()
        """
        transaction_check = self._build_transaction_check()
        try:
            return self._send_columns(
                topic,
                columns,
                partition,
                transaction_check,
                keep_row_indices=keep_row_indices,
                ignored_key_bytes=ignored_key_bytes,
            )
        except BaseException as error:  # the transaction must not be committed, even after a KeyboardInterrupt
            self._prevent_commit("send_columns()", error, transaction_check)
            raise

    def _send_columns(
        self,
        topic: str,
        columns: RecordColumns,
        partition: int | pa.Array | None,
        transaction_check: OpenTransactionCheck | None,
        *,
        keep_row_indices: bool,
        ignored_key_bytes: int,
    ) -> ColumnsFuture:
        """Send all rows of the columns, in the transaction of `transaction_check` if there is one. Return their future.

        A KafkaSinkError is raised only if no row can be sent. In that case, all rows are counted as rejected, except
        those that were already counted because they had failed on their own.
        """
        now_ms = self._system.now()
        try:
            check_columns(columns)
        except InvalidRecordError as error:
            # The call counts as one row, because the number of its rows is unknown.
            self._record_rejected_rows(error, transaction_check, row_count=1)
            raise
        try:  # the checks that need no metadata
            validate_topic(topic)
            call = ColumnsFuture(topic, columns.num_rows, keep_row_indices=keep_row_indices)
            if not columns.num_rows:
                return call
            rows = build_rows(call, columns, partition)
            if self._record_partitioner is not None:
                ensure_partitions_requested(rows)
        except KafkaSinkError as error:
            self._record_rejected_rows(error, transaction_check, row_count=columns.num_rows)
            raise
        try:  # if an error rejects all rows, those that have failed on their own are no longer in `rows`
            snapshot = self._await_topic(topic, now_ms)
            rows = self._fail_rows(rows, find_row_failures(topic, rows, self.config), transaction_check)
            snapshot = self._await_requested_partitions(topic, rows, snapshot, now_ms)
        except KafkaSinkError as error:
            self._record_rejected_rows(error, transaction_check, row_count=len(rows))
            raise
        rows = self._fail_rows(
            rows, find_missing_partition_failures(topic, rows, snapshot, partition), transaction_check
        )
        if len(rows):
            self._assign_partitions(topic, rows, snapshot, ignored_key_bytes)
            self._stage_rows(topic, rows, transaction_check)
        return call

    def _fail_rows(
        self, rows: Rows, failures: list[FailedRows], transaction_check: OpenTransactionCheck | None
    ) -> Rows:
        """Report the rows in `failures` to their call as failed, and return the remaining rows."""
        for failure in failures:
            self._record_rejected_rows(failure.error, transaction_check, row_count=len(failure.row_indices))
            rows.call.fail_rows(failure)
        return rows.exclude(failures)

    def _await_requested_partitions(
        self, topic: str, rows: Rows, snapshot: ClusterSnapshot, now_ms: float
    ) -> ClusterSnapshot:
        """Wait for metadata that contains the highest requested partition, which may have been added recently.

        Return the newest metadata that contains the topic. A partition that is still missing is no error here, because
        only the rows that request it must fail.
        """
        highest_partition = rows.highest_requested_partition
        if highest_partition < 0 or snapshot.partition(topic, highest_partition) is not None:
            return snapshot
        try:
            return self._await_topic(topic, now_ms, highest_partition)
        except InvalidRecordError:
            latest_snapshot = self._metadata.snapshot
            return snapshot if latest_snapshot.partition_count(topic) is None else latest_snapshot

    def _assign_partitions(self, topic: str, rows: Rows, snapshot: ClusterSnapshot, ignored_key_bytes: int) -> None:
        """Assign each row to a partition.

        `ignored_key_bytes`: the number of bytes at the start of each key that do not affect its partition.
        """
        find_partition_loads = partial(self._accumulator.find_partition_loads, topic, snapshot)
        columns = strip_key_prefix(rows.columns, ignored_key_bytes) if ignored_key_bytes else rows.columns
        rows.assign(
            self._partitioner.assign(
                topic, columns, rows.sizes, rows.requested_partitions, snapshot, find_partition_loads
            )
        )

    def _stage_rows(self, topic: str, rows: Rows, transaction_check: OpenTransactionCheck | None) -> None:
        """Pass assigned rows to the accumulator, and fail the rows that it cannot stage."""
        total_bytes, max_row_bytes = int(np.add.reduce(rows.sizes)), int(np.maximum.reduce(rows.sizes))
        self._metrics.record_row_sizes(len(rows), total_bytes, max_row_bytes, self._system.now())
        # Never block in a callback. It runs on the sender thread, which is the one that frees memory, so the call would
        # wait for itself.
        max_block_ms = 0.0 if self._loop.is_current() else None
        try:
            staged_count, error = self._accumulator.append_columns(
                topic, rows, max_block_ms=max_block_ms, check_open=transaction_check
            )
        except BaseException as append_error:
            # Usually a KeyboardInterrupt, after which we cannot tell how many rows are staged.
            self._sender.handle_interrupted_append("send_columns()", append_error)
            raise
        if error is not None:
            self._fail_unstaged_rows(topic, rows, staged_count, error, transaction_check)

    def _fail_unstaged_rows(
        self,
        topic: str,
        rows: Rows,
        staged_count: int,
        error: KafkaSinkError,
        transaction_check: OpenTransactionCheck | None,
    ) -> None:
        """Fail every row after the first `staged_count`. `error` is the reason why those rows could not be staged.

        If no row was staged and `error` is an IllegalStateError, raise the error instead, because the caller has
        misused the producer.
        """
        self._record_rejected_rows(error, transaction_check, row_count=len(rows) - staged_count)
        if not staged_count and isinstance(error, IllegalStateError):
            raise error
        unstaged_row_indices = rows.row_indices[staged_count:]
        rows.call.fail_rows(FailedRows(unstaged_row_indices, self._add_buffer_hint(error), topic))

    def _serialize_and_stage(
        self, record: ProducerRecord, callbacks: tuple[Callback, ...], transaction_check: OpenTransactionCheck | None
    ) -> SendFuture:
        """Serialize and stage a validated record, and return its future. Raise KafkaSinkError if that fails."""
        topic, partition, timestamp_ms = record.topic, record.partition, record.timestamp_ms
        started_ms = self._system.now()
        snapshot = self._await_topic(topic, started_ms, partition)
        key, value, headers = self._serializers.serialize(record)
        # The length of a null is encoded as -1, so it counts as -1 byte here. MAX_RECORD_OVERHEAD_BYTES contains two
        # extra bytes to offset this, one for the key and one for the value.
        key_size = -1 if key is None else len(key)
        value_size = -1 if value is None else len(value)
        size = MAX_RECORD_OVERHEAD_BYTES + key_size + value_size + compute_max_headers_bytes(headers)
        if size + HEADER_BYTES > self.config.max_request_size:
            raise build_record_size_error(topic, size, self.config)
        if partition is not None:
            if snapshot.partition(topic, partition) is None:
                raise build_missing_partition_error(topic, str(partition), snapshot.partition_count(topic))
        elif self._record_partitioner is not None:
            partition = self._call_record_partitioner(topic, key, value, snapshot)
        if timestamp_ms is None:
            timestamp_ms = self._system.wall_ms()
        serialized_record: SingleRecord = (value, key, headers, partition, timestamp_ms)
        try:
            return self._accumulator.append_record(
                topic,
                serialized_record,
                size,
                snapshot,
                callbacks,
                get_max_block_ms=partial(self._compute_remaining_ms, started_ms),
                check_open=transaction_check,
            )
        except KafkaSinkError as error:
            # If the error gets a hint, it is a new error, which replaces the original one. Otherwise, keep its cause.
            reported_error = self._add_buffer_hint(error)
            raise reported_error from reported_error.__cause__
        except BaseException as append_error:
            # Usually a KeyboardInterrupt, after which we cannot tell whether the record is staged.
            self._sender.handle_interrupted_append("send()", append_error)
            raise

    def _compute_remaining_ms(self, call_started_ms: float) -> float:
        """Return the time that remains of max.block.ms; 0 in a callback, which runs on the thread that frees memory."""
        if self._loop.is_current():
            return 0.0
        return max(0.0, call_started_ms + self.config.max_block_ms - self._system.now())

    def _add_buffer_hint(self, error: KafkaSinkError) -> KafkaSinkError:
        """Return the error to report for rows that could not be staged because of `error`.

        It is `error` itself, unless the memory was used up in a callback. Then it is an error that explains why the
        call did not wait.
        """
        if not self._loop.is_current() or not isinstance(error, BufferExhaustedError):
            return error
        return BufferExhaustedError(
            f"buffer.memory ({self.config.buffer_memory} bytes) is full. send() cannot wait in a callback, which runs "
            "on the thread that frees memory. Send from another thread, or increase buffer.memory."
        )

    def _call_record_partitioner(
        self, topic: str, key: bytes | None, value: bytes | None, snapshot: ClusterSnapshot
    ) -> int:
        """Return the partition that the custom partitioner chooses.

        Raise InvalidRecordError if the partitioner raises an exception or the topic has no such partition.
        """
        assert self._record_partitioner is not None
        try:
            partition = operator.index(self._record_partitioner(topic, key, value, snapshot.topics[topic].partitions))
        except Exception as error:
            raise InvalidRecordError(f"{format_partition(topic)}: the partitioner failed: {error!r}") from error
        if snapshot.partition(topic, partition) is None:
            raise build_missing_partition_error(topic, str(partition), snapshot.partition_count(topic))
        return partition

    # --- waiting

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """Return the topic's partitions and their leaders. Wait for at most max.block.ms.

        Example:

            print(len(producer.partitions_for("orders")), "partitions")
        """
        self._ensure_usable()
        return list(self._await_topic(validate_topic(topic), self._system.now()).topics[topic].partitions)

    def flush(self, timeout: float | None = None) -> None:
        """Immediately send all records from earlier calls, and wait until each is acknowledged or has failed.

        The records do not wait for linger.ms.

        Raise TimeoutError after `timeout` seconds. Records may have failed when flush() returns; check their futures.

        Example:

            futures = [producer.send("orders", str(number)) for number in range(100)]
            producer.flush(timeout=60)
            print(sum(future.exception() is None for future in futures), "records were stored")
        """
        self._ensure_usable()
        if self._loop.is_current():
            raise IllegalStateError("flush() cannot be called in a callback, because it would wait for itself.")
        started_ms = self._system.now()
        timeout_ms = None if timeout is None else timeout * 1000
        try:
            is_done = self._accumulator.flush(lambda flush_event: self._loop.wait(flush_event, timeout_ms))
        finally:
            self._metrics.record_wait("flush-time", self._system.now() - started_ms)
        if not is_done:
            raise TimeoutError(f"flush() timed out after {timeout} seconds: some records were not acknowledged.")

    def without_linger(self) -> AbstractContextManager[None]:
        """Return a context manager that disables linger, for a caller that waits for results.

        Example:

            future = producer.send("orders", b"12.50")
            with producer.without_linger():
                print(future.result(timeout=60).offset)
        """
        return self._accumulator.without_linger()

    def close(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for all results, fail the remaining records and end the thread.

        An open transaction is aborted, unless the timeout is 0. If it cannot be aborted within max.block.ms, it stays
        open, and the coordinator aborts it at its timeout. The same holds with version 1 of transactions if one of its
        batches failed after its response was lost.

        A signal handler may call close(), but no other method. The handler must pass a timeout, because the sender
        thread may be waiting for the very call that the handler has interrupted. The records that remain after the
        timeout then fail as soon as the interrupted call returns.

        Example:

            producer = KafkaProducer(bootstrap_servers="localhost:9092")
            producer.send("orders", b"12.50")
            producer.close(timeout=60)
        """
        self._is_closed = True
        if os.getpid() != self._pid:
            return  # in a forked child, the thread and the sockets belong to the parent
        self._finalizer.detach()
        # A callback runs on the sender thread. If close() waited for that thread in a callback, it would wait for
        # itself.
        is_called_from_callback = self._loop.is_current()
        closes_immediately = timeout == 0  # the caller wants the remaining records to fail
        remaining_seconds = timeout
        try:
            if self._transactions is not None and not is_called_from_callback and not closes_immediately:
                remaining_seconds = self._transactions.close(timeout)
        finally:  # end the thread even if the wait for the transaction was interrupted
            self._sender.initiate_close(force=is_called_from_callback or closes_immediately)
        if is_called_from_callback:
            return  # the thread ends when the callback has returned
        if not self._loop.join(None if remaining_seconds is None else remaining_seconds * 1000):
            if not closes_immediately:
                _log.warning("%r did not finish within %s seconds. The remaining records fail.", self, timeout)
            self._sender.initiate_close(force=True)
            self._loop.join(_FORCED_CLOSE_TIMEOUT_MS)

    def metrics(self) -> dict[str, float]:
        """Return the values of all metrics by their names in the Java producer.

        Example:

            for name, value in producer.metrics().items():
                print(name, value)
        """
        return self._metrics.read_all(self._system.now())

    def metric(self, name: str) -> float:
        """Return the value of one metric, which is much faster than metrics(). Raise KeyError for an unknown name.

        Example:

            print(producer.metric("buffer-available-bytes"))
        """
        return self._metrics.read(name, self._system.now())

    def totals(self) -> Totals:
        """Return the totals of acknowledged, retried and failed records and the latencies; see docs/metrics.md.

        Example:

            totals = producer.totals()
            print(totals.records, "acknowledged", totals.errors, "failed")
        """
        return self._metrics.totals(self._system.now())

    def _await_topic(self, topic: str, now_ms: float, partition: int | None = None) -> ClusterSnapshot:
        """Return metadata with the topic's partitions, including `partition` unless it is None.

        Wait until max.block.ms after `now_ms`. Raise the errors of TopicMetadataWaiter.await_partitions.
        """
        try:
            return self._topic_waiter.await_partitions(topic, now_ms, partition)
        except ProducerClosedError:
            # Replace the waiter's error, which does not say why the producer has ended.
            closed_error = self._build_closed_error()
            raise closed_error from closed_error.__cause__
