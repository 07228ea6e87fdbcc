"""The Avro row format: Avro's binary encoding, one record per row. The output is identical to fastavro's.

A record consists of its field values, without names. Integers are zigzag varints, as in Kafka's records. Floats are
little-endian. Strings and bytes are preceded by their length. An array or map consists of its element count, its
elements and a 0; an empty array or map is a single 0. A union consists of the branch index and the value. Invalid UTF-8
in a string is replaced by U+FFFD, because readers such as fastavro reject it.

Each column has a writer: a function that encodes the column and returns its bytes as pieces (binary_pieces.py). The
writers are built from the schema and the column types. The driver builds them as well, so that a column
that does not fit the schema is reported as SchemaError before any row is written.

Numbers, lengths and branch indices are encoded as `Field`s, which have up to 8 bytes per row (records/fields.py). A
number that needs more bytes is split over several fields. Because a record contains no names, the fields of adjacent
numeric columns directly follow each other. Adjacent fields are merged as long as they fit into 8 bytes together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.arrow_errors import convert_arrow_errors
from spark_kafka_sink.formats.avro_scalars import ColumnWriter, build_scalar_writer
from spark_kafka_sink.formats.avro_schema import NamedTypes, get_avro_type, parse_record_schema
from spark_kafka_sink.formats.binary_arrays import is_string_type, read_element_offsets, replace_invalid_utf8
from spark_kafka_sink.formats.binary_pieces import (
    ALL_ROWS,
    Mask,
    Piece,
    build_element_mask,
    build_valid_mask,
    combine_masks,
    concatenate_elements,
    join_pieces,
    mask_pieces,
    reject_nulls,
    split_lengths_and_bytes,
)
from spark_kafka_sink.records.fields import Field, build_constant_field, build_signed_varint_fields, encode_varint

RowWriter = Callable[[Sequence[pa.Array], Mask], list[Piece]]
"""Function that encodes all columns of a record to pieces. A ColumnWriter encodes one column."""


@dataclass(frozen=True)
class AvroFormat:
    """The Avro row format. `schema` is the Avro schema as JSON."""

    schema: str

    def encode_rows(
        self, names: Sequence[str], columns: Sequence[pa.Array], row_count: int, prefix: bytes = b""
    ) -> pa.Array:
        write_record = build_record_writer(self.schema, tuple(names), tuple(column.type for column in columns))
        return join_pieces(write_record(columns, ALL_ROWS), row_count, prefix)


@lru_cache(maxsize=64)
def build_record_writer(
    schema_json: str, column_names: tuple[str, ...], column_types: tuple[pa.DataType, ...]
) -> RowWriter:
    """Build a writer for the columns of a table. Raise SchemaError if the columns do not fit the schema."""
    schema = parse_record_schema(schema_json)
    builder = _RecordWriterBuilder(NamedTypes(schema))
    return builder.build_fields_writer(
        schema, namespace="", column_names=column_names, column_types=column_types, path_prefix=""
    )


class _NullableWriter(NamedTuple):
    """A writer for the non-null values of a column, and the encoded indices of the union's branches."""

    write: ColumnWriter
    encoded_value_index: bytes | None
    """The index of the branch for non-null values, or None if the schema is not a union."""
    encoded_null_index: bytes | None
    """The index of the null branch, or None if the schema does not allow null."""


