"""Schema ids in record headers: schemaIdLocation = header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import ConfigurationError, SchemaRegistryError
from spark_kafka_sink.formats.schema_registry import get_registry_client
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic
from tests.formats.fake_registry import FakeRegistry, fake_registry

ORDERS = pa.table({"id": pa.array(range(40), pa.int64()), "name": [f"name {number}" for number in range(40)]})


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        registry.has_guids = True
        yield registry
    get_registry_client.cache_clear()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"orders": 6}) as broker:
        yield broker


def write(broker: EmbeddedBroker, registry: FakeRegistry, table: pa.Table = ORDERS, **arguments: object) -> pa.Table:
    """Write the table with the key `id`, and return all records of the topic."""
    default_arguments: dict[str, Any] = {
        "key": ["id"],
        "key_format": "avro-confluent",
        "value_format": "avro-confluent",
        "schema_registry_url": registry.url,
        "schema_id_location": "header",
    }
    with KafkaProducer(broker.client_options) as producer:
        producer.send_table("orders", table, **{**default_arguments, **arguments}).raise_for_failures()
    return read_topic(broker.bootstrap_servers, "orders")


def read_headers(records: pa.Table) -> list[dict[str, bytes]]:
    return [{header["key"]: header["value"] for header in headers or ()} for headers in records["headers"].to_pylist()]


def read_guid(registry: FakeRegistry, subject: str) -> bytes:
    _, version = registry.handle_request("GET", f"/subjects/{subject}/versions/latest", {}, b"")
    return b"\1" + UUID(version["guid"]).bytes


@pytest.mark.parametrize("source", ["register", "lookup", "latest"])
def test_header_has_guid_and_payload_has_no_prefix(broker: EmbeddedBroker, registry: FakeRegistry, source: str) -> None:
    if source != "register":
        write(broker, registry, ORDERS.slice(0, 0))
    records = write(broker, registry, schema_source=source)
    expected = {
        "__key_schema_id": read_guid(registry, "orders-key"),
        "__value_schema_id": read_guid(registry, "orders-value"),
    }
    assert read_headers(records) == [expected] * 40
    second_branch = 2  # of the union with null
    assert sorted(records["key"].to_pylist()) == [bytes([second_branch, 2 * number]) for number in range(40)]


def test_key_keeps_its_partition_when_its_schema_id_changes(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    write(broker, registry)
    records = write(broker, registry, key_schema_name="com.acme.NewName", key_subject="new-key")
    assert len({header["__key_schema_id"] for header in read_headers(records)}) == 2
    partitions: dict[bytes, set[int]] = {}
    for key, partition in zip(records["key"].to_pylist(), records["partition"].to_pylist(), strict=True):
        partitions.setdefault(key, set()).add(partition)
    assert len(partitions) == 40
    assert all(len(numbers) == 1 for numbers in partitions.values())


def test_headers_of_rows_are_kept(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    own = pa.array([[("trace", b"a\xff")], None, [], [("x", b"1"), ("y", None)]], pa.map_(pa.string(), pa.binary()))
    table = ORDERS.slice(0, 4).append_column("headers", own)
    records = write(broker, registry, table, key="name", key_format=None, value=["id"])
    added = ("__value_schema_id", read_guid(registry, "orders-value"))
    written = {
        key: [(header["key"], header["value"]) for header in headers]
        for key, headers in zip(records["key"].to_pylist(), records["headers"].to_pylist(), strict=True)
    }
    assert written == {
        b"name 0": [("trace", b"a\xff"), added],
        b"name 1": [added],
        b"name 2": [added],
        b"name 3": [("x", b"1"), ("y", None), added],
    }


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.binary()), pa.map_(pa.large_binary(), pa.large_binary())])
def test_repeats_no_header_that_rows_already_have(
    broker: EmbeddedBroker, registry: FakeRegistry, kind: pa.DataType
) -> None:
    arguments: dict[str, Any] = {"key": "name", "key_format": None, "value": ["id"]}
    write(broker, registry, ORDERS.slice(0, 0), **arguments)
    name, guid = b"__value_schema_id", read_guid(registry, "orders-value")
    own: list[Any] = [
        [(name, guid), (b"trace", b"a")],
        [(name, b"other"), (name, guid)],
        [(name, guid), (name, b"other")],
        [(name, None)],
        [(b"__key_schema_id", guid)],
        None,
        [],
        [(b"trace", guid), (name, guid)],
    ]
    # The slice begins with a row of another batch.
    headers = pa.array([[(name, guid)], *own], kind).slice(1)
    table = ORDERS.slice(0, len(own)).append_column("headers", headers)
    table = table.append_column("partition", pa.array([0] * len(own), pa.int32()))
    records = write(broker, registry, table, **arguments)
    added = (name, guid)
    assert [
        [(header["key"].encode(), header["value"]) for header in headers] for headers in records["headers"].to_pylist()
    ] == [own[0], own[1], [*own[2], added], [*own[3], added], [*own[4], added], [added], [added], own[7]]


def test_copy_of_records_has_each_schema_id_once(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    records = write(broker, registry)
    copies = write(broker, registry, ORDERS.append_column("headers", records["headers"]))
    assert copies["headers"].to_pylist() == [records["headers"][0].as_py()] * 80


def test_null_values_and_keys_have_no_header(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    struct = pa.struct([("id", pa.int64())])
    keys = pa.array([{"id": 0}, {"id": 1}, None, None], struct)
    values = pa.array([{"id": 0}, None, {"id": 2}, None], struct)
    own = pa.array(
        [[("row", b"0")], None, [("row", b"2")], [("row", b"3"), ("empty", None)]], pa.map_(pa.string(), pa.binary())
    )
    table = pa.table({"key": keys, "value": values, "headers": own, "partition": pa.array([0] * 4, pa.int32())})
    records = write(broker, registry, table, key="key.*", value="value.*")
    key_header = ("__key_schema_id", read_guid(registry, "orders-key"))
    value_header = ("__value_schema_id", read_guid(registry, "orders-value"))
    assert [[tuple(header.values()) for header in headers or ()] for headers in records["headers"].to_pylist()] == [
        [("row", b"0"), key_header, value_header],
        [key_header],
        [("row", b"2"), value_header],
        [("row", b"3"), ("empty", None)],
    ]
    assert [value is None for value in records["value"].to_pylist()] == [False, True, False, True]


def test_rejects_registry_without_guids(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    registry.has_guids = False
    with pytest.raises(SchemaRegistryError, match=r"no GUID for the schema of subject 'orders-value'.*'prefix'"):
        write(broker, registry)


def test_prefix_is_the_default(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    records = write(broker, registry, schema_id_location=None)
    assert read_headers(records) == [{}] * 40
    assert all(value.startswith(b"\0\0\0\0") for value in records["value"].to_pylist())


def test_location_needs_a_format_with_registry(broker: EmbeddedBroker, registry: FakeRegistry) -> None:
    with pytest.raises(ConfigurationError, match="schema_id_location"):
        write(broker, registry, value_format="json", key_format=None, key="name", schema_registry_url=None)
