"""TableSender: sends an Arrow table or stream through send_columns(), with a single TableResult for all rows.

    table  ->  record batches of limited size  ->  columns of one topic  ->  send_columns()  ->  TableResult

Results are collected while the table is being read, so that they do not accumulate (columns_writer.py).

A send_columns() call gets the rows of one batch that go to one topic. So there are three kinds of row indices: in the
table, in a batch, and in a call. Failures are reported with row indices in the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.diagnostics.text import format_count, sanitize
from spark_kafka_sink.errors import (
    ConfigurationError,
    DataError,
    DeliveryError,
    IllegalStateError,
    InvalidRecordError,
    KafkaSinkError,
    ProducerClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionError,
)
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.columns_writer import ColumnsProducer, ColumnsWriter
from spark_kafka_sink.producer.results import ColumnsResult, OffsetRange, OffsetRangeCollector
from spark_kafka_sink.producer.table_plan import TablePlan
from spark_kafka_sink.producer.table_types import compute_decoded_nbytes
from spark_kafka_sink.records.topic_rows import TopicRows

# Batches of this size are large enough for fast encoding, and small enough that only little memory is in use at once.
MAX_BATCH_ROWS = 50_000
MAX_BATCH_BYTES = 16 << 20


@dataclass(eq=False)
class TableResult:
    """The result of a send_table() call: the written rows by topic and partition, and the failed rows.

    Example:

        orders = pa.table({"key": ["o-1", "o-2"], "value": ["12.50", "8.00"]})
        result = producer.send_table("orders", orders)
        for failure in result.failures:
            print(orders.take(failure.row_indices), failure.error)
    """

    rows_written: int = 0
    rows_failed: int = 0
    partitions: dict[str, dict[int, OffsetRange]] = field(default_factory=dict)
    """Offsets of the written rows, by topic and partition."""
    failures: list[FailedRows] = field(default_factory=list)
    is_complete: bool = True
    """Whether all rows were read. Reading stops if more than `max_failed_rows` rows fail, or if an exception occurs."""

    @property
    def rows_processed(self) -> int:
        """Number of rows that were written or have failed.

        Rows are sent in the order of the table. So the rows from this index on were not sent, unless a
        KeyboardInterrupt ended the call.
        """
        return self.rows_written + self.rows_failed

    def __repr__(self) -> str:
        end = "" if self.is_complete else ", not all rows read"
        return f"TableResult({format_count(self.rows_written, 'row')} written, {self.rows_failed:,} failed{end})"

    def raise_for_failures(self) -> None:
        """Raise DeliveryError if a row was not written. Its cause is the error of the first failed row, if any."""
        if self.failures:
            raise build_failures_error(self)
        if not self.is_complete:
            raise DeliveryError(f"Only the first {self.rows_written} rows were read and written.")


def build_failures_error(result: TableResult, *, row_noun: str = "row", first_number: int = 0) -> DeliveryError:
    """Build the error of a result that has failures. Its cause is the error of the first failed row.

    `row_noun`: what the message calls a row. `first_number`: the number of the table's first row in the message.
    """
    first_failure = min(result.failures, key=lambda failure: int(failure.row_indices[0]))
    unread_rows_note = "" if result.is_complete else f" The {row_noun}s after them were not read."
    error = DeliveryError(
        f"{result.rows_failed} of {result.rows_processed} {row_noun}s were not written. The first of them is "
        f"{row_noun} {first_number + int(first_failure.row_indices[0])}: {first_failure.error}{unread_rows_note}"
    )
    error.__cause__ = first_failure.error
    return error


class _CallRowPositions(NamedTuple):
    """The positions in the table of the rows of one send_columns() call."""

    batch_start: int
    """The index in the table of the first row of the batch."""
    batch_indices: NDArray[np.int64] | None
    """For each row of the call, its index in the batch; None if the call sends all rows of the batch."""

    def to_table_indices(self, call_indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert row indices in the call to row indices in the table."""
        return self.batch_start + (call_indices if self.batch_indices is None else self.batch_indices[call_indices])


