"""Conversion of a table's columns from Arrow types that Spark does not have to Spark types with the same values.

Polars, DuckDB and pandas export string views, 64-bit offsets, dictionaries, unsigned integers and nanoseconds, also
inside lists, maps and structs. The code after this step was written for Spark's types: the formats that encode columns
(JSON, Avro, ...), and RecordColumns. It rejects most other types.
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
from spark_kafka_sink.records.arrays import build_null_mask, integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.byte_column import compute_byte_sizes, to_binary

_REPLACEMENT_TYPES: tuple[tuple[Any, pa.DataType], ...] = (
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
"""Pairs of a predicate on an Arrow type and the Spark type that replaces it."""
_NARROWED_TYPES = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
"""Type with 32-bit offsets by type with 64-bit offsets."""
_TYPES_WITH_OFFSETS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
"""Types whose values are delimited by 32-bit or 64-bit offsets into one buffer."""
_MS_PER_DAY = 86_400_000
_NS_PER_US = 1_000
_MIN_DAYS, _MAX_DAYS = -(2**31), 2**31 - 1
"""The earliest and the latest date that Arrow's date32 can represent, in days since 1970."""
_VIEW_BYTES = 16
"""Size of a string or binary view (Arrow columnar format). Its first 32-bit integer is the length of the value."""
_VIEW_INTEGERS = _VIEW_BYTES // 4
"""Number of 32-bit integers in a view."""


def to_spark_type(data_type: pa.DataType) -> pa.DataType:
    """Return the Spark type that can represent the values of an Arrow type.

    A type without a Spark equivalent is returned unchanged; the formats reject it.
    """
    types = pa.types
    if types.is_decimal(data_type):  # Spark has the same type
        return data_type
    for is_replaced, spark_type in _REPLACEMENT_TYPES:
        if is_replaced(data_type):
            return spark_type
    if types.is_dictionary(data_type):
        return to_spark_type(data_type.value_type)
    if types.is_timestamp(data_type):
        return pa.timestamp("us", data_type.tz)
    if _is_any_list(data_type):
        return pa.list_(_to_spark_field(data_type.value_field))
    if types.is_map(data_type):
        return pa.map_(to_spark_type(data_type.key_type), _to_spark_field(data_type.item_field))
    if types.is_struct(data_type):
        return pa.struct([_to_spark_field(data_type.field(index)) for index in range(data_type.num_fields)])
    return data_type


def find_dictionary_value_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a dictionary's decoded values, even if it is nested. Return other types unchanged."""
    return find_dictionary_value_type(data_type.value_type) if pa.types.is_dictionary(data_type) else data_type


def _is_any_list(data_type: pa.DataType) -> bool:
    """Return whether a type is a list with 32-bit or 64-bit offsets, or a list of a fixed size."""
    types = pa.types
    return bool(types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type))


def _to_spark_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, to_spark_type(field.type), field.nullable)


def convert_column(column: pa.Array, target_type: pa.DataType, name: str) -> pa.Array:
    """Convert a column to its target type. Nanoseconds are rounded down to microseconds, as in Spark.

    `name`: the name of the column, for the errors.

    Raise SchemaError if Arrow cannot convert the type, and InvalidRecordError if a value does not fit the target type.
    """
    try:
        return _convert(column, target_type)
    except pa.ArrowNotImplementedError:
        raise SchemaError(f"column {sanitize(name)} of type {column.type} cannot be written; cast it") from None
    except pa.ArrowException as error:
        raise InvalidRecordError(f"column {sanitize(name)} of type {column.type}: {sanitize(str(error))}") from None


@dataclass(frozen=True)
class BatchConversion:
    """Conversion of the columns of a record batch to the types that a ColumnPlan expects."""

    columns: Sequence[tuple[int, pa.DataType]]
    """For each column of the converted batch, its position in the original batch, and its new type."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the converted batch. Raise SchemaError or InvalidRecordError as convert_column() does."""
        names = batch.schema.names
        return pa.RecordBatch.from_arrays(
            [convert_column(batch.column(source), target_type, names[source]) for source, target_type in self.columns],
            names=[names[source] for source, _ in self.columns],
        )


