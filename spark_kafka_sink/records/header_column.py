"""Columns of record headers, with functions that read, check, encode and extend them.

A column of headers is an Arrow array of maps, or of lists of structs with a key and a value. Its child arrays hold the
headers of all rows one after the other. All headers are encoded into one buffer in this order (joined_rows.py), each as
key length, key, value length, value. The encoded headers of one record are a slice of this buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import build_null_mask, integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.byte_column import ByteColumn, read_byte_column, to_binary
from spark_kafka_sink.records.joined_rows import JoinedRowsBuilder


@dataclass(frozen=True)
class HeaderColumn:
    """The headers of a chunk of rows. Row i has the headers with indices in [starts[i], starts[i + 1])."""

    starts: NDArray[np.int64]
    """The index of each row's first header, followed by the number of all headers."""
    keys: pa.Array
    """The keys of all headers."""
    values: pa.Array
    """The values of all headers."""
    present_mask: NDArray[np.bool_] | None
    """False for a null header, that is, for a struct that is null; None if no header is null.

    The producer uses the mask to reject rows with null headers.
    """

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of headers of each row."""
        return self.starts[1:] - self.starts[:-1]

    def encode(self) -> ByteColumn:
        """Return the encoded headers of each row, without the header count."""
        builder = JoinedRowsBuilder(len(self.keys))
        builder.add_length_prefixed([read_byte_column(self.keys)])
        builder.add_length_prefixed([read_byte_column(self.values)])
        # With a single stop, after the last header, all headers end up in one buffer. `header_offsets` are their
        # positions in this buffer.
        ((data, header_offsets),) = builder.join([len(self.keys)])
        return ByteColumn(header_offsets[self.starts], data)


def read_header_column(array: pa.Array) -> HeaderColumn:
    """Read an array of maps, or of lists of structs with a key and a value. A null row has no headers."""
    if array.null_count:
        array = _clear_null_lists(array)
    starts = integers_to_numpy(array.offsets).astype(np.int64)
    first_header, header_stop = (int(starts[0]), int(starts[-1])) if len(starts) else (0, 0)
    header_count = header_stop - first_header
    present_mask = None  # entries of a map are never null; structs in a list may be
    if pa.types.is_map(array.type):
        keys, values = array.keys.slice(first_header, header_count), array.items.slice(first_header, header_count)
    else:
        structs = array.values.slice(first_header, header_count)
        present_mask = ~build_null_mask(structs) if structs.null_count else None
        positions = find_header_fields(structs.type)
        assert positions is not None  # other types have been rejected before
        keys, values = map(structs.field, positions)
    return HeaderColumn(starts - first_header, keys, values, present_mask)


def find_header_fields(data_type: pa.DataType) -> tuple[int, int] | None:
    """Return the positions of the fields `key` and `value` in a struct. Return None for any other type.

    As in Spark's own sink, the case of the names is ignored.
    """
    if not pa.types.is_struct(data_type):
        return None
    names = [data_type.field(position).name.lower() for position in range(data_type.num_fields)]
    return (names.index("key"), names.index("value")) if sorted(names) == ["key", "value"] else None


def find_last_header_values(headers: HeaderColumn, name: str) -> pa.Array:
    """Return the value of each row's last header with this name. Return null for a row without such a header."""
    has_name = pc.equal(to_binary(headers.keys), pa.scalar(name.encode(), pa.binary()))
    header_indices = integers_to_numpy(pc.indices_nonzero(has_name)).astype(np.int64)
    last_indices = np.full(len(headers.starts) - 1, -1)
    # If a row has several headers with this name, numpy keeps the last index that is assigned to the row.
    last_indices[_find_rows_of_headers(headers, header_indices)] = header_indices
    return to_binary(headers.values).take(numbers_to_arrow(last_indices, last_indices < 0))