def open_table(table: Any) -> tuple[pa.RecordBatchReader, int | None]:
    """Open an object that exports Arrow data. Return a reader of its rows, and the number of rows; None if unknown.

    Raise InvalidRecordError if the object does not export a table with named columns.
    """
    _reject_polars_object_columns(table)
    try:
        if isinstance(table, pa.RecordBatchReader):
            return table, None
        if hasattr(table, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(table), _find_row_count(table)
        if hasattr(table, "__arrow_c_array__"):
            batch = pa.record_batch(table)
            return pa.RecordBatchReader.from_batches(batch.schema, [batch]), batch.num_rows
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = sanitize(". ".join(map(str, error.args))).removesuffix(".")
        raise InvalidRecordError(
            f"send_table() cannot read {_format_type(table)} as a table with named columns: {reason}."
        ) from error
    raise InvalidRecordError(
        f"send_table() cannot read {_format_type(table)}: it does not export Arrow columns (__arrow_c_stream__ or "
        "__arrow_c_array__), as tables of pyarrow, polars, DuckDB and pandas do. To send it, "
        f"{_describe_conversion_remedy(table)}."
    )


def _reject_polars_object_columns(table: Any) -> None:
    """Raise InvalidRecordError if a polars DataFrame has a column of the type Object.

    Polars exports each value of such a column as 8 bytes, which are only a memory address in this process.
    """
    if _format_type(table) != "polars.DataFrame":
        return
    for name, data_type in table.schema.items():
        if str(data_type) == "Object":
            raise InvalidRecordError(
                f"Column {sanitize(name)} has polars' type Object: its values are Python objects, which Arrow does not "
                "know. Convert them to another type, or drop the column."
            )


def _find_row_count(table: Any) -> int | None:
    """Return the number of rows of a table, for the progress bar, or None if it is unknown.

    len() is called only for tables in memory. For a DuckDB relation it would run the query, and with DuckDB 1, a stream
    that was opened before would then end without rows.
    """
    row_count = getattr(table, "num_rows", None)
    if isinstance(row_count, int):
        return row_count
    return len(table) if _format_type(table) in ("polars.DataFrame", "pandas.DataFrame") else None


def _format_type(table: object) -> str:
    """Return the class name of an object, with its top-level package unless it is a built-in."""
    cls = type(table)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__.partition('.')[0]}.{cls.__name__}"


def _describe_conversion_remedy(table: object) -> str:
    """Return advice on how to convert an object to a table, for the end of an error message."""
    return {
        "polars.LazyFrame": "write table.collect()",
        "_duckdb.DuckDBPyConnection": "write connection.sql(...), or .to_arrow_reader() of what execute() returns",
        "duckdb.DuckDBPyConnection": "write connection.sql(...), or .fetch_record_batch() of what execute() returns",
        "list": "write pa.Table.from_pylist(table)",
        "dict": "write pa.table(table)",
        "pyspark.DataFrame": 'write df.write.format("pykafka")',
    }.get(_format_type(table), "convert it to a pyarrow.Table first")


