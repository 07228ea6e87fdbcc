"""send_table(): an Arrow table or stream, batch by batch through send_columns(), with one result for all of it.

    table  ->  batches as they come  ->  slices  ->  columns, by topic  ->  send_columns  ->  TableResult

A bounded number of calls is unanswered at a time and buffer.memory bounds their bytes, so a stream may be endless.
What has been answered is added up: by partition, and the failed rows by their positions in the table.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
from spark_kafka_sink.network.system import OperatingSystem
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.futures import ColumnsFuture
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.table_plan import TablePlan
from spark_kafka_sink.producer.table_types import decoded_nbytes
from spark_kafka_sink.records.columns import LIKELY_SECONDS_MESSAGE, RecordColumns, find_likely_seconds
from spark_kafka_sink.records.topic_rows import TopicRows
from spark_kafka_sink.words import cleaned

_log = logging.getLogger(__name__)

CALLS_AHEAD_MAX = 64
ROWS_AT_ONCE = 50_000
_BYTES_AT_ONCE = 16 << 20


class Sends(Protocol):
    """What a table needs of a producer."""

    def send_columns(
        self, topic: str, columns: RecordColumns, partition: int | pa.Array | None = None
    ) -> ColumnsFuture: ...

    def prefetch_topics(self, topics: Iterable[str]) -> set[str]: ...

    def without_linger(self) -> AbstractContextManager[None]: ...


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
    """What was written, by topic and partition."""
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


class _Call(NamedTuple):
    future: ColumnsFuture
    topic: str
    first: int
    rows: NDArray[np.int64] | None


def opened(table: Any) -> tuple[pa.RecordBatchReader, int | None]:
    """The batches of whatever exports Arrow, and how many rows they have, if that is known."""
    objects = _polars_objects(table)
    if objects:
        raise InvalidRecordError(
            f"Column {cleaned(objects[0])} has polars' type Object: its values are Python objects, which Arrow does "
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
        reason = cleaned(". ".join(map(str, error.args))).removesuffix(".")
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

    def __init__(self, producer: Sends, plan: TablePlan, failed_rows_max: int) -> None:
        if isinstance(failed_rows_max, bool) or not isinstance(failed_rows_max, int) or failed_rows_max < 0:
            raise ConfigurationError([f"failed_rows_max must be a number of rows, 0 or more, not {failed_rows_max!r}."])
        self.result = TableResult()
        self._producer = producer
        self._plan = plan
        self._failed_rows_max = failed_rows_max
        self._calls: deque[_Call] = deque()
        self._seen = 0
        self._has_warned_of_seconds = False
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
                yield self._settle()
                if self._has_too_many_failures:
                    self.result.is_complete = False
                    break
            yield from self._settle_all()
        except Exception as error:
            yield from self._settle_all()
            self.result.is_complete = False
            error.table_result = self.result  # type: ignore[attr-defined]
            raise

    @property
    def _is_first_call(self) -> bool:
        """Return whether no row has been sent or has failed yet."""
        return not self._calls and not self.result.rows_processed

    @property
    def _has_too_many_failures(self) -> bool:
        return self.result.rows_failed > self._failed_rows_max

    def _send(self, batch: pa.RecordBatch, first: int) -> None:
        """Send rows; halve those of which one has a value that cannot be written, until it fails alone."""
        if self._has_too_many_failures:
            return
        try:
            parts = list(self._plan.rows(batch))
        except (InvalidRecordError, RecordTooLargeError) as error:
            half = batch.num_rows // 2
            if half:
                self._send(batch.slice(0, half), first)
                self._send(batch.slice(half), first + half)
            else:
                self._add_failure(FailedRows(np.array([first]), error, self._plan.fixed_topic))
            return
        except DataError as error:  # of a column's type, so it holds for each row
            if self._is_first_call:
                raise
            rows = np.arange(first, first + batch.num_rows)
            self._add_failure(FailedRows(rows, error, self._plan.fixed_topic))
            return
        self._warn_of_seconds(batch)
        self._request_topics(parts)
        self._send_parts(parts, first)

    def _warn_of_seconds(self, batch: pa.RecordBatch) -> None:
        if self._plan.timestamp is not None and not self._has_warned_of_seconds:
            seconds = find_likely_seconds(batch.column(self._plan.timestamp), OperatingSystem().wall_ms())
            if seconds is not None:
                self._has_warned_of_seconds = True
                _log.warning(LIKELY_SECONDS_MESSAGE, seconds)

    def _request_topics(self, parts: Sequence[TopicRows]) -> None:
        """Request the metadata of all topics at once. A topic that is known now can be written to again."""
        if len(parts) > 1 or self._unreachable:
            topics = {part.topic for part in parts if part.topic is not None}
            known = topics - self._producer.prefetch_topics(topics)
            for topic in self._unreachable.keys() & known:
                del self._unreachable[topic]

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
        elif topic in self._unreachable:
            self._fail_rows(part, first, self._unreachable[topic])
        else:
            partition = part.partition if part.partition is not None else self._plan.fixed_partition
            try:
                future = self._producer.send_columns(topic, part.columns, partition)
            except (IllegalStateError, ProducerClosedError, ProducerFencedError, TransactionError):
                raise
            except KafkaSinkError as error:
                if self._plan.fixed_topic is not None and self._is_first_call:
                    raise  # most likely a wrong name
                self._unreachable[topic] = error
                self._fail_rows(part, first, error)
            else:
                self._calls.append(_Call(future, topic, first, part.rows))

    def _fail_rows(self, part: TopicRows, first: int, error: KafkaSinkError) -> None:
        rows = np.arange(part.columns.num_rows) if part.rows is None else part.rows
        self._add_failure(FailedRows(first + rows, error, part.topic))

    def _add_failure(self, failure: FailedRows) -> None:
        self.result.failures.append(failure)
        self.result.rows_failed += len(failure.rows)

    def _settle(self) -> int:
        """Take the answers that have come. If too many calls are unanswered, wait for half of them."""
        unanswered_max = len(self._calls) if len(self._calls) <= CALLS_AHEAD_MAX else CALLS_AHEAD_MAX // 2
        answered = 0
        while self._calls and (self._calls[0].future.done() or len(self._calls) > unanswered_max):
            answered += self._settle_first()
        return answered

    def _settle_all(self) -> Iterator[int]:
        while self._calls:
            yield self._settle_first()

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
            self._add_failure(replace(failure, rows=call.first + rows))
        return outcome.rows_written + outcome.rows_failed


def _slices(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        bytes_per_row = max(1, batch.nbytes // max(1, batch.num_rows))
        rows = max(1, min(ROWS_AT_ONCE, _BYTES_AT_ONCE // bytes_per_row))
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
