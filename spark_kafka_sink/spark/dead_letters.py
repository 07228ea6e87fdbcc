"""Dead letters: the records that a job writes to its dead-letter topic instead of failing the task.

A dead letter has the key, value and headers of the failed record, plus headers that name the record's destination and
the error. The record's timestamp becomes a header, because it may be the reason why the broker rejected the record. A
record that is too large for its topic is often too large for the dead-letter topic as well. Its key and value are then
truncated, and a header contains the value's original size. All functions work on columns, because a single bad job may
have millions of bad rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import BrokerError, KafkaSinkError
from spark_kafka_sink.records.byte_column import to_binary
from spark_kafka_sink.records.columns import RecordColumns, combine_chunks
from spark_kafka_sink.records.header_column import append_headers, read_header_column
from spark_kafka_sink.spark.options.names import add_kafka_prefix

MAX_TRUNCATED_BYTES = 64 * 1024
"""Size to which the key and the value of a dead letter that is too large are truncated."""
_MAX_MESSAGE_CHARACTERS = 1_000

# Keys of the headers, which programs that read dead letters depend on.
TOPIC_HEADER = "pykafka.topic"
PARTITION_HEADER = "pykafka.partition"
TIMESTAMP_HEADER = "pykafka.timestamp"
ERROR_HEADER = "pykafka.error"
MESSAGE_HEADER = "pykafka.message"
BATCH_HEADER = "pykafka.batch"
VALUE_BYTES_HEADER = "pykafka.value.bytes"


def build_dead_letters(
    columns: RecordColumns, *, topic: str | None, partition: int | pa.Array | None, error: KafkaSinkError, batch: str
) -> RecordColumns:
    """Build the dead letters for failed records, one for each record in the same order.

    `topic`: the records' topic; None if they have none.
    `partition`: the records' partition; an array if it is not the same for all records, None if it is unknown.
    `error`: the error with which all of the records failed.
    `batch`: the batch's name in reports.
    """
    row_count = columns.num_rows
    error_name = error.name if isinstance(error, BrokerError) else type(error).__name__
    new_headers: dict[str, pa.Array] = {
        TOPIC_HEADER: _repeat(topic, row_count),
        PARTITION_HEADER: (
            _numbers_to_bytes(partition) if isinstance(partition, pa.Array) else _repeat(partition, row_count)
        ),
        ERROR_HEADER: _repeat(error_name, row_count),
        MESSAGE_HEADER: _repeat(add_kafka_prefix(error.reason)[:_MAX_MESSAGE_CHARACTERS], row_count),
        BATCH_HEADER: _repeat(batch, row_count),
    }
    if columns.timestamp is not None:
        new_headers[TIMESTAMP_HEADER] = _numbers_to_bytes(combine_chunks(columns.timestamp))
    return RecordColumns(
        value=columns.value, key=columns.key, headers=_append_headers(columns.headers, new_headers, row_count)
    )


def truncate_dead_letters(dead_letters: RecordColumns) -> RecordColumns:
    """Truncate each dead letter's key and value to MAX_TRUNCATED_BYTES, and add a header with the value's size."""
    value = combine_chunks(dead_letters.value).cast(pa.large_binary())
    value_bytes = _numbers_to_bytes(pc.binary_length(value))
    key = (
        None if dead_letters.key is None else _truncate_column(combine_chunks(dead_letters.key).cast(pa.large_binary()))
    )
    headers = _append_headers(dead_letters.headers, {VALUE_BYTES_HEADER: value_bytes}, dead_letters.num_rows)
    return RecordColumns(value=_truncate_column(value), key=key, headers=headers)


def _truncate_column(column: pa.Array) -> pa.Array:
    return pc.binary_slice(column, start=0, stop=MAX_TRUNCATED_BYTES)


def _repeat(value: str | int | None, row_count: int) -> pa.Array:
    """Return a binary array with the same text in each row, or with nulls if the value is None."""
    return pa.repeat(pa.scalar(None if value is None else str(value).encode(), pa.binary()), row_count)


def _numbers_to_bytes(column: pa.Array) -> pa.Array:
    """Convert each number in the column to its decimal digits."""
    return column.cast(pa.string()).cast(pa.binary())


def _append_headers(
    headers: pa.Array | pa.ChunkedArray | None, new_headers: Mapping[str, pa.Array], row_count: int
) -> pa.Array:
    """Append new headers to the original headers of each record.

    `new_headers`: the values of each new header, one for each record, by header key.
    """
    original_headers = None
    if headers is not None:
        original_headers = read_header_column(combine_chunks(headers))
        # Unlike a cast to string, a view accepts keys that are not UTF-8.
        keys = to_binary(original_headers.keys).view(pa.string())
        # The record may have failed because a header has no key. Such a header gets an empty key in the dead letter,
        # which would otherwise fail for the same reason.
        original_headers = replace(original_headers, keys=keys.fill_null(""), present_mask=None)
    return append_headers(original_headers, new_headers, row_count)
