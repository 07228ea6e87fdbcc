"""Read, encode and extend the headers of records.

The child arrays of an Arrow list array hold the headers of all rows one after the other. Each header is encoded as a
row of bytes (joined_rows.py): key length, key, value length, value. The encoded headers of one record are therefore a
slice of all encoded headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import build_null_mask, integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.byte_column import ByteColumn, read_byte_column
from spark_kafka_sink.records.joined_rows import JoinedRowsBuilder


@dataclass(frozen=True)
class HeaderColumn:
    """Headers of a chunk of rows. Row i has the headers with indices in [starts[i], starts[i + 1])."""

    starts: NDArray[np.int64]
    keys: pa.Array
    values: pa.Array
    present_mask: NDArray[np.bool_] | None
    """Marks which headers are present: False for a null struct. None if no header is null.

    The producer uses the mask to reject rows with null headers.
    """

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.starts[1:] - self.starts[:-1]

    def encode(self) -> ByteColumn:
        """Encode the headers of each row, without the header count."""
        builder = JoinedRowsBuilder(len(self.keys))
        builder.add_length_prefixed([read_byte_column(self.keys)])
        builder.add_length_prefixed([read_byte_column(self.values)])
        # Pass a single stop, after the last header, so that all headers end up in one buffer.
        ((data, header_offsets),) = builder.join([len(self.keys)])
        return ByteColumn(header_offsets[self.starts], data)


def read_header_column(array: pa.Array) -> HeaderColumn:
    """Read an array of maps or of list<struct<key, value>>. A null row counts as a row without headers."""
    if array.null_count:
        array = _clear_null_lists(array)
    starts = integers_to_numpy(array.offsets).astype(np.int64)
    first_header, header_stop = (int(starts[0]), int(starts[-1])) if len(starts) else (0, 0)
    header_count = header_stop - first_header
    present_mask = None
    if pa.types.is_map(array.type):
        keys, values = array.keys.slice(first_header, header_count), array.items.slice(first_header, header_count)
    else:
        structs = array.values.slice(first_header, header_count)
        present_mask = ~build_null_mask(structs) if structs.null_count else None
        keys, values = structs.field("key"), structs.field("value")
    return HeaderColumn(starts - first_header, keys, values, present_mask)


def append_headers(
    headers: HeaderColumn | None,
    new_headers: Mapping[str, pa.Array],
    num_rows: int,
    *,
    key_type: pa.DataType | None = None,
    skip_nulls: bool = False,
) -> pa.Array:
    """Return a list<struct<key, value>> array with each row's own headers, then one header per entry of `new_headers`.

    A null header becomes a header with a null key.

    `key_type`: the type of the keys, by default string.
    `skip_nulls`: whether to add no header if an entry's value is null in a row. By default, a header with a null value
    is added.
    """
    key_type = pa.string() if key_type is None else key_type
    starts = np.zeros(num_rows + 1, np.int64)
    keys, values = pa.array([], key_type), pa.array([], pa.binary())
    if headers is not None:
        starts, keys, values = headers.starts, headers.keys.cast(key_type), headers.values.cast(pa.binary())
        if headers.present_mask is not None:
            keys = pc.if_else(pa.array(headers.present_mask), keys, pa.scalar(None, key_type))
    row_indices_by_name = {
        name: _find_rows_to_extend(row_values, skip_nulls=skip_nulls) for name, row_values in new_headers.items()
    }
    added_counts = np.zeros(num_rows, np.int64)
    for row_indices in row_indices_by_name.values():
        added_counts[row_indices] += 1
    ends = starts + np.append(0, np.cumsum(added_counts))

    # `source_indices` maps each header of the result to its index in the concatenated arrays below. These hold the
    # rows' own headers first, followed by the columns of `new_headers` one after the other.
    source_indices = np.empty(int(ends[-1]), np.int64)
    own_mask = np.ones(len(source_indices), np.bool_)
    # `next_added` contains, for each row, the index in the result of the next header to add.
    next_added = ends[1:] - added_counts
    for column_index, row_indices in enumerate(row_indices_by_name.values()):
        added_indices = next_added[row_indices]
        source_indices[added_indices] = len(keys) + column_index * num_rows + row_indices
        own_mask[added_indices] = False
        next_added[row_indices] += 1
    source_indices[own_mask] = np.arange(len(keys))
    indices = pa.array(source_indices)
    added_keys = (pa.repeat(pa.scalar(name, pa.string()).cast(key_type), num_rows) for name in new_headers)
    all_keys = pa.concat_arrays([keys, *added_keys])
    all_values = pa.concat_arrays([values, *new_headers.values()])
    structs = pa.StructArray.from_arrays([all_keys.take(indices), all_values.take(indices)], names=["key", "value"])
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), structs)


def _find_rows_to_extend(row_values: pa.Array, *, skip_nulls: bool) -> NDArray[np.int64]:
    """Return the indices of the rows to which a header with these values is added."""
    if skip_nulls and row_values.null_count:
        return np.flatnonzero(~build_null_mask(row_values))
    return np.arange(len(row_values))


def find_rows_with_invalid_headers(array: pa.Array) -> NDArray[np.int64]:
    """Return the indices of the rows that have a null header or a header with a null key."""
    headers = read_header_column(array)
    invalid_mask = np.zeros(len(headers.keys), np.bool_)
    if headers.keys.null_count:
        invalid_mask |= build_null_mask(headers.keys)
    if headers.present_mask is not None:
        invalid_mask |= ~headers.present_mask
    if not invalid_mask.any():
        return np.zeros(0, np.int64)
    row_indices = np.searchsorted(headers.starts, np.nonzero(invalid_mask)[0], side="right") - 1
    return np.unique(row_indices)


def _clear_null_lists(array: pa.Array) -> pa.Array:
    """Remove elements of null lists. Arrow allows such elements, but they must not be written to the record."""
    offsets = integers_to_numpy(array.offsets)
    lengths = offsets[1:] - offsets[:-1]
    if not lengths[build_null_mask(array)].any():
        return array
    return array.take(numbers_to_arrow(np.arange(len(array))))
