"""Decode record batches to columns, for the embedded broker, for reading topics, and for splitting a batch.

A record's start is known only from the length of the preceding record. A short loop therefore reads the lengths, and
skips over a run of records with equal size in one step. After that, each field is read for all records at once, by
gathering the bytes at the current positions. Arrow extracts keys and values: if the offsets of a binary array are the
start and end of each value in turn, its even elements are the values, and `take` copies them.

Batches come from a peer and are not trusted. Every length is compared with the available bytes before it is used, and
malformed batches raise DecodeError. `max_bytes` limits the memory for decoding a batch: it bounds the decompressed
bytes, the positions and lengths of all records, and those of all headers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.records.arrays import bytes_to_arrow, numbers_to_arrow
from spark_kafka_sink.records.compression import Codec, decompress
from spark_kafka_sink.records.header import (
    ATTRIBUTES_OFFSET,
    HEADER_BYTES,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    crc32c,
    parse_header,
)

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Positions: TypeAlias = "NDArray[np.int64]"

DEFAULT_MAX_BYTES = 256 << 20
"""Default memory limit for decoding one batch."""
MIN_RECORD_BYTES = 7
"""One byte each for the length, the attributes, two deltas, two lengths and the header count."""
# Measured memory for the positions and lengths of one record or header, which may be much smaller on the wire.
DECODING_BYTES_PER_RECORD = 110
DECODING_BYTES_PER_HEADER = 64

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)

_MAX_INT32_VARINT_BYTES = 5
_MAX_INT64_VARINT_BYTES = 10
_PADDING_BYTES = 16
"""Zeros appended to the records, so that a truncated varint can be read. The next position then exceeds the records."""
_MIN_RUN_RECORDS = 16
"""After this many consecutive records of equal size, the following records are compared in one step."""
_RUN_COMPARISON_RECORDS = 64
"""Number of records in the first comparison. It doubles whenever all of them have the expected size."""
_MIN_VECTORIZED_ROWS = 16
"""If at most this many records have headers left, reading them record by record is faster."""


class DecodedBatch(NamedTuple):
    """Header and records of a batch. The records have the columns of SCHEMA."""

    header: BatchHeader
    columns: pa.RecordBatch


def parse_batches(buffer: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """Return the header and the bytes of each batch in `buffer`. The bytes include the header.

    Raise DecodeError if a header is malformed, a batch is truncated or a CRC is wrong. Records are not checked.
    """
    return list(iterate_batches(buffer, allow_partial_last=False))


def decode_batches(
    buffer: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES, allow_partial_last: bool = True
) -> Iterator[DecodedBatch]:
    """Decode the batches in `buffer` one by one.

    A broker may truncate the last batch of a fetch response. It is skipped if `allow_partial_last` is true.
    """
    for header, batch in iterate_batches(buffer, allow_partial_last=allow_partial_last):
        yield DecodedBatch(header, decode_records(header, batch[HEADER_BYTES:], max_bytes=max_bytes))


def decode_records(
    header: BatchHeader, body: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES, preserve_header_keys: bool = False
) -> pa.RecordBatch:
    """Decode the records of a batch. `body` contains the bytes after the batch header, and may be compressed.

    Brokers accept any bytes as a header key. By default, bytes that are not valid UTF-8 are replaced by U+FFFD, as in
    Java. With `preserve_header_keys` they are kept, so that the records can be encoded again. The string column may
    then contain invalid UTF-8.
    """
    return _build_reader(header, body, max_bytes).read(header, preserve_header_keys=preserve_header_keys)


def find_keyless_records(header: BatchHeader, body: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Positions:
    """Validate the records of a batch like `decode_records`, and return the indices of the records without a key."""
    return _build_reader(header, body, max_bytes).find_keyless_records(header)


def _build_reader(header: BatchHeader, body: Buffer, max_bytes: int) -> _RecordReader:
    """Decompress a batch and find its records. Raise DecodeError if they are malformed or need over `max_bytes`."""
    count = header.record_count
    if not 0 <= count <= max_bytes // DECODING_BYTES_PER_RECORD:
        raise DecodeError(f"batch of {count} records, at most {max_bytes // DECODING_BYTES_PER_RECORD} are allowed")
    data = decompress(header.codec, body, max_bytes)
    if count * MIN_RECORD_BYTES > len(data):
        raise DecodeError(f"{count} records do not fit into {len(data)} bytes")
    # The padding is appended in place, so copy data that cannot grow or that belongs to the caller.
    if not isinstance(data, bytearray) or header.codec == Codec.NONE:
        data = bytearray(data)
    size = len(data)
    data += bytes(_PADDING_BYTES)
    starts, ends = _find_record_boundaries(data, size, count)
    return _RecordReader(data, starts, ends, max_bytes // DECODING_BYTES_PER_HEADER)


def iterate_batches(buffer: Buffer, *, allow_partial_last: bool = True) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the header and the bytes of each batch in `buffer`. The bytes include the header.

    Raise DecodeError if a batch is malformed, as `parse_batches` does. With `allow_partial_last`, a truncated last
    batch is skipped and raises no error.
    """
    view, position = memoryview(buffer), 0
    while position < len(view):
        remaining_view = view[position:]
        if allow_partial_last and _is_partial_header(remaining_view):
            return
        header = parse_header(remaining_view)
        if header.size_bytes > len(remaining_view):
            if allow_partial_last:
                return
            raise DecodeError(f"truncated batch: {len(remaining_view)} of {header.size_bytes} bytes")
        batch = remaining_view[: header.size_bytes]
        checksum = crc32c(batch[ATTRIBUTES_OFFSET:])
        if checksum != header.crc:
            raise DecodeError(f"the batch at offset {header.base_offset} is corrupt: its CRC is wrong")
        yield header, batch
        position += header.size_bytes


