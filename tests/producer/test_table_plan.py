"""Tests of plan_table(): validation of the arguments and columns of send_table()."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.table_plan import ColumnMapping, TablePlan, plan_table

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
    assert rejected.value.faults == (expected,)


@pytest.mark.parametrize("integer", [np.int32, np.int64, np.uint8, int])
def test_accepts_numpy_integer_as_partition(integer: Any) -> None:
    partition = plan(partition=integer(1)).columns.fixed_partition
    assert partition == 1
    assert type(partition) is int


def test_ignores_format_arguments_that_are_none() -> None:
    assert plan(formats={"value_format": None, "schema_registry_url": None}).columns.value == SCHEMA.names.index(
        "value"
    )
