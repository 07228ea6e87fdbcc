"""Upper bounds of record sizes, and the search for rows that brokers would reject.

The exact size of a record depends on its batch, because a record contains two deltas of variable width: its offset
relative to the first record of the batch, and its timestamp relative to the batch's base timestamp. The sizes in this
module are upper bounds for any batch: the bytes of key, value and headers are counted exactly, and lengths and deltas
are counted at their maximum widths. The sizes are used to reserve memory, to reject records that are too large, and to
split rows into batches (batch_slicing.py, which knows tighter bounds for the deltas).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import integers_to_numpy
from spark_kafka_sink.records.byte_column import compute_byte_sizes
from spark_kafka_sink.records.columns import (
    MAX_CHUNK_ROWS,
    NO_TIMESTAMP,
    OVERFLOW_TIMESTAMP,
    ArrowColumn,
    RecordColumns,
    combine_chunks,
)
from spark_kafka_sink.records.fields import encode_varint
from spark_kafka_sink.records.header_column import find_rows_with_invalid_headers, read_header_column
from spark_kafka_sink.records.joined_rows import MAX_JOINED_BYTES

MAX_OFFSET_DELTA_BYTES = 4
"""Maximum width of an offset delta, enough for 134 million records in a batch."""
COMMON_TIMESTAMP_DELTA_BYTES = 6
"""Maximum width of the delta between two timestamps from -1 (no timestamp) to just below _MAX_COMMON_TIMESTAMP."""
_MAX_TIMESTAMP_DELTA_BYTES = 10
"""Maximum width of the delta between any two timestamps."""
_MAX_COMMON_TIMESTAMP = (1 << 41) - 1
"""A time in 2039. Earlier timestamps have deltas of at most COMMON_TIMESTAMP_DELTA_BYTES."""
_MAX_YEAR = 292_278_994
"""Last year that a Kafka timestamp, a signed 64-bit number of milliseconds since 1970, can represent."""
_ATTRIBUTES_BYTES = 1


def find_invalid_rows(columns: RecordColumns) -> dict[str, NDArray[np.int64]]:
    """Find the rows that must not be encoded, because every broker would reject them.

    Return the row indices, in ascending order, keyed by the reason as text. A row may appear under several reasons.
    """
    row_indices_by_reason: dict[str, NDArray[np.int64]] = {}
    if columns.timestamp is not None:
        times = integers_to_numpy(combine_chunks(columns.timestamp))
        # Test the minimum first, which is cheap: all invalid timestamps, including OVERFLOW_TIMESTAMP, are below
        # NO_TIMESTAMP. NO_TIMESTAMP itself is valid: it belongs to a record that has no timestamp.
        if np.minimum.reduce(times, initial=NO_TIMESTAMP) < NO_TIMESTAMP:
            is_after_max_year = times == OVERFLOW_TIMESTAMP
            is_before_1970 = (times < NO_TIMESTAMP) & ~is_after_max_year
            masks_and_reasons = (
                (is_before_1970, "the timestamp is before 1970"),
                (is_after_max_year, f"the timestamp is after the year {_MAX_YEAR:,}"),
            )
            row_indices_by_reason.update(
                (reason, np.nonzero(mask)[0]) for mask, reason in masks_and_reasons if mask.any()
            )
    if columns.headers is not None:
        invalid_rows = _find_rows_by_chunk(columns.headers, find_rows_with_invalid_headers)
        if len(invalid_rows):
            row_indices_by_reason["a header has no key"] = invalid_rows
    # Test the size of the buffers first, which is cheap and an upper bound of each row's size.
    if columns.memory_nbytes > MAX_JOINED_BYTES:
        too_large_indices = np.nonzero(compute_record_size_bounds(columns) > MAX_JOINED_BYTES)[0]
        if len(too_large_indices):
            row_indices_by_reason["the record is larger than 2 GiB, more than a batch can hold"] = too_large_indices
    return row_indices_by_reason


def compute_record_size_bounds(columns: RecordColumns) -> NDArray[np.int64]:
    """Return the maximum size in bytes of each record, at any position in any batch."""
    # Every length is counted at the width of the largest length in its chunk. The few extra bytes do no harm, whereas
    # computing exact widths would take longer than the rest of batch slicing.
    delta_bytes = MAX_OFFSET_DELTA_BYTES + _compute_timestamp_delta_bytes(columns.timestamp)
    bounds = [_compute_size_bounds(chunk, delta_bytes) for chunk in columns.chunks(MAX_CHUNK_ROWS)]
    # Without rows there are no chunks, and numpy cannot concatenate nothing.
    return bounds[0] if len(bounds) == 1 else np.concatenate([np.empty(0, np.int64), *bounds])


def _compute_size_bounds(chunk: RecordColumns, delta_bytes: int) -> NDArray[np.int64]:
    """Return the maximum size in bytes of each record in a chunk, whose columns must be plain arrays.

    `delta_bytes`: the maximum width of both deltas together.
    """
    sizes = compute_byte_sizes(chunk.value)
    overhead = _ATTRIBUTES_BYTES + _compute_max_length_width(sizes)
    if chunk.key is None:
        overhead += 1  # the length -1
    else:
        key_sizes = compute_byte_sizes(chunk.key)
        overhead += _compute_max_length_width(key_sizes)
        sizes += key_sizes
    if chunk.headers is None:
        overhead += 1  # the header count 0
    else:
        sizes += _compute_header_sizes(chunk.headers)
    # A record starts with its own length, which is counted at the width that the longest record needs.
    max_delta_bytes = MAX_OFFSET_DELTA_BYTES + _MAX_TIMESTAMP_DELTA_BYTES
    max_record_length = int(np.maximum.reduce(sizes, initial=0)) + overhead + max_delta_bytes
    sizes += overhead + delta_bytes + len(encode_varint(max_record_length))
    return sizes


def _compute_max_length_width(numbers: NDArray[np.int64]) -> int:
    """Return the width in bytes of the largest of these lengths or counts."""
    return len(encode_varint(int(np.maximum.reduce(numbers, initial=0))))


def _compute_header_sizes(array: pa.Array) -> NDArray[np.int64]:
    """Return the maximum encoded size in bytes of each row's headers, including their count."""
    headers = read_header_column(array)
    key_sizes, value_sizes = compute_byte_sizes(headers.keys), compute_byte_sizes(headers.values)
    length_bytes = _compute_max_length_width(key_sizes) + _compute_max_length_width(value_sizes)
    header_bytes = key_sizes + value_sizes + length_bytes
    cumulative_bytes: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(header_bytes)])
    row_bytes = cumulative_bytes[headers.starts[1:]] - cumulative_bytes[headers.starts[:-1]]
    return row_bytes + _compute_max_length_width(headers.counts)


