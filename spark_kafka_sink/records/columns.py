"""The rows of one write, as Arrow columns: what the producer takes and the encoder reads.

Columns are checked once, when they come in, and changed only where a later step could not work with them: view types
become offset types (Arrow cannot take rows from views), timestamps become int64 milliseconds. Slices are free
of copies. `chunks` joins pieces, `take` copies the rows that it takes, and the encoder copies each value once, into its
record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.records.arrays import integers_to_numpy, null_mask, numbers_to_arrow
from spark_kafka_sink.records.byte_column import byte_sizes, data_nbytes

ArrowColumn: TypeAlias = "pa.Array | pa.ChunkedArray"

NO_TIMESTAMP = -1
"""The protocol's own way to say that a record has no timestamp."""
BEFORE_EPOCH_TIMESTAMP = -2
"""What the last millisecond before 1970 is read as: it must not be taken for no timestamp. The check of rows names all
times before 1970, and no broker takes them."""
OVERFLOW_TIMESTAMP = 1 - (1 << 63)
"""What a time is read as that is too far in the future for a count of milliseconds in 64 bits."""

MAX_CHUNK_ROWS = 10_000
"""Larger chunks fall out of the processor's cache and cost more per record."""
_TAKE_BYTES_MAX = 1 << 30
"""What 32-bit offsets might not hold once rows are joined, or taken more than once."""
_FIFTY_YEARS_MS = 50 * 365.25 * 86_400_000
_ONE_DAY_S = 86_400
"""Clocks differ, and times may be of tomorrow in another time zone."""
LIKELY_SECONDS_MESSAGE = (
    "Column timestamp has the number %d, which is a time in January 1970 in milliseconds and one of the last fifty "
    "years in seconds. It is written as milliseconds. If it is in seconds, multiply it by 1000 or make it a timestamp."
)
_JOINED_CHUNK_BYTES_MAX = 1 << 16
"""Chunks that are smaller on average are joined: a copy of them costs less than the steps for each."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class RecordColumns:
    """Columns of equal length. `value` and `key` are bytes or text, `headers` lists of (key, value), `timestamp` ms.

    Nulls: a null value is a tombstone, a null key is no key, null headers are none, a null timestamp is "now".

    Example:

        columns = RecordColumns(value=pa.array(["12.50", "8.00"]), key=pa.array(["o-1", "o-2"]))
        producer.send_columns("orders", columns)
    """

    __slots__ = ("_nbytes", "headers", "key", "num_rows", "timestamp", "value")

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
        _check_arrow("value", value)
        for name, column in (("key", key), ("headers", headers), ("timestamp", timestamp)):
            if column is None:
                continue
            _check_arrow(name, column)
            if len(column) != len(value):
                raise SchemaError(f"column {name} has {len(column)} rows, column value has {len(value)}")
        self.value = _byte_column("value", value)
        self.key = None if key is None or pa.types.is_null(key.type) else _byte_column("key", key)
        self.headers = None if headers is None else _header_column(headers)
        self.timestamp = None if timestamp is None else _timestamp_column(timestamp)
        self.num_rows = len(value)
        self._nbytes = -1

    @classmethod
    def _checked(
        cls,
        value: ArrowColumn,
        key: ArrowColumn | None,
        headers: ArrowColumn | None,
        timestamp: ArrowColumn | None,
    ) -> RecordColumns:
        """From columns that have been through the constructor already."""
        made = cls.__new__(cls)
        made.value, made.key, made.headers, made.timestamp, made.num_rows = value, key, headers, timestamp, len(value)
        made._nbytes = -1
        return made

    def __repr__(self) -> str:
        present = [f"{name}: {column.type}" for name, column in self._named() if column is not None]
        return f"RecordColumns({self.num_rows} rows, {', '.join(present)})"

    def __len__(self) -> int:
        return self.num_rows

    @property
    def nbytes(self) -> int:
        """The bytes of these rows alone, also where the arrays are slices of larger ones."""
        if self._nbytes < 0:
            self._nbytes = sum([column.nbytes for _, column in self._named() if column is not None])
        return self._nbytes

    @property
    def payload_nbytes(self) -> int:
        """The bytes of keys, values and headers alone: `nbytes` without Arrow's offsets and the timestamps."""
        headers = [] if self.headers is None else list_chunks(self.headers)
        columns = [column for column in (self.value, self.key) if column is not None]
        arrays = [piece for column in columns for piece in list_chunks(column)]
        arrays += [field for piece in headers for field in _header_fields(piece)]
        return sum(data_nbytes(array) for array in arrays)

    @property
    def memory_nbytes(self) -> int:
        """All memory that the arrays point into, also outside of their slices. No row has more; known at once."""
        return sum([column.get_total_buffer_size() for _, column in self._named() if column is not None])

    def slice(self, offset: int, length: int | None = None) -> RecordColumns:
        return self._checked(*[None if c is None else c.slice(offset, length) for _, c in self._named()])

    def take(self, indices: Any) -> RecordColumns:
        """The rows at these positions, in this order (copied)."""
        positions = integers_to_numpy(indices) if isinstance(indices, pa.Array) else np.asarray(indices, np.int64)
        return self._checked(*[None if c is None else _take(combine_chunks(c), positions) for _, c in self._named()])

    def chunks(self, rows_max: int) -> Iterator[RecordColumns]:
        """Runs of at most `rows_max` rows, whose columns are plain arrays. Only small chunks of the input are joined.

        To join large ones would copy all their bytes, and fail above 2 GiB.
        """
        if 0 < self.num_rows <= rows_max:
            yield from self._plain_runs()
            return
        for start in range(0, self.num_rows, rows_max):
            yield from self.slice(start, rows_max)._plain_runs()

    def _plain_runs(self) -> Iterator[RecordColumns]:
        """The rows in one run, or in one for each chunk if the chunks are large."""
        chunked = [column for _, column in self._named() if isinstance(column, pa.ChunkedArray)]
        chunks_max = max([column.num_chunks for column in chunked], default=1)
        if chunks_max <= 1 or self.nbytes < chunks_max * _JOINED_CHUNK_BYTES_MAX:
            yield self.contiguous()
            return
        ends = sorted({0, *(end for column in chunked for end in accumulate(map(len, column.chunks)))})
        for start, end in pairwise(ends):
            yield self.slice(start, end - start).contiguous()

    def contiguous(self) -> RecordColumns:
        """The rows with each column as one plain array. Only columns in several pieces are copied."""
        return self._checked(*[None if c is None else combine_chunks(c) for _, c in self._named()])

    @classmethod
    def concat(cls, parts: Sequence[RecordColumns]) -> RecordColumns:
        """The rows of all parts in turn, without a copy. A column that only some parts have is null elsewhere."""
        if len(parts) == 1:
            return parts[0]
        names = ("value", "key", "headers", "timestamp")
        return cls._checked(*[_concat([getattr(part, name) for part in parts], parts) for name in names])

    def _named(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("value", self.value),
            ("key", self.key),
            ("headers", self.headers),
            ("timestamp", self.timestamp),
        )


