"""ColumnsEncoder: a null struct whose fields are the value (`payload.*`) is a tombstone, whatever the schema says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.formats.avro import AvroFormat
from spark_kafka_sink.formats.avro_schema import derive_schema
from spark_kafka_sink.formats.encoder import ColumnsEncoder, RowFormat
from spark_kafka_sink.formats.json_text import JsonFormat
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_schema import derive_message

FIELDS = (pa.field("id", pa.int64(), nullable=False), pa.field("parts", pa.list_(pa.string()), nullable=False))
PAYLOADS: list[dict[str, Any] | None] = [
    None,
    {"id": 1, "parts": ["a"]},
    None,
    {"id": 2, "parts": []},
    {"id": 3, "parts": ["b", "c"]},
]
FORMATS: dict[str, RowFormat] = {
    "avro": AvroFormat(derive_schema(FIELDS, None, null_first=False)),
    "json": JsonFormat(),
    "protobuf": ProtobufFormat(derive_message(FIELDS, None).fields),
}


def payload_column(given: list[dict[str, Any] | None]) -> pa.Array:
    """As Spark hands it over: the fields of a null struct are null, though the schema says that they never are."""
    fields = [pa.array([None if row is None else row[field.name] for row in given], field.type) for field in FIELDS]
    return pa.StructArray.from_arrays(fields, fields=list(FIELDS), mask=pa.array([row is None for row in given]))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_null_structs_are_null_and_the_others_are_as_they_would_be_alone(name: str) -> None:
    encoder = ColumnsEncoder(FORMATS[name], FIELDS, (0, 1), parent=0, header=b"\0")
    batch = pa.record_batch({"payload": payload_column(PAYLOADS)})
    there = pa.record_batch({"payload": payload_column([each for each in PAYLOADS if each is not None])})
    first, second, third = encoder.encode(there).to_pylist()
    assert encoder.encode(batch).to_pylist() == [None, first, None, second, third]
    assert encoder.encode(batch.slice(1, 2)).to_pylist() == [first, None]
    assert encoder.encode(batch.slice(0, 1)).to_pylist() == [None]
    assert encoder.encode(batch.slice(0, 0)).to_pylist() == []
