"""Record batch bodies (format v2) from columns: no record is ever touched in Python.

A record in a batch:

    length          varint   of everything after it
    attributes      1 byte   always 0
    timestampDelta  varlong  from the batch's baseTimestamp
    offsetDelta     varint   place in the batch
    keyLength       varint   -1 for null
    key
    valueLength     varint   -1 for null
    value
    headerCount     varint
    headers         for each: keyLength, key, valueLength, value

The bytes of an Arrow binary array are its elements one after the other. So where each element is one encoded record,
these bytes are the records of a batch, and a batch is a slice of them. Two ways lead there:

- rows of any length: `binary_join_element_wise(prefix, key, middle, value)`, where prefix and middle are the numbers,
  packed by shifts for all rows at once (varint.py). A record without headers ends in a count of 0; that byte is put in
  front of the next record's prefix, which saves a piece of the join, and each segment begins one byte later;
- rows whose keys have one length and whose values have one length: each column is stored at its places in the output
  by one assignment of fixed-size items, without a look at the single row.

Both give the same bytes. Rows are taken in chunks of about 10,000, cut where batches end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.records.arrays import EMPTY, OFFSETS_MAX, numbers_of
from spark_kafka_sink.records.byte_column import ByteColumn, byte_column
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns
from spark_kafka_sink.records.header_column import EncodedHeaders, binary_array, encode_headers
from spark_kafka_sink.records.plan import (
    ROWS_AT_A_TIME,
    BatchSlice,
    PartitionSlice,
    invalid_rows,
    plan_batches,
    record_size_bounds,
)
from spark_kafka_sink.records.varint import (
    Field,
    constant,
    merge,
    pack,
    pack_before,
    table_of,
    total_width,
    varint_fields,
)

__all__ = [
    "BatchSlice",
    "EncodedPiece",
    "PartitionSlice",
    "encode",
    "invalid_rows",
    "plan_batches",
    "record_size_bounds",
]

_BYTES_AT_A_TIME = 64 << 20
"""A chunk of large records is cut earlier than one of small ones."""

_ZERO = constant(b"\0")
_BINARY = pa.binary()
LENGTH_BYTES_MAX = 5
"""What the length of a record takes itself."""

np.empty(2 << 20, np.uint8)
"""Allocated and freed once: from then on glibc keeps up to twice as much for the next allocations. By default it gives
everything above 128 kB back to the system, and the columns of numbers of each chunk would be mapped page by page again:
half as much again for each record."""


class EncodedPiece(NamedTuple):
    """The records of one BatchSlice. `segment` keeps the memory that it shows alive."""

    segment: memoryview
    record_count: int
    first_offset_delta: int
    base_timestamp: int
    max_timestamp: int


class Rows(NamedTuple):
    """A chunk's columns of numbers; an int stands for all rows."""

    timestamp_delta: NDArray[np.int64] | int
    offset_delta: NDArray[np.int64]


def encode(columns: RecordColumns, plan: Sequence[BatchSlice], now_ms: int) -> list[EncodedPiece]:
    """One piece for each element of the plan, in its order. Rows must have passed `invalid_rows`."""
    pieces: list[EncodedPiece] = []
    for part in _chunks_of(plan):
        pieces += _encode_part(columns, part, now_ms)
    return pieces


def _chunks_of(plan: Sequence[BatchSlice]) -> Iterator[Sequence[BatchSlice]]:
    """Runs of the plan whose rows lie one after the other, of about the right size. A batch is never cut."""
    begin = 0
    for index in range(1, len(plan)):
        if plan[index].start != plan[index - 1].stop or plan[index].stop - plan[begin].start > ROWS_AT_A_TIME:
            yield plan[begin:index]
            begin = index
    if plan:
        yield plan[begin:]