def _convert(column: pa.Array, target_type: pa.DataType) -> pa.Array:
    """Convert a column. Raise pa.ArrowNotImplementedError for an unsupported type, ArrowInvalid for a value."""
    source_type, types = column.type, pa.types
    if source_type == target_type:
        return column
    # Decode dictionaries here, because Arrow's cast supports neither nested dictionaries nor dictionaries of views.
    if types.is_dictionary(source_type):
        return pc.take(_convert(column.dictionary, target_type), column.indices)
    if types.is_struct(source_type) and types.is_struct(target_type):
        return _convert_structs(column, target_type)
    if types.is_map(source_type) and types.is_map(target_type):
        return _convert_maps(column, target_type)
    if types.is_list(target_type) and _is_any_list(source_type):
        return _convert_lists(column, target_type)
    if types.is_timestamp(source_type) and source_type.unit == "ns" and types.is_timestamp(target_type):
        return _round_down_to_microseconds(column, target_type)
    if types.is_date64(source_type) and types.is_date32(target_type):
        return _to_days(column)
    if _NARROWED_TYPES.get(source_type) == target_type:
        return to_binary(column).view(target_type)
    return column.cast(options=pc.CastOptions(target_type, allow_time_truncate=True))


def _convert_structs(column: pa.Array, target_type: pa.DataType) -> pa.Array:
    """Convert the fields of structs."""
    # Use flatten(), which turns the fields of a null struct into nulls. Their buffers may contain values that cannot be
    # cast.
    fields = [_convert(field, target_type.field(index).type) for index, field in enumerate(column.flatten())]
    return pa.StructArray.from_arrays(fields, fields=list(target_type), mask=_build_null_mask_array(column))


def _convert_maps(column: pa.Array, target_type: pa.DataType) -> pa.Array:
    """Convert the keys and items of maps."""
    entries = _to_entry_lists(column)
    keys, items = entries.flatten().flatten()
    # The offset of a null map must be null. The last offset is the end of the last map, so it is never null.
    is_null_offset = np.append(build_null_mask(column), False)
    offsets = numbers_to_arrow(integers_to_numpy(_flatten_offsets(entries)), is_null_offset)
    return pa.MapArray.from_arrays(
        offsets, _convert(keys, target_type.key_type), _convert(items, target_type.item_type), target_type
    )


def _convert_lists(column: pa.Array, target_type: pa.DataType) -> pa.Array:
    """Convert lists of any kind to lists with 32-bit offsets, and convert their elements."""
    # flatten() omits the elements of null lists, so new offsets are needed.
    elements = _convert(column.flatten(), target_type.value_type)
    return pa.ListArray.from_arrays(
        _flatten_offsets(column), elements, type=target_type, mask=_build_null_mask_array(column)
    )


def _round_down_to_microseconds(column: pa.Array, target_type: pa.DataType) -> pa.Array:
    """Convert nanoseconds to microseconds, rounding down as Spark does. Arrow's cast rounds toward 1970."""
    nanoseconds = integers_to_numpy(column.view(pa.int64()))
    return numbers_to_arrow(nanoseconds // _NS_PER_US, build_null_mask(column)).view(target_type)


def _to_days(column: pa.Array) -> pa.Array:
    """Convert milliseconds to days. Raise ArrowInvalid if a day does not fit into 32 bits.

    Arrow's cast would overflow silently.
    """
    days = integers_to_numpy(column.view(pa.int64())) // _MS_PER_DAY
    null_mask = build_null_mask(column)
    is_out_of_range = (days < _MIN_DAYS) | (days > _MAX_DAYS)
    if is_out_of_range.any():
        first_index = int(is_out_of_range.argmax())
        raise pa.ArrowInvalid(f"{column.view(pa.int64())[first_index]} ms is not a valid date")
    return numbers_to_arrow(days.astype(np.int32), null_mask).view(pa.date32())


def _build_null_mask_array(column: pa.Array) -> pa.Array | None:
    """Return an Arrow mask that is True for nulls, or None if there are none."""
    return column.is_null() if column.null_count else None


def _to_entry_lists(column: pa.Array) -> pa.Array:
    """Convert maps to lists of their entries. An entry is a struct of a key and a value."""
    return column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))


