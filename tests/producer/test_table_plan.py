"""Tests of plan_table(): validation of the arguments and columns of send_table()."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import ConfigurationError, SchemaRegistryError
from spark_kafka_sink.formats.registry_options import REGISTRY_OPTIONS
from spark_kafka_sink.producer.table_plan import ColumnMapping, TablePlan, plan_table
from tests.formats.fake_registry import fake_registry

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("value", pa.string())])


def plan(schema: pa.Schema = SCHEMA, formats: dict[str, object] | None = None, **arguments: Any) -> TablePlan:
    return plan_table("t", schema, ColumnMapping(**arguments), formats or {})


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("key", 0, "key must be the name of a column or a list of names, not 0."),
        ("key", False, "key must be the name of a column or a list of names, not False."),
        ("key", b"id", "key must be the name of a column or a list of names, not b'id'."),
        ("key", [0], "key must be the name of a column or a list of names, not [0]."),
        ("key", [], "key must be the name of a column or a list of names, not []."),
        ("value", 1, "value must be the name of a column or a list of names, not 1."),
        ("value", ["id", None], "value must be the name of a column or a list of names, not ['id', None]."),
        ("headers", 0, "headers must be the name of a column, not 0."),
        ("headers", ["id"], "headers must be the name of a column, not ['id']."),
        ("timestamp", 5, "timestamp must be the name of a column, not 5."),
        ("partition", True, "partition must be the name of a column or a number, not True."),
        ("partition", 1.0, "partition must be the name of a column or a number, not 1.0."),
        ("partition", ["id"], "partition must be the name of a column or a number, not ['id']."),
    ],
)
@pytest.mark.parametrize("formats", [{}, {"value_format": "json", "key_format": "json"}])
def test_rejects_argument_that_is_not_a_column_name(
    argument: str, value: Any, expected: str, formats: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError) as rejected:
        plan(formats=formats, **{argument: value})
    assert rejected.value.problems == (expected,)


@pytest.mark.parametrize("integer", [np.int32, np.int64, np.uint8, int])
def test_accepts_numpy_integer_as_partition(integer: Any) -> None:
    partition = plan(partition=integer(1)).columns.fixed_partition
    assert partition == 1
    assert type(partition) is int


def test_ignores_format_arguments_that_are_none() -> None:
    assert plan(formats={"value_format": None, "schema_registry_url": None}).columns.value == SCHEMA.names.index(
        "value"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"schema_source": "lookup"}, "Register the schema, or set 'schema_source' to 'register'."),
        ({"schema_source": "latest"}, "Register the schema, or set 'schema_source' to 'register'."),
        (
            {"schema_source": "latest", "value_subject": "refs"},
            "Set 'value_schema' to a schema without references, and 'schema_source' to 'lookup'.",
        ),
        (
            {"schema_source": "latest", "key_format": "avro-confluent", "key_subject": "refs", "value_subject": "ok"},
            "Set 'key_schema' to a schema without references, and 'schema_source' to 'lookup'.",
        ),
        ({"schema_id_location": "header"}, "'schema_id_location' is 'header', which requires one. Set 'schema_id_"),
        ({"schema_registry_basic_auth_user_info": "a:b"}, "in 'schema_registry_basic_auth_user_info' and"),
        ({"schema_registry_bearer_auth_token": "b"}, "Check the token in 'schema_registry_bearer_auth_token' and"),
        ({"schema_registry_url": "http://127.0.0.1:1"}, "('schema_registry_request_timeout_ms'). Check 'schema_"),
        (
            {"schema_registry_url": "https://h", "schema_registry_ssl_truststore_location": "/no/such/file"},
            "Argument 'schema_registry_ssl_truststore_location' is /no/such/file, which cannot be read",
        ),
    ],
)
def test_registry_errors_name_arguments(arguments: dict[str, object], expected: str) -> None:
    with fake_registry() as registry:
        schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
        latest = {"schema": json.dumps(schema)}
        registry.subjects["refs"] = [(1, {**latest, "references": [{"name": "x", "subject": "y", "version": 1}]})]
        registry.subjects["ok"] = [(2, latest)]
        if any("auth" in name for name in arguments):
            registry.user_info = "alice:s3cret"
        formats = {"value_format": "avro-confluent", "schema_registry_url": registry.url, **arguments}
        with pytest.raises((SchemaRegistryError, ConfigurationError)) as caught:
            plan(value="id", formats=formats)
    assert expected in str(caught.value)
    assert not any(option.name in str(caught.value) for option in REGISTRY_OPTIONS)


@pytest.mark.parametrize(
    "name", ["schema_registry_auto_register_schemas", "auto_register_schemas", "schema.registry.auto.register.schemas"]
)
def test_suggests_schema_source_for_option_of_confluents_serializers(name: str) -> None:
    with pytest.raises(ConfigurationError, match="Instead, use 'schema_source', where 'lookup' corresponds to false"):
        plan(formats={name: False})


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("value_schema_id_serializer", "schema_id_location"),
        ("key.subject.name.strategy", "subject_name_strategy"),
        ("normalize_schemas", "schema_registry_normalize_schemas"),
    ],
)
def test_suggests_argument_for_name_in_confluents_serializers(name: str, argument: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Instead, use '{argument}'"):
        plan(formats={name: "x"})
