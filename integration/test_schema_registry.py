"""A real schema registry fulfills the client's expectations, and accepts schemas derived from columns."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from chispa import assert_df_equality
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.formats.protobuf_schema import derive_message
from spark_kafka_sink.spark.arrow_types import to_arrow_field
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic
from tests.formats.protobuf_reference import compile_proto, message_class
from tests.formats.registry_contract import RegistryContract
from tests.waiting import REQUEST_TIMEOUT_SECONDS

pytestmark = pytest.mark.needs("registry", "connector")


class TestARealRegistry(RegistryContract):
    """Uses the fixture `registry_url` of all integration tests."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    return spark.range(50).selectExpr(
        "id",
        "if(id % 3 = 0, NULL, concat('name ', id)) AS name",
        "id * 1.5D AS price",
        "array(CAST(id AS STRING), 'x') AS tags",
        "named_struct('street', CAST(id AS STRING), 'number', CAST(id AS INT)) AS address",
        "map('k', id) AS counts",
    )


def write(frame: DataFrame, broker: EmbeddedBroker, topic: str, url: str, **options: str) -> None:
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    writer.option("topic", topic).option("schema.registry.url", url).options(**options).save()


def test_confluents_deserializer_reads_avro(
    spark: SparkSession, broker: EmbeddedBroker, registry_url: str, topic: str, orders: DataFrame
) -> None:
    write(orders, broker, topic, registry_url, valueFormat="avro-confluent", keyColumns="id")
    stored = read_topic(broker.bootstrap_servers, topic)
    with SchemaRegistryClient({"url": registry_url, "timeout": REQUEST_TIMEOUT_SECONDS}) as client:
        read = AvroDeserializer(client)
        context = SerializationContext(topic, MessageField.VALUE)
        rows = [read(value, context) for value in stored["value"].to_pylist()]
    assert_df_equality(spark.createDataFrame(rows, orders.schema).orderBy("id"), orders, ignore_nullable=True)


def test_confluents_deserializer_reads_protobuf(
    spark: SparkSession, broker: EmbeddedBroker, registry_url: str, topic: str, orders: DataFrame
) -> None:
    write(orders, broker, topic, registry_url, valueFormat="protobuf-confluent", valueSchemaName="com.acme.Order")
    stored = read_topic(broker.bootstrap_servers, topic)
    with SchemaRegistryClient({"url": registry_url, "timeout": REQUEST_TIMEOUT_SECONDS}) as client:
        assert client.get_latest_version(f"{topic}-value").schema.schema_type == "PROTOBUF"
        text = derive_message([to_arrow_field(field, field.name) for field in orders.schema], "com.acme.Order").text
        read = ProtobufDeserializer(
            message_class(compile_proto(text), "com.acme.Order"), {"use.deprecated.format": False}
        )
        context = SerializationContext(topic, MessageField.VALUE)
        rows = [build_row(read(value, context)) for value in stored["value"].to_pylist()]
    assert_df_equality(spark.createDataFrame(rows, orders.schema).orderBy("id"), orders, ignore_nullable=True)


def build_row(message: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "name": message.name if message.HasField("name") else None,
        "price": message.price,
        "tags": list(message.tags),
        "address": {"street": message.address.street, "number": message.address.number},
        "counts": dict(message.counts),
    }


def test_confluents_deserializer_reads_json(
    spark: SparkSession, broker: EmbeddedBroker, registry_url: str, topic: str, orders: DataFrame
) -> None:
    write(orders, broker, topic, registry_url, valueFormat="json-schema-confluent")
    stored = read_topic(broker.bootstrap_servers, topic)
    with SchemaRegistryClient({"url": registry_url, "timeout": REQUEST_TIMEOUT_SECONDS}) as client:
        read = JSONDeserializer(None, schema_registry_client=client)
        context = SerializationContext(topic, MessageField.VALUE)
        rows = [read(value, context) for value in stored["value"].to_pylist()]
    made = spark.createDataFrame([{"name": None, **row} for row in rows], orders.schema)
    assert_df_equality(made.orderBy("id"), orders, ignore_nullable=True)
