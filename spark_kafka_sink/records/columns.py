"""RecordColumns: records as Arrow columns. The producer accepts them in this form, and the encoder reads them.

The constructor checks the columns, and converts them only if later steps need it: dictionaries are decoded, view types
become types with offsets (Arrow cannot take rows from views), and timestamps become int64 milliseconds. Slicing copies
nothing. `chunks` joins small chunks, `take` copies the selected rows, and the encoder copies each value once, into its
record.

An Arrow column is either a plain array or a chunked array, which consists of several plain arrays. Arrays of strings
and bytes locate their values with 32-bit or 64-bit offsets. An array with 32-bit offsets cannot exceed 2 GiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.records.arrays import build_null_mask, integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.byte_column import compute_byte_sizes, compute_data_nbytes
from spark_kafka_sink.records.header_column import find_header_fields

ArrowColumn: TypeAlias = "pa.Array | pa.ChunkedArray"

# Timestamps are in milliseconds since 1970. Some values have a special meaning:
NO_TIMESTAMP = -1
"""The timestamp of a record that has none (RecordBatch.NO_TIMESTAMP in the Java client)."""
BEFORE_EPOCH_TIMESTAMP = -2
"""Replaces the time -1, the last millisecond before 1970, so that it is not mistaken for NO_TIMESTAMP.

