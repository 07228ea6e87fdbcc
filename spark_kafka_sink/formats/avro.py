"""Columns -> Avro's binary encoding, one record for each row, in the bytes that fastavro writes.

A record is its fields one after the other without names. Numbers are zigzag varints, as in Kafka's own records; floats
are little-endian; text and bytes have their length in front; an array or map is its count, its elements and a 0, or the
0 alone; a union is the number of its branch and the value. So every number of a column is a `Field`, and
fields that stand side by side are merged while they fit into 8 bytes.

What is written follows from the schema and the types of the columns: a function for each column, which makes its
pieces. _WriterBuilder fails with SchemaError where a column does not fit; the driver makes one to find that out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.formats.arrow_errors import name_columns
from spark_kafka_sink.formats.avro_scalars import leaf_writer
from spark_kafka_sink.formats.avro_schema import AvroNames, parsed_schema
from spark_kafka_sink.formats.binary_arrays import is_text
from spark_kafka_sink.formats.binary_pieces import (
    Mask,
    Piece,
    both,
    bytes_of,
    element_mask,
    joined,
    list_ranges,
    masked,
    rows_of_elements,
    valid_mask,
)
from spark_kafka_sink.records.fields import Field, constant_field, encode_varint, signed_varint_fields

Writer = Callable[[pa.Array, Mask], list[Piece]]
"""The pieces of a column. The mask says which rows matter: where a struct is null, the nulls of its fields do not."""


@dataclass(frozen=True)
class AvroFormat:
    """One record for each row, by a schema in JSON."""

    schema: str

    def encode_rows(
        self, names: Sequence[str], columns: Sequence[pa.Array], rows: int, header: bytes = b""
    ) -> pa.Array:
        write = record_writer(self.schema, tuple(names), tuple(column.type for column in columns))
        return joined(write(columns, None), rows, header)


@lru_cache(maxsize=64)
def record_writer(
    schema: str, names: tuple[str, ...], types: tuple[pa.DataType, ...]
) -> Callable[[Sequence[pa.Array], Mask], list[Piece]]:
    """What writes columns of these names and types. SchemaError if they do not fit the schema."""
    parsed = parsed_schema(schema)
    builder = _WriterBuilder(AvroNames(parsed))
    return builder.record(parsed, "", names, types, "")


class _Nullable(NamedTuple):
    """A union of null and one other branch, or a type that is no union. `write`: what is not null."""

    write: Writer
    branch: bytes | None
    null_branch: bytes | None


class _WriterBuilder:
    def __init__(self, names: AvroNames) -> None:
        self._names = names

    def record(
        self, schema: Mapping[str, Any], space: str, names: Sequence[str], types: Sequence[pa.DataType], where: str
    ) -> Callable[[Sequence[pa.Array], Mask], list[Piece]]:
        _, inner = self._names.resolved(schema, space)
        wanted = {field["name"]: field for field in schema["fields"]}
        unknown = [name for name in names if name not in wanted]
        if unknown:
            raise SchemaError(f"the Avro schema has no field for the column {where}{unknown[0]}")
        writers: list[tuple[str, int, Writer]] = []
        for name, field in wanted.items():
            position = names.index(name) if name in names else -1
            if position < 0:
                writers.append((name, position, self._missing(field, inner, f"{where}{name}")))
            else:
                writers.append((name, position, self.value(field["type"], inner, types[position], f"{where}{name}")))

        def write(columns: Sequence[pa.Array], mask: Mask) -> list[Piece]:
            pieces: list[Piece] = []
            for name, position, writer in writers:
                with name_columns(f"{where}{name}"):
                    pieces += writer(columns[position] if position >= 0 else pa.nulls(0), mask)
            return pieces

        return write

    def value(self, schema: Any, space: str, kind: pa.DataType, where: str) -> Writer:
        """The writer of a column that may be null, if the schema allows it."""
        schema, space = self._names.resolved(schema, space)
        if pa.types.is_null(kind):
            null = constant_field(_null_branch(schema, where))
            return lambda column, mask: [null]
        nullable = self._nullable(schema, space, kind, where)

        def write_nullable(column: pa.Array, mask: Mask) -> list[Piece]:
            valid = valid_mask(column)
            if valid is not None and nullable.null_branch is None:
                _refuse_nulls(valid if mask is None else valid | ~mask, where)
            pieces = nullable.write(column, both(mask, valid))
            if nullable.branch is None:
                return pieces
            if valid is None:
                return [constant_field(nullable.branch), *pieces]
            return [_branches(valid, nullable), *masked(pieces, valid)]

        return write_nullable

    def _nullable(self, schema: Any, space: str, kind: pa.DataType, where: str) -> _Nullable:
        """Use the first branch that fits. Each union is resolved only once, since unions may be nested deeply."""
        if not isinstance(schema, list):
            return _Nullable(self._present(schema, space, kind, where), None, None)
        null_branch = encode_varint(schema.index("null")) if "null" in schema else None
        faults = []
        for number, branch in enumerate(schema):
            if branch == "null":
                continue
            try:
                chosen, inner = self._names.resolved(branch, space)
                return _Nullable(self._present(chosen, inner, kind, where), encode_varint(number), null_branch)
            except SchemaError as error:
                faults.append(str(error))
        raise SchemaError(faults[0] if faults else f"column {where}: the Avro schema has no type but null there")

    def _present(self, schema: Any, space: str, kind: pa.DataType, where: str) -> Writer:
        """The writer of a column in whose masked rows there is a value."""
        types, name = pa.types, schema["type"] if isinstance(schema, Mapping) else schema
        if isinstance(name, (Mapping, list)):
            return self.value(name, space, kind, where)
        if name == "record" and types.is_struct(kind):
            return self._struct(schema, space, kind, where)
        if name == "array" and types.is_list(kind):
            items = self.value(schema["items"], space, kind.value_type, f"{where}.element")
            return lambda column, mask: _array(column, mask, items)
        if name == "map" and types.is_map(kind) and (is_text(kind.key_type) or types.is_null(kind.key_type)):
            values = self.value(schema["values"], space, kind.item_type, f"{where}.value")
            return lambda column, mask: _map(column, mask, values)
        return leaf_writer(schema, kind, where)

    def _struct(self, schema: Any, space: str, kind: pa.DataType, where: str) -> Writer:
        fields = range(kind.num_fields)
        write = self.record(
            schema, space, [kind.field(i).name for i in fields], [kind.field(i).type for i in fields], f"{where}."
        )
        return lambda column, mask: write([column.field(i) for i in fields], mask)

    def _missing(self, field: Mapping[str, Any], space: str, where: str) -> Writer:
        """A field that has no column is null, if it can be."""
        schema, _ = self._names.resolved(field["type"], space)
        if schema == "null":
            return lambda column, mask: []
        if isinstance(schema, list) and "null" in schema:
            branch = constant_field(encode_varint(schema.index("null")))
            return lambda column, mask: [branch]
        raise SchemaError(f"there is no column for the field {where} of the Avro schema, and it cannot be null")


def _null_branch(schema: Any, where: str) -> bytes:
    """What is written for a null: the number of its branch, or nothing where the schema is null alone."""
    if isinstance(schema, list) and "null" in schema:
        return encode_varint(schema.index("null"))
    if schema != "null":
        raise SchemaError(f"column {where} has no values, and the Avro schema does not allow null there")
    return b""


def _refuse_nulls(is_fine: Any, where: str) -> None:
    if not is_fine.all():
        raise InvalidRecordError(
            f"column {where} is null in {np.count_nonzero(~is_fine)} of {len(is_fine)} rows, and the schema does not "
            "allow null there. Filter these rows out, or make the field a union with null."
        )


def _branches(valid: Any, nullable: _Nullable) -> Field:
    """The number of the branch in each row; a union has fewer than 64 branches, so it is one byte."""
    yes, no = nullable.branch or b"", nullable.null_branch or b""
    word = np.where(valid, np.uint64(int.from_bytes(yes, "little")), np.uint64(int.from_bytes(no, "little")))
    return Field(word, 1, 1)


def _array(column: pa.Array, mask: Mask, items: Writer) -> list[Piece]:
    starts, first, count = list_ranges(column)
    elements = items(column.values.slice(first, count), element_mask(starts, mask))
    return _block(starts, joined(elements, count), mask)


def _map(column: pa.Array, mask: Mask, values: Writer) -> list[Piece]:
    starts, first, count = list_ranges(column)
    lengths, keys = bytes_of(column.keys.slice(first, count))
    entries = values(column.items.slice(first, count), element_mask(starts, mask))
    return _block(starts, joined([*signed_varint_fields(lengths), keys, *entries], count), mask)


def _block(starts: Any, elements: pa.Array, mask: Mask) -> list[Piece]:
    """Count, elements and a 0; of an empty one the 0 alone."""
    counts = np.diff(starts)
    is_filled = counts > 0
    lead = signed_varint_fields(counts)
    return [
        *(lead if is_filled.all() else masked(lead, is_filled)),
        rows_of_elements(elements, starts),
        constant_field(b"\0"),
    ]