class _RecordWriterBuilder:
    """Builds column writers.

    The methods have these parameters:

    `schema`: the Avro schema of the column, as parsed from JSON.
    `namespace`: the namespace in which names in the schema are looked up.
    `path`: the column's full name in error messages, including its parents.
    """

    def __init__(self, named_types: NamedTypes) -> None:
        self._named_types = named_types

    def build_fields_writer(
        self,
        schema: Mapping[str, Any],
        namespace: str,
        column_names: Sequence[str],
        column_types: Sequence[pa.DataType],
        path_prefix: str,
    ) -> RowWriter:
        """Build a writer for records whose fields are matched with columns by name. Fields without a column are null.

        Raise SchemaError if a column has no matching field or an incompatible type, or if a field without a column does
        not allow null.

        `path_prefix`: text before each column's name in its path, such as `address.`; empty for the columns of the
        outermost record.
        """
        _, inner_namespace = self._named_types.resolve(schema, namespace)
        fields_by_name = {field["name"]: field for field in schema["fields"]}
        unknown_columns = [name for name in column_names if name not in fields_by_name]
        if unknown_columns:
            raise SchemaError(f"the Avro schema has no field for the column {path_prefix}{unknown_columns[0]}")
        positions = {name: column_names.index(name) for name in column_names}
        field_writers: dict[str, RowWriter] = {}
        for name, field in fields_by_name.items():
            path = f"{path_prefix}{name}"
            if name in positions:
                position = positions[name]
                write_column = self.build_value_writer(field["type"], inner_namespace, column_types[position], path)
                field_writers[path] = _select_column(position, write_column)
            else:
                field_writers[path] = self._build_null_writer(field, inner_namespace, path)

        def write_fields(columns: Sequence[pa.Array], mask: Mask) -> list[Piece]:
            pieces: list[Piece] = []
            for path, write_field in field_writers.items():
                with convert_arrow_errors(path):
                    pieces += write_field(columns, mask)
            return pieces

        return write_fields

    def build_value_writer(self, schema: Any, namespace: str, data_type: pa.DataType, path: str) -> ColumnWriter:
        """Build a writer for a column that may contain nulls. Raise SchemaError if its type does not fit the schema.

        The writer raises InvalidRecordError if a selected row is null and the schema does not allow null.
        """
        schema, namespace = self._named_types.resolve(schema, namespace)
        if pa.types.is_null(data_type):
            null_piece = build_constant_field(_encode_null_branch(schema, path))
            return lambda column, mask: [null_piece]
        nullable_writer = self._build_nullable_writer(schema, namespace, data_type, path)

        def write_nullable(column: pa.Array, mask: Mask) -> list[Piece]:
            valid_mask = build_valid_mask(column)
            if nullable_writer.encoded_null_index is None:
                reject_nulls(column, mask, path, remedy="make the field a union with null")
            pieces = nullable_writer.write(column, combine_masks(mask, valid_mask))
            if nullable_writer.encoded_value_index is None:  # not a union, so no branch index precedes the value
                return pieces
            if valid_mask is None:
                return [build_constant_field(nullable_writer.encoded_value_index), *pieces]
            return [_encode_branch_indices(valid_mask, nullable_writer), *mask_pieces(pieces, valid_mask)]

        return write_nullable

    def _build_nullable_writer(self, schema: Any, namespace: str, data_type: pa.DataType, path: str) -> _NullableWriter:
        """Build a writer for the column. If the schema is a union, use its first branch that fits.

        Raise SchemaError if no branch fits.
        """
        if not isinstance(schema, list):
            write_value = self._build_non_null_writer(schema, namespace, data_type, path)
            return _NullableWriter(write_value, encoded_value_index=None, encoded_null_index=None)
        encoded_null_index = encode_varint(schema.index("null")) if "null" in schema else None
        # Building the writer is also the check that a branch fits. A separate check before it would double the time for
        # each level of nested unions.
        branch_errors = []
        for index, branch in enumerate(schema):
            if branch == "null":
                continue
            try:
                resolved_schema, inner_namespace = self._named_types.resolve(branch, namespace)
                return _NullableWriter(
                    write=self._build_non_null_writer(resolved_schema, inner_namespace, data_type, path),
                    encoded_value_index=encode_varint(index),
                    encoded_null_index=encoded_null_index,
                )
            except SchemaError as error:
                branch_errors.append(str(error))
        if not branch_errors:
            raise SchemaError(f"column {path}: the Avro schema allows only null")
        # Report only the first error: usually the union has a single branch besides null.
        raise SchemaError(branch_errors[0])

    def _build_non_null_writer(self, schema: Any, namespace: str, data_type: pa.DataType, path: str) -> ColumnWriter:
        """Build a writer for a column. The mask that is passed to the writer must not select a null.

        Raise SchemaError if the column's type does not fit the schema.
        """
        avro_type = get_avro_type(schema)
        if avro_type == "record" and pa.types.is_struct(data_type):
            return self._build_struct_writer(schema, namespace, data_type, path)
        if avro_type == "array" and pa.types.is_list(data_type):
            write_element = self.build_value_writer(schema["items"], namespace, data_type.value_type, f"{path}.element")
            return lambda column, mask: _encode_lists(column, mask, write_element)
        if avro_type == "map" and _is_map_with_string_keys(data_type):
            write_value = self.build_value_writer(schema["values"], namespace, data_type.item_type, f"{path}.value")
            return lambda column, mask: _encode_maps(column, mask, write_value)
        return build_scalar_writer(schema, data_type, path)

    def _build_struct_writer(self, schema: Any, namespace: str, data_type: pa.DataType, path: str) -> ColumnWriter:
        """Build a writer for a struct column, whose fields are matched with the record's fields by name."""
        positions = range(data_type.num_fields)
        write_struct = self.build_fields_writer(
            schema,
            namespace,
            column_names=[data_type.field(position).name for position in positions],
            column_types=[data_type.field(position).type for position in positions],
            path_prefix=f"{path}.",
        )
        return lambda column, mask: write_struct([column.field(position) for position in positions], mask)

    def _build_null_writer(self, field: Mapping[str, Any], namespace: str, path: str) -> RowWriter:
        """Build a writer that writes null for a field without a column. Raise SchemaError if null is not allowed."""
        schema, _ = self._named_types.resolve(field["type"], namespace)
        if schema == "null":
            return lambda columns, mask: []
        if isinstance(schema, list) and "null" in schema:
            null_piece = build_constant_field(encode_varint(schema.index("null")))
            return lambda columns, mask: [null_piece]
        raise SchemaError(f"there is no column for the field {path} of the Avro schema, and the field cannot be null")


