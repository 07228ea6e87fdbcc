"""Conversion of Arrow's errors to errors that name the column."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import DataError, InvalidRecordError, RecordTooLargeError, SchemaError
from spark_kafka_sink.formats import avro_scalars, json_text, protobuf
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.format_builders import NO_SCHEMA, build_format

FIELDS = (
    pa.field("id", pa.int64()),
    pa.field("text", pa.string()),
    pa.field("payload", pa.struct([("x", pa.string())])),
)
BATCH = pa.record_batch({"id": [1, 2], "text": ["a", "b"], "payload": [{"x": "c"}, {"x": "d"}]})
TEXT_FUNCTIONS = {
    "json": (json_text, "_escape"),
    "avro": (avro_scalars, "split_lengths_and_bytes"),
    "protobuf-confluent": (protobuf, "split_lengths_and_bytes"),
}
"""Function that each format calls to encode a string column."""


def fail_with(error: Exception) -> Any:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


def build_encoder(name: str, fields: tuple[pa.Field, ...] = FIELDS) -> ColumnsEncoder:
    return ColumnsEncoder(build_format(name, fields, NO_SCHEMA).row_format, fields, tuple(range(len(fields))))


@pytest.mark.parametrize(
    ("error", "error_class", "remedy"),
    [
        (pa.ArrowInvalid("out of range."), InvalidRecordError, "Correct the value, or filter these rows out"),
        (pa.ArrowIndexError("out of range"), InvalidRecordError, "Correct the value, or filter these rows out"),
        (pa.ArrowNotImplementedError("out of range"), SchemaError, "Cast the column to another type"),
    ],
)
@pytest.mark.parametrize(("name", "text_function"), TEXT_FUNCTIONS.items())
def test_error_names_column_with_value_that_arrow_rejects(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text_function: tuple[ModuleType, str],
    error: Exception,
    error_class: type[DataError],
    remedy: str,
) -> None:
    encoder = build_encoder(name)
    monkeypatch.setattr(*text_function, fail_with(error))
    with pytest.raises(error_class) as raised:
        encoder.encode(BATCH)
    assert str(raised.value) == f"column text cannot be encoded: out of range. {remedy}"
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(("name", "text_function"), TEXT_FUNCTIONS.items())
def test_build_format_names_column_with_type_that_arrow_cannot_convert(
    monkeypatch: pytest.MonkeyPatch, name: str, text_function: tuple[ModuleType, str]
) -> None:
    monkeypatch.setattr(*text_function, fail_with(pa.ArrowNotImplementedError("no kernel")))
    with pytest.raises(
        SchemaError, match=r"column text cannot be encoded: no kernel\. Cast the column to another type"
    ):
        build_format(name, FIELDS, NO_SCHEMA)


def test_error_while_joining_names_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = build_encoder("json", FIELDS[:2])
    monkeypatch.setattr(json_text, "_encode_objects", fail_with(pa.ArrowInvalid("bad")))
    with pytest.raises(InvalidRecordError, match="columns id, text cannot be encoded: bad"):
        encoder.encode(BATCH)


@pytest.mark.parametrize("error", [pa.ArrowCapacityError("2 GiB"), RecordTooLargeError("2 GiB")])
def test_raises_record_too_large_for_row_that_exceeds_array(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    encoder = build_encoder("json")
    monkeypatch.setattr(json_text, "_encode_objects", fail_with(error))
    with pytest.raises(RecordTooLargeError, match=r"The row is too large to encode: 2 GiB\. Exclude large"):
        encoder.encode(BATCH)