def _header_fields(headers: pa.Array) -> Sequence[pa.Array]:
    """The names and the values of all headers of these rows."""
    first, last = (headers.offsets[end].as_py() for end in (0, -1))
    if pa.types.is_map(headers.type):
        return [field.slice(first, last - first) for field in (headers.keys, headers.items)]
    fields: Sequence[pa.Array] = headers.values.slice(first, last - first).flatten()
    return fields


def list_chunks(column: ArrowColumn) -> Sequence[pa.Array]:
    """The plain arrays that a column is made of."""
    return [column] if isinstance(column, pa.Array) else column.chunks


def combine_chunks(column: ArrowColumn) -> pa.Array:
    """One plain array; the pieces of a chunked one are joined, in 64-bit offsets if 32 bits would not do."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.nulls(0, column.type)
    return pa.concat_arrays(_roomy(column).chunks)


def _take(array: pa.Array, positions: np.ndarray[Any, np.dtype[Any]]) -> pa.Array:
    return pc.take(_roomy(array), numbers_to_arrow(positions), boundscheck=False)


def _roomy(column: ArrowColumn) -> ArrowColumn:
    """The array with 64-bit offsets if 32 bits might not be enough for what is made of it."""
    # The buffer of a chunk that is repeated counts once in the total size, and again for each chunk in nbytes.
    size = column.get_total_buffer_size() if isinstance(column, pa.Array) else column.nbytes
    if _is_narrow(column.type) and size >= _TAKE_BYTES_MAX:
        return column.cast(pa.large_binary())
    return column


def _check_arrow(name: str, column: object) -> None:
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return
    kind = type(column)
    library = kind.__module__.partition(".")[0]
    write = {
        "polars": f"{name}.to_arrow()",
        "pandas": f"pa.Array.from_pandas({name})",
        "pyarrow": f'table.column("{name}") of a table or a batch',
    }.get(library, f"pa.array({name})")
    shown = kind.__name__ if library == "builtins" else f"{library}.{kind.__name__}"
    raise SchemaError(f"column {name} is of type {shown}, not an Arrow array: write {write}")


def _byte_column(name: str, column: ArrowColumn) -> ArrowColumn:
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        if _is_offset_type(kind) or _is_view(kind):
            column = _decoded(column)
            kind = column.type
    if pa.types.is_null(kind):
        return column.cast(pa.binary())
    if _is_narrow(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return column
    if _is_view(kind):
        return column.cast(pa.large_binary())
    raise SchemaError(f"column {name} must be a string or binary column, not {kind}: cast it, or serialize it first")


def _decoded(column: ArrowColumn) -> ArrowColumn:
    """The rows of a dictionary, with 64-bit offsets if 32 bits might not be enough: each may be the longest word."""
    kind, pieces = column.type.value_type, list_chunks(column)
    if not _is_narrow(kind) or any(_longest(piece.dictionary) * len(piece) >= _TAKE_BYTES_MAX for piece in pieces):
        kind = pa.large_binary()
    taken = [pc.take(piece.dictionary.cast(kind), piece.indices) for piece in pieces]
    return taken[0] if isinstance(column, pa.Array) else pa.chunked_array(taken, kind)


def _longest(words: pa.Array) -> int:
    return int(np.maximum.reduce(byte_sizes(words), initial=0))


def _header_column(column: ArrowColumn) -> ArrowColumn | None:
    kind = column.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_map(kind):
        key, value = kind.key_type, kind.item_type
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_header_struct(kind.value_type):
        key, value = kind.value_type.field("key").type, kind.value_type.field("value").type
    else:
        raise SchemaError(f"column headers must be a list of struct<key: string, value: binary> or a map, not {kind}")
    if not _is_offset_type(key) or not (_is_offset_type(value) or pa.types.is_null(value)):
        raise SchemaError(f"the keys of headers must be strings and their values binary, not {kind}")
    return column


def _is_header_struct(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and sorted(kind.field(i).name for i in range(kind.num_fields)) == ["key", "value"]


def _timestamp_column(column: ArrowColumn) -> ArrowColumn | None:
    """int64 milliseconds; nulls stay. Times are rounded down to the millisecond, as Spark does it."""
    kind = column.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_integer(kind):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise SchemaError(f"column timestamp has numbers that no bigint can hold: {error}") from error
    if not pa.types.is_timestamp(kind):
        raise SchemaError(f"column timestamp must be a timestamp or a count of milliseconds (bigint), not {kind}")
    array = combine_chunks(column)
    ticks = integers_to_numpy(array.view(pa.int64()))
    return numbers_to_arrow(_ticks_to_ms(ticks, _PER_SECOND[kind.unit]), null_mask(array) if array.null_count else None)


def find_likely_seconds(timestamp: ArrowColumn, now_ms: float) -> int | None:
    """Find a number in a column of milliseconds that is likely a count of seconds.

    All numbers must be times of the last fifty years if they are seconds. As milliseconds they are in January 1970.
    """
    if not pa.types.is_integer(timestamp.type):
        return None
    for piece in list_chunks(timestamp):
        numbers = integers_to_numpy(piece)
        if piece.null_count:
            numbers = numbers[~null_mask(piece)]
        if not len(numbers):
            continue
        lowest, highest = int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))
        if (now_ms - _FIFTY_YEARS_MS) / 1_000 <= lowest and highest <= now_ms / 1_000 + _ONE_DAY_S:
            return lowest
    return None


def _ticks_to_ms(ticks: np.ndarray[Any, np.dtype[np.int64]], per_second: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    if per_second < 1_000:
        seconds_max = np.iinfo(np.int64).max // 1_000
        ms = np.clip(ticks, -seconds_max, seconds_max) * 1_000
        ms = np.where(ticks > seconds_max, OVERFLOW_TIMESTAMP, ms)
    else:
        ms = np.maximum(ticks // (per_second // 1_000), OVERFLOW_TIMESTAMP + 1)
    return np.where(ms == NO_TIMESTAMP, BEFORE_EPOCH_TIMESTAMP, ms)


def _concat(columns: list[ArrowColumn | None], parts: Sequence[RecordColumns]) -> ArrowColumn | None:
    kinds = [column.type for column in columns if column is not None]
    if not kinds:
        return None
    kind = kinds[0]
    if any(other != kind for other in kinds):
        wide = any(pa.types.is_large_binary(other) or pa.types.is_large_string(other) for other in kinds)
        if not all(_is_offset_type(other) for other in kinds):
            raise SchemaError(f"rows of different types cannot be one batch: {kinds}")
        kind = pa.large_binary() if wide else pa.binary()
    pieces: list[pa.Array] = []
    for column, part in zip(columns, parts, strict=True):
        whole = pa.nulls(part.num_rows, kind) if column is None else column
        whole = whole if whole.type == kind else whole.cast(kind)
        pieces += whole.chunks if isinstance(whole, pa.ChunkedArray) else [whole]
    return pa.chunked_array(pieces, kind)


def _is_narrow(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary_view(kind) or pa.types.is_string_view(kind))


def _is_offset_type(kind: pa.DataType) -> bool:
    return _is_narrow(kind) or bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))