def _is_partial_header(data: memoryview) -> bool:
    """Return whether the data ends within the header of a batch in the supported format."""
    if len(data) >= HEADER_BYTES:
        return False
    return len(data) <= MAGIC_OFFSET or data[MAGIC_OFFSET] == MAGIC


def _find_record_boundaries(data: bytearray, data_end: int, count: int) -> tuple[Positions, Positions]:
    """Return the start and end positions of all records. A record starts after its length field.

    `data_end`: the position at which the data ends and the padding begins.
    """
    starts, ends = array("q"), array("q")
    position, size, equal_count = 0, 0, 0  # `size`: the size of the previous record, including its length field
    while len(ends) < count:
        start = position
        if position >= data_end:
            raise DecodeError("a batch ends before its last record")
        length, position = _read_varint(data, position)
        starts.append(position)
        position += length
        if length < MIN_RECORD_BYTES - 1 or position > data_end:
            raise DecodeError(
                f"record {len(ends)} of a batch has a length of {length}, {data_end - starts[-1]} are left"
            )
        ends.append(position)
        equal_count = equal_count + 1 if position - start == size else 0
        size = position - start
        if equal_count >= _MIN_RUN_RECORDS:
            # The run is limited by the number of records that are missing and by the bytes that are left.
            max_run_records = min(count - len(ends), (data_end - start) // size - 1)
            run_records = _count_equal_sizes(data, start, size, max_run_records)
            length_width, run_bytes = starts[-1] - start, run_records * size
            starts.extend(range(position + length_width, position + length_width + run_bytes, size))
            ends.extend(range(position + size, position + size + run_bytes, size))
            position += run_bytes
            equal_count = 0
    if position != data_end:
        raise DecodeError(f"{data_end - position} bytes follow the last record of a batch")
    return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64)


