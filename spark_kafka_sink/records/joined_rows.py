"""JoinedRowsBuilder: joins columns row by row into bytes, for records, headers, and values in Avro and Protobuf.

A row consists of *fields* (encoded numbers, fields.py) and *payloads* (bytes of keys, values and headers in Arrow
arrays). Both are represented by Arrow's binary views, which have 16 bytes:

    up to 12 bytes   length (4 bytes) and the bytes themselves
    longer           length (4 bytes), first 4 bytes, number of a buffer (4 bytes), offset in the buffer (4 bytes)

The builder creates a table of views, with one row per row of the result and one column per field or payload. A single
Arrow call then writes the bytes of all views one after the other. Payloads are not copied before this call; only their
views are put in order.

Every view costs as much time as writing a short value, so adjacent fields are merged into one view.

Records end with a constant field if they have no headers. Such a *row suffix* is merged with the length at the start of
the next row. The first row then also begins with a suffix, which is skipped, and the suffix of the last row gets a view
of its own. For example, these are the values `a` and `bc`, each between a length (a signed varint: 04 stands for 2
bytes, `a` and 00) and the suffix 00:

    views     00 04, a, 00 06, bc, 00
    rows      04 a 00, 06 bc 00
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
    build_constant_field,
    build_constant_fields,
    build_signed_varint_fields,
    encode_varint,
    merge_fields,
)

IntArray: TypeAlias = "NDArray[np.int64] | NDArray[np.int32]"

MAX_JOINED_BYTES = MAX_OFFSET - 8
"""Maximum total size of all rows. They become one array with 32-bit offsets.

8 bytes are subtracted, because a row suffix (at most 8 bytes) is also written before the first row. The limit is
checked here, because some versions of Arrow do not detect an overflow.
"""
_BINARY, _VIEW = pa.binary(), pa.binary_view()
_VIEW_LAYOUT = np.dtype("V16")
"""A view as 16 opaque bytes."""
_SHORT_VIEW_LAYOUT = np.dtype(
    {"names": ["length", "bytes"], "formats": ["<u4", "<u8"], "offsets": [0, 4], "itemsize": 16}
)
"""A view of up to 8 bytes, as for a field."""
_MEMORY_POOL = pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else pa.system_memory_pool()
"""Memory pool for joined rows.

