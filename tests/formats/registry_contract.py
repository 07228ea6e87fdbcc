"""Contract tests for the behavior of a schema registry that the client relies on.

tests/formats/test_schema_registry.py runs them with the fake registry, integration/test_schema_registry.py with a real
one.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.formats.registry_transport import RegistryConfig
from spark_kafka_sink.formats.schema_registry import Schema, SchemaRegistryClient


def avro_schema(*fields: str, **defaults: Any) -> Schema:
    members = [
        {"name": name, "type": ["null", "long"]} | ({"default": None} if name in defaults else {}) for name in fields
    ]
    return Schema("AVRO", json.dumps({"type": "record", "name": "Order", "fields": members}), "Order")


class RegistryContract:
    """Contract tests. Subclasses define the fixture `registry_url`."""

    @pytest.fixture
    def registry(self, registry_url: str) -> SchemaRegistryClient:
        return SchemaRegistryClient(RegistryConfig((registry_url,)))

    @pytest.fixture
    def subject(self) -> str:
        return f"a subject/{uuid.uuid4()}-value"

    def test_returns_same_id_for_registered_schema(
        self, registry: SchemaRegistryClient, registry_url: str, subject: str
    ) -> None:
        first = registry.register(subject, avro_schema("a")).id
        other_registry = SchemaRegistryClient(RegistryConfig((registry_url,)))
        assert other_registry.register(subject, avro_schema("a")).id == first
        assert other_registry.lookup(subject, avro_schema("a")).id == first
        assert other_registry.register(f"{subject}-2", avro_schema("a")).id == first

    def test_latest_schema_is_last_registered_one(self, registry: SchemaRegistryClient, subject: str) -> None:
        registry.register(subject, avro_schema("a"))
        second_schema = avro_schema("a", "b", b=None)
        schema_id = registry.register(subject, second_schema).id
        latest_schema = registry.get_latest(subject)
        assert (latest_schema.id, latest_schema.schema_type) == (schema_id, "AVRO")
        assert json.loads(latest_schema.text) == json.loads(second_schema.text)

    def test_error_names_missing_subject(self, registry: SchemaRegistryClient, subject: str) -> None:
        expected = f"Subject '{subject}' .* set schemaSource to 'register'"
        with pytest.raises(SchemaRegistryError, match=expected):
            registry.get_latest(subject)
        with pytest.raises(SchemaRegistryError, match=expected):
            registry.lookup(subject, avro_schema("a"))

    def test_lookup_fails_for_unregistered_schema(self, registry: SchemaRegistryClient, subject: str) -> None:
        registry.register(subject, avro_schema("a"))
        with pytest.raises(SchemaRegistryError, match="does not have this schema"):
            registry.lookup(subject, avro_schema("other"))

    def test_keeps_schema_type_of_json_schema(self, registry: SchemaRegistryClient, subject: str) -> None:
        text = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
        schema_id = registry.register(subject, Schema("JSON", text, "Order")).id
        latest_schema = registry.get_latest(subject)
        assert (latest_schema.id, latest_schema.schema_type, json.loads(latest_schema.text)) == (
            schema_id,
            "JSON",
            json.loads(text),
        )

    def test_rejects_invalid_schema(self, registry: SchemaRegistryClient, subject: str) -> None:
        with pytest.raises(SchemaRegistryError, match="rejected the request for subject"):
            registry.register(subject, Schema("AVRO", '{"type": "recrod"', "Order"))
