"""send_table(): an Arrow table or stream, batch by batch through send_columns(), with one result for all of it.

    table  ->  batches as they come  ->  slices  ->  columns, by topic  ->  send_columns  ->  TableResult

A bounded number of calls is unanswered at a time and buffer.memory bounds their bytes, so a stream may be endless.
What has been answered is added up: by partition, and the failed rows by their positions in the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.errors import (
    DeliveryError,
    IllegalStateError,
    InvalidRecordError,
    KafkaSinkError,
    ProducerClosedError,
)
from spark_kafka_sink.producer.futures import ColumnsFuture
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.table_plan import TablePlan
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.topic_rows import TopicRows

CALLS_AHEAD_MAX = 64
ROWS_AT_ONCE = 50_000
_BYTES_AT_ONCE = 16 << 20


class Sends(Protocol):
    """What a table needs of a producer."""

    def send_columns(
        self, topic: str, columns: RecordColumns, partition: int | pa.Array | None = None
    ) -> ColumnsFuture: ...

    def without_linger(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True, eq=False)
class TableFailure:
    """Rows that were not written, by their positions in the table (`table.take(failure.rows)`), and why."""

    rows: NDArray[np.int64]
    topic: str | None
    partition: int | None
    error: KafkaSinkError


@dataclass(eq=False)
class TableResult:
    """What became of the rows of one send_table()."""

    rows_written: int = 0
    rows_failed: int = 0
    partitions: dict[str, dict[int, OffsetRange]] = field(default_factory=dict)
    """What was written, by topic and partition."""
    failures: list[TableFailure] = field(default_factory=list)
    is_complete: bool = True
    """False: more than failed_rows_max rows had failed, and what came behind them was not read."""

    def __repr__(self) -> str:
        end = "" if self.is_complete else ", not all rows read"
        return f"TableResult({self.rows_written} rows written, {self.rows_failed} failed{end})"

    def raise_for_failures(self) -> None:
        """Raise DeliveryError, with the first failure as its cause, if any row was not written."""
        if not self.failures:
            return
        first = min(self.failures, key=lambda failure: int(failure.rows[0]))
        rest = "" if self.is_complete else " The rows behind them were not read."
        raise DeliveryError(
            f"{self.rows_failed} of {self.rows_written + self.rows_failed} rows were not written. The first of them is "
            f"row {int(first.rows[0])}: {first.error}{rest}"
        ) from first.error


class _Call(NamedTuple):
    future: ColumnsFuture
    topic: str
    first: int
    rows: NDArray[np.int64] | None


def opened(table: Any) -> tuple[pa.RecordBatchReader, int | None]:
    """The batches of whatever exports Arrow, and how many rows they have, if that is known."""
    try:
        if isinstance(table, pa.RecordBatchReader):
            return table, None
        if hasattr(table, "__arrow_c_stream__"):
            reader, total = pa.RecordBatchReader.from_stream(table), getattr(table, "num_rows", None)
            return reader, total if isinstance(total, int) else _length(table)
        if hasattr(table, "__arrow_c_array__"):
            batch = pa.record_batch(table)
            return pa.RecordBatchReader.from_batches(batch.schema, [batch]), batch.num_rows
    except (pa.ArrowInvalid, TypeError, ValueError) as error:
        raise InvalidRecordError(f"send_table() takes a table with named columns; {_named(table)} has none.") from error
    raise InvalidRecordError(
        f"send_table() takes a table that exports Arrow columns (__arrow_c_stream__ or __arrow_c_array__), such as "
        f"those of pyarrow, polars, DuckDB and pandas, not {_named(table)}: {_remedy(table)}."
    )


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

    def __init__(self, producer: Sends, plan: TablePlan, failed_rows_max: int) -> None:
        self.result = TableResult()
        self._producer = producer
        self._plan = plan
        self._failed_rows_max = failed_rows_max
        self._calls: deque[_Call] = deque()
        self._seen = 0
        self._unreachable: dict[str, KafkaSinkError] = {}
        """Topics that could not be written to: max.block.ms is waited for once."""

    def steps(self, reader: pa.RecordBatchReader) -> Iterator[int]:
        """Send the next rows; yield how many rows were answered. Ends when all have been."""
        for batch in _slices(reader):
            self._send(batch)
            yield self._settle()
            if self.result.rows_failed > self._failed_rows_max:
                self.result.is_complete = False
                break
        while self._calls:
            yield self._settle_first()

    def _send(self, batch: pa.RecordBatch) -> None:
        first, self._seen = self._seen, self._seen + batch.num_rows
        try:
            parts = list(self._plan.rows(batch))
        except KafkaSinkError as error:
            raise type(error)(f"Rows {first} to {self._seen - 1} of the table: {error}") from error
        for part in parts:
            self._send_part(part, first)

    def _send_part(self, part: TopicRows, first: int) -> None:
        topic = part.topic
        if topic is None:
            self._failed(part, first, InvalidRecordError("The row has no topic: its column 'topic' is null."))
        elif topic in self._unreachable:
            self._failed(part, first, self._unreachable[topic])
        else:
            partition = part.partition if part.partition is not None else self._plan.fixed_partition
            try:
                future = self._producer.send_columns(topic, part.columns, partition)
            except (IllegalStateError, ProducerClosedError):
                raise
            except KafkaSinkError as error:
                if isinstance(self._plan.topic, str):  # no row could be written
                    raise
                self._unreachable[topic] = error
                self._failed(part, first, error)
            else:
                self._calls.append(_Call(future, topic, first, part.rows))

    def _failed(self, part: TopicRows, first: int, error: KafkaSinkError) -> None:
        rows = np.arange(part.columns.num_rows) if part.rows is None else part.rows
        self._add_failure(TableFailure(first + rows, part.topic, None, error))

    def _add_failure(self, failure: TableFailure) -> None:
        self.result.failures.append(failure)
        self.result.rows_failed += len(failure.rows)

    def _settle(self) -> int:
        """Take the answers that have come. If too many calls are unanswered, wait for half of them."""
        unanswered_max = len(self._calls) if len(self._calls) <= CALLS_AHEAD_MAX else CALLS_AHEAD_MAX // 2
        answered = 0
        while self._calls and (self._calls[0].future.done() or len(self._calls) > unanswered_max):
            answered += self._settle_first()
        return answered

    def _settle_first(self) -> int:
        call = self._calls.popleft()
        with self._producer.without_linger() if not call.future.done() else nullcontext():
            outcome = call.future.result()
        written: Mapping[int, OffsetRange] = outcome.partitions
        offsets = self.result.partitions.setdefault(call.topic, {}) if written else {}
        for partition, added in written.items():
            offsets[partition] = offsets[partition] + added if partition in offsets else added
        self.result.rows_written += outcome.rows_written
        for failure in outcome.failures:
            rows = failure.rows if call.rows is None else call.rows[failure.rows]
            self._add_failure(TableFailure(call.first + rows, call.topic, failure.partition, failure.error))
        return outcome.rows_written + outcome.rows_failed


def _slices(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        bytes_per_row = max(1, batch.nbytes // max(1, batch.num_rows))
        rows = max(1, min(ROWS_AT_ONCE, _BYTES_AT_ONCE // bytes_per_row))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
