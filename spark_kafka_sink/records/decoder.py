"""Decoder of record batches into columns. Used by the embedded broker, by topic readers and when a batch is split.

A record starts where the previous one ends, so a loop first reads the lengths of the records one by one. If many
consecutive records have the same size, it skips over them in one step. After that, each field is read for all records
at once: the positions of the field in all records are an array, and numpy gathers the bytes at these positions
(_RecordReader).

Batches come from a peer and are not trusted. Every length is compared with the available bytes before it is used, and
malformed batches raise DecodeError. `max_bytes` limits the memory for decoding a batch: the decompressed bytes, and the
positions and lengths of all records and headers.
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
"""Minimum size of a record: one byte each for its length, attributes, two deltas, two lengths and header count."""
# Measured memory for the positions and lengths of one record or header while the batch is decoded. On the wire, the
# record or header may be much smaller.
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
"""Number of zeros appended to the records, so that reading a truncated varint stays in bounds.

The read then ends beyond the end of the records, which a later check detects.
"""
_KEY_STARTS, _KEY_LENGTHS, _VALUE_STARTS, _VALUE_LENGTHS = range(4)
"""The rows of `_RecordFields.header_ranges`."""
_HEADER_PARTS = ((_KEY_STARTS, _KEY_LENGTHS, 0), (_VALUE_STARTS, _VALUE_LENGTHS, -1))
"""For the key and then the value of a header: the row of the starts, the row of the lengths, and the minimum length.
Only a value can be null, which is encoded as the length -1."""
# The following numbers are for tuning.
_MIN_STREAK_BEFORE_RUN = 16
"""After this many consecutive records of equal size, the following records are compared in one step."""
_RUN_COMPARISON_RECORDS = 64
"""Number of records in the first comparison. The number doubles whenever all of them have the expected size."""
_MIN_VECTORIZED_RECORDS = 16
"""If at most this many records have headers left, reading the headers record by record is faster."""


class DecodedBatch(NamedTuple):
    """A decoded batch."""

    header: BatchHeader
    columns: pa.RecordBatch
    """The records, with the columns of SCHEMA."""


def parse_batches(buffer: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """Return the header and the bytes of each batch in `buffer`. The bytes include the header.

    Raise DecodeError if a header is malformed, a batch is truncated or a CRC is wrong. The records are not checked.
    """
    return list(iterate_batches(buffer, allow_partial_last=False))


def decode_batches(
    buffer: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES, allow_partial_last: bool = True
) -> Iterator[DecodedBatch]:
    """Decode the batches in `buffer` one by one. Raise DecodeError if a batch is malformed.

    `max_bytes`: the memory limit for decoding one batch.
    `allow_partial_last`: whether to skip a truncated last batch, which a broker may return in a fetch response.
    """
    for header, batch in iterate_batches(buffer, allow_partial_last=allow_partial_last):
        yield DecodedBatch(header, decode_records(header, batch[HEADER_BYTES:], max_bytes=max_bytes))


def decode_records(
    header: BatchHeader, body: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES, preserve_header_keys: bool = False
) -> pa.RecordBatch:
    """Return the records of a batch, with the columns of SCHEMA. Raise DecodeError if they are malformed.

    `body`: the bytes after the batch header, which may be compressed.
    `preserve_header_keys`: whether to keep the bytes of header keys that are not valid UTF-8, so that the records can
    be encoded again. The string column then contains invalid UTF-8. By default, such bytes are replaced by U+FFFD, as
    in Java.
    """
    return _build_reader(header, body, max_bytes).read(header, preserve_header_keys=preserve_header_keys)


def find_keyless_records(header: BatchHeader, body: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Positions:
    """Return the indices of the records without a key. Raise DecodeError if the records are malformed.

    Unlike `decode_records`, this does not copy the keys, values and headers.
    """
    return _build_reader(header, body, max_bytes).find_keyless_records(header)


def _build_reader(header: BatchHeader, body: Buffer, max_bytes: int) -> _RecordReader:
    """Decompress a batch and find its records. Raise DecodeError if they are malformed or exceed `max_bytes`."""
    count, max_records = header.record_count, max_bytes // DECODING_BYTES_PER_RECORD
    if not 0 <= count <= max_records:
        raise DecodeError(f"the batch has {count} records, but at most {max_records} are allowed")
    data = decompress(header.codec, body, max_bytes)
    if count * MIN_RECORD_BYTES > len(data):
        raise DecodeError(f"{count} records do not fit into {len(data)} bytes")
    # The padding is appended in place, so copy the data first if it cannot grow or belongs to the caller.
    if not isinstance(data, bytearray) or header.codec == Codec.NONE:
        data = bytearray(data)
    size = len(data)
    data += bytes(_PADDING_BYTES)
    starts, ends = _find_record_boundaries(data, size, count)
    return _RecordReader(data, starts, ends, max_bytes // DECODING_BYTES_PER_HEADER)


def iterate_batches(buffer: Buffer, *, allow_partial_last: bool = True) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the header and the bytes of each batch in `buffer`. The bytes include the header.

    `allow_partial_last`: whether to skip a truncated last batch.

    Raise DecodeError if a header is malformed or a CRC is wrong, and for a truncated batch that is not skipped.
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
            raise DecodeError(f"the batch is truncated: {len(remaining_view)} of {header.size_bytes} bytes are present")
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
    # Do not take a batch in an old format, which may be shorter, for a partial header: parse_header() must report it.
    return len(data) <= MAGIC_OFFSET or data[MAGIC_OFFSET] == MAGIC


def _find_record_boundaries(data: bytearray, data_end: int, count: int) -> tuple[Positions, Positions]:
    """Return the start and end positions of all records, excluding their length fields.

    `data_end`: the position at which the records end and the padding begins.
    `count`: the number of records according to the batch header.

    Raise DecodeError if a length is malformed, or if the records do not end at `data_end`.
    """
    starts, ends = array("q"), array("q")
    # Sizes include the length fields of the records. `same_size_streak` counts the records directly before the current
    # one that have the same size as the current one.
    position, previous_size, same_size_streak = 0, 0, 0
    while len(ends) < count:
        start = position
        if position >= data_end:
            raise DecodeError("a batch ends before its last record")
        length, position = _read_varint(data, position)
        starts.append(position)
        position += length
        # The length does not count its own field, which takes one of the MIN_RECORD_BYTES.
        if length < MIN_RECORD_BYTES - 1 or position > data_end:
            raise DecodeError(
                f"record {len(ends)} of a batch has the invalid length {length}: {data_end - starts[-1]} bytes are left"
            )
        ends.append(position)
        size = position - start
        same_size_streak = same_size_streak + 1 if size == previous_size else 0
        previous_size = size
        if same_size_streak >= _MIN_STREAK_BEFORE_RUN:
            # The next records probably have the same size, too. Find out how many do, and add them in one step. They
            # cannot be more than the records that are still missing, nor more than fit into the remaining bytes.
            max_run_length = min(count - len(ends), (data_end - position) // size)
            run_length = _count_equal_sizes(data, start, size, max_run_length)
            run_end = position + run_length * size
            length_width = starts[-1] - start
            starts.extend(range(position + length_width, run_end + length_width, size))
            ends.extend(range(position + size, run_end + size, size))
            position = run_end
            same_size_streak = 0
    if position != data_end:
        raise DecodeError(f"{data_end - position} bytes follow the last record of a batch")
    return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64)


def _read_varint(data: bytearray, position: int) -> tuple[int, int]:
    """Read a signed varint of at most _MAX_INT32_VARINT_BYTES. Return its value and the position after it.

    Raise DecodeError if the varint is malformed or truncated.
    """
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
    """Return how many records directly after the record at `start` have the same size, but at most `max_count`.

    `size`: the size of the record at `start`, including its length field.
    """
    # Records of equal size have equal bytes in their length fields. Compare these bytes in blocks of records that
    # double in size, so that the work is proportional to the length of the run, even if runs are short.
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
    """The fields of all records. Ranges consist of starts and lengths; null has the length -1."""

    timestamp_deltas: Positions
    offset_deltas: Positions
    key_ranges: tuple[Positions, Positions]
    """The starts and the lengths of the keys."""
    value_ranges: tuple[Positions, Positions]
    """The starts and the lengths of the values."""
    header_offsets: Positions
    """The index of each record's first header, followed by the number of all headers."""
    header_ranges: NDArray[np.int64]
    """One column per header, and the rows _KEY_STARTS, _KEY_LENGTHS, _VALUE_STARTS and _VALUE_LENGTHS."""


