"""JSON Schemas derived from columns, and checks of the user's schema."""

from __future__ import annotations

import json

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import given

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.json_schema import check_names_and_parse_title, derive_json_schema
from spark_kafka_sink.formats.json_text import JsonFormat
from tests.formats.arrow_strategies import SCALAR_COLUMNS, batches

COLUMNS_WITHOUT_FLOATS = [column for column in SCALAR_COLUMNS if not pa.types.is_floating(column[0])]


@given(batches(COLUMNS_WITHOUT_FLOATS))
def test_encoded_rows_are_valid_for_derived_schema(batch: pa.RecordBatch) -> None:
    validator = jsonschema.Draft7Validator(json.loads(derive_json_schema(list(batch.schema), None)))
    jsonschema.Draft7Validator.check_schema(validator.schema)
    for row in JsonFormat().encode_rows(batch.schema.names, batch.columns, len(batch)).to_pylist():
        validator.validate(json.loads(row))


def test_nullable_columns_are_not_required_and_objects_are_closed() -> None:
    fields = [pa.field("a", pa.int64(), False), pa.field("b", pa.list_(pa.field("element", pa.string(), False)))]
    assert json.loads(derive_json_schema(fields, "Order")) == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}},
        "additionalProperties": False,
        "required": ["a"],
    }


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "the JSON Schema is not valid JSON"),
        ("[]", "must be an object"),
        ('{"properties": {"b": {}}, "additionalProperties": false}', "has no property for the column a"),
        (
            '{"patternProperties": {"^b": {}, "a$x": {}}, "additionalProperties": false}',
            "has no property for the column a",
        ),
        ('{"patternProperties": [], "additionalProperties": false}', "has no property for the column a"),
        ('{"required": ["b"]}', "no column for the required property b"),
    ],
)
def test_rejects_columns_that_do_not_fit_schema(schema: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        check_names_and_parse_title(schema, ["a"])
    assert message in str(caught.value)


def test_schema_name_is_title_or_id() -> None:
    assert check_names_and_parse_title('{"title": "Order", "$id": "x"}', []) == "Order"
    assert check_names_and_parse_title('{"$id": "x"}', []) == "x"


@pytest.mark.parametrize(
    "pattern", ["^attr_", "color", "[[c]", r"\p{L}+", "a{4294967296}", "(" * 10_000 + "a" + ")" * 10_000]
)
@pytest.mark.filterwarnings("error")
def test_accepts_column_that_matches_pattern_of_closed_schema(pattern: str) -> None:
    """Python warns about the third pattern, and does not support those after it."""
    schema = {"properties": {"id": {}}, "patternProperties": {pattern: {}}, "additionalProperties": False}
    check_names_and_parse_title(json.dumps(schema), ["id", "attr_color"])
