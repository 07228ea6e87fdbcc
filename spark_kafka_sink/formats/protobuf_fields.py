"""Fields of a Protobuf message as picklable objects, so that tasks do not need the protobuf package.

Only fields that have a column are included. They are derived from the column types (`protobuf_schema.py`) or parsed
from a descriptor (`protobuf_descriptor.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.binary_arrays import is_binary_type, is_string_type

TIMESTAMP = "google.protobuf.Timestamp"
"""Full name of the message that represents a point in time."""
_SIGNED_32, _SIGNED_64 = ("int32", "sint32", "sfixed32"), ("int64", "sint64", "sfixed64")
_UNSIGNED = ("uint32", "fixed32", "uint64", "fixed64")


@dataclass(frozen=True)
class MessageField:
    """A field of a message. Pickled and sent to the tasks."""

    name: str
    number: int
    type_name: str
    """The name of a Protobuf scalar type, `message`, `enum`, or one of the following.

    `map`: a map, whose entries have the two `inner_fields`.
    `timestamp`: the message google.protobuf.Timestamp, for a column of timestamps.
    `null`: a column of Arrow's null type, whose field is never written.
    """
    is_repeated: bool = False
    is_packed: bool = False
    """Whether all elements of a repeated field are written after a single tag, as one length-delimited value."""
    has_presence: bool = True
    """Whether readers can distinguish the default value from an absent field. If not, the default value is omitted."""
    is_required: bool = False
    """Whether the field is `required` in proto2, so that readers reject messages without it."""
    oneof: str | None = None
    """Name of the oneof that contains the field, or None if there is none."""
    inner_fields: tuple[MessageField, ...] = ()
    """Fields of a message, or the key and the value of a map entry."""
    enum_values: tuple[tuple[str, int], ...] = ()
    """Names and numbers of an enum's values."""


def check_column_type(type_name: str, data_type: pa.DataType, path: str) -> None:
    """Raise SchemaError if a column of this type, which must be scalar, cannot be encoded as the Protobuf type."""
    # A Protobuf Timestamp is a point in time, and a timestamp without a time zone is not one.
    if type_name == "timestamp" and pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return
    compatible_types: tuple[str, ...] = next(
        (type_names for is_type, type_names in _COMPATIBLE_TYPES if is_type(data_type)), ()
    )
    if type_name not in compatible_types:
        raise SchemaError(f"column {path} has type {data_type}, which cannot be written as Protobuf type {type_name}")


_COMPATIBLE_TYPES = (
    (pa.types.is_boolean, ("bool",)),
    (pa.types.is_int64, (*_SIGNED_64, *_UNSIGNED)),
    (pa.types.is_integer, (*_SIGNED_32, *_SIGNED_64, *_UNSIGNED, "enum")),
    (pa.types.is_float32, ("float", "double")),
    (pa.types.is_float64, ("double",)),
    (is_string_type, ("string", "enum")),
    (is_binary_type, ("bytes",)),
    (pa.types.is_decimal128, ("string",)),
    (pa.types.is_date32, ("string",)),
    (pa.types.is_timestamp, ("string",)),
    (pa.types.is_time64, ("string",)),
)
"""Compatible Protobuf types by Arrow type. The first entry that matches applies."""
