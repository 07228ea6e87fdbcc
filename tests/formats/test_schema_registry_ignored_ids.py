"""Partitions of keys in Confluent's wire format: partitionerIgnoreSchemaId."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka.partitioner.default import murmur2 as reference

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.formats.schema_registry import get_registry_client
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic
from tests.formats.fake_registry import FakeRegistry, fake_registry
from tests.formats.protobuf_reference import compile_proto

ROWS, PARTITIONS = 40, 6
ORDERS = pa.table({"id": pa.array(range(ROWS), pa.int64()), "name": [f"name {number}" for number in range(ROWS)]})
AVRO_PREFIX_BYTES = 5


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry
    get_registry_client.cache_clear()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"orders": PARTITIONS}) as broker:
        yield broker


def write(broker: EmbeddedBroker, registry: FakeRegistry, table: pa.Table = ORDERS, **arguments: Any) -> None:
    """Write the table with the key `name`, whose length differs between rows."""
    defaults = {"key": ["name"], "key_format": "avro-confluent", "value": ["id"], "value_format": "json"}
    options: dict[str, Any] = {**defaults, "schema_registry_url": registry.url, "partitioner_ignore_schema_id": True}
    with KafkaProducer(broker.client_options) as producer:
        producer.send_table("orders", table, **{**options, **arguments}).raise_for_failures()


def read_keys(broker: EmbeddedBroker) -> list[tuple[bytes, int]]:
    """Return the key and the partition of each record with a key."""
    records = read_topic(broker.bootstrap_servers, "orders")
    pairs = zip(records["key"].to_pylist(), records["partition"].to_pylist(), strict=True)
    return [(key, partition) for key, partition in pairs if key is not None]


def compute_java_partition(key: bytes) -> int:
    return int((reference(key) & 0x7FFF_FFFF) % PARTITIONS)


@pytest.mark.parametrize("key_format", ["avro-confluent", "json-schema-confluent"])
def test_key_with_two_schema_ids_has_one_partition(
    broker: EmbeddedBroker, registry: FakeRegistry, key_format: str
) -> None:
    write(broker, registry, key_format=key_format)
    write(broker, registry, key_format=key_format, key_schema_name="com.acme.NewName")
    partitions: dict[bytes, set[int]] = {}
    for key, partition in read_keys(broker):
        partitions.setdefault(key[AVRO_PREFIX_BYTES:], set()).add(partition)
    assert len({key[:AVRO_PREFIX_BYTES] for key, _ in read_keys(broker)}) == 2
    assert [len(numbers) for numbers in partitions.values()] == [1] * ROWS


def test_partition_is_murmur2_of_payload(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    write(broker, registry)
    written = read_keys(broker)
    assert len({partition for _, partition in written}) > 1
    assert [partition for _, partition in written] == [
        compute_java_partition(key[AVRO_PREFIX_BYTES:]) for key, _ in written
    ]


@pytest.mark.parametrize("option", [None, False])
def test_partition_is_murmur2_of_whole_key_by_default(
    broker: EmbeddedBroker, registry: FakeRegistry, option: bool | None
) -> None:
    write(broker, registry, partitioner_ignore_schema_id=option)
    written = read_keys(broker)
    assert all(key.startswith(b"\0\0\0\0\1") for key, _ in written)
    assert [partition for _, partition in written] == [compute_java_partition(key) for key, _ in written]


def test_message_indexes_are_ignored(broker: EmbeddedBroker, registry: FakeRegistry, tmp_path: Path) -> None:
    schemas = {
        "first.desc": ("message Key { string name = 1; }", b"\0"),
        "second.desc": ("message Other {} message Key { string name = 1; }", b"\2\2"),
    }
    for file_name, (messages, indexes) in schemas.items():
        path = tmp_path / file_name
        path.write_bytes(compile_proto(f'syntax = "proto3"; {messages}'))
        write(broker, registry, key_format="protobuf-confluent", key_schema_file=str(path), key_schema_name="Key")
        written = [pair for pair in read_keys(broker) if pair[0][5 : 5 + len(indexes)] == indexes]
        assert len(written) == ROWS
        prefix_bytes = AVRO_PREFIX_BYTES + len(indexes)
        assert [partition for _, partition in written] == [
            compute_java_partition(key[prefix_bytes:]) for key, _ in written
        ]


def test_null_keys_stay_null_and_rows_keep_their_partitions(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    keys = pa.array([{"name": "a"}, None, {"name": "b"}, None, {"name": "c"}], pa.struct([("name", pa.string())]))
    requested = pa.array([None, None, 5, 4, 3], pa.int32())
    write(broker, registry, pa.table({"id": range(5), "key": keys, "partition": requested}), key="key.*")
    records = read_topic(broker.bootstrap_servers, "orders").to_pylist()
    by_value = {record["value"]: record for record in records}
    assert [by_value[b'{"id":%d}' % number]["key"] is None for number in range(5)] == [False, True, False, True, False]
    first_key = by_value[b'{"id":0}']["key"]
    assert by_value[b'{"id":0}']["partition"] == compute_java_partition(first_key[AVRO_PREFIX_BYTES:])
    assert [by_value[b'{"id":%d}' % number]["partition"] for number in (2, 3, 4)] == [5, 4, 3]


@pytest.mark.parametrize("option", [True, False])
def test_tombstones_with_old_schema_reach_old_records(
    broker: EmbeddedBroker, registry: FakeRegistry, option: bool
) -> None:
    write(broker, registry, partitioner_ignore_schema_id=option)
    old_records = set(read_keys(broker))
    write(broker, registry, partitioner_ignore_schema_id=option, key_schema_name="com.acme.NewName")
    (_, old_schema), _ = registry.subjects["orders-key"]
    tombstones = pa.table({"name": ORDERS["name"], "value": pa.nulls(ROWS, pa.binary())})
    arguments = {"value": "value", "value_format": None, "key_schema": old_schema["schema"], "schema_source": "lookup"}
    write(broker, registry, tombstones, partitioner_ignore_schema_id=option, **arguments)
    records = read_topic(broker.bootstrap_servers, "orders")
    deleted = records.filter(pc.is_null(records["value"]))
    assert set(zip(deleted["key"].to_pylist(), deleted["partition"].to_pylist(), strict=True)) == old_records
    assert len(old_records) == ROWS


def test_send_columns_ignores_start_of_keys(broker: EmbeddedBroker) -> None:
    keys = ["", "a", "prefix", "prefix" + "b" * 30, "PREFIX" + "b" * 30]
    with KafkaProducer(broker.client_options) as producer:
        for data_type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            typed_keys = pa.array(keys).cast(data_type)
            columns = RecordColumns(
                pa.nulls(2 * len(keys) - 2, pa.binary()), pa.chunked_array([typed_keys, typed_keys]).slice(2)
            )
            producer.send_columns("orders", columns, ignored_key_bytes=6).result(60).raise_for_failures()
    written = read_keys(broker)
    assert len(written) == 4 * (2 * len(keys) - 2)
    assert [partition for _, partition in written] == [compute_java_partition(key[6:]) for key, _ in written]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"key_format": None, "key": "name", "value_format": "avro-confluent"},
            "'partitioner_ignore_schema_id' has no effect, because 'key_format' is not set. "
            "Set 'key_format' to 'avro-confluent', or remove the option.",
        ),
        (
            {"key_format": "json", "value_format": "avro-confluent"},
            "because 'key_format' is 'json', which writes no schema id. "
            "Set 'key_format' to 'json-schema-confluent', or remove the option.",
        ),
        ({"schema_id_location": "header"}, "because 'schema_id_location' is 'header', so the keys have no prefix."),
    ],
)
def test_rejects_option_without_effect(
    broker: EmbeddedBroker, registry: FakeRegistry, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as error_info:
        write(broker, registry, **arguments)
    assert message in str(error_info.value)
    assert not registry.requests