def _flatten_offsets(lists: pa.Array) -> pa.Array:
    """Return the offset of each list in lists.flatten(), followed by the end of the last list.

    The offsets in `lists` itself may differ, because flatten() omits the elements of null lists.

    Example: lists of 2 elements, null and 3 elements have the offsets [0, 2, 2, 5].
    """
    lengths = integers_to_numpy(pc.list_value_length(lists))
    return numbers_to_arrow(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])).cast(pa.int32())


def compute_decoded_nbytes(column: pa.Array) -> int:
    """Return how many bytes a column will have when its dictionaries and views are decoded."""
    if _contains_encoded_values(column.type):
        return int(np.add.reduce(_compute_decoded_value_sizes(column)))
    return int(column.nbytes)


def _contains_encoded_values(data_type: pa.DataType) -> bool:
    """Return whether a type is a dictionary or view type or contains one at any depth.

    Such a column's `nbytes` counts a value of a dictionary only once, and before pyarrow 24, it raises an error for
    views.
    """
    types = pa.types
    if types.is_dictionary(data_type) or types.is_string_view(data_type) or types.is_binary_view(data_type):
        return True
    if types.is_map(data_type):
        return _contains_encoded_values(data_type.key_type) or _contains_encoded_values(data_type.item_type)
    return any(_contains_encoded_values(data_type.field(index).type) for index in range(data_type.num_fields))


def _compute_decoded_value_sizes(column: pa.Array) -> NDArray[np.int64]:
    """Return how many bytes each value of a column will have when it is decoded; 0 for a null.

    The offsets of Arrow arrays are not counted.
    """
    if not len(column):
        return np.zeros(0, np.int64)
    data_type, types = column.type, pa.types
    if types.is_dictionary(data_type):
        return _compute_dictionary_value_sizes(column)
    if types.is_struct(data_type):
        return sum(map(_compute_decoded_value_sizes, column.flatten()), np.zeros(len(column), np.int64))
    if types.is_map(data_type):
        return _compute_list_sizes(_to_entry_lists(column))
    if _is_any_list(data_type):
        return _compute_list_sizes(column)
    if types.is_string_view(data_type) or types.is_binary_view(data_type):
        return _compute_view_value_sizes(column)
    if types.is_null(data_type) or data_type in _TYPES_WITH_OFFSETS:
        return compute_byte_sizes(column)
    return np.full(len(column), column.nbytes // len(column), np.int64)  # all values have the same size


def _compute_dictionary_value_sizes(column: pa.Array) -> NDArray[np.int64]:
    """Return, for each row, the size in bytes of the dictionary entry that the row refers to; 0 for a null."""
    entry_sizes = _compute_decoded_value_sizes(column.dictionary)
    indices = integers_to_numpy(column.indices)
    # Treat an index outside of the dictionary as null here. convert_column() raises an error for it.
    is_valid = (indices >= 0) & (indices < len(column.dictionary)) & ~build_null_mask(column)
    null_index = len(entry_sizes)  # the index of the 0 that is appended as the size of null
    valid_indices = np.where(is_valid, indices.astype(np.int64), null_index)
    return np.append(entry_sizes, 0)[valid_indices]


def _compute_list_sizes(lists: pa.Array) -> NDArray[np.int64]:
    """Return the total size in bytes of each list's elements; 0 for a null."""
    # For example, element sizes [1, 2, 3, 4, 5] have the ends [0, 1, 3, 6, 10, 15]. Lists with the offsets [0, 2, 2, 5]
    # begin and end at [0, 3, 3, 15], so their sizes are [3, 0, 12].
    element_ends = np.append(0, np.cumsum(_compute_decoded_value_sizes(lists.flatten())))
    sizes: NDArray[np.int64] = np.diff(element_ends[integers_to_numpy(_flatten_offsets(lists))])
    return sizes


def _compute_view_value_sizes(column: pa.Array) -> NDArray[np.int64]:
    """Return the size in bytes of each value of a view column, as recorded in its view; 0 for a null."""
    view_integers = np.frombuffer(
        column.buffers()[1], np.int32, count=_VIEW_INTEGERS * len(column), offset=_VIEW_BYTES * column.offset
    )
    lengths = view_integers[::_VIEW_INTEGERS]  # the first integer of each view
    return np.where(build_null_mask(column), 0, lengths).astype(np.int64)