def _read_varint(data: bytearray, position: int) -> tuple[int, int]:
    """Read a signed varint of at most _MAX_INT32_VARINT_BYTES. Return its value and the next position."""
    zigzag_value = shift = 0
    for _ in range(_MAX_INT32_VARINT_BYTES):
        if position >= len(data):
            raise DecodeError("a batch ends before its last record")
        byte = data[position]
        position += 1
        zigzag_value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (zigzag_value >> 1) ^ -(zigzag_value & 1), position
        shift += 7
    raise DecodeError("the length of a record is a malformed varint")


def _count_equal_sizes(data: bytearray, start: int, size: int, max_count: int) -> int:
    """Count how many records directly after the record at `start` have the same size, up to `max_count`.

    Records of equal size have equal length bytes. The comparison grows step by step and covers at most about twice the
    run. Otherwise, each of many short runs would compare the rest of the batch.
    """
    _, body_start = _read_varint(data, start)
    length_bytes = np.frombuffer(data, np.uint8, body_start - start, start)
    equal_count, step = 0, _RUN_COMPARISON_RECORDS
    while equal_count < max_count:
        compared_count = min(step, max_count - equal_count)
        compared_bytes = np.frombuffer(data, np.uint8, compared_count * size, start + size * (equal_count + 1))
        table = compared_bytes.reshape(compared_count, size)
        is_different = (table[:, : len(length_bytes)] != length_bytes).any(axis=1)
        first_different_index = int(is_different.argmax())
        if is_different[first_different_index]:
            return equal_count + first_different_index
        equal_count += compared_count
        step *= 2
    return equal_count


class _RecordFields(NamedTuple):
    """Fields of all records. A range consists of starts and lengths. The length of a null key or value is -1."""

    timestamp_deltas: Positions
    offset_deltas: Positions
    key_ranges: tuple[Positions, Positions]
    value_ranges: tuple[Positions, Positions]
    header_offsets: Positions
    header_ranges: NDArray[np.int64]
    """Four rows: start and length of each key, start and length of each value."""


