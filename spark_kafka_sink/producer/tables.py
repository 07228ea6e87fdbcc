"""send_table(): an Arrow table or stream, batch by batch through send_columns(), with one result for all of it.

    table  ->  batches as they come  ->  slices  ->  columns, by topic  ->  send_columns  ->  TableResult

Results are summed up as they come (`columns_writer.py`): what was written by partition, and the failed rows by their
positions in the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.diagnostics.text import sanitize
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
from spark_kafka_sink.producer.table_types import decoded_nbytes
from spark_kafka_sink.records.topic_rows import TopicRows

MAX_SLICE_ROWS = 50_000
_BYTES_AT_ONCE = 16 << 20


@dataclass(eq=False)
class TableResult:
    """The rows of one send_table() that were written, by topic and partition, and those that failed.

    Example:

        orders = pa.table({"key": ["o-1", "o-2"], "value": ["12.50", "8.00"]})
        result = producer.send_table("orders", orders)
        for failure in result.failures:
            print(orders.take(failure.rows), failure.error)
    """

    rows_written: int = 0
    rows_failed: int = 0
    partitions: dict[str, dict[int, OffsetRange]] = field(default_factory=dict)
    """Offsets of the written rows, by topic and partition."""
    failures: list[FailedRows] = field(default_factory=list)
    is_complete: bool = True
    """False: reading stopped early, because more than failed_rows_max rows had failed or because of an exception."""

    @property
    def rows_processed(self) -> int:
        """Rows with an outcome, which are the first ones of the table; those from this position on were not sent."""
        return self.rows_written + self.rows_failed

    def __repr__(self) -> str:
        end = "" if self.is_complete else ", not all rows read"
        return f"TableResult({self.rows_written} rows written, {self.rows_failed} failed{end})"

    def raise_for_failures(self) -> None:
        """Raise DeliveryError, with the first failure as its cause, if any row was not written."""
        if not self.failures:
            if self.is_complete:
                return
            raise DeliveryError(f"Only the first {self.rows_written} rows were read and written.")
        first = min(self.failures, key=lambda failure: int(failure.rows[0]))
        rest = "" if self.is_complete else " The rows behind them were not read."
        raise DeliveryError(
            f"{self.rows_failed} of {self.rows_processed} rows were not written. The first of them is "
            f"row {int(first.rows[0])}: {first.error}{rest}"
        ) from first.error


class _TableIndices(NamedTuple):
    """The row indices in the table of the rows of one call: those in their batch, whose first row is row `first`."""

    first: int
    batch_indices: NDArray[np.int64] | None
    """None if all rows of the batch are in the call."""

    def of(self, call_indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert row indices in the call to row indices in the table."""
        return self.first + (call_indices if self.batch_indices is None else self.batch_indices[call_indices])


def open_table(table: Any) -> tuple[pa.RecordBatchReader, int | None]:
    """Return the batches of any object that exports Arrow data, and the number of rows if it is known."""
    objects = _polars_objects(table)
    if objects:
        raise InvalidRecordError(
            f"Column {sanitize(objects[0])} has polars' type Object: its values are Python objects, which Arrow does "
            "not know. Convert them to another type, or drop the column."
        )
    try:
        if isinstance(table, pa.RecordBatchReader):
            return table, None
        if hasattr(table, "__arrow_c_stream__"):
            reader, total = pa.RecordBatchReader.from_stream(table), getattr(table, "num_rows", None)
            return reader, total if isinstance(total, int) else _length(table)
        if hasattr(table, "__arrow_c_array__"):
            batch = pa.record_batch(table)
            return pa.RecordBatchReader.from_batches(batch.schema, [batch]), batch.num_rows
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = sanitize(". ".join(map(str, error.args))).removesuffix(".")
        raise InvalidRecordError(
            f"send_table() takes a table with named columns, and cannot read {_named(table)} as one: {reason}."
        ) from error
    raise InvalidRecordError(
        f"send_table() takes a table that exports Arrow columns (__arrow_c_stream__ or __arrow_c_array__), such as "
        f"those of pyarrow, polars, DuckDB and pandas, not {_named(table)}: {_remedy(table)}."
    )


def _polars_objects(table: Any) -> list[str]:
    """Name the columns of polars' type Object. Polars exports each value as 8 bytes: an address in this process."""
    if _named(table) != "polars.DataFrame":
        return []
    return [name for name, kind in table.schema.items() if str(kind) == "Object"]


def _length(table: Any) -> int | None:
    try:
        return len(table)
    except Exception:  # a foreign type; the number is for the progress bar alone
        return None


def _named(table: object) -> str:
    kind = type(table)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _remedy(table: object) -> str:
    return {
        "polars.LazyFrame": "write table.collect()",
        "_duckdb.DuckDBPyConnection": "write connection.sql(...), or .to_arrow_reader() of what execute() returns",
        "duckdb.DuckDBPyConnection": "write connection.sql(...), or .fetch_record_batch() of what execute() returns",
        "list": "write pa.Table.from_pylist(table)",
        "dict": "write pa.table(table)",
        "pyspark.DataFrame": 'write df.write.format("pykafka")',
    }.get(_named(table), "turn it into a pyarrow.Table first")


