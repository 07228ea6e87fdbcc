"""What a schema registry answers: the promises that the client relies on.

The tests of tests/formats/test_schema_registry.py hold the fake to them, those of integration/test_schema_registry.py a
real registry.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.formats.schema_registry import RegistryConfig, Schema, SchemaRegistryClient


def avro_schema(*fields: str, **defaults: Any) -> Schema:
    members = [
        {"name": name, "type": ["null", "long"]} | ({"default": None} if name in defaults else {}) for name in fields
    ]
    return Schema("AVRO", json.dumps({"type": "record", "name": "Order", "fields": members}), "Order")


class RegistryContract:
    """Subclasses have a fixture `registry_url`."""

    @pytest.fixture
    def registry(self, registry_url: str) -> SchemaRegistryClient:
        return SchemaRegistryClient(RegistryConfig((registry_url,)))

    @pytest.fixture
    def subject(self) -> str:
        return f"a subject/{uuid.uuid4()}-value"

    def test_a_schema_keeps_its_id(self, registry: SchemaRegistryClient, registry_url: str, subject: str) -> None:
        first = registry.register(subject, avro_schema("a"))
        another = SchemaRegistryClient(RegistryConfig((registry_url,)))
        assert another.register(subject, avro_schema("a")) == first
        assert another.lookup(subject, avro_schema("a")) == first
        assert another.register(f"{subject}-2", avro_schema("a")) == first

    def test_the_latest_schema_is_the_last_that_was_registered(
        self, registry: SchemaRegistryClient, subject: str
    ) -> None:
        registry.register(subject, avro_schema("a"))
        newer = avro_schema("a", "b", b=None)
        number = registry.register(subject, newer)
        found = registry.get_latest(subject)
        assert (found.id, found.schema_type) == (number, "AVRO")
        assert json.loads(found.text) == json.loads(newer.text)

    def test_a_subject_that_is_not_there_is_named(self, registry: SchemaRegistryClient, subject: str) -> None:
        for ask in (lambda: registry.get_latest(subject), lambda: registry.lookup(subject, avro_schema("a"))):
            with pytest.raises(SchemaRegistryError, match=f"Subject '{subject}' .* set schemaSource to 'register'"):
                ask()

    def test_a_schema_that_a_subject_does_not_have_is_not_found(
        self, registry: SchemaRegistryClient, subject: str
    ) -> None:
        registry.register(subject, avro_schema("a"))
        with pytest.raises(SchemaRegistryError, match="does not have this schema"):
            registry.lookup(subject, avro_schema("other"))

    def test_schemas_of_other_types_are_distinguished(self, registry: SchemaRegistryClient, subject: str) -> None:
        text = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
        number = registry.register(subject, Schema("JSON", text, "Order"))
        found = registry.get_latest(subject)
        assert (found.id, found.schema_type, json.loads(found.text)) == (number, "JSON", json.loads(text))

    def test_what_is_no_schema_is_refused(self, registry: SchemaRegistryClient, subject: str) -> None:
        with pytest.raises(SchemaRegistryError, match="rejected the request for subject"):
            registry.register(subject, Schema("AVRO", '{"type": "recrod"', "Order"))