def _encode_part(columns: RecordColumns, part: Sequence[BatchSlice], now_ms: int) -> list[EncodedPiece]:
    first, stop = part[0].start, part[-1].stop
    chunk = columns.slice(first, stop - first)
    if len(part) > 1 and chunk.nbytes > _BYTES_AT_A_TIME:
        middle = len(part) // 2
        return _encode_part(columns, part[:middle], now_ms) + _encode_part(columns, part[middle:], now_ms)
    return _encode_chunk(chunk.contiguous(), part, now_ms)


def _encode_chunk(chunk: RecordColumns, part: Sequence[BatchSlice], now_ms: int) -> list[EncodedPiece]:
    first = part[0].start
    starts = np.array([s.start - first for s in part], np.int64)
    counts = np.array([s.stop - s.start for s in part], np.int64)
    base, top, timestamp_delta = _timestamps(chunk.timestamp, part, starts, counts, now_ms)
    delta = part[0].first_offset_delta
    offset_delta = np.arange(delta, delta + chunk.num_rows)
    if len(part) > 1:
        offset_delta -= np.repeat([s.start - first - s.first_offset_delta + delta for s in part], counts)
    data, at = _encode_rows(chunk, Rows(timestamp_delta, offset_delta))
    edges = [*at[starts].tolist(), int(at[chunk.num_rows])]
    return [
        EncodedPiece(data[edges[i] : edges[i + 1]], s.stop - s.start, s.first_offset_delta, base[i], top[i])
        for i, s in enumerate(part)
    ]


def _timestamps(
    column: ArrowColumn | None,
    part: Sequence[BatchSlice],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    now_ms: int,
) -> tuple[list[int], list[int], NDArray[np.int64] | int]:
    """For each piece its base and its highest timestamp; for each row the delta."""
    given = [s.base_timestamp for s in part]
    if column is None or column.null_count == len(column):
        base = [now_ms if b is None else b for b in given]
        deltas = {now_ms - b for b in base}
        if len(deltas) == 1:
            return base, [now_ms] * len(base), deltas.pop()
        return base, [now_ms] * len(base), np.repeat(now_ms - np.array(base, np.int64), counts)
    times: NDArray[np.int64] = numbers_of(column, null=now_ms)
    firsts = times[starts].tolist()
    base = [first if b is None else b for b, first in zip(given, firsts, strict=True)]
    top: list[int] = np.maximum.reduceat(times, starts).tolist()
    return base, top, times - np.repeat(np.array(base, np.int64), counts)


def _encode_rows(chunk: RecordColumns, rows: Rows) -> tuple[memoryview, NDArray[Any]]:
    """All records of a chunk, and where each begins and the last ends."""
    key = None if chunk.key is None else byte_column(chunk.key)
    value = byte_column(chunk.value)
    headers = None if chunk.headers is None else encode_headers(chunk.headers)
    even_key = -1 if key is None else key.fixed_length()
    even_value = value.fixed_length()
    even_headers = 0 if headers is None else None if headers.counts else headers.sections.fixed_length()
    if even_key is None or even_value is None or even_headers is None:
        return _join(key, even_key, value, headers, rows)
    columns = [(key, even_key), (value, even_value), (None if headers is None else headers.sections, even_headers)]
    return _store_even(columns, rows)


def _numbers(
    rows: Rows, key_length: NDArray[np.int64] | int, value_length: NDArray[np.int64] | int, header_bytes: Any
) -> tuple[list[Field], list[Field]]:
    """What stands before the key, and what stands between key and value. Everything decides the record's length."""
    timestamp = varint_fields(rows.timestamp_delta)
    offset = varint_fields(rows.offset_delta)
    before_key = varint_fields(key_length)
    middle = varint_fields(value_length)
    length: Any = 1 + header_bytes
    length = length + _payload(key_length) + _payload(value_length)
    length = length + total_width(timestamp + offset + before_key + middle)
    _check_total(length, len(rows.offset_delta))
    return [*varint_fields(length), *merge([_ZERO, *timestamp]), *offset, *before_key], middle


