"""Arrow types that Spark does not have, and their conversion to the types that formats and records know.

Polars, DuckDB and pandas have text in views or with wide offsets, dictionaries, unsigned numbers and nanoseconds, at
any depth of lists, maps and structs. Each column is converted to the type of Spark that holds the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.records.arrays import integers_to_numpy, null_mask, numbers_to_arrow
from spark_kafka_sink.records.byte_column import byte_sizes

_SIMPLE: tuple[tuple[Any, pa.DataType], ...] = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_time, pa.time64("ns")),
)


_OFFSET_TYPES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
_DAY_MS = 86_400_000
_MAX_DAY = 2**31 - 1


def to_spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the Spark type for the same values. A type without one is returned as it is, and formats reject it."""
    types = pa.types
    simple = next((known for is_kind, known in _SIMPLE if is_kind(kind) and not types.is_decimal(kind)), None)
    if simple is not None:
        return simple
    if types.is_dictionary(kind):
        return to_spark_type(kind.value_type)
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_to_spark_field(kind.value_field))
    if types.is_map(kind):
        return pa.map_(to_spark_type(kind.key_type), _to_spark_field(kind.item_field))
    if types.is_struct(kind):
        return pa.struct([_to_spark_field(kind.field(index)) for index in range(kind.num_fields)])
    return kind


def dictionary_value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary type, or the type itself."""
    return dictionary_value_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _to_spark_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, to_spark_type(field.type), field.nullable)


def convert_column(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Convert a column to its known type. A value that does not fit is an InvalidRecordError.

    Times below a microsecond are rounded down, as Spark does it.
    """
    try:
        return _convert(column, kind)
    except pa.ArrowNotImplementedError:
        raise SchemaError(f"column {sanitize(name)} of type {column.type} cannot be written; cast it") from None
    except pa.ArrowException as error:
        raise InvalidRecordError(f"column {sanitize(name)} of type {column.type}: {sanitize(str(error))}") from None


@dataclass(frozen=True)
class BatchConversion:
    """The conversion of a table's batches. `columns` has the source position and the type of each resulting column."""

    columns: Sequence[tuple[int, pa.DataType]]

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the columns of a batch. Raises what convert_column() raises."""
        names = batch.schema.names
        return pa.RecordBatch.from_arrays(
            [convert_column(batch.column(source), kind, names[source]) for source, kind in self.columns],
            names=[names[source] for source, _ in self.columns],
        )


def _convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode dictionaries before the cast, at every depth: Arrow casts no nested one, and none of views."""
    source, types = column.type, pa.types
    if source == kind:
        return column
    if types.is_dictionary(source):
        return pc.take(_convert(column.dictionary, kind), column.indices)
    if types.is_struct(source) and types.is_struct(kind):
        # flatten() makes the fields of a null struct null. What they hold otherwise may be no value of their types.
        fields = [_convert(field, kind.field(index).type) for index, field in enumerate(column.flatten())]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=_nulls(column))
    if types.is_map(source) and types.is_map(kind):
        entries = _map_entries(column)
        keys, items = entries.flatten().flatten()
        # A null offset marks a null map.
        offsets = numbers_to_arrow(integers_to_numpy(_offsets(entries)), np.append(null_mask(column), False))
        return pa.MapArray.from_arrays(offsets, _convert(keys, kind.key_type), _convert(items, kind.item_type), kind)
    if types.is_list(kind) and (
        types.is_list(source) or types.is_large_list(source) or types.is_fixed_size_list(source)
    ):
        # flatten() leaves out the elements of null lists.
        elements = _convert(column.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(column), elements, type=kind, mask=_nulls(column))
    if types.is_timestamp(source) and source.unit == "ns" and types.is_timestamp(kind):
        ns = integers_to_numpy(column.view(pa.int64()))
        return numbers_to_arrow(ns // 1_000, null_mask(column)).view(kind)
    if types.is_date64(source) and types.is_date32(kind):
        return _to_days(column)
    return column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))


def _to_days(column: pa.Array) -> pa.Array:
    """Convert milliseconds to days. Arrow's own cast wraps around silently."""
    days, nulls = integers_to_numpy(column.view(pa.int64())) // _DAY_MS, null_mask(column)
    is_outside = (days < -_MAX_DAY - 1) | (days > _MAX_DAY)
    if is_outside.any():
        raise pa.ArrowInvalid(f"{column.view(pa.int64())[int(is_outside.argmax())]} ms is no date")
    return numbers_to_arrow(days.astype(np.int32), nulls).view(pa.date32())


def _nulls(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _map_entries(column: pa.Array) -> pa.Array:
    """Convert maps to lists of structs with a key and a value."""
    return column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))


def _offsets(lists: pa.Array) -> pa.Array:
    """Offsets into the flattened elements of lists, in which null lists have none."""
    lengths = integers_to_numpy(pc.list_value_length(lists))
    return numbers_to_arrow(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])).cast(pa.int32())


def decoded_nbytes(column: pa.Array) -> int:
    """Return the decoded size of a column with a dictionary at any depth, in bytes; 0 without a dictionary."""
    return int(np.add.reduce(_decoded_sizes(column))) if _has_dictionary(column.type) else 0


def _has_dictionary(kind: pa.DataType) -> bool:
    """Return whether a dictionary is in the type, at any depth."""
    if pa.types.is_dictionary(kind):
        return True
    if pa.types.is_map(kind):
        return _has_dictionary(kind.key_type) or _has_dictionary(kind.item_type)
    return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))


def _decoded_sizes(column: pa.Array) -> NDArray[np.int64]:
    """Return the decoded size of each value in bytes, without Arrow's offsets; 0 for null."""
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        word_sizes = np.append(_decoded_sizes(column.dictionary), 0)  # the last one is of null
        indices = integers_to_numpy(column.indices)
        # An index outside of the dictionary is an error of convert_column().
        is_word = (indices >= 0) & (indices < len(column.dictionary)) & ~null_mask(column)
        return word_sizes[np.where(is_word, indices.astype(np.int64), -1)]  # unsigned indices have no -1
    if types.is_struct(kind):
        return sum(map(_decoded_sizes, column.flatten()), np.zeros(len(column), np.int64))
    if types.is_map(kind):
        return _decoded_sizes(_map_entries(column))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        ends = np.append(0, np.cumsum(_decoded_sizes(column.flatten())))
        sizes: NDArray[np.int64] = np.diff(ends[integers_to_numpy(_offsets(column))])
        return sizes
    if len(column) and (types.is_string_view(kind) or types.is_binary_view(kind)):
        # A view is 16 bytes, of which the first four are the length (Arrow's columnar format).
        lengths = np.frombuffer(column.buffers()[1], np.int32, 4 * len(column), 16 * column.offset)[::4]
        return np.where(null_mask(column), 0, lengths).astype(np.int64)
    if types.is_null(kind) or kind in _OFFSET_TYPES:
        return byte_sizes(column)
    return np.full(len(column), column.nbytes // max(1, len(column)), np.int64)  # values of one size
