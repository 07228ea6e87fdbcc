"""Formats with a schema registry: options, subjects and ids. Confluent's own deserializers read the records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka.partitioner.default import murmur2
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_kafka_sink import register
from spark_kafka_sink.errors import ConfigurationError, SchemaError, SchemaRegistryError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.schema_registry import get_registry_client
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.constants import STREAM_START_OPTION
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.testing import embedded_broker, read_topic
from tests.formats.fake_registry import FakeRegistry, fake_registry
from tests.formats.protobuf_reference import compile_proto, message_class
from tests.spark.planned import planned
from tests.waiting import REQUEST_TIMEOUT_SECONDS

SCHEMA = StructType([StructField("id", LongType(), False), StructField("name", StringType())])
BATCH = pa.record_batch({"id": [1, 2], "name": ["a", None]})
NEEDED = {"kafka.bootstrap.servers": "broker:9092", "topic": "orders", "checkConnection": "false"}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    get_registry_client.cache_clear()
    with fake_registry() as fake:
        yield fake
    get_registry_client.cache_clear()


def create_writer(
    registry: FakeRegistry, schema: StructType = SCHEMA, **options: str
) -> tuple[SinkOptions, ColumnPlan]:
    sink_options = (
        NEEDED | {"schema.registry.url": registry.url} | {k.replace("__", "."): v for k, v in options.items()}
    )
    return planned(KafkaDataSource(sink_options).writer(schema, False))


def encode_rows(registry: FakeRegistry, **options: str) -> list[bytes]:
    _, plan = create_writer(registry, SCHEMA, **options)
    assert isinstance(plan.value, ColumnsEncoder)
    rows: list[bytes] = plan.value.encode(BATCH).to_pylist()
    return rows


def problems(**options: str) -> str:
    with pytest.raises(ConfigurationError) as error_info:
        parse_options(NEEDED | {name.replace("__", "."): value for name, value in options.items()})
    return "\n".join(error_info.value.problems)


def test_confluents_deserializer_reads_records(registry: FakeRegistry) -> None:
    context = SerializationContext("orders", MessageField.VALUE)
    rows = encode_rows(registry, valueFormat="avro-confluent")
    with SchemaRegistryClient({"url": registry.url, "timeout": REQUEST_TIMEOUT_SECONDS}) as client:
        read = AvroDeserializer(client)
        assert [read(row, context) for row in rows] == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert list(registry.subjects) == ["orders-value"]


def test_confluents_deserializer_reads_protobuf_messages(registry: FakeRegistry) -> None:
    context = SerializationContext("orders", MessageField.VALUE)
    rows = encode_rows(registry, valueFormat="protobuf-confluent", valueSchemaName="com.acme.Order")
    ((_, schema),) = registry.subjects["orders-value"]
    kind = message_class(compile_proto(schema["schema"]), "com.acme.Order")
    read = ProtobufDeserializer(kind, {"use.deprecated.format": False})
    messages = [read(row, context) for row in rows]
    assert [(message.id, message.name) for message in messages] == [(1, "a"), (2, "")]
    assert not messages[1].HasField("name")


def test_descriptor_determines_written_message(registry: FakeRegistry, tmp_path: Path) -> None:
    text = 'syntax = "proto3"; message First {} message Order { string name = 1; int64 id = 7; }'
    (tmp_path / "order.desc").write_bytes(compile_proto(text))
    options = {"valueFormat": "protobuf-confluent", "valueSchemaFile": str(tmp_path / "order.desc")}
    rows = encode_rows(registry, **options, valueSchemaName="Order")
    assert rows == [b"\0\0\0\0\1" + b"\2\2" + b"\n\1a8\1", b"\0\0\0\0\1" + b"\2\2" + b"8\2"]
    ((_, schema),) = registry.subjects["orders-value"]
    assert (
        encode_rows(registry, valueFormat="protobuf-confluent", schemaSource="latest", valueSchemaName="Order") == rows
    )
    assert schema["schemaType"] == "PROTOBUF"


def test_confluents_deserializer_reads_json(registry: FakeRegistry) -> None:
    context = SerializationContext("orders", MessageField.VALUE)
    rows = encode_rows(registry, valueFormat="json-schema-confluent")
    with SchemaRegistryClient({"url": registry.url, "timeout": REQUEST_TIMEOUT_SECONDS}) as client:
        read = JSONDeserializer(None, schema_registry_client=client)
        assert [read(row, context) for row in rows] == [{"id": 1, "name": "a"}, {"id": 2}]


def test_additional_column_is_compatible(registry: FakeRegistry) -> None:
    encode_rows(registry, valueFormat="avro-confluent")
    wider = StructType([*SCHEMA.fields, StructField("more", LongType())])
    create_writer(registry, wider, valueFormat="avro-confluent")
    assert [number for number, _ in registry.subjects["orders-value"]] == [1, 2]


def test_header_contains_schema_id(registry: FakeRegistry) -> None:
    registry.subjects["other"] = [(66_051, {"schema": json.dumps({"type": "record", "name": "r", "fields": FIELDS})})]
    rows = encode_rows(registry, valueFormat="avro-confluent", valueSubject="other", schemaSource="latest")
    assert rows == [b"\0\x00\x01\x02\x03\x02\x02\x02a", b"\0\x00\x01\x02\x03\x04\x00"]


CONFLUENT_KEYS = {"keyFormat": "avro-confluent", "keyColumns": "id", "partitionerIgnoreSchemaId": "true"}
FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]


@pytest.mark.parametrize(
    ("strategy", "subjects"),
    [
        ("topic", ["orders-value", "orders-key"]),
        ("record", ["com.acme.Order", "com.acme.OrderKey"]),
        ("topicRecord", ["orders-com.acme.Order", "orders-com.acme.OrderKey"]),
    ],
)
def test_strategy_determines_subject_name(registry: FakeRegistry, strategy: str, subjects: list[str]) -> None:
    create_writer(
        registry,
        valueFormat="avro-confluent",
        keyColumns="id",
        subjectNameStrategy=strategy,
        valueSchemaName="com.acme.Order",
        keySchemaName="com.acme.OrderKey",
    )
    assert list(registry.subjects) == subjects


@pytest.mark.needs("java")
@pytest.mark.parametrize("write_method", [pytest.param("dataSource", marks=pytest.mark.data_source), "mapInArrow"])
def test_key_keeps_its_partition_when_its_schema_id_changes(
    spark: SparkSession, registry: FakeRegistry, write_method: str
) -> None:
    orders = spark.range(40).selectExpr("id", "CAST(id AS STRING) AS value")
    with embedded_broker({"orders": 6}) as broker:
        register(spark)
        for schema_name in ("com.acme.OldName", "com.acme.NewName"):
            writer = orders.write.format("pykafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
            writer = writer.option("topic", "orders").option("schema.registry.url", registry.url)
            writer.options(**CONFLUENT_KEYS, keySchemaName=schema_name, writeMethod=write_method).save()
        records = read_topic(broker.bootstrap_servers, "orders")
    keys = records["key"].to_pylist()
    assert len({key[:5] for key in keys}) == 2
    pairs = {(key[5:], partition) for key, partition in zip(keys, records["partition"].to_pylist(), strict=True)}
    assert pairs == {(payload, (murmur2(payload) & 0x7FFF_FFFF) % 6) for payload, _ in pairs}
    assert len(pairs) == 40


def test_lookup_does_not_register_schema(registry: FakeRegistry) -> None:
    with pytest.raises(SchemaRegistryError, match="'orders-value' does not have this schema"):
        create_writer(registry, valueFormat="avro-confluent", schemaSource="lookup")
    assert not registry.subjects
    create_writer(registry, valueFormat="avro-confluent")
    assert encode_rows(registry, valueFormat="avro-confluent", schemaSource="lookup")[0][:5] == b"\0\0\0\0\1"


def test_rejects_columns_that_do_not_fit_latest_schema(registry: FakeRegistry) -> None:
    registry.subjects["orders-value"] = [(1, {"schema": json.dumps({"type": "record", "name": "r", "fields": []})})]
    with pytest.raises(SchemaError, match=r"of subject 'orders-value': .* has no field for the column id"):
        create_writer(registry, valueFormat="avro-confluent", schemaSource="latest")
    registry.subjects["orders-value"] = [(1, {"schemaType": "JSON", "schema": "{}"})]
    with pytest.raises(SchemaError, match="has type JSON, not AVRO"):
        create_writer(registry, valueFormat="avro-confluent", schemaSource="latest")


def test_schema_text_in_errors_is_one_line_without_credentials(registry: FakeRegistry) -> None:
    registry.user_info = "alice:s3cret"
    evil = "s3cret \x1b[2J" + "x" * 10_000
    latest = {"valueFormat": "avro-confluent", "schemaSource": "latest"}
    secret = {"schema.registry.basic.auth.user.info": "alice:s3cret"}
    for stored in (
        {"schema": json.dumps({"type": "record", "name": "r", "fields": [FIELDS[1], {"name": "id", "type": evil}]})},
        {"schemaType": "no\n2026-01-01 ERROR " + evil, "schema": "{}"},
        {"schema": "[" * 5_000 + "]" * 5_000},
    ):
        registry.subjects["orders-value"] = [(1, dict(stored))]
        with pytest.raises(SchemaError, match="do not fit the latest schema of subject 'orders-value'") as error_info:
            create_writer(registry, SCHEMA, **latest, **secret)
        assert str(error_info.value).isprintable()
        assert "s3cret" not in str(error_info.value)
        assert len(str(error_info.value)) < 1_500
        get_registry_client.cache_clear()


def test_job_uses_newest_schema_and_stream_keeps_its_first(registry: FakeRegistry) -> None:
    only_id = StructType(SCHEMA.fields[:1])

    def add_version(number: int, *names: str) -> None:
        fields = [{"name": name, "type": ["null", "long", "string"], "default": None} for name in names]
        schema = json.dumps({"type": "record", "name": "r", "fields": fields})
        registry.subjects.setdefault("orders-value", []).append((number, {"schema": schema}))

    def find_schema_id(plan: ColumnPlan) -> int:
        assert isinstance(plan.value, ColumnsEncoder)
        return int.from_bytes(plan.value.prefix[1:5], "big")

    def find_stream_schema_id(source: KafkaDataSource, schema: StructType = only_id) -> int:
        return find_schema_id(planned(source.streamWriter(schema, False))[1])

    latest = {"valueFormat": "avro-confluent", "schemaSource": "latest"}
    sink_options = NEEDED | {"schema.registry.url": registry.url} | latest
    first, again, without_start = (
        KafkaDataSource(sink_options | {STREAM_START_OPTION: name} if name else sink_options) for name in ("1", "2", "")
    )
    add_version(1, "id")
    assert find_schema_id(create_writer(registry, only_id, **latest)[1]) == 1
    assert find_stream_schema_id(first) == find_stream_schema_id(without_start) == 1
    add_version(2, "id", "name")
    assert find_schema_id(create_writer(registry, SCHEMA, **latest)[1]) == 2
    assert find_stream_schema_id(first) == find_stream_schema_id(without_start) == 1
    assert find_stream_schema_id(again, SCHEMA) == 2


@pytest.mark.parametrize("source", ["register", "lookup", "latest"])
def test_rejects_active_write_rules_on_the_driver(registry: FakeRegistry, source: str) -> None:
    create_writer(registry, SCHEMA, valueFormat="avro-confluent")
    rule = {"name": "encryptPII", "type": "ENCRYPT", "mode": "WRITEREAD"}
    registry.subjects["orders-value"][0][1]["ruleSet"] = {"domainRules": [rule]}
    get_registry_client.cache_clear()
    with pytest.raises(SchemaRegistryError, match="'encryptPII'"):
        create_writer(registry, SCHEMA, valueFormat="avro-confluent", schemaSource=source)


def test_committing_process_does_not_query_the_registry(registry: FakeRegistry) -> None:
    source = KafkaDataSource(NEEDED | {"schema.registry.url": registry.url, "valueFormat": "avro-confluent"})
    source.__setstate__({})
    source.streamWriter(SCHEMA, False)
    assert not registry.requests


def test_tasks_get_no_registry_secrets(registry: FakeRegistry) -> None:
    registry.user_info = "alice:s3cret"
    user = {"schema__registry__basic__auth__user__info": "alice:s3cret"}
    options, _ = create_writer(registry, SCHEMA, valueFormat="avro-confluent", **user)
    assert options.registry is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "avro-confluent"}, "Option 'schema.registry.url' is not set"),
        (
            {"valueFormat": "avro-confluent", "schema__registry__bearer__auth__token": "a\nb"},
            "Option 'schema.registry.bearer.auth.token' contains a line break",
        ),
        ({"schemaSource": "latest"}, "has no effect, because no format uses a schema registry"),
        ({"valueFormat": "avro", "valueSubject": "s"}, "the format 'avro' does not use a schema registry"),
        ({"valueFormat": "avro-confluent", "schemaSource": "guess"}, "must be one of register, lookup, latest"),
        ({"valueFormat": "avro-confluent", "subjectNameStrategy": "x"}, "must be one of topic, record, topicRecord"),
        (
            {"valueFormat": "avro-confluent", "schemaSource": "latest", "subjectNameStrategy": "record"},
            "Set the name in 'valueSchemaName'",
        ),
        (
            {"valueFormat": "avro-confluent", "schema__registry__ssl__truststore__type": "x"},
            "Option 'schema.registry.ssl.truststore.type' must be one of PEM, PKCS12, JKS",
        ),
        (
            {"valueFormat": "avro-confluent", "schema__registry__ssl__keystore__key": "k"},
            "'schema.registry.ssl.keystore.key' must be set together with",
        ),
        (
            {"valueFormat": "avro-confluent", "schema__registry__request__timeout__ms": "1s"},
            "Option 'schema.registry.request.timeout.ms' must be an integer from 1 to 2147483647. It is '1s'.",
        ),
        (
            {"valueFormat": "avro-confluent", "schema__registry__normalize__schemas": "yes"},
            "Option 'schema.registry.normalize.schemas' must be true or false. It is 'yes'.",
        ),
        ({"valueFormat": "avro-confluent", "schema__registry__user": "a"}, "Unknown option 'schema.registry.user'"),
        (
            {"valueFormat": "avro", "partitionerIgnoreSchemaId": "true"},
            "Option 'partitionerIgnoreSchemaId' has no effect, because no format uses a schema registry.",
        ),
        (
            {"valueFormat": "avro-confluent", "partitionerIgnoreSchemaId": "true"},
            "Option 'partitionerIgnoreSchemaId' has no effect, because 'keyFormat' is not set. "
            "Set 'keyFormat' to 'avro-confluent', or remove the option.",
        ),
        (
            {**CONFLUENT_KEYS, "kafka__partitioner__ignore__keys": "true"},
            "has no effect, because kafka.partitioner.ignore.keys is true. Remove one of them.",
        ),
        (
            {**CONFLUENT_KEYS, "kafka__partitioner__class": "RoundRobinPartitioner"},
            "has no effect, because kafka.partitioner.class is RoundRobinPartitioner. Remove one of them.",
        ),
        (
            {**CONFLUENT_KEYS, "kafka__partitioner__class": "UniformStickyPartitioner"},
            "has no effect, because kafka.partitioner.class is UniformStickyPartitioner. Remove one of them.",
        ),
    ],
)
def test_rejects_invalid_registry_options(options: dict[str, str], message: str) -> None:
    assert message in problems(**options)


def test_invalid_key_format_is_the_only_fault_of_ignored_schema_id() -> None:
    url = {"schema__registry__url": "http://registry:8081"}
    (problem,) = problems(**{**CONFLUENT_KEYS, **url, "valueFormat": "avro-confluent", "keyFormat": "x"}).splitlines()
    assert problem.startswith("Option 'keyFormat' must be one of")


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"valueFormat": "avro"}, "set 'valueFormat' to 'avro-confluent', or remove the option"),
        ({"valueFormat": "json"}, "set 'valueFormat' to 'json-schema-confluent', or remove the option"),
        ({"valueColumns": "id"}, "has no effect unless 'valueFormat' is one of 'json', 'avro', 'avro-conf"),
        ({"valueFormat": "protobuf"}, "must be one of json, avro, avro-confluent, protobuf-confluent"),
        ({"keyFormat": "json", "keyColumns": "id"}, "set 'keyFormat' to 'json-schema-confluent', or remove the option"),
    ],
)
def test_rejects_a_registry_url_for_formats_without_a_registry(options: dict[str, str], remedy: str) -> None:
    assert remedy in problems(schema__registry__url="http://registry:8081", **options)


def test_rejects_schema_without_subject_for_topics_of_a_column() -> None:
    sink_options = {name: value for name, value in NEEDED.items() if name != "topic"}
    with pytest.raises(
        ConfigurationError, match="'valueSubject' must be set, because the subject of the value schema depends on"
    ):
        parse_options(sink_options | {"valueFormat": "avro-confluent", "schema.registry.url": "http://r"})


def test_repr_of_options_contains_no_secret() -> None:
    sink_options = {"valueFormat": "avro-confluent", "schema.registry.url": "https://r"}
    secret = {"schema.registry.basic.auth.user.info": "alice:s3cret", "schema.registry.ssl.keystore.password": "s3cret"}
    options = parse_options(NEEDED | sink_options | {name: value for name, value in secret.items() if "basic" in name})
    assert "s3cret" not in repr(options)
    assert "s3cret" not in problems(**sink_options, **secret)