class TableSender:
    """Sends one table and updates `result` while doing so."""

    def __init__(
        self,
        producer: ColumnsProducer,
        plan: TablePlan,
        max_failed_rows: int,
        on_unsent_rows: Callable[[KafkaSinkError], None] | None = None,
    ) -> None:
        """Create a sender for one table.

        `plan`: determines how the columns of the table become records.
        `max_failed_rows`: how many failed rows to tolerate. Sending stops once more rows have failed.
        `on_unsent_rows`: called with the error of rows that cannot be sent, so that the producer can prevent the commit
        of their transaction. If it raises an exception, sending stops, and the exception propagates.

        Raise ConfigurationError if `max_failed_rows` is negative or not an integer.
        """
        _check_max_failed_rows(max_failed_rows)
        self.result = TableResult()
        self._producer = producer
        self._on_unsent_rows = on_unsent_rows
        self._conversion = plan.conversion
        self._fixed_topic = plan.columns.fixed_topic
        self._max_failed_rows = max_failed_rows
        self._writer: ColumnsWriter[_CallRowPositions] = ColumnsWriter(producer, plan.columns)
        self._written_offsets = OffsetRangeCollector()
        self._rows_read = 0
        self._errors_by_unavailable_topic: dict[str, KafkaSinkError] = {}
        """The error of each topic's last send_columns() call, if that call failed, usually for lack of metadata.

        Until the topic's metadata arrives, further rows for the topic fail immediately with this error. Otherwise, each
        call would wait max.block.ms for the metadata.
        """

    def send_batches(self, reader: pa.RecordBatchReader) -> Iterator[int]:
        """Send the rows of a reader in batches of limited size. After each batch, yield how many rows were completed.

        A row is completed when it is written or has failed. The iterator ends when all rows are completed. If reading
        or sending raises an exception, wait until all rows that were sent are completed, attach the result to the
        exception as `table_result`, and raise it again. If the caller stops iterating, no more rows are sent, and
        `result` does not cover rows that are still pending.
        """
        try:
            for batch in _split_batches(reader):
                self._send_batch(batch, self._rows_read)
                self._rows_read += batch.num_rows
                completed_count = 0
                for row_positions, call_result in self._writer.collect_results():
                    completed_count += self._add_call_result(row_positions, call_result)
                yield completed_count
                if self._has_too_many_failures:
                    self.result.is_complete = False
                    break
            yield from self._collect_all()
        except Exception as error:  # not BaseException: after a KeyboardInterrupt, the user does not want to wait
            yield from self._collect_all()
            self.attach_result(error)
            raise

    def attach_result(self, error: BaseException) -> None:
        """Set the attribute `table_result` of an error to the result of all rows that are completed so far."""
        self.result.is_complete = False
        self.result.partitions = self._written_offsets.by_topic()
        error.table_result = self.result  # type: ignore[attr-defined]

    @property
    def _is_first_call(self) -> bool:
        """Whether no row was sent or has failed yet."""
        return not self._writer.pending_call_count and not self.result.rows_processed

    @property
    def _has_too_many_failures(self) -> bool:
        """Whether more rows have failed than the caller tolerates, so that sending must stop."""
        return self.result.rows_failed > self._max_failed_rows

    def _send_batch(self, batch: pa.RecordBatch, batch_start: int) -> None:
        """Send the rows of a batch, or fail those that cannot be sent.

        If a value cannot be converted or encoded, halve the batch repeatedly, so that only the row with this value
        fails.

        `batch_start`: the index in the table of the batch's first row.
        """
        if self._has_too_many_failures:  # reached while a batch was being halved
            return
        try:
            topic_rows = list(self._writer.split(self._conversion.convert(batch)))
        except (InvalidRecordError, RecordTooLargeError) as error:
            half_rows = batch.num_rows // 2
            if half_rows:
                self._send_batch(batch.slice(0, half_rows), batch_start)
                self._send_batch(batch.slice(half_rows), batch_start + half_rows)
            else:
                self._add_unsent_rows(FailedRows(np.array([batch_start]), error, self._fixed_topic))
        except DataError as error:  # the type of a column is wrong, so every row of the batch fails
            if self._is_first_call:  # no row was written, so the error itself is the result
                raise
            table_indices = np.arange(batch_start, batch_start + batch.num_rows)
            self._add_unsent_rows(FailedRows(table_indices, error, self._fixed_topic))
        else:
            self._send_all_topics(topic_rows, batch_start)

    def _send_all_topics(self, topic_rows: Sequence[TopicRows], batch_start: int) -> None:
        """Send the rows of a batch, topic by topic.

        An error of `_send_topic_rows` ends the send_table() call. In that case, fail the rows that were not sent, and
        raise the error.
        """
        unsent_rows = deque(topic_rows)
        try:
            while unsent_rows:
                self._send_topic_rows(unsent_rows[0], batch_start)
                unsent_rows.popleft()
        except KafkaSinkError as error:
            for rows in unsent_rows:
                self._fail_rows(rows, batch_start, error)
            raise

    def _send_topic_rows(self, rows: TopicRows, batch_start: int) -> None:
        """Send the rows of one topic, or fail them if they cannot be sent.

        Raise an error only if it means that no other row of the table could be written either.
        """
        topic = rows.topic
        if topic is None:
            error = InvalidRecordError("The row has no topic: its column 'topic' is null.")
            self._add_unsent_rows(_build_failure(rows, batch_start, error))
        elif self._recheck_unavailable_topic(topic):
            self._fail_rows(rows, batch_start, self._errors_by_unavailable_topic[topic])
        else:
            try:
                batch_indices = rows.batch_indices
                context_bytes = 0 if batch_indices is None else batch_indices.nbytes
                self._writer.send(rows, _CallRowPositions(batch_start, batch_indices), context_bytes)
            except (IllegalStateError, ProducerClosedError, ProducerFencedError, TransactionError):
                raise  # the producer or its transaction is the cause, so all other rows would fail, too
            except KafkaSinkError as error:
                if self._fixed_topic is not None and self._is_first_call:
                    raise  # the table's only topic has failed before any row was sent, so its name is probably wrong
                self._errors_by_unavailable_topic[topic] = error
                self._fail_rows(rows, batch_start, error)

    def _recheck_unavailable_topic(self, topic: str) -> bool:
        """Return whether a call for the topic has failed and the topic's partitions are still unknown.

        If so, request the topic's metadata again. Otherwise, forget the error of the earlier call, if any.
        """
        if topic not in self._errors_by_unavailable_topic:
            return False
        unknown_topics = self._producer.prefetch_topics([topic])
        if not unknown_topics:
            del self._errors_by_unavailable_topic[topic]
        return bool(unknown_topics)

    def _fail_rows(self, rows: TopicRows, batch_start: int, error: KafkaSinkError) -> None:
        """Add rows as failed, because the producer has rejected a call with `error`.

        Unlike `_add_unsent_rows`, this does not call `on_unsent_rows`, because the rejected call has already prevented
        the commit of the transaction.
        """
        self._add_failure(_build_failure(rows, batch_start, error))

    def _add_unsent_rows(self, failure: FailedRows) -> None:
        """Add rows that have failed because they could not be converted to records.

        The producer has never seen these rows, so `on_unsent_rows` must prevent the commit of their transaction. If it
        raises an error, for example because the producer cannot send now, that error propagates.
        """
        if self._on_unsent_rows is not None:
            self._on_unsent_rows(failure.error)
        self._add_failure(failure)

    def _add_failure(self, failure: FailedRows) -> None:
        """Add failed rows to `result`. Their row indices must be those in the table."""
        self.result.failures.append(failure)
        self.result.rows_failed += len(failure.row_indices)

    def _collect_all(self) -> Iterator[int]:
        """Wait for all pending calls, yield the number of rows of each, and complete `result`."""
        for row_positions, call_result in self._writer.collect_all_results():
            yield self._add_call_result(row_positions, call_result)
        self.result.partitions = self._written_offsets.by_topic()

    def _add_call_result(self, row_positions: _CallRowPositions, call_result: ColumnsResult) -> int:
        """Add the result of a send_columns() call to `result`. Return the number of rows of the call."""
        self._written_offsets.add(call_result)
        self.result.rows_written += call_result.rows_written
        for failure in call_result.failures:
            self._add_failure(replace(failure, row_indices=row_positions.to_table_indices(failure.row_indices)))
        return call_result.rows_written + call_result.rows_failed