def _select_column(position: int, write_column: ColumnWriter) -> RowWriter:
    """Return a writer that calls `write_column` with the column at this position."""
    return lambda columns, mask: write_column(columns[position], mask)


def _is_map_with_string_keys(data_type: pa.DataType) -> bool:
    """Return whether this is a map that Avro can represent. Avro's map keys are always strings."""
    # The type of Spark's empty map, map(), has keys of type null.
    return bool(pa.types.is_map(data_type)) and (
        is_string_type(data_type.key_type) or bool(pa.types.is_null(data_type.key_type))
    )


def _encode_null_branch(schema: Any, path: str) -> bytes:
    """Return the encoding of null: the index of a union's null branch, or no bytes if the schema is `null`.

    Raise SchemaError if the schema does not allow null.
    """
    if isinstance(schema, list) and "null" in schema:
        return encode_varint(schema.index("null"))
    if schema != "null":
        raise SchemaError(f"column {path} has the type null, but the Avro schema does not allow null")
    return b""


def _encode_branch_indices(valid_mask: NDArray[np.bool_], writer: _NullableWriter) -> Field:
    """Encode each row's branch index. An index takes one byte, because a union has at most 64 branches."""
    # A union without a null branch has no index for nulls, so nulls get a 0. It is never written: `reject_nulls` has
    # found no nulls in the selected rows.
    value_word = np.uint64(int.from_bytes(writer.encoded_value_index or b"", "little"))
    null_word = np.uint64(int.from_bytes(writer.encoded_null_index or b"", "little"))
    return Field(np.where(valid_mask, value_word, null_word), width=1, max_width=1)


def _encode_lists(column: pa.Array, mask: Mask, write_element: ColumnWriter) -> list[Piece]:
    """Return the pieces of a list column.

    `write_element`: the writer for the elements. It encodes the elements of all lists as one column.
    """
    element_offsets, first_element_index, element_count = read_element_offsets(column)
    elements = column.values.slice(first_element_index, element_count)
    pieces = write_element(elements, build_element_mask(element_offsets, mask))
    return _encode_blocks(element_offsets, join_pieces(pieces, element_count), mask)


def _encode_maps(column: pa.Array, mask: Mask, write_value: ColumnWriter) -> list[Piece]:
    """Return the pieces of a map column with string keys.

    `write_value`: the writer for the values. It encodes the values of all maps as one column.
    """
    element_offsets, first_element_index, element_count = read_element_offsets(column)
    all_keys = replace_invalid_utf8(column.keys.slice(first_element_index, element_count))
    key_lengths, keys = split_lengths_and_bytes(all_keys)
    values = column.items.slice(first_element_index, element_count)
    value_pieces = write_value(values, build_element_mask(element_offsets, mask))
    entries = join_pieces([*build_signed_varint_fields(key_lengths), keys, *value_pieces], element_count)
    return _encode_blocks(element_offsets, entries, mask)


def _encode_blocks(element_offsets: NDArray[np.int64], elements: pa.Array, mask: Mask) -> list[Piece]:
    """Return the pieces of arrays or maps: the count, the elements and a 0, or only the 0 if there are no elements.

    `elements`: the encoded elements of all rows.
    `element_offsets`: the index of each row's first element, followed by the total number of elements.
    """
    element_counts = np.diff(element_offsets)  # [0, 2, 2, 5] -> [2, 0, 3]
    is_nonempty = element_counts > 0
    count_fields = build_signed_varint_fields(element_counts)
    return [
        *(count_fields if is_nonempty.all() else mask_pieces(count_fields, is_nonempty)),
        concatenate_elements(elements, element_offsets),
        build_constant_field(b"\0"),
    ]