def append_headers(
    headers: HeaderColumn | None,
    new_headers: Mapping[str, pa.Array],
    num_rows: int,
    *,
    key_type: pa.DataType | None = None,
    skip_nulls: bool = False,
) -> pa.Array:
    """Return a list<struct<key, value>> array with the headers of each row, followed by the new headers of the row.

    A null header becomes a header with a null key.

    `headers`: the headers that the rows already have; None if they have none.
    `new_headers`: the headers to add, each with its name and a column that contains its value for each row.
    `key_type`: the type of the keys; string by default.
    `skip_nulls`: whether to add no header to a row in which the value is null. By default, a header with a null value
    is added.
    """
    key_type = pa.string() if key_type is None else key_type
    starts = np.zeros(num_rows + 1, np.int64)
    keys, values = pa.array([], key_type), pa.array([], pa.binary())
    if headers is not None:
        starts, keys, values = headers.starts, to_binary(headers.keys).view(key_type), to_binary(headers.values)
        if headers.present_mask is not None:
            keys = pc.if_else(pa.array(headers.present_mask), keys, pa.scalar(None, key_type))
    extended_rows = [_find_rows_to_extend(column, skip_nulls=skip_nulls) for column in new_headers.values()]
    new_starts, source_indices = _interleave_headers(starts, extended_rows)
    # The headers that the rows already have, followed by the columns of the new headers, one column after the other.
    new_keys = (pa.repeat(pa.scalar(name, pa.string()).cast(key_type), num_rows) for name in new_headers)
    all_keys = pa.concat_arrays([keys, *new_keys])
    all_values = pa.concat_arrays([values, *new_headers.values()])
    indices = pa.array(source_indices)
    structs = pa.StructArray.from_arrays([all_keys.take(indices), all_values.take(indices)], names=["key", "value"])
    return pa.ListArray.from_arrays(pa.array(new_starts.astype(np.int32)), structs)


def _interleave_headers(
    starts: NDArray[np.int64], extended_rows: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Place the new headers of each row after the headers that the row already has.

    `starts`: the index of each row's first header, followed by the number of all headers.
    `extended_rows`: for each column of new headers, the indices of the rows that get a header from this column.

    Return `starts` for the result, and the source of each header of the result. A source is an index into the
    concatenation of the existing headers and all columns of new headers, each of which has one element per row.

    For example, row 0 has the header a, row 1 has b, and both get a header from the column [x, y]. The concatenation is
    [a, b, x, y], and the result a, x, b, y has the starts [0, 2, 4] and the sources [0, 2, 1, 3].
    """
    row_count, existing_count = len(starts) - 1, int(starts[-1])
    added_counts = np.zeros(row_count, np.int64)
    for row_indices in extended_rows:
        added_counts[row_indices] += 1
    new_starts = starts + np.append(0, np.cumsum(added_counts))
    source_indices = np.empty(int(new_starts[-1]), np.int64)
    is_existing = np.ones(len(source_indices), np.bool_)
    # For each row, the index in the result of its next new header.
    next_added = new_starts[1:] - added_counts
    for column_index, row_indices in enumerate(extended_rows):
        added_indices = next_added[row_indices]
        source_indices[added_indices] = existing_count + column_index * row_count + row_indices
        is_existing[added_indices] = False
        next_added[row_indices] += 1
    source_indices[is_existing] = np.arange(existing_count)
    return new_starts, source_indices


def _find_rows_to_extend(row_values: pa.Array, *, skip_nulls: bool) -> NDArray[np.int64]:
    """Return the indices of the rows to which a header is added.

    `row_values`: the value of the header in each row.
    `skip_nulls`: whether rows in which the value is null get no header.
    """
    if skip_nulls and row_values.null_count:
        return np.flatnonzero(~build_null_mask(row_values))
    return np.arange(len(row_values))


def find_rows_with_invalid_headers(array: pa.Array) -> NDArray[np.int64]:
    """Return the indices of the rows that have a null header or a header with a null key."""
    headers = read_header_column(array)
    invalid_mask = np.zeros(len(headers.keys), np.bool_)  # one element per header
    if headers.keys.null_count:
        invalid_mask |= build_null_mask(headers.keys)
    if headers.present_mask is not None:
        invalid_mask |= ~headers.present_mask
    if not invalid_mask.any():
        return np.zeros(0, np.int64)
    return np.unique(_find_rows_of_headers(headers, np.flatnonzero(invalid_mask)))


def _find_rows_of_headers(headers: HeaderColumn, header_indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the row of each header.

    For example, with the starts [0, 2, 2, 3], header 1 is in row 0, and header 2 in row 2.
    """
    return np.searchsorted(headers.starts, header_indices, side="right") - 1


def _clear_null_lists(array: pa.Array) -> pa.Array:
    """Return the array without the elements of null lists. Arrow allows them, but they must not become headers."""
    offsets = integers_to_numpy(array.offsets)
    lengths = offsets[1:] - offsets[:-1]
    if not lengths[build_null_mask(array)].any():
        return array
    return array.take(numbers_to_arrow(np.arange(len(array))))  # take() copies all rows, but no elements of null lists