def _check_max_failed_rows(max_failed_rows: object) -> None:
    """Raise ConfigurationError if `max_failed_rows` is negative or not an integer."""
    if isinstance(max_failed_rows, bool) or not isinstance(max_failed_rows, int) or max_failed_rows < 0:
        raise ConfigurationError([f"max_failed_rows must be a number of rows, 0 or more, not {max_failed_rows!r}."])


def _build_failure(rows: TopicRows, batch_start: int, error: KafkaSinkError) -> FailedRows:
    """Build a failure that contains all of these rows of a batch, with their indices in the table.

    `batch_start`: the index in the table of the batch's first row.
    """
    call_indices = np.arange(rows.columns.num_rows)
    table_indices = _CallRowPositions(batch_start, rows.batch_indices).to_table_indices(call_indices)
    return FailedRows(table_indices, error, rows.topic)


def _split_batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a reader in batches of at most MAX_BATCH_ROWS rows and MAX_BATCH_BYTES bytes, or one row."""
    for batch in reader:
        for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
            yield from _split_by_decoded_size(batch.slice(start, MAX_BATCH_ROWS))


def _split_by_decoded_size(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in halves, quarters, ... that have at most MAX_BATCH_BYTES when they are decoded, or a single row.

    A dictionary stores each value once. When it is decoded, the value is copied to every row that refers to it.
    """
    half_rows = batch.num_rows // 2
    decoded_bytes = sum(map(compute_decoded_nbytes, batch.columns))
    if half_rows and decoded_bytes > MAX_BATCH_BYTES:
        yield from _split_by_decoded_size(batch.slice(0, half_rows))
        yield from _split_by_decoded_size(batch.slice(half_rows))
    else:
        yield batch
