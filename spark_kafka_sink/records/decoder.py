"""Record batches back to columns: for the embedded broker, for reading topics, and for splitting a batch.

Where a record begins is known only from the length of the one before it. So one short loop walks over the lengths,
and nothing else; runs of records of one size are taken in one step. From then on every field is read for all records
at once, by gathering bytes at the positions reached so far. Keys and values are taken out by Arrow: an array whose
offsets are `start, end` of each value in turn has a value at every even place, and `take` copies those.

The bytes come from a peer. Every length is held against the bytes that are there before it is used, and what is not
exactly a batch ends in DecodeError. What decoding takes is bounded by `max_bytes`: the bytes after decompression, and
what is noted of each record and header meanwhile.
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
from spark_kafka_sink.records.header import ATTRIBUTES_OFFSET, HEADER_BYTES, BatchHeader, crc32c, parse_header

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Positions: TypeAlias = "NDArray[np.int64]"

DEFAULT_MAX_BYTES = 256 << 20
"""What decoding one batch may take, unless the caller says otherwise."""
MIN_RECORD_BYTES = 7
"""length, attributes, two deltas, two lengths and the count of headers."""
DECODING_BYTES_PER_RECORD = 110
DECODING_BYTES_PER_HEADER = 64
"""Positions and lengths, measured: next to nothing on the wire can be much of these."""

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

_SPARE_BYTES = 16
"""Zeros after the records, so that a varint that is cut off can be read, and found to be too long."""
_RUN_AFTER = 16
"""After this many records of one size in a row, the next ones are compared many at once."""
_RUN_ROWS = 64
"""The first comparison takes this many records. It doubles each time that all of them have the expected size."""
_FEW_ROWS = 16


class DecodedBatch(NamedTuple):
    header: BatchHeader
    columns: pa.RecordBatch


def parse_batches(buffer: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """The batches in `buffer`, each with its bytes (header included). Structure and CRC are checked, not records."""
    return list(iterate_batches(buffer, allow_partial_last=False))


def decode_batches(
    buffer: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES, allow_partial_last: bool = True
) -> Iterator[DecodedBatch]:
    """The batches in `buffer`, decoded one by one. A broker may cut the last batch of a fetch short: it is left out."""
    for header, batch in iterate_batches(buffer, allow_partial_last=allow_partial_last):
        yield DecodedBatch(header, decode_records(header, batch[HEADER_BYTES:], max_bytes=max_bytes))


def decode_records(
    header: BatchHeader, body: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES, preserve_header_keys: bool = False
) -> pa.RecordBatch:
    """The records of one batch; `body` is what follows the header, compressed as the header says.

    Brokers accept any bytes as the key of a header. Bytes that are not UTF-8 are replaced by U+FFFD, as in Java. With
    `preserve_header_keys` they are kept, so that the records can be encoded again; the column then has text that is not
    valid UTF-8.
    """
    return _reader(header, body, max_bytes).read(header, preserve_header_keys=preserve_header_keys)


def find_keyless_records(header: BatchHeader, body: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Positions:
    """DecodeError where decode_records would end in one, else which records have no key. Nothing is taken out."""
    return _reader(header, body, max_bytes).check(header)


def _reader(header: BatchHeader, body: Buffer, max_bytes: int) -> _Reader:
    count = header.record_count
    if not 0 <= count <= max_bytes // DECODING_BYTES_PER_RECORD:
        raise DecodeError(f"a batch of {count} records, at most {max_bytes // DECODING_BYTES_PER_RECORD} are read")
    data = decompress(header.codec, body, max_bytes)
    if count * MIN_RECORD_BYTES > len(data):
        raise DecodeError(f"{count} records cannot stand in {len(data)} bytes")
    if not isinstance(data, bytearray) or header.codec == Codec.NONE:
        data = bytearray(data)
    size = len(data)
    data += bytes(_SPARE_BYTES)
    starts, ends = _boundaries(data, size, count)
    return _Reader(data, starts, ends, max_bytes // DECODING_BYTES_PER_HEADER)


def iterate_batches(buffer: Buffer, *, allow_partial_last: bool = True) -> Iterator[tuple[BatchHeader, memoryview]]:
    """As `parse_batches`, one by one, and without the last one if a broker has cut it short."""
    view, at = memoryview(buffer), 0
    while at < len(view):
        rest = view[at:]
        if len(rest) < HEADER_BYTES and allow_partial_last and (len(rest) < 17 or rest[16] == 2):
            return
        header = parse_header(rest)
        if header.size_bytes > len(rest):
            if allow_partial_last:
                return
            raise DecodeError(f"a batch of {header.size_bytes} bytes, of which {len(rest)} are here")
        batch = rest[: header.size_bytes]
        checksum = crc32c(batch[ATTRIBUTES_OFFSET:])
        if checksum != header.crc:
            raise DecodeError(f"the CRC of the batch at offset {header.base_offset} is wrong: its bytes have changed")
        yield header, batch
        at += header.size_bytes


def _boundaries(data: bytearray, total: int, count: int) -> tuple[Positions, Positions]:
    """Where each record begins, after its length, and ends. Behind `total` there are spare bytes."""
    starts, ends = array("q"), array("q")
    at, size, same = 0, 0, 0
    while len(ends) < count:
        begin = at
        if at >= total:
            raise DecodeError("a batch ends before its last record")
        length, at = _length(data, at)
        starts.append(at)
        at += length
        if length < MIN_RECORD_BYTES - 1 or at > total:
            raise DecodeError(f"record {len(ends)} of a batch has a length of {length}, {total - starts[-1]} are left")
        ends.append(at)
        same = same + 1 if at - begin == size else 0
        size = at - begin
        if same >= _RUN_AFTER:
            run = _equal_sizes(data, begin, size, min(count - len(ends), (total - begin) // size - 1))
            prefix = starts[-1] - begin
            starts.extend(range(at + prefix, at + prefix + run * size, size))
            ends.extend(range(at + size, at + size + run * size, size))
            at += run * size
            same = 0
    if at != total:
        raise DecodeError(f"{total - at} bytes follow the last record of a batch")
    return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64)


def _length(data: bytearray, at: int) -> tuple[int, int]:
    coded = shift = 0
    for _ in range(5):
        if at >= len(data):
            raise DecodeError("a batch ends before its last record")
        byte = data[at]
        at += 1
        coded |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (coded >> 1) ^ -(coded & 1), at
        shift += 7
    raise DecodeError("the length of a record has no end")


def _equal_sizes(data: bytearray, begin: int, size: int, rows: int) -> int:
    """How many of the next `rows` records have the size of the one at `begin`: their length is in the same bytes.

    No further than twice as far as they reach, or many short runs would have the whole batch looked at for each.
    """
    _, body = _length(data, begin)
    prefix = np.frombuffer(data, np.uint8, body - begin, begin)
    equal, step = 0, _RUN_ROWS
    while equal < rows:
        count = min(step, rows - equal)
        table = np.frombuffer(data, np.uint8, count * size, begin + size * (equal + 1)).reshape(count, size)
        differs = (table[:, : len(prefix)] != prefix).any(axis=1)
        first = int(differs.argmax())
        if differs[first]:
            return equal + first
        equal += count
        step *= 2
    return equal


class _Fields(NamedTuple):
    """Of all records: their numbers, and where keys, values and headers are. Places are starts, and lengths or -1."""

    timestamp: Positions
    offset: Positions
    key: tuple[Positions, Positions]
    value: tuple[Positions, Positions]
    header_offsets: Positions
    header_places: NDArray[np.int64]
    """Four rows: start and length of each key, start and length of each value."""


class _Reader:
    """All records of one batch, read field by field: `at` is how far each one has been read."""

    def __init__(self, data: bytearray, starts: Positions, ends: Positions, headers_max: int) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self._headers_max = headers_max
        self.at = starts + 1
        """After the attributes, of which none is in use."""
        self.ends = ends

    def check(self, header: BatchHeader) -> Positions:
        return np.flatnonzero(self._fields(header).key[1] < 0)

    def read(self, header: BatchHeader, *, preserve_header_keys: bool) -> pa.RecordBatch:
        timestamp, offset, key_places, value_places, header_offsets, header_places = self._fields(header)
        key, value = extract_bytes(self.data, *key_places), extract_bytes(self.data, *value_places)
        header_keys = extract_bytes(self.data, header_places[0], header_places[1])
        header_keys = header_keys.view(pa.string()) if preserve_header_keys else _as_text(header_keys)
        headers = self._header_array(header_offsets, header_keys, header_places)
        if header.has_log_append_time:
            timestamp = np.full(len(timestamp), header.max_timestamp, np.int64)
        else:
            timestamp = timestamp + header.base_timestamp
        columns = [numbers_to_arrow(offset + header.base_offset), numbers_to_arrow(timestamp), key, value, headers]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _fields(self, header: BatchHeader) -> _Fields:
        timestamp = self._numbers(10)
        offset = self._numbers(5)
        self._check_offsets(offset, header)
        key = self._places("key")
        value = self._places("value")
        header_offsets, header_places = self._headers()
        if (self.at != self.ends).any():
            raise DecodeError("a record is longer or shorter than its fields")
        return _Fields(timestamp, offset, key, value, header_offsets, header_places)

    def _check_offsets(self, offset: Positions, header: BatchHeader) -> None:
        if len(offset) and (
            offset[0] < 0 or offset[-1] > header.last_offset_delta or (offset[1:] <= offset[:-1]).any()
        ):
            raise DecodeError("the offsets of a batch do not ascend, or leave its range")

    def _numbers(self, max_bytes: int) -> Positions:
        values, self.at = read_varints(self.data, self.at, max_bytes)
        return values

    def _places(self, name: str) -> tuple[Positions, Positions]:
        lengths = self._numbers(5)
        self._check_room(lengths, name)
        starts = self.at
        self.at = starts + np.maximum(lengths, 0)
        return starts, lengths

    def _check_room(self, lengths: Positions, name: str) -> None:
        if ((lengths < -1) | (lengths > self.ends - self.at)).any():
            raise DecodeError(f"the length of a {name} is negative, or more than its record has")

    def _headers(self) -> tuple[Positions, NDArray[np.int64]]:
        """Where the headers of each record begin among all, and the places of their keys and values."""
        counts = self._numbers(5)
        # Each header has at least the lengths of its key and value.
        if ((counts < 0) | (counts * 2 > self.ends - self.at)).any():
            raise DecodeError("the count of headers is negative, or more than its record can hold")
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        if offsets[-1] > self._headers_max:
            raise DecodeError(f"{offsets[-1]} headers in one batch, at most {self._headers_max} are read")
        places = np.zeros((4, int(offsets[-1])), np.int64)
        active = np.nonzero(counts)[0]
        index = 0
        while len(active) > _FEW_ROWS:
            self._next_headers(active, offsets[active] + index, places)
            index += 1
            active = active[counts[active] > index]
        for row in active.tolist():
            self._rest_of_headers(row, int(offsets[row]) + index, int(offsets[row + 1]), places)
        return offsets, places

    def _next_headers(self, rows: Positions, slots: Positions, places: NDArray[np.int64]) -> None:
        """The next header of many records at once."""
        at, ends = self.at[rows], self.ends[rows]
        for field in (0, 2):
            lengths, at = read_varints(self.data, at, 5)
            if ((lengths < (0 if field == 0 else -1)) | (lengths > ends - at)).any():
                raise DecodeError("the length of a header is negative, or more than its record has")
            places[field, slots], places[field + 1, slots] = at, lengths
            at = at + np.maximum(lengths, 0)
        self.at[rows] = at

    def _rest_of_headers(self, row: int, slot: int, stop: int, places: NDArray[np.int64]) -> None:
        """The remaining headers of one record, which has more of them than the others."""
        data = self.data.data
        at, end = int(self.at[row]), int(self.ends[row])
        found = array("q")
        for _ in range(slot, stop):
            for lowest in (0, -1):
                length, at = _length(data, at)  # type: ignore[arg-type]
                if length < lowest or length > end - at:
                    raise DecodeError("the length of a header is negative, or more than its record has")
                found.append(at)
                found.append(length)
                at += max(length, 0)
        places[:, slot:stop] = np.frombuffer(found, np.int64).reshape(-1, 4).T
        self.at[row] = at

    def _header_array(self, offsets: Positions, keys: pa.Array, places: NDArray[np.int64]) -> pa.Array:
        values = extract_bytes(self.data, places[2], places[3])
        fields = [HEADERS_TYPE.value_type.field(i) for i in range(2)]
        structs = pa.StructArray.from_arrays([keys, values], fields=fields)
        return pa.ListArray.from_arrays(numbers_to_arrow(offsets.astype(np.int32)), structs, type=HEADERS_TYPE)


def _as_text(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        coded = keys.dictionary_encode()
        names = [name.decode(errors="replace").encode() for name in coded.dictionary.to_pylist()]
        return bytes_to_arrow(names, pa.string()).take(coded.indices)


def read_varints(data: NDArray[np.uint8], at: Positions, max_bytes: int) -> tuple[Positions, Positions]:
    """A zigzag varint at each position, and the positions after them. Positions must leave room for `max_bytes`."""
    byte = data.take(at, mode="clip")
    coded = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    more = np.nonzero(byte > 0x7F)[0]
    for group in range(1, max_bytes):
        if not len(more):
            break
        byte = data.take(after[more], mode="clip")
        coded[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * group)
        after[more] += 1
        more = more[byte > 0x7F]
    if len(more):
        raise DecodeError("a number in a record has no end")
    return (coded >> np.uint64(1)).view(np.int64) ^ -(coded & np.uint64(1)).view(np.int64), after


def extract_bytes(data: NDArray[np.uint8], starts: Positions, lengths: Positions) -> pa.Array:
    """The bytes at each position, as a binary array; a length of -1 is a null."""
    rows = len(starts)
    if not rows:
        return pa.nulls(0, pa.binary())
    edges = np.empty(2 * rows, np.int32)
    edges[0::2] = starts
    edges[1::2] = starts + np.maximum(lengths, 0)
    spread = pa.BinaryArray.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    nulls: Any = lengths < 0
    wanted = numbers_to_arrow(np.arange(0, 2 * rows, 2), nulls if nulls.any() else None)
    return spread.take(wanted)
