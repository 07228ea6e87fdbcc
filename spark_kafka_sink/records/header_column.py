"""The headers of a chunk's records: a count for each row, and `key length, key, value length, value` for each header.

The headers of all rows lie one after the other in Arrow's child arrays. Each becomes a row of bytes (joined_rows.py);
as these lie one after the other too, the headers of a record are a slice of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import integers_to_numpy, null_mask, numbers_to_arrow
from spark_kafka_sink.records.byte_column import ByteColumn, read_byte_column
from spark_kafka_sink.records.joined_rows import JoinedRowsBuilder


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
        headers = JoinedRowsBuilder(len(self.keys))
        headers.add_bytes([read_byte_column(self.keys)])
        headers.add_bytes([read_byte_column(self.values)])
        ((data, edges),) = headers.join([len(self.keys)])
        return ByteColumn(edges[self.starts], data)


def read_header_column(array: pa.Array) -> HeaderColumn:
    """Read a list<struct<key, value>>, large_list or map column; null lists are empty ones."""
    if array.null_count:
        array = _without_bytes_under_nulls(array)
    starts = integers_to_numpy(array.offsets).astype(np.int64)
    first, last = (int(starts[0]), int(starts[-1])) if len(starts) else (0, 0)
    present = None
    if pa.types.is_map(array.type):
        keys, values = array.keys.slice(first, last - first), array.items.slice(first, last - first)
    else:
        structs = array.values.slice(first, last - first)
        present = ~null_mask(structs) if structs.null_count else None
        keys, values = structs.field("key"), structs.field("value")
    return HeaderColumn(starts - first, keys, values, present)


def find_rows_with_invalid_headers(array: pa.Array) -> NDArray[np.int64]:
    """Rows with a header whose key is null, or which is null itself."""
    headers = read_header_column(array)
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
    offsets = integers_to_numpy(array.offsets)
    if not (offsets[1:] - offsets[:-1])[null_mask(array)].any():
        return array
    return array.take(numbers_to_arrow(np.arange(len(array))))
