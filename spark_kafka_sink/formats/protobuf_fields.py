"""What a Protobuf message is made of, as values that can be pickled: the tasks need no package of Protobuf.

They are those fields of a message that a column is written into. They are made from the types of the columns
(`protobuf_schema.py`) or from the user's descriptor (`protobuf_descriptor.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.binary_arrays import is_bytes, is_text

TIMESTAMP = "google.protobuf.Timestamp"
_SIGNED_32, _SIGNED_64 = ("int32", "sint32", "sfixed32"), ("int64", "sint64", "sfixed64")
_UNSIGNED = ("uint32", "fixed32", "uint64", "fixed64")


@dataclass(frozen=True)
class MessageField:
    """A field of a message. `kind` is Protobuf's name of the type; `timestamp` is the well-known message."""

    name: str
    number: int
    kind: str
    is_repeated: bool = False
    is_packed: bool = False
    has_presence: bool = True
    """Whether a value that is the type's default is written; else a reader sees no difference to none."""
    oneof: str | None = None
    message: tuple[MessageField, ...] = ()
    """The fields of a message, or key and value of a map's entry."""
    symbols: tuple[tuple[str, int], ...] = ()
    """Of an enum: names and numbers."""


def check_fit(kind: str, column: pa.DataType, where: str) -> None:
    """Raise SchemaError if a column without parts cannot be written as this kind."""
    types = pa.types
    allowed = next((kinds for is_type, kinds in _FITTING if is_type(column)), ())
    if kind == "timestamp" and types.is_timestamp(column) and column.tz is not None:
        return
    if kind not in allowed:
        raise SchemaError(f"column {where} of type {column} does not fit Protobuf's type {kind}")


_FITTING = (
    (pa.types.is_boolean, ("bool",)),
    (pa.types.is_int64, (*_SIGNED_64, *_UNSIGNED)),
    (pa.types.is_integer, (*_SIGNED_32, *_SIGNED_64, *_UNSIGNED, "enum")),
    (pa.types.is_float32, ("float", "double")),
    (pa.types.is_float64, ("double",)),
    (is_text, ("string", "enum")),
    (is_bytes, ("bytes",)),
    (pa.types.is_decimal128, ("string",)),
    (pa.types.is_date32, ("string",)),
    (pa.types.is_timestamp, ("string",)),
    (pa.types.is_time64, ("string",)),
)
"""The first row that a type is of counts."""