Records are written on one thread and freed on another, the sender thread. mimalloc, Arrow's default allocator, keeps
memory per thread and held 20 to 30 MB more than jemalloc. The system allocator mixes records with short-lived objects
and held 15 MB more.
"""


class JoinedRowsBuilder:
    """Builds rows from columns. Each `add` method appends a column to all rows. `join` may be called only once."""

    def __init__(self, row_count: int, order: NDArray[np.int32] | None = None) -> None:
        """Create a builder of `row_count` empty rows.

        `order`: for each row, the index of its payloads in the columns that are added; None if the columns are already
        in the order of the rows. Numbers must always be added in the order of the rows.
        """
        self._row_count = row_count
        self._order = order
        self._columns: list[Field | int] = []
        """The columns of all rows: a field, or the index of a column of payloads."""
        self._payloads: list[pa.Array] = []
        """The chunks of all columns of payloads, one column after the other."""
        self._payload_count = 0
        """Number of columns of payloads."""
        self._payload_bytes = 0
        self._row_suffix = build_constant_field(b"")
        """The last bytes of every row, which are written together with the first field of the next row."""
        self._sizes: NDArray[np.int32] = np.zeros(row_count, np.int32)
        """The size of each row as built so far, in bytes."""

    def add_constant(self, data: bytes) -> None:
        """Add these bytes to every row."""
        self.add_fields(build_constant_fields(data))

    def add_varints(self, values: IntArray) -> None:
        """Add a column of signed varints."""
        self.add_fields(build_signed_varint_fields(values))

    def add_fields(self, fields: Sequence[Field]) -> None:
        """Add columns of encoded numbers."""
        self._columns += fields
        for field in fields:
            self._sizes += field.width

    def add_payloads(self, chunks: Sequence[ByteColumn]) -> None:
        """Add the bytes of a column, without their lengths. A null adds no bytes.

        `chunks`: the chunks of the column.
        """
        self._add_payloads(chunks, self._read_lengths(chunks))

    def add_length_prefixed(self, chunks: Sequence[ByteColumn] | None) -> None:
        """Add the length and the bytes of each row, as for the key and value of a record. A null has length -1.

        `chunks`: the chunks of the column, or None if every row is null.
        """
        if chunks is None:
            self.add_constant(encode_varint(-1))
        else:
            lengths = self._read_lengths(chunks)
            self.add_varints(lengths)
            self._add_payloads(chunks, lengths)

    def prepend_lengths(self) -> None:
        """Insert the length of each row, as built so far, at the start of the row."""
        # A constant at the end of every row is written together with the length of the next row.
        last_column = self._columns[-1]
        if isinstance(last_column, Field) and isinstance(last_column.word, int) and isinstance(last_column.width, int):
            self._row_suffix = last_column
            del self._columns[-1]
        lengths = build_signed_varint_fields(self._sizes)
        self._columns[:0] = [self._row_suffix, *lengths]
        for length in lengths:
            self._sizes += length.width

    def join(self, stops: Sequence[int]) -> Iterator[tuple[pa.Buffer, NDArray[np.int32]]]:
        """Write the rows to buffers. Yield each buffer, and the offsets of its rows, followed by the end offset.

        `stops`: the index after the last row of each buffer, in ascending order.

        Raise RecordTooLargeError if the rows exceed 2 GiB. The method can be called only once, because it releases the
        payloads.
        """
        self._check_size()
        columns = merge_fields(self._columns)
        payloads, buffers = self._build_payload_views()
        order = self._order
        for start, stop in pairwise([0, *stops]):
            # A table of views with one row per row of the buffer. One more view is for the suffix of the last row.
            views = np.empty((stop - start) * len(columns) + 1, _VIEW_LAYOUT)
            table = views[:-1].reshape(-1, len(columns))
            short_views = table.view(_SHORT_VIEW_LAYOUT)
            for index, column in enumerate(columns):
                if isinstance(column, Field):
                    row_fields = column.slice_rows(start, stop)
                    short_views["bytes"][:, index] = row_fields.word
                    short_views["length"][:, index] = row_fields.width
                elif order is None:
                    table[:, index] = payloads[column, start:stop]
                else:
                    table[:, index] = payloads[column].take(order[start:stop])
            views.view(_SHORT_VIEW_LAYOUT)[-1] = self._row_suffix.width, self._row_suffix.word
            view_array = pa.Array.from_buffers(_VIEW, len(views), [None, pa.py_buffer(views), *buffers])
            _, offsets, data = pc.cast(view_array, _BINARY, memory_pool=_MEMORY_POOL).buffers()
            # Skip the suffix that was written before the first row. After that, each row starts at the offset of its
            # first view, and the last row ends at the offset of the additional view.
            yield data.slice(self._row_suffix.max_width), np.frombuffer(offsets, np.int32, len(views))[:: len(columns)]

    def to_array(self) -> pa.Array:
        """Return all rows as an Arrow binary array, instead of calling `join`."""
        ((data, offsets),) = self.join([self._row_count])
        contiguous_offsets = pa.py_buffer(offsets.copy())  # `offsets` is a view with a stride
        return pa.BinaryArray.from_buffers(_BINARY, self._row_count, [None, contiguous_offsets, data], null_count=0)

    def _check_size(self) -> None:
        """Raise RecordTooLargeError if the rows exceed MAX_JOINED_BYTES."""
        # Usually an upper bound is low enough. Otherwise, sum up the exact widths.
        fields = [column for column in self._columns if isinstance(column, Field)]
        max_row_field_bytes = sum([field.max_width for field in fields])
        if self._payload_bytes + self._row_count * max_row_field_bytes <= MAX_JOINED_BYTES:
            return
        widths = [np.broadcast_to(field.width, self._row_count) for field in fields]
        total_bytes = self._payload_bytes + sum([int(np.add.reduce(width, dtype=np.int64)) for width in widths])
        if total_bytes > MAX_JOINED_BYTES:
            raise _build_too_large_error(self._row_count, total_bytes)

    def _build_payload_views(self) -> tuple[NDArray[Any], list[pa.Buffer]]:
        """Return a table of views with one row per column of payloads, and the buffers that the views refer to."""
        if not self._payloads:
            return np.empty((0, 0), _VIEW_LAYOUT), []
        chunks = pa.chunked_array(self._payloads, _BINARY).cast(_VIEW).chunks
        self._payloads.clear()
        _, views, *buffers = pa.concat_arrays(chunks).buffers()
        all_views = np.frombuffer(views, _VIEW_LAYOUT, self._payload_count * self._row_count)
        return all_views.reshape(-1, self._row_count), buffers

    def _add_payloads(self, chunks: Sequence[ByteColumn], lengths: NDArray[np.int32]) -> None:
        """Add a column of payloads. Raise RecordTooLargeError if all payloads together exceed MAX_JOINED_BYTES.

        `lengths`: the length of each row's payload, in the order of the rows; -1 for a null.
        """
        self._payload_bytes += sum([chunk.nbytes for chunk in chunks])
        if self._payload_bytes > MAX_JOINED_BYTES:
            raise _build_too_large_error(self._row_count, self._payload_bytes)
        self._payloads += [chunk.to_array() for chunk in chunks]
        self._columns.append(self._payload_count)
        self._payload_count += 1
        self._sizes += np.maximum(lengths, 0)

    def _read_lengths(self, chunks: Sequence[ByteColumn]) -> NDArray[np.int32]:
        """Return the length of each row's payload in a column, in the order of the rows; -1 for a null."""
        lengths = chunks[0].lengths if len(chunks) == 1 else np.concatenate([chunk.lengths for chunk in chunks])
        return lengths if self._order is None else lengths.take(self._order)


def _build_too_large_error(row_count: int, total_bytes: int) -> RecordTooLargeError:
    return RecordTooLargeError(f"{row_count} records of {total_bytes} bytes exceed the maximum size of a batch, 2 GiB.")
