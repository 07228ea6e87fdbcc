"""Rows of bytes, put together column by column: records, the headers inside of them, values in Avro and Protobuf.

A row is a few fields (numbers as bytes, fields.py) and a few payloads (Arrow's bytes of keys, values and headers).
Arrow has a type for such rows, the view: 16 bytes that say how long an element is, and where its bytes are.

    up to 12 bytes   length (4 bytes), and the bytes themselves
    longer           length (4 bytes), its first bytes (4), the number of a buffer (4), and the place in it (4)

So a table of views is made with the elements of each row side by side, and one call of Arrow writes their bytes one
after the other. Two rows of a length and a value:

    views     length 0, value 0, length 1, value 1
    written   the rows

Payloads stay where they are until then: what is ordered is their views. A view costs as much as a short value, so
neighbouring fields share one, and a field at the end of all rows shares that of the length at the beginning of the
next row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.records.arrays import MAX_OFFSET
from spark_kafka_sink.records.byte_column import ByteColumn
from spark_kafka_sink.records.fields import (
    Field,
    constant_field,
    constant_fields,
    encode_varint,
    merge_fields,
    signed_varint_fields,
)

Numbers: TypeAlias = "NDArray[np.int64] | NDArray[np.int32]"

MAX_JOINED_BYTES = MAX_OFFSET - 8
"""What rows may have together: they become one array with 32-bit offsets. In front of them is the end of a row. Some
versions of Arrow do not notice that rows have more."""
_BINARY, _VIEW = pa.binary(), pa.binary_view()
_VIEW_BYTES = np.dtype("V16")
_SHORT_VIEW = np.dtype({"names": ["length", "bytes"], "formats": ["<u4", "<u8"], "offsets": [0, 4], "itemsize": 16})
_POOL = pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else pa.system_memory_pool()
"""Where joined rows lie. Records are written on one thread and freed on another, the sender's. mimalloc, Arrow's usual
allocator, keeps memory apart for each thread: it held 20 to 30 MB more. The system's mixes them with what lives for a
moment only, and held 15 MB more."""


class JoinedRowsBuilder:
    """One row or more. What is added stands behind what was added before, in every row.

    `order` has for each row the place of its payloads in the columns that are added; None: they stand in order. Numbers
    come in the order of the rows.
    """

    def __init__(self, rows: int, order: NDArray[np.int32] | None = None) -> None:
        self._rows = rows
        self._order = order
        self._columns: list[Field | int] = []  # fields, and numbers of payloads
        self._payloads: list[pa.Array] = []  # the pieces of all of them
        self._payload_count = 0
        self._payload_bytes = 0
        self._end = constant_field(b"")  # the same at the end of all rows: each row but the first begins with it
        self._sizes: NDArray[np.int32] = np.zeros(rows, np.int32)

    def add_constant(self, data: bytes) -> None:
        """Add these bytes to every row."""
        self.add_fields(constant_fields(data))

    def add_numbers(self, values: Numbers) -> None:
        """Add a varint to each row."""
        self.add_fields(signed_varint_fields(values))

    def add_fields(self, fields: Sequence[Field]) -> None:
        """Add numbers that are bytes already."""
        self._columns += fields
        for field in fields:
            self._sizes += field.width

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
        last = self._columns[-1]
        if isinstance(last, Field) and isinstance(last.word, int) and isinstance(last.width, int):
            self._end = last
            del self._columns[-1]
        lengths = signed_varint_fields(self._sizes)
        self._columns[:0] = [self._end, *lengths]
        for length in lengths:
            self._sizes += length.width

    def join(self, stops: Sequence[int]) -> Iterator[tuple[pa.Buffer, NDArray[np.int32]]]:
        """Bytes that have the rows up to each stop, and where in them each row begins and the last one ends."""
        self._check_size()
        columns = merge_fields(self._columns)
        payloads, buffers = self._views_of_payloads()
        order = self._order
        for first, stop in pairwise([0, *stops]):
            views = np.empty((stop - first) * len(columns) + 1, _VIEW_BYTES)
            table = views[:-1].reshape(-1, len(columns))
            short = table.view(_SHORT_VIEW)
            for index, column in enumerate(columns):
                if isinstance(column, Field):
                    short["bytes"][:, index], short["length"][:, index], _ = column.of_rows(first, stop)
                else:
                    table[:, index] = (
                        payloads[column, first:stop] if order is None else payloads[column].take(order[first:stop])
                    )
            views.view(_SHORT_VIEW)[-1] = self._end.width, self._end.word
            shown = pa.Array.from_buffers(_VIEW, len(views), [None, pa.py_buffer(views), *buffers])
            _, offsets, data = pc.cast(shown, _BINARY, memory_pool=_POOL).buffers()
            # The first row begins with the end of a row that does not exist.
            yield data.slice(self._end.width_max), np.frombuffer(offsets, np.int32, len(views))[:: len(columns)]

    def array(self) -> pa.Array:
        """All rows as a binary array."""
        ((data, edges),) = self.join([self._rows])
        return pa.BinaryArray.from_buffers(_BINARY, self._rows, [None, pa.py_buffer(edges.copy()), data], null_count=0)

    def _check_size(self) -> None:
        fields = [column for column in self._columns if isinstance(column, Field)]
        if self._payload_bytes + self._rows * sum([field.width_max for field in fields]) <= MAX_JOINED_BYTES:
            return
        widths = [np.broadcast_to(field.width, self._rows) for field in fields]
        total = self._payload_bytes + sum([int(np.add.reduce(width, dtype=np.int64)) for width in widths])
        if total > MAX_JOINED_BYTES:
            raise _too_large(self._rows, total)

    def _views_of_payloads(self) -> tuple[NDArray[Any], list[pa.Buffer]]:
        """The views of each payload, and the buffers that they count."""
        if not self._payloads:
            return np.empty((0, 0), _VIEW_BYTES), []
        pieces = pa.chunked_array(self._payloads, _BINARY).cast(_VIEW).chunks
        self._payloads.clear()
        _, views, *buffers = pa.concat_arrays(pieces).buffers()
        return np.frombuffer(views, _VIEW_BYTES, self._payload_count * self._rows).reshape(-1, self._rows), buffers

    def _add_payloads(self, pieces: Sequence[ByteColumn], lengths: NDArray[np.int32]) -> None:
        """`lengths` are in the order of the rows."""
        self._payload_bytes += sum([piece.nbytes for piece in pieces])
        if self._payload_bytes > MAX_JOINED_BYTES:
            raise _too_large(self._rows, self._payload_bytes)
        self._payloads += [piece.array() for piece in pieces]
        self._columns.append(self._payload_count)
        self._payload_count += 1
        self._sizes += np.maximum(lengths, 0)

    def _lengths_of(self, pieces: Sequence[ByteColumn]) -> NDArray[np.int32]:
        lengths = pieces[0].lengths if len(pieces) == 1 else np.concatenate([piece.lengths for piece in pieces])
        return lengths if self._order is None else lengths.take(self._order)


def _too_large(rows: int, total: int) -> RecordTooLargeError:
    return RecordTooLargeError(f"{rows} records of {total} bytes cannot be one batch: it holds less than 2 GiB")
