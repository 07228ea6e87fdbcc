"""Rows of bytes, put together column by column: records, and the headers inside of them.

The bytes of an Arrow binary array are its elements one after the other. So all pieces that rows are made of, varints
and payloads, are put into one array; then one `take` lays them out row after row, and the bytes of its result are the
rows. Two rows of a length and a value:

    array   varint 0, varint -1, varint 1, ... | value 0, value 1
    places  length 0, value 0, length 1, value 1

The varints of small numbers stand in the array once each, in the order of their zigzag codes. Larger numbers have an
element for each row.

To take a single byte costs as much as to take a value. So bytes that are the same in all rows are taken together with
the number behind them: its varints have these bytes in front. Bytes at the end of all rows are taken with the length at
the beginning of the next row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.records.arrays import (
    OFFSETS_MAX,
    ByteColumn,
    byte_column,
    bytes_array,
    data_nbytes,
    encode_varint,
    null_mask,
    number_array,
    numbers_of,
    varint_array,
    varint_widths,
    zigzag_column,
)

Numbers: TypeAlias = "NDArray[np.int64] | NDArray[np.int32]"

_SMALL_CODES = 1 << 14
"""All codes whose varints have one or two bytes."""
_RESERVE = 0.98
"""A mean length that is a little too high costs nothing; one that is too low makes `take` grow its memory, and copy."""
_EMPTY_MAX = 1 << 17
_EMPTY = pa.Array.from_buffers(
    pa.binary(), _EMPTY_MAX, [None, pa.py_buffer(np.zeros(_EMPTY_MAX + 1, np.int32)), pa.py_buffer(b"")]
)
JOINED_BYTES_MAX = OFFSETS_MAX - (1 << 21)
"""What rows may have together: beside them, the varints of small numbers must fit into an array with 32-bit offsets."""
_POOL = pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else pa.system_memory_pool()
"""Where encoded records lie, and their pieces for a moment. Records are written on one thread and freed on another, the
sender's. mimalloc, Arrow's usual allocator, keeps memory apart for each thread: it held 20 to 30 MB more for records,
and 20 MB more for pieces. The system's mixes them with what lives for a moment only, and held 15 MB more."""


def reuse_freed_memory() -> None:
    """Let glibc keep up to 8 MB of freed memory for the next allocations, from now on in this process.

    By default it gives everything above 128 kB back to the system, so that the columns of each chunk would be mapped
    page by page again: 200 page faults for 10,000 records, half as much again as encoding them costs. The limit becomes
    twice the size of the largest block that was ever freed, so one block is allocated and freed.
    """
    np.empty(4 << 20, np.uint8)


@lru_cache(16)
def _small_varints(front: bytes, bits: int) -> pa.Array:
    """The varints of all codes of at most `bits` bits, with `front` before each."""
    return varint_array(np.arange(1 << bits, dtype=np.uint32), front)


