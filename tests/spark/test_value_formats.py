"""Options and schemas of `valueFormat`: the columns and formats that they select, and errors on the driver."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_kafka_sink.errors import ConfigurationError, SchemaError
from spark_kafka_sink.formats.avro import AvroFormat
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.format_builders import NO_SCHEMA, build_format
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.arrow_types import to_arrow_field
from spark_kafka_sink.spark.datasource import KafkaDataSource
from tests.spark.planned import planned

NEEDED = {"kafka.bootstrap.servers": "broker:9092", "topic": "t", "checkConnection": "false"}
PAYLOAD = StructType([StructField("a", IntegerType()), StructField("b", StringType())])
SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("key", StringType()),
        StructField("name", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("payload", PAYLOAD),
    ]
)


def plan(schema: StructType = SCHEMA, **options: str) -> ColumnPlan:
    return planned(KafkaDataSource(NEEDED | options).writer(schema, False))[1]


def problems(schema: StructType = SCHEMA, **options: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as error_info:
        plan(schema, **options)
    return error_info.value.problems


def get_value_encoder(planned: ColumnPlan) -> ColumnsEncoder:
    assert isinstance(planned.value, ColumnsEncoder)
    return planned.value


def test_value_contains_all_columns_without_a_role() -> None:
    planned = plan(valueFormat="json")
    assert get_value_encoder(planned).names == ("id", "name", "payload")
    assert (planned.key, planned.timestamp) == (1, 3)


def test_value_columns_keep_their_order_and_may_have_a_role() -> None:
    value = get_value_encoder(plan(valueFormat="JSON", valueColumns=" name,timestamp , id"))
    assert (value.names, value.positions, value.struct_position) == (("name", "timestamp", "id"), (2, 3, 0), None)


def test_backticks_quote_column_name_with_comma() -> None:
    schema = StructType([StructField("a, b", LongType()), StructField("c`d", LongType())])
    assert get_value_encoder(plan(schema, valueFormat="json", valueColumns="`a, b`, `c``d`")).names == ("a, b", "c`d")


def test_value_can_be_the_fields_of_a_struct() -> None:
    value = get_value_encoder(plan(valueFormat="json", valueColumns="payload.*"))
    assert (value.names, value.positions, value.struct_position) == (("a", "b"), (0, 1), 4)


def test_key_columns_default_to_value_format() -> None:
    for options in ({"valueFormat": "json", "keyColumns": "id"}, {"keyFormat": "json", "keyColumns": "id"}):
        schema = StructType([*SCHEMA.fields, StructField("value", StringType())])
        key = plan(schema, **options).key
        assert isinstance(key, ColumnsEncoder)
        assert key.names == ("id",)


def test_plan_can_be_pickled_to_the_tasks() -> None:
    planned = plan(valueFormat="json", keyColumns="id")
    assert pickle.loads(pickle.dumps(planned)) == planned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "xml"}, "Option 'valueFormat' must be one of json"),
        ({"valueColumns": "id"}, "Option 'valueColumns' has no effect unless 'valueFormat' is one of"),
        ({"valueFormat": "json", "keyFormat": "json"}, "Option 'keyFormat' requires 'keyColumns'"),
        ({"valueFormat": "json", "valueColumns": "idd"}, "names the column 'idd', which does not exist."),
        ({"valueFormat": "json", "valueColumns": "ID"}, "There is 'id', but the names of columns are case-sensitive."),
        (
            {"valueFormat": "json", "valueColumns": "idd"},
            "names the column 'idd', which does not exist. The columns are ",
        ),
        ({"valueFormat": "json", "valueColumns": "idd"}, " Did you mean 'id'?"),
        (
            {"valueFormat": "avro", "valueSchemaFile": "/no/x"},
            "is /no/x, which cannot be read on the driver: No such file or directory.",
        ),
        ({"valueFormat": "json", "valueColumns": "id, id"}, "the column 'id', which occurs more than once"),
        (
            {"valueFormat": "json", "valueColumns": "name.*"},
            "the column 'name', which is not a struct. The struct columns are payload.",
        ),
        (
            {"valueFormat": "json", "valueColumns": "id,,name"},
            "Option 'valueColumns' must be a list of columns such as 'id, name'",
        ),
        (
            {"valueFormat": "json", "valueColumns": ""},
            "Option 'valueColumns' must be a list of columns such as 'id, name' or 'payload.*'. It is ''.",
        ),
        ({"valueFormat": "json", "keyColumns": ""}, "Option 'keyColumns' must be a list of columns"),
        ({"valueFormat": "json", "keyFormat": "json", "keyColumns": " "}, "Option 'keyColumns' must be a list of"),
        ({"valueFormat": "json", "valueColumn": "id"}, "Did you mean 'valueColumns'?"),
        ({"valueFormat": "json", "valueSchema": "{}"}, "the format 'json' has no schema"),
        (
            {"valueFormat": "avro", "valueSchema": "{}", "valueSchemaFile": "x"},
            "cannot be set together with 'valueSchemaFile'",
        ),
        ({"valueFormat": "avro", "valueSchemaFile": "/nowhere"}, "is /nowhere, which cannot be read on the driver"),
        (
            {"valueFormat": "avro", "valueSchemaFile": "'/nowhere'"},
            "Option 'valueSchemaFile' is '/nowhere', which cannot be read on the driver: it is in quotes. Remove the",
        ),
        (
            {"valueFormat": "avro", "valueSchemaFile": "/dev/zero"},
            "Option 'valueSchemaFile' is /dev/zero, which cannot be read on the driver: it is a device, not a regular",
        ),
        (
            {"valueFormat": "avro", "valueSchemaFile": '{"type": "record"}'},
            "Option 'valueSchemaFile' must be the path of a file, but seems to contain the content itself, which is "
            "not shown. Save the content to a file and set the option to the path of the file, or set 'valueSchema' to "
            "the schema.",
        ),
        (
            {"valueFormat": "protobuf-confluent", "valueSchemaFile": 'syntax = "proto3";\nmessage Order {}'},
            "or set 'valueSchema' to the descriptor in base64.",
        ),
        ({"valueFormat": "avro", "valueSchema": "[" * 5_000 + "]" * 5_000}, "is nested more than 400 levels deep."),
        ({"valueFormat": "avro", "valueSchema": "{}"}, "Option 'valueFormat' avro: the Avro schema must be a record"),
    ],
)
def test_rejects_invalid_format_options_on_the_driver(options: dict[str, str], message: str) -> None:
    schema = StructType([*SCHEMA.fields, StructField("value", StringType())])
    assert any(message in problem for problem in problems(schema, **options))


def test_missing_struct_is_one_fault() -> None:
    (problem,) = problems(SCHEMA, valueFormat="json", valueColumns="nowhere.*")
    assert problem.startswith("Option 'valueColumns' names the struct column 'nowhere', which does not exist.")


@pytest.mark.parametrize("part", ["value", "key"])
@pytest.mark.parametrize("name", ["Schema", "SchemaFile", "SchemaName", "Subject"])
def test_rejects_option_of_format_that_is_not_set(part: str, name: str) -> None:
    schema = StructType([*SCHEMA.fields, StructField("value", StringType())])
    (problem,) = problems(schema, **{f"{part}{name}": "x"})
    assert problem.startswith(f"Option '{part}{name}' has no effect unless '{part}Format' is one of 'json'")


@pytest.mark.parametrize("name", ["valueSchema", "valueSchemaFile", "valueSchemaName"])
def test_rejects_schema_option_of_format_without_schema(name: str) -> None:
    schema = StructType([*SCHEMA.fields, StructField("value", StringType())])
    (problem,) = problems(schema, **{"valueFormat": "json", name: "x"})
    assert problem == f"Option '{name}' has no effect, because the format 'json' has no schema."


def test_rejects_schema_without_columns_for_the_value() -> None:
    (problem,) = problems(StructType([StructField("key", StringType())]), valueFormat="json")
    assert "the table has no other columns. Name the columns in 'valueColumns'" in problem


def test_rejects_unsupported_types_with_their_columns() -> None:
    schema = StructType([StructField("id", LongType()), StructField("took", DayTimeIntervalType())])
    (problem,) = problems(schema, valueFormat="json")
    assert "column took of type interval day to second cannot be written; cast it to a string" in problem
    keys = StructType([StructField("m", MapType(PAYLOAD, LongType()))])
    assert "cast the keys to strings" in problems(keys, valueFormat="json")[0]


NOTHING = NullType()
NO_ELEMENTS = ArrayType(NOTHING, containsNull=False)  # the type of array()
NO_ENTRIES = MapType(NOTHING, NOTHING, valueContainsNull=False)  # the type of map()
EMPTY_MAPS = pa.MapArray.from_arrays(pa.array([0, 0], pa.int32()), pa.nulls(0), pa.nulls(0))
WITHOUT_A_TYPE: list[tuple[DataType, pa.Array, bytes, object]] = [
    (NOTHING, pa.nulls(1), b"{}", None),
    (NO_ELEMENTS, pa.array([[]], pa.list_(pa.null())), b'{"c":[]}', []),
    (ArrayType(NOTHING), pa.array([[None]], pa.list_(pa.null())), b'{"c":[null]}', [None]),
    (NO_ENTRIES, EMPTY_MAPS, b'{"c":{}}', {}),
    (
        MapType(StringType(), NOTHING),
        pa.array([[("k", None)]], pa.map_(pa.string(), pa.null())),
        b'{"c":{"k":null}}',
        {"k": None},
    ),
    (
        StructType([StructField("x", NO_ELEMENTS, False), StructField("y", NOTHING)]),
        pa.array([{"x": []}], pa.struct({"x": pa.list_(pa.null()), "y": pa.null()})),
        b'{"c":{"x":[]}}',
        {"x": [], "y": None},
    ),
]


@pytest.mark.parametrize(("kind", "column", "text", "value"), WITHOUT_A_TYPE)
@pytest.mark.parametrize("is_nullable", [True, False])
def test_writes_column_of_null_type_as_spark_does(
    kind: DataType, column: pa.Array, text: bytes, value: object, is_nullable: bool
) -> None:
    field = to_arrow_field(StructField("c", kind, is_nullable), "c")
    for name in ("json", "json-schema-confluent"):
        assert build_format(name, [field], NO_SCHEMA).row_format.encode_rows(["c"], [column], 1, b"").to_pylist() == [
            text
        ]
    for name in ("avro", "avro-confluent"):
        row_format = build_format(name, [field], NO_SCHEMA).row_format
        assert isinstance(row_format, AvroFormat)
        (row,) = row_format.encode_rows(["c"], [column], 1, b"").to_pylist()
        assert fastavro.schemaless_reader(io.BytesIO(row), json.loads(row_format.schema), None) == {"c": value}


@pytest.mark.parametrize("kind", [kind for kind, *_ in WITHOUT_A_TYPE])
def test_protobuf_rejects_column_of_null_type_by_name(kind: DataType) -> None:
    with pytest.raises(SchemaError, match=r"column c[a-z.]* of type null has no corresponding Protobuf type"):
        build_format("protobuf-confluent", [to_arrow_field(StructField("c", kind), "c")], NO_SCHEMA)


def test_misspelt_format_does_not_require_a_value_column() -> None:
    assert len(problems(valueFormat="jsno")) == 1


def test_avro_schema_is_set_by_user_or_derived_from_columns(tmp_path: Path) -> None:
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": ["long", "null"]}]})
    path = tmp_path / "schema.avsc"
    path.write_text(schema)
    for option, value in (("valueSchema", schema), ("valueSchemaFile", str(path))):
        planned = plan(SCHEMA, **{"valueFormat": "avro", "valueColumns": "id", option: value})
        assert get_value_encoder(planned).format == AvroFormat(schema)
    values = get_value_encoder(plan(valueFormat="avro", valueColumns="id", valueSchemaName="com.acme.Order")).format
    assert isinstance(values, AvroFormat)
    assert json.loads(values.schema) == {
        "type": "record",
        "name": "Order",
        "namespace": "com.acme",
        "fields": [{"name": "id", "type": ["long", "null"]}],
    }