def _compute_timestamp_delta_bytes(timestamp: ArrowColumn | None) -> int:
    """Return the maximum width in bytes of the delta between any two of these timestamps and the current time."""
    if timestamp is None:
        return COMMON_TIMESTAMP_DELTA_BYTES
    # A null stands for the current time. It is read as 0, which does not change the result.
    times = integers_to_numpy(combine_chunks(timestamp))
    min_time, max_time = np.minimum.reduce(times, initial=0), np.maximum.reduce(times, initial=0)
    is_common = min_time >= NO_TIMESTAMP and max_time < _MAX_COMMON_TIMESTAMP
    return COMMON_TIMESTAMP_DELTA_BYTES if is_common else _MAX_TIMESTAMP_DELTA_BYTES


def _find_rows_by_chunk(column: ArrowColumn, find_rows: Callable[[pa.Array], NDArray[np.int64]]) -> NDArray[np.int64]:
    """Call `find_rows` with each chunk of a column. Return the indices of the found rows in the whole column."""
    if isinstance(column, pa.Array):
        return find_rows(column)
    row_indices, chunk_start = [np.zeros(0, np.int64)], 0
    for chunk in column.chunks:
        row_indices.append(find_rows(chunk) + chunk_start)
        chunk_start += len(chunk)
    return np.concatenate(row_indices)