class _RecordReader:
    """Reads the records of a batch field by field, each field for all records at once.

    `positions` contains the position of the next unread byte in each record.
    """

    def __init__(self, data: bytearray, starts: Positions, ends: Positions, max_headers: int) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self._max_headers = max_headers
        self.positions = starts + 1  # the first byte of a record holds its attributes, which are unused
        self.ends = ends

    def find_keyless_records(self, batch_header: BatchHeader) -> Positions:
        """Read and validate all fields, and return the indices of the records without a key."""
        _, key_lengths = self._read_fields(batch_header).key_ranges
        return np.flatnonzero(key_lengths < 0)

    def read(self, batch_header: BatchHeader, *, preserve_header_keys: bool) -> pa.RecordBatch:
        """Read all fields, and return the records with the columns of SCHEMA."""
        fields = self._read_fields(batch_header)
        key = extract_bytes(self.data, *fields.key_ranges)
        value = extract_bytes(self.data, *fields.value_ranges)
        header_keys = extract_bytes(self.data, fields.header_ranges[0], fields.header_ranges[1])
        header_keys = header_keys.view(pa.string()) if preserve_header_keys else _decode_utf8(header_keys)
        headers = self._build_header_array(fields.header_offsets, header_keys, fields.header_ranges)
        offsets = fields.offset_deltas + batch_header.base_offset
        if batch_header.has_log_append_time:
            timestamps = np.full(len(offsets), batch_header.max_timestamp, np.int64)
        else:
            timestamps = fields.timestamp_deltas + batch_header.base_timestamp
        columns = [numbers_to_arrow(offsets), numbers_to_arrow(timestamps), key, value, headers]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _read_fields(self, batch_header: BatchHeader) -> _RecordFields:
        """Read and validate the fields of all records. May be called only once, because it advances `positions`."""
        timestamp_deltas = self._read_varints(_MAX_INT64_VARINT_BYTES)
        offset_deltas = self._read_varints(_MAX_INT32_VARINT_BYTES)
        self._check_offset_deltas(offset_deltas, batch_header)
        key_ranges = self._read_ranges("key")
        value_ranges = self._read_ranges("value")
        header_offsets, header_ranges = self._read_headers()
        if (self.positions != self.ends).any():
            raise DecodeError("the length of a record differs from the length of its fields")
        return _RecordFields(timestamp_deltas, offset_deltas, key_ranges, value_ranges, header_offsets, header_ranges)

    def _check_offset_deltas(self, offset_deltas: Positions, batch_header: BatchHeader) -> None:
        if not len(offset_deltas):
            return
        is_ascending = (offset_deltas[1:] > offset_deltas[:-1]).all()
        if not is_ascending or offset_deltas[0] < 0 or offset_deltas[-1] > batch_header.last_offset_delta:
            raise DecodeError("the offsets of a batch do not ascend, or are out of its range")

    def _read_varints(self, max_bytes: int) -> Positions:
        values, self.positions = read_varints(self.data, self.positions, max_bytes)
        return values

    def _read_ranges(self, name: str) -> tuple[Positions, Positions]:
        """Read the length of each record's key or value and skip its bytes. Return the starts and the lengths."""
        lengths = self._read_varints(_MAX_INT32_VARINT_BYTES)
        self._check_lengths(lengths, name)
        starts = self.positions
        self.positions = starts + np.maximum(lengths, 0)
        return starts, lengths

    def _check_lengths(self, lengths: Positions, name: str) -> None:
        if ((lengths < -1) | (lengths > self.ends - self.positions)).any():
            raise DecodeError(f"a {name} has a negative length, or extends beyond its record")

    def _read_headers(self) -> tuple[Positions, NDArray[np.int64]]:
        """Return the index of each record's first header (and the total count at the end), and all headers' ranges.

        The ranges have one column per header. Their four rows are key starts, key lengths, value starts, value lengths.
        """
        counts = self._read_varints(_MAX_INT32_VARINT_BYTES)
        # A header takes at least two bytes, for the lengths of its key and value.
        if ((counts < 0) | (counts * 2 > self.ends - self.positions)).any():
            raise DecodeError("a record has a negative number of headers, or more than fit into it")
        header_offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=header_offsets[1:])
        if header_offsets[-1] > self._max_headers:
            raise DecodeError(f"batch of {header_offsets[-1]} headers, at most {self._max_headers} are allowed")
        header_ranges = np.zeros((4, int(header_offsets[-1])), np.int64)
        unfinished_rows = np.nonzero(counts)[0]
        headers_read = 0
        while len(unfinished_rows) > _MIN_VECTORIZED_ROWS:
            self._read_next_headers(unfinished_rows, header_offsets[unfinished_rows] + headers_read, header_ranges)
            headers_read += 1
            unfinished_rows = unfinished_rows[counts[unfinished_rows] > headers_read]
        for row_index in unfinished_rows.tolist():
            next_header = int(header_offsets[row_index]) + headers_read
            self._read_remaining_headers(row_index, next_header, int(header_offsets[row_index + 1]), header_ranges)
        return header_offsets, header_ranges

    def _read_next_headers(
        self, row_indices: Positions, header_indices: Positions, header_ranges: NDArray[np.int64]
    ) -> None:
        """Read the next header of each record in `row_indices` into the columns `header_indices` of `header_ranges`."""
        positions, ends = self.positions[row_indices], self.ends[row_indices]
        # The rows of the ranges and the minimum length, for the key, then for the value. Only a value can be null (-1).
        for start_row, length_row, min_length in ((0, 1, 0), (2, 3, -1)):
            lengths, positions = read_varints(self.data, positions, _MAX_INT32_VARINT_BYTES)
            if ((lengths < min_length) | (lengths > ends - positions)).any():
                raise DecodeError("a header has a negative length, or extends beyond its record")
            header_ranges[start_row, header_indices] = positions
            header_ranges[length_row, header_indices] = lengths
            positions = positions + np.maximum(lengths, 0)
        self.positions[row_indices] = positions

    def _read_remaining_headers(
        self, row_index: int, next_header: int, header_stop: int, header_ranges: NDArray[np.int64]
    ) -> None:
        """Read the remaining headers of one record one at a time.

        This is faster than `_read_next_headers` when only a few records have headers left.
        """
        data = self.data.data
        position, end = int(self.positions[row_index]), int(self.ends[row_index])
        record_ranges = array("q")  # key start, key length, value start, value length, and so on
        for _ in range(next_header, header_stop):
            for min_length in (0, -1):  # the key, then the value; only the value can be null (-1)
                length, position = _read_varint(data, position)  # type: ignore[arg-type]
                if length < min_length or length > end - position:
                    raise DecodeError("a header has a negative length, or extends beyond its record")
                record_ranges.append(position)
                record_ranges.append(length)
                position += max(length, 0)
        header_ranges[:, next_header:header_stop] = np.frombuffer(record_ranges, np.int64).reshape(-1, 4).T
        self.positions[row_index] = position

    def _build_header_array(self, offsets: Positions, keys: pa.Array, header_ranges: NDArray[np.int64]) -> pa.Array:
        values = extract_bytes(self.data, header_ranges[2], header_ranges[3])
        fields = [HEADERS_TYPE.value_type.field(i) for i in range(2)]
        structs = pa.StructArray.from_arrays([keys, values], fields=fields)
        return pa.ListArray.from_arrays(numbers_to_arrow(offsets.astype(np.int32)), structs, type=HEADERS_TYPE)