The exact value does not matter: `find_invalid_rows` and the brokers reject all timestamps before 1970.
"""
OVERFLOW_TIMESTAMP = 1 - (1 << 63)
"""Replaces a time that is too late for its milliseconds to fit into 64 bits, so that `find_invalid_rows` finds it."""

MAX_CHUNK_ROWS = 10_000
"""Maximum number of rows that are processed at once. Larger chunks exceed the CPU cache and cost more per record."""
_MIN_64_BIT_OFFSET_BYTES = 1 << 30
"""Columns of this size or more get 64-bit offsets, because joining or taking their rows could overflow 32 bits."""
_MAX_PLAUSIBLE_AGE_MS = 50 * 365.25 * 86_400_000
"""Maximum age of a plausible timestamp: fifty years."""
_CLOCK_TOLERANCE_S = 86_400
"""The limit for plausible future timestamps: clocks are inaccurate, and time zones differ by up to a day."""
LIKELY_SECONDS_MESSAGE = (
    "Column timestamp contains %d. Read as milliseconds, this is a time in January 1970; read as seconds, it is within "
    "the last fifty years. The column is written as milliseconds. If it is in seconds, multiply it by 1000 or convert "
    "it to a timestamp."
)
_MAX_JOINED_CHUNK_BYTES = 1 << 16
"""Chunks below this average size are joined, because copying takes less time than processing each chunk separately."""
_TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class RecordColumns:
    """Columns of records, with one row per record.

    `value` and `key` contain bytes or text. `headers` contains maps, or lists of structs with a key and a value.
    `timestamp` contains Arrow timestamps or integers in milliseconds. A null value is a tombstone. A null key or null
    headers mean that the record has no key or no headers. A null timestamp stands for the current time.

    Example:

        columns = RecordColumns(value=pa.array(["12.50", "8.00"]), key=pa.array(["o-1", "o-2"]))
        producer.send_columns("orders", columns)
    """

    __slots__ = ("_cached_nbytes", "headers", "key", "num_rows", "timestamp", "value")

    value: ArrowColumn
    key: ArrowColumn | None
    headers: ArrowColumn | None
    timestamp: ArrowColumn | None
    num_rows: int

    def __init__(
        self,
        value: ArrowColumn,
        key: ArrowColumn | None = None,
        headers: ArrowColumn | None = None,
        timestamp: ArrowColumn | None = None,
    ) -> None:
        _require_arrow("value", value)
        for name, column in (("key", key), ("headers", headers), ("timestamp", timestamp)):
            if column is None:
                continue
            _require_arrow(name, column)
            if len(column) != len(value):
                raise SchemaError(
                    f"columns must have the same number of rows: value has {len(value)}, {name} has {len(column)}"
                )
        self.value = _convert_byte_column("value", value)
        self.key = None if key is None or pa.types.is_null(key.type) else _convert_byte_column("key", key)
        if headers is not None:
            _check_header_type(headers.type)
        self.headers = None if headers is None or pa.types.is_null(headers.type) else headers
        self.timestamp = None if timestamp is None else _convert_timestamp_column(timestamp)
        self.num_rows = len(value)
        self._cached_nbytes: int | None = None

    @classmethod
    def _from_checked_columns(
        cls,
        value: ArrowColumn,
        key: ArrowColumn | None,
        headers: ArrowColumn | None,
        timestamp: ArrowColumn | None,
    ) -> RecordColumns:
        """Create an instance from columns of other instances, which need no further checks."""
        record_columns = cls.__new__(cls)
        record_columns.value = value
        record_columns.key = key
        record_columns.headers = headers
        record_columns.timestamp = timestamp
        record_columns.num_rows = len(value)
        record_columns._cached_nbytes = None
        return record_columns

    def __repr__(self) -> str:
        present_columns = [
            f"{name}: {column.type}" for name, column in self._list_named_columns() if column is not None
        ]
        return f"RecordColumns({self.num_rows} rows, {', '.join(present_columns)})"

    def __len__(self) -> int:
        return self.num_rows

    @property
    def nbytes(self) -> int:
        """The size of the rows in bytes. If a column is a slice, the rows outside of the slice are not counted."""
        if self._cached_nbytes is None:
            self._cached_nbytes = sum([column.nbytes for _, column in self._list_named_columns() if column is not None])
        return self._cached_nbytes

    @property
    def payload_nbytes(self) -> int:
        """The size of the keys, values and headers in bytes, without Arrow's offsets and the timestamps."""
        headers = [] if self.headers is None else list_chunks(self.headers)
        columns = [column for column in (self.value, self.key) if column is not None]
        arrays = [chunk for column in columns for chunk in list_chunks(column)]
        arrays += [field for chunk in headers for field in _flatten_headers(chunk)]
        return sum(compute_data_nbytes(array) for array in arrays)

    @property
    def memory_nbytes(self) -> int:
        """The size of the columns' buffers in bytes. If a column is a slice, its buffers also contain other rows.

        This is an upper bound on the size of any single row, and cheap to compute.
        """
        return sum([column.get_total_buffer_size() for _, column in self._list_named_columns() if column is not None])

    def slice(self, offset: int, length: int | None = None) -> RecordColumns:
        """Return `length` rows from `offset` on (None: all remaining rows), without copying them."""
        return self._from_checked_columns(
            *[None if column is None else column.slice(offset, length) for _, column in self._list_named_columns()]
        )

    def take(self, indices: Any) -> RecordColumns:
        """Return a copy of the rows at these row indices, in the order of the indices."""
        row_indices = integers_to_numpy(indices) if isinstance(indices, pa.Array) else np.asarray(indices, np.int64)
        return self._from_checked_columns(
            *[
                None if column is None else take_rows(combine_chunks(column), row_indices)
                for _, column in self._list_named_columns()
            ]
        )

    def chunks(self, max_rows: int) -> Iterator[RecordColumns]:
        """Yield all rows in chunks of at most `max_rows`. The columns of a chunk are plain arrays.

        Only small chunks of a column are joined. Joining large chunks would copy all their bytes, and fail above 2 GiB.
        """
        if 0 < self.num_rows <= max_rows:
            yield from self._iterate_contiguous_chunks()
            return
        for start in range(0, self.num_rows, max_rows):
            yield from self.slice(start, max_rows)._iterate_contiguous_chunks()

    def _iterate_contiguous_chunks(self) -> Iterator[RecordColumns]:
        """Yield all rows as one chunk or, if the columns have large chunks, split at the boundaries of these chunks."""
        chunked_columns = [column for _, column in self._list_named_columns() if isinstance(column, pa.ChunkedArray)]
        max_chunks = max([column.num_chunks for column in chunked_columns], default=1)
        if max_chunks <= 1 or self.nbytes < max_chunks * _MAX_JOINED_CHUNK_BYTES:
            yield self.to_contiguous()
            return
        boundaries = {0}
        for column in chunked_columns:
            boundaries.update(accumulate(map(len, column.chunks)))
        for start, stop in pairwise(sorted(boundaries)):
            yield self.slice(start, stop - start).to_contiguous()

    def to_contiguous(self) -> RecordColumns:
        """Return the same rows with every column as one plain array. Only columns with several chunks are copied."""
        return self._from_checked_columns(
            *[None if column is None else combine_chunks(column) for _, column in self._list_named_columns()]
        )

    @classmethod
    def concat(cls, chunks: Sequence[RecordColumns]) -> RecordColumns:
        """Concatenate chunks of rows. Columns of equal types are not copied.

        If a chunk lacks a column that another chunk has, its rows get nulls in this column. Raise SchemaError if
        columns with different types cannot be combined.
        """
        if len(chunks) == 1:
            return chunks[0]
        names = ("value", "key", "headers", "timestamp")
        return cls._from_checked_columns(
            *[_concat_columns([getattr(chunk, name) for chunk in chunks], chunks) for name in names]
        )

    def _list_named_columns(self) -> tuple[tuple[str, Any], ...]:
        """Return the name and the column of each field, or None in place of a missing column."""
        return (
            ("value", self.value),
            ("key", self.key),
            ("headers", self.headers),
            ("timestamp", self.timestamp),
        )