def _check_total(length: NDArray[np.int64] | int, count: int) -> None:
    total = int(length.sum()) if isinstance(length, np.ndarray) else length * count
    if total + count * LENGTH_BYTES_MAX > OFFSETS_MAX:
        raise RecordTooLargeError(f"{count} records of {total} bytes cannot be one batch: it holds less than 2 GiB")


def _payload(length: NDArray[np.int64] | int) -> Any:
    return max(0, length) if isinstance(length, int) else np.maximum(length, 0)


def _join(
    key: ByteColumn | None, even_key: int | None, value: ByteColumn, headers: EncodedHeaders | None, rows: Rows
) -> tuple[memoryview, NDArray[Any]]:
    count = value.rows
    header_bytes: Any = 1 if headers is None else headers.sections.lengths
    if headers is not None and headers.counts:
        header_bytes = header_bytes + total_width(headers.counts)
    key_length = key.lengths if key is not None and even_key is None else even_key or 0
    prefix, middle = _numbers(rows, key_length, value.lengths, header_bytes)
    # Without headers, the count of each record stands in front of the next one; after the last there is a row of it.
    extra = 1 if headers is None else 0
    lead = [_ZERO] if extra else []
    pieces = _before_value(lead + prefix, key, even_key, middle, count, extra)
    del prefix, middle
    pieces.append(value.array(extra))
    if headers is not None:
        if headers.counts:
            pieces.append(binary_array(headers.counts, count))
        pieces.append(headers.sections.array())
    return _joined(pieces, count, extra)


def _before_value(
    prefix: list[Field], key: ByteColumn | None, even_key: int | None, middle: list[Field], count: int, extra: int
) -> list[pa.Array]:
    """Prefix, key and middle: in one piece where the lengths of the keys allow it, since pieces cost most in a join."""
    if key is None or even_key == -1:
        return [_array(*pack(prefix + middle, count), b"\0" * extra)]
    if even_key is None or len(middle) > 1 or isinstance(middle[0].width, np.ndarray):
        return [
            _array(*pack(prefix, count), b"\0" * extra),
            key.array(extra),
            _array(*pack(middle, count), b"", extra),
        ]
    together = pack_before(prefix, [key.matrix(count, max(0, even_key)), table_of(middle[0])], count)
    return [_array(*together, b"\0" * extra)]


def _array(data: NDArray[np.uint8], at: NDArray[np.int64], last: bytes, rows: int = 0) -> pa.Array:
    """A binary array of these bytes, with a row `last` at its end; an empty one only if `rows` says so."""
    added = 1 if last or rows else 0
    offsets = np.empty(len(at) + added, np.int32)
    offsets[: len(at)] = at
    if added:
        end = int(at[-1])
        offsets[-1] = end + len(last)
        data[end : end + len(last)] = memoryview(last)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(_BINARY, len(offsets) - 1, buffers, null_count=0)


def _joined(pieces: list[pa.Array], count: int, skip: int) -> tuple[memoryview, NDArray[Any]]:
    joined = pc.binary_join_element_wise(*pieces, EMPTY)
    _, offset_buffer, data = joined.buffers()
    at = np.frombuffer(offset_buffer, np.int32, count + 1)
    return memoryview(data)[skip:], at


def _store_even(columns: list[tuple[ByteColumn | None, int]], rows: Rows) -> tuple[memoryview, NDArray[Any]]:
    """Key, value and headers of one length each (-1 for null): every column goes to its places by one assignment."""
    count = len(rows.offset_delta)
    lengths = [length for _, length in columns]
    prefix, middle = _numbers(rows, lengths[0], lengths[1], lengths[2] or 1)
    lead = [] if lengths[2] else [_ZERO]
    key, value, headers = (
        column.matrix(count, max(0, length)) if column is not None else np.empty((1, 0), np.uint8)
        for column, length in columns
    )
    data, at = pack_before(lead + prefix, [key, *map(table_of, middle), value, headers], count)
    if lead:
        data[at[-1]] = 0
    return data.data[len(lead) :], at