class TableSender:
    """Sends one table. `result` is what is known so far."""

    def __init__(self, producer: ColumnsProducer, plan: TablePlan, failed_rows_max: int) -> None:
        if isinstance(failed_rows_max, bool) or not isinstance(failed_rows_max, int) or failed_rows_max < 0:
            raise ConfigurationError([f"failed_rows_max must be a number of rows, 0 or more, not {failed_rows_max!r}."])
        self.result = TableResult()
        self._producer = producer
        self._conversion, columns = plan
        self._fixed_topic = columns.fixed_topic
        self._failed_rows_max = failed_rows_max
        self._writer: ColumnsWriter[_TableIndices] = ColumnsWriter(producer, columns)
        self._written = OffsetRangeCollector()
        self._seen = 0
        self._unreachable: dict[str, KafkaSinkError] = {}
        """Topics that could not be written to. Their rows fail without another wait until the topic is known."""

    def steps(self, reader: pa.RecordBatchReader) -> Iterator[int]:
        """Send the next rows; yield how many rows were answered. Ends when all have been.

        An exception, of the reader for example, is raised when all rows that were sent have their outcome. Its
        attribute `table_result` is the result.
        """
        try:
            for batch in _slices(reader):
                self._send(batch, self._seen)
                self._seen += batch.num_rows
                yield sum(self._count(*collected) for collected in self._writer.collect_results())
                if self._has_too_many_failures:
                    self.result.is_complete = False
                    break
            yield from self._collect_all()
        except Exception as error:
            yield from self._collect_all()
            self.result.is_complete = False
            error.table_result = self.result  # type: ignore[attr-defined]
            raise

    @property
    def _is_first_call(self) -> bool:
        """Return whether no row has been sent or has failed yet."""
        return not self._writer.pending_calls and not self.result.rows_processed

    @property
    def _has_too_many_failures(self) -> bool:
        return self.result.rows_failed > self._failed_rows_max

    def _send(self, batch: pa.RecordBatch, first: int) -> None:
        """Send rows; halve those of which one has a value that cannot be written, until it fails alone."""
        if self._has_too_many_failures:
            return
        try:
            parts = list(self._writer.split(self._conversion.convert(batch)))
        except (InvalidRecordError, RecordTooLargeError) as error:
            half = batch.num_rows // 2
            if half:
                self._send(batch.slice(0, half), first)
                self._send(batch.slice(half), first + half)
            else:
                self._add_failure(FailedRows(np.array([first]), error, self._fixed_topic))
        except DataError as error:  # of a column's type, so it holds for each row
            if self._is_first_call:
                raise
            rows = np.arange(first, first + batch.num_rows)
            self._add_failure(FailedRows(rows, error, self._fixed_topic))
        else:
            self._send_parts(parts, first)

    def _send_parts(self, parts: Sequence[TopicRows], first: int) -> None:
        unsent = deque(parts)
        try:
            while unsent:
                self._send_part(unsent[0], first)
                unsent.popleft()
        except KafkaSinkError as error:
            for part in unsent:
                self._fail_rows(part, first, error)
            raise

    def _send_part(self, part: TopicRows, first: int) -> None:
        """Send rows, or fail them. An error that is raised ends the call: no row behind these could be written."""
        topic = part.topic
        if topic is None:
            self._fail_rows(part, first, InvalidRecordError("The row has no topic: its column 'topic' is null."))
        elif self._is_unreachable(topic):
            self._fail_rows(part, first, self._unreachable[topic])
        else:
            try:
                indices = part.batch_indices
                self._writer.send(part, _TableIndices(first, indices), 0 if indices is None else indices.nbytes)
            except (IllegalStateError, ProducerClosedError, ProducerFencedError, TransactionError):
                raise
            except KafkaSinkError as error:
                if self._fixed_topic is not None and self._is_first_call:
                    raise  # most likely a wrong name
                self._unreachable[topic] = error
                self._fail_rows(part, first, error)

    def _is_unreachable(self, topic: str) -> bool:
        """Return whether an earlier call for the topic failed and its partitions are still unknown."""
        if topic in self._unreachable and not self._producer.prefetch_topics([topic]):
            del self._unreachable[topic]
        return topic in self._unreachable

    def _fail_rows(self, part: TopicRows, first: int, error: KafkaSinkError) -> None:
        table_indices = _TableIndices(first, part.batch_indices).of(np.arange(part.columns.num_rows))
        self._add_failure(FailedRows(table_indices, error, part.topic))

    def _add_failure(self, failure: FailedRows) -> None:
        self.result.failures.append(failure)
        self.result.rows_failed += len(failure.rows)

    def _collect_all(self) -> Iterator[int]:
        for collected in self._writer.collect_all_results():
            yield self._count(*collected)
        self.result.partitions = self._written.by_topic()

    def _count(self, table_indices: _TableIndices, result: ColumnsResult) -> int:
        """Add the result of a call to that of the table. Returns the number of its rows."""
        self._written.add(result)
        self.result.rows_written += result.rows_written
        for failure in result.failures:
            self._add_failure(replace(failure, rows=table_indices.of(failure.rows)))
        return result.rows_written + result.rows_failed


def _slices(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        bytes_per_row = max(1, batch.nbytes // max(1, batch.num_rows))
        rows = max(1, min(MAX_SLICE_ROWS, _BYTES_AT_ONCE // bytes_per_row))
        for start in range(0, batch.num_rows, rows):
            yield from _split_decoded(batch.slice(start, rows))


def _split_decoded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve rows whose dictionaries would be too large once decoded: a word stands in the batch once for all rows."""
    half = batch.num_rows // 2
    if half and sum(map(decoded_nbytes, batch.columns)) > _BYTES_AT_ONCE:
        yield from _split_decoded(batch.slice(0, half))
        yield from _split_decoded(batch.slice(half))
    else:
        yield batch
