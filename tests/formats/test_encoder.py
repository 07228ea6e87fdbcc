"""ColumnsEncoder with a parent struct (`payload.*`): a null struct is encoded to null, even if no field is nullable."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.formats.avro import AvroFormat
from spark_kafka_sink.formats.avro_schema import derive_avro_schema
from spark_kafka_sink.formats.encoder import ColumnsEncoder, RowFormat
from spark_kafka_sink.formats.json_text import JsonFormat
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_fields import MessageField
from spark_kafka_sink.formats.protobuf_schema import derive_message
from spark_kafka_sink.records import byte_column
from tests.records.large_arrays import build_behind_2_gib

FIELDS = (pa.field("id", pa.int64(), nullable=False), pa.field("parts", pa.list_(pa.string()), nullable=False))
PAYLOADS: list[dict[str, Any] | None] = [
    None,
    {"id": 1, "parts": ["a"]},
    None,
    {"id": 2, "parts": []},
    {"id": 3, "parts": ["b", "c"]},
]
FORMATS: dict[str, RowFormat] = {
    "avro": AvroFormat(derive_avro_schema(FIELDS, None, null_first=False)),
    "json": JsonFormat(),
    "protobuf": ProtobufFormat(derive_message(FIELDS, None).fields),
}


def payload_column(payloads: list[dict[str, Any] | None]) -> pa.Array:
    """Build a column like Spark: the fields of a null struct are null, even if they are not nullable."""
    fields = [pa.array([None if row is None else row[field.name] for row in payloads], field.type) for field in FIELDS]
    return pa.StructArray.from_arrays(fields, fields=list(FIELDS), mask=pa.array([row is None for row in payloads]))


@pytest.mark.parametrize("name", FORMATS)
def test_encodes_null_structs_to_null_and_others_unchanged(name: str) -> None:
    encoder = ColumnsEncoder(FORMATS[name], FIELDS, (0, 1), struct_position=0, prefix=b"\0")
    batch = pa.record_batch({"payload": payload_column(PAYLOADS)})
    non_null_batch = pa.record_batch(
        {"payload": payload_column([payload for payload in PAYLOADS if payload is not None])}
    )
    first, second, third = encoder.encode(non_null_batch).to_pylist()
    assert encoder.encode(batch).to_pylist() == [None, first, None, second, third]
    assert encoder.encode(batch.slice(1, 2)).to_pylist() == [first, None]
    assert encoder.encode(batch.slice(0, 1)).to_pylist() == [None]
    assert encoder.encode(batch.slice(0, 0)).to_pylist() == []


_TEXT_FIELDS = (pa.field("text", pa.string()),)
_COLOR_FIELD = MessageField("text", 1, type_name="enum", enum_values=(("RED", 1), ("BLUE", 2)))


@pytest.mark.parametrize(
    "row_format",
    [
        JsonFormat(),
        AvroFormat(derive_avro_schema(_TEXT_FIELDS, None, null_first=False)),
        ProtobufFormat(derive_message(_TEXT_FIELDS, None).fields),
        ProtobufFormat((_COLOR_FIELD,)),
    ],
)
def test_encodes_slice_behind_2_gib_of_large_strings(row_format: RowFormat) -> None:
    """Spark has large strings with spark.sql.execution.arrow.useLargeVarTypes."""
    encoder = ColumnsEncoder(row_format, _TEXT_FIELDS, (0,))
    large_texts = build_behind_2_gib([b"RED", None, b"BLUE"], pa.large_string())
    expected = encoder.encode(pa.record_batch({"text": ["RED", None, "BLUE"]}))
    assert encoder.encode(pa.record_batch({"text": large_texts})) == expected


@pytest.mark.parametrize(
    ("value", "json_value"),
    [
        ("\1" * 10, '"' + "\\u0001" * 10 + '"'),
        ('\n"' * 14 + "a", '"' + '\\n\\"' * 14 + 'a"'),
        (bytes(40), f'"{"A" * 54}=="'),
    ],
    ids=["control characters", "newlines and quotes", "binary"],
)
def test_splits_batch_whose_json_exceeds_arrow_limit(
    value: str | bytes, json_value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An escaped or base64-encoded value takes more bytes than the value itself."""
    batch = pa.record_batch({"v": [value] * 4})
    encoder = ColumnsEncoder(JsonFormat(), tuple(batch.schema), (0,))
    monkeypatch.setattr(byte_column, "MAX_OFFSET", 60)
    encoded_rows = encoder.encode(batch)
    assert encoded_rows.to_pylist() == [f'{{"v":{json_value}}}'.encode()] * 4
    assert encoded_rows.num_chunks == 4
    monkeypatch.setattr(byte_column, "MAX_OFFSET", 55)
    with pytest.raises(RecordTooLargeError, match=r"The row is too large to encode: \d\d bytes exceed the 55 "):
        encoder.encode(batch)
