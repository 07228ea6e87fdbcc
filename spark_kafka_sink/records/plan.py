"""Where batches begin and end, decided before a byte is encoded.

A record's offset delta, and with it the width of that number and of the record's length, depends on the record's place
in its batch. So sizes come first, as upper bounds that hold at any place: payload and lengths are exact, the deltas
are counted at their widest. The rows of a partition are then cut where the sum of bounds passes the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import numbers_of
from spark_kafka_sink.records.byte_column import byte_lengths, payload_bytes
from spark_kafka_sink.records.columns import NO_TIMESTAMP, ArrowColumn, RecordColumns, one_array
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.header_column import header_column, rows_with_bad_headers
from spark_kafka_sink.records.varint import encode_varint, varint_widths

ROWS_AT_A_TIME = 10_000
"""Larger chunks fall out of the processor's cache and cost more per record."""
RECORD_BYTES_MAX = (1 << 31) - 1 - HEADER_BYTES

_ATTRIBUTES_BYTES = 1
_OFFSET_DELTA_BYTES = 4
"""Enough for 134 million records in one batch."""
_TIMESTAMP_DELTA_BYTES = 6
_TIMESTAMP_DELTA_BYTES_WORST = 10
_COMMON_TIMES = (1 << 41) - 1
"""Between two times from 1970 to 2039, or none (-1), the delta has at most 6 bytes."""


@dataclass
class PartitionSlice:
    """Rows [start, stop) go to one partition. The others describe a batch of it that is open and can take more.

    `open_bytes` is what that batch has so far, its header included.
    """

    start: int
    stop: int
    open_records: int = 0
    open_bytes: int = 0
    base_timestamp: int | None = None


class BatchSlice(NamedTuple):
    """Rows [start, stop) go into one batch, the first of them as number `first_offset_delta`.

    That is above 0 where the rows are appended to the open batch, whose `base_timestamp` they count from.
    """

    slice_index: int
    start: int
    stop: int
    first_offset_delta: int = 0
    base_timestamp: int | None = None


class InvalidRows(NamedTuple):
    """Rows that no broker would take, and why."""

    rows: NDArray[np.int64]
    reason: str


def invalid_rows(columns: RecordColumns) -> list[InvalidRows]:
    """The rows that must not be encoded. Positions ascend within each reason; a row may have several."""
    found: list[InvalidRows] = []
    if columns.timestamp is not None:
        times = numbers_of(one_array(columns.timestamp))
        if np.minimum.reduce(times, initial=NO_TIMESTAMP) < NO_TIMESTAMP:
            found.append(InvalidRows(np.nonzero(times < NO_TIMESTAMP)[0], "the timestamp is before 1970"))
    if columns.headers is not None:
        bad = _over_chunks(columns.headers, rows_with_bad_headers)
        if len(bad):
            found.append(InvalidRows(bad, "a header has no key"))
    if columns.memory_nbytes > RECORD_BYTES_MAX:
        too_large = np.nonzero(record_size_bounds(columns) > RECORD_BYTES_MAX)[0]
        if len(too_large):
            found.append(InvalidRows(too_large, "the record is larger than 2 GiB, more than a batch can hold"))
    return found


def record_size_bounds(columns: RecordColumns) -> NDArray[np.int64]:
    """For each row, the bytes that it takes in a batch at most, wherever it stands in it.

    Every length is counted as wide as the longest of its chunk: a byte too much here and there costs nothing, while
    exact widths would cost more than all the rest of the planning.
    """
    fixed = _ATTRIBUTES_BYTES + _OFFSET_DELTA_BYTES + _timestamp_delta_bytes(columns.timestamp)
    bounds = [_size_bounds(chunk, fixed) for chunk in columns.chunks(ROWS_AT_A_TIME)]
    return bounds[0] if len(bounds) == 1 else np.concatenate([np.empty(0, np.int64), *bounds])