class JoinedRows:
    """One row or more. Each column that is added stands behind the columns before it, in every row.

    `order` has for each row the place of its bytes in the columns that are added; None: they stand in order. Numbers
    come in the order of the rows.
    """

    def __init__(self, rows: int, order: NDArray[np.int32] | None = None) -> None:
        self._rows = rows
        self._order = order
        self._arrays: list[pa.Array] = []
        self._next_place = 0
        self._columns: list[NDArray[Any] | bytes] = []  # places, or bytes that are the same in all rows
        self._end = b""  # the same at the end of all rows: each row but the first begins with that of the row before
        self._sizes: NDArray[Any] = np.zeros(rows, np.int32)

    def add_constant(self, data: bytes) -> None:
        """Add a column with these bytes in every row."""
        self._sizes += len(data)
        if self._columns and isinstance(self._columns[-1], bytes):
            self._columns[-1] += data
        else:
            self._columns.append(data)

    def add_numbers(self, values: Numbers) -> None:
        """Add a column with a varint in each row."""
        lowest = int(np.minimum.reduce(values))
        if lowest == np.maximum.reduce(values):
            self.add_constant(encode_varint(lowest))
            return
        places, widths = self._varints(values, self._pop_constant())
        self._columns.append(places)
        self._sizes += widths

    def add_payloads(self, pieces: Sequence[ByteColumn]) -> None:
        """Add the bytes of a column, which may lie in pieces, without their lengths; null adds nothing."""
        self._add_payloads(pieces, self._lengths_of(pieces))

    def add_bytes(self, pieces: Sequence[ByteColumn] | None) -> None:
        """Add lengths and bytes, as Kafka writes keys and values. The length of null is -1. None: every row is null."""
        if pieces is None:
            self.add_constant(encode_varint(-1))
        else:
            lengths = self._lengths_of(pieces)
            self.add_numbers(lengths)
            self._add_payloads(pieces, lengths)

    def add_length_in_front(self) -> None:
        """Put in front of each row the length that it has so far."""
        self._end = self._pop_constant()
        places, widths = self._varints(self._sizes, self._end)
        self._columns.insert(0, places)
        self._sizes += widths

    def join(self, stops: Sequence[int]) -> Iterator[tuple[pa.Buffer, NDArray[np.int32]]]:
        """Bytes that have the rows up to each stop, and where in them each row begins and the last one ends."""
        total = int(np.add.reduce(self._sizes, dtype=np.int64))
        if total > JOINED_BYTES_MAX:
            raise RecordTooLargeError(
                f"{self._rows} records of {total} bytes cannot be one batch: it holds less than 2 GiB"
            )
        columns = [
            np.broadcast_to(np.int32(self._add_array(bytes_array([column]))), self._rows)
            if isinstance(column, bytes)
            else column
            for column in self._columns
        ]
        end = self._add_array(bytes_array([self._end]))
        self._add_empty(self._rows * len(columns), total)
        pieces = pa.concat_arrays(self._arrays, memory_pool=_POOL)
        self._arrays.clear()
        for first, stop in pairwise([0, *stops]):
            places = np.empty((stop - first) * len(columns) + 1, np.int32)
            table = places[:-1].reshape(-1, len(columns))
            for index, column in enumerate(columns):
                table[:, index] = column[first:stop]
            places[-1] = end
            joined = pc.take(pieces, number_array(places), boundscheck=False, memory_pool=_POOL)
            _, offsets, data = joined.buffers()
            # The first row begins with the end of a row that does not exist.
            yield data.slice(len(self._end)), np.frombuffer(offsets, np.int32, len(places))[:: len(columns)]

    def _add_empty(self, taken: int, total_bytes: int) -> None:
        """Add empty elements, as many as make the mean length of all that of the elements that are taken.

        `take` reserves the mean length for each element that it takes. Short varints are taken many times, the rest
        once: so it reserved twice what it needed, and the holes that this left between the records of two calls held
        20 MB more than the records did.
        """
        elements = self._next_place
        data_bytes = sum([data_nbytes(array) for array in self._arrays])
        empty = int(_RESERVE * data_bytes * taken / max(total_bytes, 1)) - elements
        if empty > 0:
            self._arrays.append(_EMPTY.slice(0, min(empty, _EMPTY_MAX)))

    def _add_payloads(self, pieces: Sequence[ByteColumn], lengths: NDArray[np.int32]) -> None:
        """`lengths` are in the order of the rows."""
        first = self._next_place
        for piece in pieces:
            self._add_array(piece.array())
        places = np.arange(first, self._next_place, dtype=np.int32) if self._order is None else self._order + first
        self._columns.append(places)
        self._sizes += np.maximum(lengths, 0)

    def _lengths_of(self, pieces: Sequence[ByteColumn]) -> NDArray[np.int32]:
        lengths = pieces[0].lengths if len(pieces) == 1 else np.concatenate([piece.lengths for piece in pieces])
        return lengths if self._order is None else lengths.take(self._order)

    def _pop_constant(self) -> bytes:
        """Take the last column away if its bytes are the same in all rows: those bytes."""
        last = self._columns[-1] if self._columns else b""
        if not isinstance(last, bytes):
            return b""
        del self._columns[-1:]
        return last

    def _varints(self, values: Numbers, front: bytes) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """The places of their varints with `front` before each, and the widths of the varints alone."""
        coded = zigzag_column(values)
        widths = varint_widths(coded)
        highest = int(np.maximum.reduce(coded, initial=0))
        if highest < _SMALL_CODES:
            return coded.view(values.dtype) + self._add_array(_small_varints(front, highest.bit_length())), widths
        first = self._add_array(varint_array(coded, front))
        return np.arange(first, self._next_place, dtype=np.int32), widths

    def _add_array(self, array: pa.Array) -> int:
        """The place of its first element."""
        first = self._next_place
        self._arrays.append(array)
        self._next_place += len(array)
        return first


# The headers of a chunk's records: a count for each row, and `key length, key, value length, value` for each header.
#
# The headers of all rows lie one after the other in Arrow's child arrays. Each becomes a row of bytes (joined_rows.py);
# as these lie one after the other too, the headers of a record are a slice of them.


@dataclass(frozen=True)
class HeaderColumn:
    """The flat headers of a chunk: row i has those from `starts[i]` up to `starts[i + 1]`."""

    starts: NDArray[np.int64]
    keys: pa.Array
    values: pa.Array
    present: NDArray[np.bool_] | None
    """Which headers exist at all: a list may hold a null in a header's place. None: all."""

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.starts[1:] - self.starts[:-1]

    def encoded(self) -> ByteColumn:
        """The headers of each row, without their count."""
        headers = JoinedRows(len(self.keys))
        headers.add_bytes([byte_column(self.keys)])
        headers.add_bytes([byte_column(self.values)])
        ((data, edges),) = headers.join([len(self.keys)])
        return ByteColumn(edges[self.starts], data)


def header_column(array: pa.Array) -> HeaderColumn:
    """Read a list<struct<key, value>>, large_list or map column; null lists are empty ones."""
    if array.null_count:
        array = _without_bytes_under_nulls(array)
    starts = numbers_of(array.offsets).astype(np.int64)
    first, last = (int(starts[0]), int(starts[-1])) if len(starts) else (0, 0)
    present = None
    if pa.types.is_map(array.type):
        keys, values = array.keys.slice(first, last - first), array.items.slice(first, last - first)
    else:
        structs = array.values.slice(first, last - first)
        present = ~null_mask(structs) if structs.null_count else None
        keys, values = structs.field("key"), structs.field("value")
    return HeaderColumn(starts - first, keys, values, present)


def rows_with_bad_headers(array: pa.Array) -> NDArray[np.int64]:
    """Rows with a header whose key is null, or which is null itself."""
    headers = header_column(array)
    bad = np.zeros(len(headers.keys), np.bool_)
    if headers.keys.null_count:
        bad |= null_mask(headers.keys)
    if headers.present is not None:
        bad |= ~headers.present
    if not bad.any():
        return np.zeros(0, np.int64)
    rows = np.searchsorted(headers.starts, np.nonzero(bad)[0], side="right") - 1
    return np.unique(rows)


def _without_bytes_under_nulls(array: pa.Array) -> pa.Array:
    """Arrow allows elements under a null list. They are none of the record's."""
    offsets = numbers_of(array.offsets)
    if not (offsets[1:] - offsets[:-1])[null_mask(array)].any():
        return array
    return array.take(number_array(np.arange(len(array))))
