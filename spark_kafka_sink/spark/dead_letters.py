"""Dead letters: the records that a job writes to its dead-letter topic instead of failing the task.

A dead letter has the key, value and headers of the failed record, and additional headers that name its destination and
the error. The timestamp of the record becomes a header, because the broker may have rejected the record for its
timestamp. A record that is too large for its topic is often too large for the dead-letter topic, too. Its key and value
are then truncated, and a header holds the original size of the value. All functions work on columns, since one bad job
may have millions of bad rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import BrokerError, KafkaSinkError
from spark_kafka_sink.records.columns import RecordColumns, combine_chunks
from spark_kafka_sink.records.header_column import read_header_column

MAX_TRUNCATED_BYTES = 64 * 1024
_MAX_MESSAGE_CHARACTERS = 1_000

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
    """Build the dead letters of failed records.

    `topic` and `partition` are the destination of the records. `partition` is an array if the records differ in it.
    """
    num_rows = columns.num_rows
    error_name = error.name if isinstance(error, BrokerError) else type(error).__name__
    added: dict[str, pa.Array] = {
        TOPIC_HEADER: _repeat(topic, num_rows),
        PARTITION_HEADER: (
            _numbers_to_bytes(partition) if isinstance(partition, pa.Array) else _repeat(partition, num_rows)
        ),
        ERROR_HEADER: _repeat(error_name, num_rows),
        MESSAGE_HEADER: _repeat(str(error)[:_MAX_MESSAGE_CHARACTERS], num_rows),
        BATCH_HEADER: _repeat(batch, num_rows),
    }
    if columns.timestamp is not None:
        added[TIMESTAMP_HEADER] = _numbers_to_bytes(combine_chunks(columns.timestamp))
    return RecordColumns(
        value=columns.value, key=columns.key, headers=_append_headers(columns.headers, added, num_rows)
    )


def truncate(letters: RecordColumns) -> RecordColumns:
    """Truncate the key and the value of each dead letter to MAX_TRUNCATED_BYTES, and add the size of the value."""
    value = combine_chunks(letters.value).cast(pa.large_binary())
    value_bytes = _numbers_to_bytes(pc.binary_length(value))
    key = None if letters.key is None else _truncate_column(combine_chunks(letters.key).cast(pa.large_binary()))
    headers = _append_headers(letters.headers, {VALUE_BYTES_HEADER: value_bytes}, letters.num_rows)
    return RecordColumns(value=_truncate_column(value), key=key, headers=headers)


def _truncate_column(column: pa.Array) -> pa.Array:
    return pc.binary_slice(column, 0, MAX_TRUNCATED_BYTES)


def _repeat(value: str | int | None, num_rows: int) -> pa.Array:
    """Return a binary array that repeats the value, as text, for each row."""
    return pa.repeat(pa.scalar(None if value is None else str(value).encode(), pa.binary()), num_rows)


def _numbers_to_bytes(column: pa.Array) -> pa.Array:
    """Convert each number of the column to its decimal digits."""
    return column.cast(pa.string()).cast(pa.binary())


def _append_headers(
    headers: pa.Array | pa.ChunkedArray | None, added: Mapping[str, pa.Array], num_rows: int
) -> pa.Array:
    """Return a list<struct<key, value>> array with each row's own headers, then one header per entry of `added`."""
    starts = np.zeros(num_rows + 1, np.int64)
    keys, values = pa.array([], pa.string()), pa.array([], pa.binary())
    if headers is not None:
        own = read_header_column(combine_chunks(headers))
        # A header without a key may be the error for which the record becomes a dead letter.
        starts, keys, values = own.starts, own.keys.cast(pa.string()).fill_null(""), own.values.cast(pa.binary())
    own_count, added_count = len(keys), len(added)
    ends = starts + added_count * np.arange(num_rows + 1)

    # `source` maps each header of the result to its index in the concatenated array below: the own headers of all rows
    # first, then column after column of `added`.
    source = np.empty(int(ends[-1]), np.int64)
    is_own = np.ones(len(source), np.bool_)
    for position in range(added_count):
        added_indices = ends[1:] - added_count + position
        source[added_indices] = own_count + position * num_rows + np.arange(num_rows)
        is_own[added_indices] = False
    source[is_own] = np.arange(own_count)
    indices = pa.array(source)
    all_keys = pa.concat_arrays([keys, *(pa.repeat(pa.scalar(name, pa.string()), num_rows) for name in added)])
    all_values = pa.concat_arrays([values, *added.values()])
    structs = pa.StructArray.from_arrays([all_keys.take(indices), all_values.take(indices)], names=["key", "value"])
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), structs)
