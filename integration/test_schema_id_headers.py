"""Confluent's deserializers read records whose schema GUID is in a header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.formats.protobuf_schema import derive_message
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic
from tests.formats.fake_registry import FakeRegistry, fake_registry
from tests.formats.protobuf_reference import compile_proto, message_class

ORDERS = pa.table({"id": pa.array(range(10), pa.int64()), "name": [f"name {number}" for number in range(10)]})
ROWS = ORDERS.to_pylist()


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        registry.has_guids = True
        yield registry


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"orders": 1}) as broker:
        yield broker


def write_and_read(broker: EmbeddedBroker, registry: FakeRegistry, value_format: Any, read: Any) -> list[Any]:
    with KafkaProducer(broker.client_options) as producer:
        producer.send_table(
            "orders",
            ORDERS,
            value_format=value_format,
            value_schema_name="com.acme.Order",
            schema_registry_url=registry.url,
            schema_id_location="header",
        ).raise_for_failures()
    records = read_topic(broker.bootstrap_servers, "orders")
    rows = []
    for value, headers in zip(records["value"].to_pylist(), records["headers"].to_pylist(), strict=True):
        pairs = [(header["key"], header["value"]) for header in headers]
        rows.append(read(value, SerializationContext("orders", MessageField.VALUE, pairs)))
    return rows


def test_avro_deserializer_finds_schema_by_header(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    with SchemaRegistryClient({"url": registry.url}) as client:
        assert write_and_read(broker, registry, "avro-confluent", AvroDeserializer(client)) == ROWS


def test_json_deserializer_finds_schema_by_header(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    with SchemaRegistryClient({"url": registry.url}) as client:
        read = JSONDeserializer(None, schema_registry_client=client)
        assert write_and_read(broker, registry, "json-schema-confluent", read) == ROWS


def test_protobuf_deserializer_finds_message_by_header(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    message_type = message_class(
        compile_proto(derive_message(list(ORDERS.schema), "com.acme.Order").text), "com.acme.Order"
    )
    read = ProtobufDeserializer(message_type, {"use.deprecated.format": False})
    messages = write_and_read(broker, registry, "protobuf-confluent", read)
    assert [{"id": message.id, "name": message.name} for message in messages] == ROWS


@pytest.mark.needs("registry")
def test_rejects_real_registry_without_guids(broker: EmbeddedBroker, registry_url: str) -> None:
    """Apicurio Registry has no GUIDs, neither in its API v7 nor v8. If this fails, test the header with it."""
    for url in (registry_url, registry_url.replace("/v7", "/v8")):
        with (
            KafkaProducer(broker.client_options) as producer,
            pytest.raises(SchemaRegistryError, match="returned no GUID for the schema of subject 'orders-value'"),
        ):
            producer.send_table(
                "orders", ORDERS, value_format="avro-confluent", schema_registry_url=url, schema_id_location="header"
            )
    assert read_topic(broker.bootstrap_servers, "orders").num_rows == 0
