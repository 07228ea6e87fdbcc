"""Every error of Arrow in a format is an error of the project, with the name of the column."""

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
CALLS = {
    "json": (json_text, "_escape"),
    "avro": (avro_scalars, "lengths_and_bytes"),
    "protobuf-confluent": (protobuf, "lengths_and_bytes"),
}
"""What each format calls for the text of a column."""


def fail_with(error: Exception) -> Any:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


def encoder_of(name: str, fields: tuple[pa.Field, ...] = FIELDS) -> ColumnsEncoder:
    return ColumnsEncoder(build_format(name, fields, NO_SCHEMA).row_format, fields, tuple(range(len(fields))))


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (pa.ArrowInvalid("out of range."), InvalidRecordError, "Correct the value, or filter these rows out"),
        (pa.ArrowIndexError("out of range"), InvalidRecordError, "Correct the value, or filter these rows out"),
        (pa.ArrowNotImplementedError("out of range"), SchemaError, "Cast the column to another type"),
    ],
)
@pytest.mark.parametrize(("name", "call"), CALLS.items())
def test_names_the_column_of_a_value_that_arrow_rejects(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    call: tuple[ModuleType, str],
    error: Exception,
    kind: type[DataError],
    remedy: str,
) -> None:
    encoder = encoder_of(name)
    monkeypatch.setattr(*call, fail_with(error))
    with pytest.raises(kind) as caught:
        encoder.encode(BATCH)
    assert str(caught.value) == f"column text cannot be encoded: out of range. {remedy}"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(("name", "call"), CALLS.items())
def test_names_the_column_of_a_type_that_arrow_cannot_convert_before_the_first_row(
    monkeypatch: pytest.MonkeyPatch, name: str, call: tuple[ModuleType, str]
) -> None:
    monkeypatch.setattr(*call, fail_with(pa.ArrowNotImplementedError("no kernel")))
    with pytest.raises(
        SchemaError, match=r"column text cannot be encoded: no kernel\. Cast the column to another type"
    ):
        build_format(name, FIELDS, NO_SCHEMA)


def test_names_all_columns_of_an_error_in_joining_them(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of("json", FIELDS[:2])
    monkeypatch.setattr(json_text, "_encode_objects", fail_with(pa.ArrowInvalid("bad")))
    with pytest.raises(InvalidRecordError, match="columns id, text cannot be encoded: bad"):
        encoder.encode(BATCH)


@pytest.mark.parametrize("error", [pa.ArrowCapacityError("2 GiB"), RecordTooLargeError("2 GiB")])
def test_a_row_that_no_array_can_hold_is_too_large(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    encoder = encoder_of("json")
    monkeypatch.setattr(json_text, "_encode_objects", fail_with(error))
    with pytest.raises(RecordTooLargeError, match=r"The row is too large to be encoded: 2 GiB\. Exclude large"):
        encoder.encode(BATCH)