def _size_bounds(chunk: RecordColumns, width: int) -> NDArray[np.int64]:
    """`width` is what is equally wide in all records. Sizes that are all alike are one number at first."""
    body, longest = payload_bytes(chunk.value)
    width += len(encode_varint(longest))
    if chunk.key is None:
        width += 1
    else:
        keys, longest = payload_bytes(chunk.key)
        body += keys
        width += len(encode_varint(longest))
    body += width + 1 if chunk.headers is None else width + _header_bytes(chunk.headers)
    if isinstance(body, int):
        return np.full(chunk.num_rows, body + len(encode_varint(body)), np.int64)
    body += len(encode_varint(int(np.maximum.reduce(body))))
    return body


def plan_batches(sizes: NDArray[np.int64], slices: Sequence[PartitionSlice], batch_bytes_max: int) -> list[BatchSlice]:
    """Cut the rows of each slice into batches of at most `batch_bytes_max`, header included.

    An open batch is filled first. A record that is larger than a batch gets one of its own.
    """
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    starts = np.array([s.start for s in slices], np.int64)
    stops = np.array([s.stop for s in slices], np.int64)
    used = np.array([_bytes_before(s) for s in slices], np.int64)
    whole = ((ends[stops] - ends[starts] + used) <= batch_bytes_max).tolist()
    plan: list[BatchSlice] = []
    for index, part in enumerate(slices):
        if part.start == part.stop:
            continue
        if whole[index]:
            plan.append(BatchSlice(index, part.start, part.stop, part.open_records, part.base_timestamp))
        else:
            plan += _cut(index, part, ends, batch_bytes_max)
    return plan


def _cut(index: int, part: PartitionSlice, ends: NDArray[np.int64], batch_bytes_max: int) -> list[BatchSlice]:
    """The batches of a slice that does not fit into one. `ends[i]` is the sum of the sizes before row i."""
    cuts: list[BatchSlice] = []
    row = part.start
    ends = ends[: part.stop + 1]
    if part.open_records:
        stop = int(ends.searchsorted(ends[row] + (batch_bytes_max - _bytes_before(part)), "right")) - 1
        if stop > row:
            cuts.append(BatchSlice(index, row, stop, part.open_records, part.base_timestamp))
            row = stop
    room = batch_bytes_max - HEADER_BYTES
    while row < part.stop:
        stop = max(row + 1, int(ends.searchsorted(ends[row] + room, "right")) - 1)
        cuts.append(BatchSlice(index, row, stop))
        row = stop
    return cuts


def _bytes_before(part: PartitionSlice) -> int:
    """What the batch has before these rows, its header included."""
    if not part.open_records:
        return HEADER_BYTES
    base = part.base_timestamp
    if base is None or NO_TIMESTAMP <= base < _COMMON_TIMES:
        return part.open_bytes
    # The rows' sizes may rest on common times; from a base so far away their deltas are wider.
    return part.open_bytes + (part.stop - part.start) * (_TIMESTAMP_DELTA_BYTES_WORST - _TIMESTAMP_DELTA_BYTES)


def _timestamp_delta_bytes(timestamp: ArrowColumn | None) -> int:
    if timestamp is None:
        return _TIMESTAMP_DELTA_BYTES
    times = numbers_of(one_array(timestamp))  # null is "now" and counts as 0, which is as common
    lowest, highest = np.minimum.reduce(times, initial=0), np.maximum.reduce(times, initial=0)
    common = lowest >= NO_TIMESTAMP and highest < _COMMON_TIMES
    return _TIMESTAMP_DELTA_BYTES if common else _TIMESTAMP_DELTA_BYTES_WORST


def _field_bytes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return varint_widths(lengths) + np.maximum(lengths, 0)


def _header_bytes(array: Any) -> NDArray[np.int64]:
    headers = header_column(array)
    each: NDArray[np.int64] = _field_bytes(byte_lengths(headers.keys)) + _field_bytes(byte_lengths(headers.values))
    before: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
    return varint_widths(headers.counts) + before[headers.starts[1:]] - before[headers.starts[:-1]]


def _over_chunks(column: ArrowColumn, check: Any) -> NDArray[np.int64]:
    if not hasattr(column, "chunks"):
        return np.asarray(check(column))
    found, before = [], 0
    for chunk in column.chunks:
        found.append(check(chunk) + before)
        before += len(chunk)
    return np.concatenate(found) if found else np.zeros(0, np.int64)