def _decode_utf8(keys: pa.Array) -> pa.Array:
    """Convert header keys to strings. Bytes that are not valid UTF-8 are replaced by U+FFFD."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        dictionary_keys = keys.dictionary_encode()  # decode each distinct key once
        texts = [name.decode(errors="replace").encode() for name in dictionary_keys.dictionary.to_pylist()]
        return bytes_to_arrow(texts, pa.string()).take(dictionary_keys.indices)


def read_varints(data: NDArray[np.uint8], positions: Positions, max_bytes: int) -> tuple[Positions, Positions]:
    """Read a signed varint of at most `max_bytes` at each position. Return the values and the next positions."""
    current_bytes = data.take(positions, mode="clip")
    zigzag_values = (current_bytes & 0x7F).astype(np.uint64)
    next_positions = positions + 1
    unfinished_indices = np.nonzero(current_bytes > 0x7F)[0]  # varints that have more bytes
    for group in range(1, max_bytes):
        if not len(unfinished_indices):
            break
        current_bytes = data.take(next_positions[unfinished_indices], mode="clip")
        zigzag_values[unfinished_indices] |= (current_bytes & 0x7F).astype(np.uint64) << np.uint64(7 * group)
        next_positions[unfinished_indices] += 1
        unfinished_indices = unfinished_indices[current_bytes > 0x7F]
    if len(unfinished_indices):
        raise DecodeError("a number in a record is a malformed varint")
    halves, sign_bits = zigzag_values >> np.uint64(1), zigzag_values & np.uint64(1)
    values = halves.view(np.int64) ^ -sign_bits.view(np.int64)
    return values, next_positions


def extract_bytes(data: NDArray[np.uint8], starts: Positions, lengths: Positions) -> pa.Array:
    """Return the bytes of each range as a binary array. A length of -1 means null.

    The ranges must ascend and must not overlap, because the gaps between them also become elements of an Arrow array.
    """
    row_count = len(starts)
    if not row_count:
        return pa.nulls(0, pa.binary())
    offsets = np.empty(2 * row_count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = starts + np.maximum(lengths, 0)
    # The even elements are the ranges. The odd elements are the bytes in between.
    ranges_and_gaps = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * row_count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    nulls: Any = lengths < 0
    range_indices = numbers_to_arrow(np.arange(0, 2 * row_count, 2), nulls if nulls.any() else None)
    return ranges_and_gaps.take(range_indices)
