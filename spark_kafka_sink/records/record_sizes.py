"""How large each record becomes at most, and which rows no broker would take.

A record's exact size depends on its place in a batch: on the widths of its two deltas. So a size is an upper bound that
holds at any place. Key, value and headers are counted exactly, lengths and deltas at their widest. Memory is reserved
by these sizes, too large records are refused by them, and batches are cut by them (batch_slicing.py, which knows more
of the deltas).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import integers_to_numpy
from spark_kafka_sink.records.byte_column import byte_sizes
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

OFFSET_DELTA_BYTES = 4
"""Enough for 134 million records in one batch."""
TIMESTAMP_DELTA_BYTES = 6
_TIMESTAMP_DELTA_BYTES_WORST = 10
_COMMON_TIMES = (1 << 41) - 1
"""Between two times from 1970 to 2039, or none (-1), the delta has at most 6 bytes."""
_LAST_YEAR = 292_278_994
"""The last one whose milliseconds since 1970 are a signed number of 64 bits, as a record has them."""
_ATTRIBUTES_BYTES = 1


def find_invalid_rows(columns: RecordColumns) -> dict[str, NDArray[np.int64]]:
    """Find the rows that must not be encoded, since no broker would take them.

    Return the ascending row indices of each reason that some have; a row may have several.
    """
    found: dict[str, NDArray[np.int64]] = {}
    if columns.timestamp is not None:
        times = integers_to_numpy(combine_chunks(columns.timestamp))
        if np.minimum.reduce(times, initial=NO_TIMESTAMP) < NO_TIMESTAMP:
            late = times == OVERFLOW_TIMESTAMP
            early = (times < NO_TIMESTAMP) & ~late
            reasons = (
                (early, "the timestamp is before 1970"),
                (late, f"the timestamp is after the year {_LAST_YEAR:,}"),
            )
            found.update((reason, np.nonzero(wrong)[0]) for wrong, reason in reasons if wrong.any())
    if columns.headers is not None:
        bad = _over_chunks(columns.headers, find_rows_with_invalid_headers)
        if len(bad):
            found["a header has no key"] = bad
    if columns.memory_nbytes > MAX_JOINED_BYTES:
        too_large = np.nonzero(record_size_bounds(columns) > MAX_JOINED_BYTES)[0]
        if len(too_large):
            found["the record is larger than 2 GiB, more than a batch can hold"] = too_large
    return found


def record_size_bounds(columns: RecordColumns) -> NDArray[np.int64]:
    """For each row, the bytes that it takes in a batch at most, wherever it stands in it.

    Every length is counted as wide as the longest of its chunk: a byte too much here and there costs nothing, while
    exact widths would cost more than all the rest of the cutting.
    """
    deltas = OFFSET_DELTA_BYTES + _timestamp_delta_bytes(columns.timestamp)
    bounds = [_size_bounds(chunk, deltas) for chunk in columns.chunks(MAX_CHUNK_ROWS)]
    return bounds[0] if len(bounds) == 1 else np.concatenate([np.empty(0, np.int64), *bounds])


def _size_bounds(chunk: RecordColumns, deltas: int) -> NDArray[np.int64]:
    """For each record its bytes at most, of which both its deltas (offset and timestamp) are `deltas`."""
    sizes = byte_sizes(chunk.value)
    beside = _ATTRIBUTES_BYTES + _width_of_longest(sizes)
    if chunk.key is None:
        beside += 1
    else:
        keys = byte_sizes(chunk.key)
        beside += _width_of_longest(keys)
        sizes += keys
    if chunk.headers is None:
        beside += 1
    else:
        sizes += _header_bytes(chunk.headers)
    largest = int(np.maximum.reduce(sizes, initial=0)) + beside + OFFSET_DELTA_BYTES + _TIMESTAMP_DELTA_BYTES_WORST
    sizes += beside + deltas + len(encode_varint(largest))
    return sizes


def _width_of_longest(numbers: NDArray[np.int64]) -> int:
    return len(encode_varint(int(np.maximum.reduce(numbers, initial=0))))


def _header_bytes(array: pa.Array) -> NDArray[np.int64]:
    headers = read_header_column(array)
    keys, values = byte_sizes(headers.keys), byte_sizes(headers.values)
    each = keys + values + (_width_of_longest(keys) + _width_of_longest(values))
    before: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
    return _width_of_longest(headers.counts) + before[headers.starts[1:]] - before[headers.starts[:-1]]


def _timestamp_delta_bytes(timestamp: ArrowColumn | None) -> int:
    if timestamp is None:
        return TIMESTAMP_DELTA_BYTES
    times = integers_to_numpy(combine_chunks(timestamp))  # null is "now" and counts as 0, which is as common
    lowest, highest = np.minimum.reduce(times, initial=0), np.maximum.reduce(times, initial=0)
    common = lowest >= NO_TIMESTAMP and highest < _COMMON_TIMES
    return TIMESTAMP_DELTA_BYTES if common else _TIMESTAMP_DELTA_BYTES_WORST


def _over_chunks(column: ArrowColumn, check: Callable[[pa.Array], NDArray[np.int64]]) -> NDArray[np.int64]:
    if isinstance(column, pa.Array):
        return check(column)
    found, before = [np.zeros(0, np.int64)], 0
    for chunk in column.chunks:
        found.append(check(chunk) + before)
        before += len(chunk)
    return np.concatenate(found)