def _flatten_headers(headers: pa.Array) -> Sequence[pa.Array]:
    """Return the keys and the values of all headers in these rows, as two arrays."""
    first_header, header_stop = headers.offsets[0].as_py(), headers.offsets[-1].as_py()
    header_count = header_stop - first_header
    if pa.types.is_map(headers.type):
        return [field.slice(first_header, header_count) for field in (headers.keys, headers.items)]
    fields: Sequence[pa.Array] = headers.values.slice(first_header, header_count).flatten()
    return fields


def list_chunks(column: ArrowColumn) -> Sequence[pa.Array]:
    """Return the chunks of a column. A plain array is a single chunk."""
    return [column] if isinstance(column, pa.Array) else column.chunks


def combine_chunks(column: ArrowColumn) -> pa.Array:
    """Return a column as one plain array, with 64-bit offsets if joining its chunks could overflow 32-bit offsets."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    return pa.concat_arrays(_widen_offsets(column).chunks)


def take_rows(array: pa.Array, row_indices: np.ndarray[Any, np.dtype[Any]]) -> pa.Array:
    """Return a copy of the rows at these indices, with 64-bit offsets if 32-bit offsets could overflow."""
    return pc.take(_widen_offsets(array), numbers_to_arrow(row_indices), boundscheck=False)


def _widen_offsets(column: ArrowColumn) -> ArrowColumn:
    """Return the column, with 64-bit offsets if joining or taking its rows could overflow 32-bit offsets."""
    # A chunk may occur several times in a column. Joining copies every occurrence, which nbytes counts, but
    # get_total_buffer_size() does not.
    size_bytes = column.get_total_buffer_size() if isinstance(column, pa.Array) else column.nbytes
    if _has_32_bit_offsets(column.type) and size_bytes >= _MIN_64_BIT_OFFSET_BYTES:
        return column.cast(pa.large_binary())
    return column


def _require_arrow(name: str, column: object) -> None:
    """Raise SchemaError if a column is not an Arrow array. The message suggests a conversion.

    `name`: the name of the field, such as `key`.
    """
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return
    cls = type(column)
    library = cls.__module__.partition(".")[0]
    replacement = {
        "polars": f"{name}.to_arrow()",
        "pandas": f"pa.Array.from_pandas({name})",
        "pyarrow": f'table.column("{name}") of a table or a batch',
    }.get(library, f"pa.array({name})")
    type_name = cls.__name__ if library == "builtins" else f"{library}.{cls.__name__}"
    raise SchemaError(f"column {name} is of type {type_name}, not an Arrow array: write {replacement}")


def _convert_byte_column(name: str, column: ArrowColumn) -> ArrowColumn:
    """Return a column of strings, bytes or nulls, converted to a type with offsets if it has another type.

    `name`: the name of the field, such as `key`.

    Raise SchemaError for a column of any other type.
    """
    data_type = column.type
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
        if _is_string_or_binary(data_type) or _is_view(data_type):  # any other dictionary is rejected below
            column = _decode_dictionary(column)
            data_type = column.type
    if pa.types.is_null(data_type):
        return column.cast(pa.binary())
    if _has_32_bit_offsets(data_type) or pa.types.is_large_binary(data_type) or pa.types.is_large_string(data_type):
        return column
    if _is_view(data_type):
        return column.cast(pa.large_binary())
    raise SchemaError(
        f"column {name} must be a string or binary column, not {data_type}: cast it, or serialize it first"
    )


def _decode_dictionary(column: ArrowColumn) -> ArrowColumn:
    """Return the value of each row of a dictionary column.

    The result has 64-bit offsets unless 32-bit offsets would be enough even if every row had the longest value.
    """
    value_type, chunks = column.type.value_type, list_chunks(column)
    # Values that do not have 32-bit offsets, such as views, always get 64-bit offsets.
    if not _has_32_bit_offsets(value_type) or any(
        _find_max_byte_size(chunk.dictionary) * len(chunk) >= _MIN_64_BIT_OFFSET_BYTES for chunk in chunks
    ):
        value_type = pa.large_binary()
    decoded_chunks = [pc.take(chunk.dictionary.cast(value_type), chunk.indices) for chunk in chunks]
    return decoded_chunks[0] if isinstance(column, pa.Array) else pa.chunked_array(decoded_chunks, value_type)


def _find_max_byte_size(values: pa.Array) -> int:
    """Return the size in bytes of the longest value; 0 without values."""
    return int(np.maximum.reduce(compute_byte_sizes(values), initial=0))


def _check_header_type(data_type: pa.DataType) -> None:
    """Raise SchemaError if a column of this type cannot contain headers. The type null is valid: no row has headers."""
    if pa.types.is_null(data_type):
        return
    if pa.types.is_map(data_type):
        key_type, value_type = data_type.key_type, data_type.item_type
    else:
        is_list = pa.types.is_list(data_type) or pa.types.is_large_list(data_type)
        positions = find_header_fields(data_type.value_type) if is_list else None
        if positions is None:
            raise SchemaError(
                f"column 'headers' must be a list<struct<key: string, value: binary>> or a map, not {data_type}"
            )
        key_type, value_type = (data_type.value_type.field(position).type for position in positions)
    has_valid_values = _is_string_or_binary(value_type) or pa.types.is_null(value_type)  # null: no header has a value
    if not _is_string_or_binary(key_type) or not has_valid_values:
        raise SchemaError(
            f"column 'headers' has type {data_type}, but header keys and header values must be strings or binary"
        )


def _convert_timestamp_column(column: ArrowColumn) -> ArrowColumn | None:
    """Convert a column of timestamps or of integers to int64 milliseconds, rounding down like Spark. Nulls stay null.

    Return None if the type of the column is null, which means that all rows get the current time. Raise SchemaError for
    a column of any other type.
    """
    data_type = column.type
    if pa.types.is_null(data_type):
        return None
    if pa.types.is_integer(data_type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise SchemaError(f"column timestamp has numbers that no bigint can hold: {error}") from error
    if not pa.types.is_timestamp(data_type):
        raise SchemaError(f"column timestamp must be a timestamp or a count of milliseconds (bigint), not {data_type}")
    array = combine_chunks(column)
    ticks = integers_to_numpy(array.view(pa.int64()))
    times_ms = _ticks_to_ms(ticks, _TICKS_PER_SECOND[data_type.unit])
    return numbers_to_arrow(times_ms, build_null_mask(array) if array.null_count else None)


def find_likely_seconds(timestamp: ArrowColumn, now_ms: float) -> int | None:
    """Return a number that probably is a time in seconds instead of milliseconds, or None if there is none.

    A chunk is suspicious if all its numbers, read as seconds, are times within the last fifty years. Read as
    milliseconds, such numbers are times in January 1970. The result is the lowest number of the first such chunk.
    """
    if not pa.types.is_integer(timestamp.type):
        return None
    for chunk in list_chunks(timestamp):
        numbers = integers_to_numpy(chunk)
        if chunk.null_count:
            numbers = numbers[~build_null_mask(chunk)]
        if not len(numbers):
            continue
        lowest, highest = int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))
        earliest_s = (now_ms - _MAX_PLAUSIBLE_AGE_MS) / 1_000
        latest_s = now_ms / 1_000 + _CLOCK_TOLERANCE_S
        if earliest_s <= lowest and highest <= latest_s:
            return lowest
    return None


def _ticks_to_ms(
    ticks: np.ndarray[Any, np.dtype[np.int64]], ticks_per_second: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Convert times since 1970 to milliseconds, rounding down.

    `ticks`: the times, in units of 1 / `ticks_per_second`.

    A time that is too late for 64 bits becomes OVERFLOW_TIMESTAMP. A time that is too early becomes another time before
    1970, which is rejected just the same. The time -1 becomes BEFORE_EPOCH_TIMESTAMP, because -1 is NO_TIMESTAMP.
    """
    if ticks_per_second < 1_000:  # seconds, which may not fit into 64 bits as milliseconds
        max_seconds = np.iinfo(np.int64).max // 1_000
        ms = np.clip(ticks, -max_seconds, max_seconds) * 1_000
        ms = np.where(ticks > max_seconds, OVERFLOW_TIMESTAMP, ms)
    else:
        # A time before 1970 must not become OVERFLOW_TIMESTAMP, which stands for a time that is too late.
        ms = np.maximum(ticks // (ticks_per_second // 1_000), OVERFLOW_TIMESTAMP + 1)
    return np.where(ms == NO_TIMESTAMP, BEFORE_EPOCH_TIMESTAMP, ms)


def _concat_columns(columns: list[ArrowColumn | None], chunks: Sequence[RecordColumns]) -> ArrowColumn | None:
    """Concatenate the columns of one field.

    `columns`: the column of each chunk; None if the chunk lacks the field.
    `chunks`: the chunks of rows that the columns belong to.

    Return None if all chunks lack the field. Raise SchemaError if the types of the columns cannot be combined.
    """
    column_types = [column.type for column in columns if column is not None]
    if not column_types:
        return None
    common_type = column_types[0]
    if any(column_type != common_type for column_type in column_types):
        if not all(_is_string_or_binary(column_type) for column_type in column_types):
            raise SchemaError(f"cannot combine rows of different types into one batch: {column_types}")
        is_large = any(
            pa.types.is_large_binary(column_type) or pa.types.is_large_string(column_type)
            for column_type in column_types
        )
        # Binary holds text as well as bytes. A large column needs 64-bit offsets.
        common_type = pa.large_binary() if is_large else pa.binary()
    arrays: list[pa.Array] = []
    for column, chunk in zip(columns, chunks, strict=True):
        array = pa.nulls(chunk.num_rows, common_type) if column is None else column
        arrays += list_chunks(array if array.type == common_type else array.cast(common_type))
    return pa.chunked_array(arrays, common_type)


def _has_32_bit_offsets(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def _is_view(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary_view(data_type) or pa.types.is_string_view(data_type))


def _is_string_or_binary(data_type: pa.DataType) -> bool:
    """Return whether a type is a string or binary type with 32-bit or 64-bit offsets. View types have no offsets."""
    return _has_32_bit_offsets(data_type) or bool(
        pa.types.is_large_string(data_type) or pa.types.is_large_binary(data_type)
    )