class _RecordReader:
    """Reads the records of a batch field by field, each field for all records at once. Can be used only once."""

    def __init__(self, data: bytearray, starts: Positions, ends: Positions, max_headers: int) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self._max_headers = max_headers
        self.positions = starts + 1  # skip the attributes, which are unused
        """The position of the next unread byte in each record."""
        self.ends = ends

    def find_keyless_records(self, batch_header: BatchHeader) -> Positions:
        """Read all fields. Return the indices of the records without a key."""
        _, key_lengths = self._read_fields(batch_header).key_ranges
        return np.flatnonzero(key_lengths < 0)

    def read(self, batch_header: BatchHeader, *, preserve_header_keys: bool) -> pa.RecordBatch:
        """Read all fields. Return the records, with the columns of SCHEMA."""
        fields = self._read_fields(batch_header)
        key = extract_bytes(self.data, *fields.key_ranges)
        value = extract_bytes(self.data, *fields.value_ranges)
        header_keys = extract_bytes(self.data, fields.header_ranges[_KEY_STARTS], fields.header_ranges[_KEY_LENGTHS])
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
        """Read and validate the fields of all records. Raise DecodeError if they are malformed."""
        # The fields must be read in the order in which they occur in a record, because each read advances `positions`.
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
        """Raise DecodeError unless the offset deltas ascend from 0 or more to at most the header's lastOffsetDelta."""
        if not len(offset_deltas):
            return
        is_ascending = (offset_deltas[1:] > offset_deltas[:-1]).all()
        if not is_ascending or offset_deltas[0] < 0 or offset_deltas[-1] > batch_header.last_offset_delta:
            raise DecodeError("the offsets of a batch do not ascend, or are out of its range")

    def _read_varints(self, max_bytes: int) -> Positions:
        """Read a signed varint of at most `max_bytes` from each record."""
        values, self.positions = read_varints(self.data, self.positions, max_bytes)
        return values

    def _read_ranges(self, name: str) -> tuple[Positions, Positions]:
        """Read the length of each record's key or value, and skip its bytes. Return the starts and the lengths.

        `name`: `key` or `value`, for error messages.
        """
        lengths = self._read_varints(_MAX_INT32_VARINT_BYTES)
        self._check_lengths(lengths, name)
        starts = self.positions
        self.positions = starts + np.maximum(lengths, 0)
        return starts, lengths

    def _check_lengths(self, lengths: Positions, name: str) -> None:
        """Raise DecodeError unless each length is -1 (null) or at most the number of unread bytes of its record."""
        if ((lengths < -1) | (lengths > self.ends - self.positions)).any():
            raise DecodeError(f"a {name} has a negative length, or extends beyond its record")

    def _read_headers(self) -> tuple[Positions, NDArray[np.int64]]:
        """Read the headers of all records. Return `header_offsets` and `header_ranges` of _RecordFields."""
        header_counts = self._read_varints(_MAX_INT32_VARINT_BYTES)
        # A header takes at least two bytes, for the lengths of its key and value.
        if ((header_counts < 0) | (header_counts * 2 > self.ends - self.positions)).any():
            raise DecodeError("a record has a negative number of headers, or more than fit into it")
        header_offsets = np.zeros(len(header_counts) + 1, np.int64)
        np.cumsum(header_counts, out=header_offsets[1:])
        if header_offsets[-1] > self._max_headers:
            raise DecodeError(
                f"the batch has {header_offsets[-1]} headers, but at most {self._max_headers} are allowed"
            )
        # See _RecordFields for what each of the four rows means.
        header_ranges = np.zeros((4, int(header_offsets[-1])), np.int64)
        self._fill_header_ranges(header_ranges, header_offsets, header_counts)
        return header_offsets, header_ranges

    def _fill_header_ranges(
        self, header_ranges: NDArray[np.int64], header_offsets: Positions, header_counts: Positions
    ) -> None:
        """Read all headers into `header_ranges`.

        Read the first header of all records that have one, then the second header of all records that have two, and so
        on. When few records are left, read all their remaining headers, one record after the other.
        """
        unfinished_records = np.nonzero(header_counts)[0]
        headers_read = 0
        while len(unfinished_records) > _MIN_VECTORIZED_RECORDS:
            header_indices = header_offsets[unfinished_records] + headers_read
            self._read_next_headers(unfinished_records, header_indices, header_ranges)
            headers_read += 1
            unfinished_records = unfinished_records[header_counts[unfinished_records] > headers_read]
        for record_index in unfinished_records.tolist():
            next_header_index = int(header_offsets[record_index]) + headers_read
            header_stop = int(header_offsets[record_index + 1])
            self._read_remaining_headers(record_index, next_header_index, header_stop, header_ranges)

    def _read_next_headers(
        self, record_indices: Positions, header_indices: Positions, header_ranges: NDArray[np.int64]
    ) -> None:
        """Read the next header of each of the given records into `header_ranges`.

        `header_indices`: for each of these records, the index of the header, which is a column of `header_ranges`.
        """
        positions, ends = self.positions[record_indices], self.ends[record_indices]
        for start_row, length_row, min_length in _HEADER_PARTS:
            lengths, positions = read_varints(self.data, positions, _MAX_INT32_VARINT_BYTES)
            if ((lengths < min_length) | (lengths > ends - positions)).any():
                raise DecodeError("a header has a negative length, or extends beyond its record")
            header_ranges[start_row, header_indices] = positions
            header_ranges[length_row, header_indices] = lengths
            positions = positions + np.maximum(lengths, 0)
        self.positions[record_indices] = positions

    def _read_remaining_headers(
        self, record_index: int, next_header_index: int, header_stop: int, header_ranges: NDArray[np.int64]
    ) -> None:
        """Read the remaining headers of one record into `header_ranges`, one at a time.

        This is faster than `_read_next_headers` when only a few records have headers left.

        `next_header_index`, `header_stop`: the range of columns of `header_ranges` for these headers.
        """
        data = self.data.data
        position, end = int(self.positions[record_index]), int(self.ends[record_index])
        record_ranges = array("q")  # for each header, the four numbers of its column in `header_ranges`
        for _ in range(next_header_index, header_stop):
            for min_length in (0, -1):  # the key, then the value; only the value can be null (-1)
                length, position = _read_varint(data, position)  # type: ignore[arg-type]
                if length < min_length or length > end - position:
                    raise DecodeError("a header has a negative length, or extends beyond its record")
                record_ranges.append(position)
                record_ranges.append(length)
                position += max(length, 0)
        header_ranges[:, next_header_index:header_stop] = np.frombuffer(record_ranges, np.int64).reshape(-1, 4).T
        self.positions[record_index] = position

    def _build_header_array(self, offsets: Positions, keys: pa.Array, header_ranges: NDArray[np.int64]) -> pa.Array:
        """Build the column of headers from their keys and the ranges of their values.

        `offsets`: the index of each record's first header, followed by the number of all headers.
        """
        values = extract_bytes(self.data, header_ranges[_VALUE_STARTS], header_ranges[_VALUE_LENGTHS])
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
    """Read a signed varint at each position. Return the values, and the positions after the varints.

    Raise DecodeError if a varint has more than `max_bytes` bytes.
    """
    # Read the first byte of all varints, then the second byte of all varints that have one, and so on. `mode="clip"`
    # keeps positions in bounds; callers detect positions beyond the end of the records.
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
    """Return the bytes of each range as a binary array. A range of length -1 becomes null.

    The ranges must ascend and must not overlap.
    """
    # Let Arrow copy the bytes: an array whose offsets are the start and the end of each range in turn has the ranges as
    # its even elements, and the gaps between them as its odd elements. `take` then copies the even elements. For
    # example, the offsets [2, 5, 7, 8] describe the elements 2 to 5 (range), 5 to 7 (gap) and 7 to 8 (range).
    row_count = len(starts)
    if not row_count:
        return pa.nulls(0, pa.binary())
    offsets = np.empty(2 * row_count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = starts + np.maximum(lengths, 0)
    ranges_and_gaps = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * row_count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    nulls: Any = lengths < 0
    range_indices = numbers_to_arrow(np.arange(0, 2 * row_count, 2), nulls if nulls.any() else None)
    return ranges_and_gaps.take(range_indices)
