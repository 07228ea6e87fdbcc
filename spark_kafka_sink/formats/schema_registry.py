"""Client of a schema registry with Confluent's HTTP API, used on the driver.

The client registers a schema, looks it up, or fetches the latest schema of a subject. The tasks receive the schema id
with their encoder and never connect to the registry.

Each micro-batch of a stream is planned separately. To avoid a request for each of them, the client caches registered
schemas for up to a minute, and the latest schema for the whole run of a stream. The cache is part of the process, which
is Spark's Python worker. Spark stops a worker that has been idle for a minute, and the next micro-batch then queries
the registry again.

registry_transport.py sends the requests. It also owns the credentials, so it sanitizes all text from the registry.
"""

from __future__ import annotations

import json
import math
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple
from uuid import UUID

from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.formats.registry_transport import RETRIABLE_STATUSES, RegistryConfig, RegistryTransport
from spark_kafka_sink.formats.write_rules import describe_active_write_rules

_MAX_CACHED_SCHEMAS = 1_000
"""Number of schemas at which the cache is cleared. Running streams then request their schemas again."""
_MAX_CACHE_AGE_S = 60.0
"""Maximum age of a cached schema. Without a limit, a program that runs for days would miss new rules of a subject."""

_STATUSES_AFTER_REGISTRATION = (HTTPStatus.NOT_FOUND, *RETRIABLE_STATUSES)
"""Response statuses that may be temporary right after a registration.

A registry follower forwards registrations to the leader, and may not see the new version immediately. It then responds
with status 404.
"""


class Schema(NamedTuple):
    """A schema as it is registered.

    `schema_type`: AVRO, JSON or PROTOBUF.
    `name`: the name of the record or message.
    """

    schema_type: str
    text: str
    name: str


class RegisteredSchema(NamedTuple):
    """A schema that the registry returned, with its id."""

    id: int
    schema_type: str
    text: str
    guid: UUID | None = None
    """Id that is unique across registries. None if the registry returns none, as before Confluent Platform 8.0."""
    has_references: bool = False
    """Whether the schema needs schemas of other subjects."""


class _Operation(Enum):
    """A request to the registry about a subject. Only GET_LATEST and GET_LATEST_SERIALIZED need no schema."""

    REGISTER = "register"
    """Register the schema, unless the subject already has it."""
    LOOKUP = "lookup"
    """Look up the id of the schema."""
    LOOKUP_AFTER_REGISTRATION = "lookup after registration"
    """Look up the GUID of the schema, right after it was registered."""
    GET_LATEST = "latest"
    """Get the latest schema as text."""
    GET_LATEST_SERIALIZED = "serialized"
    """Get the latest schema, which is a Protobuf schema, as a serialized descriptor."""


class _CacheKey(NamedTuple):
    """The request for which a schema is cached."""

    operation: _Operation
    subject: str
    schema: Schema | None
    """The schema that was registered or looked up; None for the other operations."""
    stream_start_id: str
    """An id for one run of a Spark stream; empty for schemas that all writes share."""


class _CacheEntry(NamedTuple):
    """A cached schema."""

    schema: RegisteredSchema
    expires_at_s: float
    """Time on the client's monotonic clock."""


class SchemaRegistryClient:
    """A client of a schema registry. It is not thread-safe: the driver plans one write at a time.

    The constructor raises ConfigurationError if the TLS options are invalid.
    """

    def __init__(
        self,
        config: RegistryConfig,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._now_s = now_s
        self._transport = RegistryTransport(config, now_s=now_s, sleep=sleep)
        self._cache: dict[_CacheKey, _CacheEntry] = {}

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Register the schema as a new version of the subject, unless the subject already has it, and return it.

        Raise SchemaRegistryError if the request fails, or if the subject has write rules.
        """
        return self._get_or_request(_Operation.REGISTER, subject, schema)

    def lookup(self, subject: str, schema: Schema, *, after_registration: bool = False) -> RegisteredSchema:
        """Return the registered schema.

        Raise SchemaRegistryError if the subject does not have the schema or has write rules, or if the request fails.

        `after_registration`: whether this client has just registered the schema. If the registry does not find it yet,
        the request is retried.
        """
        operation = _Operation.LOOKUP_AFTER_REGISTRATION if after_registration else _Operation.LOOKUP
        return self._get_or_request(operation, subject, schema)

    def get_latest(
        self, subject: str, *, as_serialized_descriptor: bool = False, stream_start_id: str | None = None
    ) -> RegisteredSchema:
        """Return the latest version of the subject.

        Raise SchemaRegistryError if the request fails, or if the version has write rules.

        `as_serialized_descriptor`: request a Protobuf schema as a serialized descriptor.
        `stream_start_id`: an id for one run of a Spark stream, for which the version is cached until the process ends.
        An empty id means that it is cached for up to a minute. If it is None, every call queries the registry.
        """
        operation = _Operation.GET_LATEST_SERIALIZED if as_serialized_descriptor else _Operation.GET_LATEST
        if stream_start_id is None:
            return self._request_schema(operation, subject, schema=None)
        return self._get_or_request(operation, subject, schema=None, stream_start_id=stream_start_id)

    def sanitize(self, text: str, max_characters: int = 1_000) -> str:
        """Return text from the registry in a form that is safe in errors and logs."""
        return self._transport.sanitize(text, max_characters)

    def _get_or_request(
        self, operation: _Operation, subject: str, schema: Schema | None, stream_start_id: str = ""
    ) -> RegisteredSchema:
        """Return the schema from the cache, or request it and add it to the cache.

        A cached schema expires after _MAX_CACHE_AGE_S or, if `stream_start_id` is set, never. It is also lost if the
        cache becomes full.
        """
        key = _CacheKey(operation, subject, schema, stream_start_id)
        entry = self._cache.get(key)
        if entry is not None and self._now_s() < entry.expires_at_s:
            return entry.schema
        if len(self._cache) >= _MAX_CACHED_SCHEMAS:
            self._cache.clear()
        registered_schema = self._request_schema(operation, subject, schema)
        # A running stream must not change its schema, so its entries never expire.
        expires_at_s = math.inf if stream_start_id else self._now_s() + _MAX_CACHE_AGE_S
        self._cache[key] = _CacheEntry(registered_schema, expires_at_s)
        return registered_schema

    def _request_schema(self, operation: _Operation, subject: str, schema: Schema | None) -> RegisteredSchema:
        """Perform the operation on the registry, and return the schema from its response.

        Raise SchemaRegistryError if a request fails, or if this sink does not support the schema or its rules.

        `schema`: the schema to register or look up; None for the other operations.
        """
        if schema is None:
            query = "?format=serialized" if operation is _Operation.GET_LATEST_SERIALIZED else ""
            response = self._fetch_latest_version(subject, query)
        else:
            response = self._post_schema(operation, subject, schema)
        # Some registries respond to a registration with the id alone, so fetch the version that contains the rules.
        has_only_id = "schema" not in response and "ruleSet" not in response
        version = self._fetch_version_after_registration(subject) if has_only_id else response
        self._reject_write_rules(subject, version)
        return self._parse_registered_schema(subject, response)

    def _post_schema(self, operation: _Operation, subject: str, schema: Schema) -> Mapping[str, Any]:
        """Register the schema or look it up, and return the JSON object of the response."""
        path = _build_subject_path(subject) + ("/versions" if operation is _Operation.REGISTER else "")
        query = "?normalize=true" if self._config.normalize else ""
        is_after_registration = operation is _Operation.LOOKUP_AFTER_REGISTRATION
        return self._transport.request(
            "POST",
            path + query,
            subject=subject,
            body=_encode_schema(schema),
            not_found_problem="does not have this schema" if operation is _Operation.LOOKUP else None,
            retriable_statuses=_STATUSES_AFTER_REGISTRATION if is_after_registration else RETRIABLE_STATUSES,
        )

    def _fetch_version_after_registration(self, subject: str) -> Mapping[str, Any]:
        """Return the JSON object of the subject's latest version, right after a schema was registered."""
        return self._fetch_latest_version(subject, retriable_statuses=_STATUSES_AFTER_REGISTRATION)

    def _fetch_latest_version(
        self, subject: str, query: str = "", retriable_statuses: Sequence[int] = RETRIABLE_STATUSES
    ) -> Mapping[str, Any]:
        """Return the JSON object of the subject's latest version.

        `query`: the query string of the URL, including its `?`.
        """
        path = f"{_build_subject_path(subject)}/versions/latest{query}"
        return self._transport.request(
            "GET",
            path,
            subject=subject,
            not_found_problem="has no version",
            retriable_statuses=retriable_statuses,
        )

    def _parse_registered_schema(self, subject: str, response: Mapping[str, Any]) -> RegisteredSchema:
        """Parse the JSON object of a response. Raise SchemaRegistryError if it has no valid schema id."""
        schema_id, text = response.get("id"), response.get("schema", "")
        # Compare the type, because isinstance() also accepts bools.
        if type(schema_id) is not int or not 0 <= schema_id < 1 << 31 or not isinstance(text, str):
            raise SchemaRegistryError(
                f"The schema registry's response about subject '{subject}' has no valid schema id. Check the "
                f"path of {self._config.spell('schema.registry.url')}."
            )
        schema_type = self.sanitize(str(response.get("schemaType", "AVRO")), max_characters=40)
        has_references = bool(response.get("references"))
        return RegisteredSchema(schema_id, schema_type, text, _parse_guid(response.get("guid")), has_references)

    def _reject_write_rules(self, subject: str, version: Mapping[str, Any]) -> None:
        """Raise SchemaRegistryError if this version of the subject has rules that serializers must execute.

        All rules that apply are in this version, because the registry copies the default rules of the subject and the
        rules of the previous version into each new version.

        `version`: the JSON object of the version.
        """
        rules = describe_active_write_rules(version.get("ruleSet"))
        if rules:
            raise SchemaRegistryError(
                f"Subject '{subject}' has {format_count(len(rules), 'active write rule')} in the schema registry, "
                f"which this connector cannot execute: {self.sanitize(', '.join(rules))}. Disable the rules for this "
                "subject, or write the topic with a client that executes them."
            )


def _parse_guid(guid: object) -> UUID | None:
    """Parse a GUID. Return None if it is missing or invalid."""
    try:
        return UUID(str(guid))
    except ValueError:
        return None


@lru_cache(maxsize=16)
def get_registry_client(config: RegistryConfig) -> SchemaRegistryClient:
    """Return the client for this configuration, which all writes of the process share."""
    return SchemaRegistryClient(config)


def _build_subject_path(subject: str) -> str:
    return f"/subjects/{urllib.parse.quote(subject, safe='')}"


def _encode_schema(schema: Schema) -> bytes:
    """Encode a schema as the JSON body of a request."""
    schema_type = {} if schema.schema_type == "AVRO" else {"schemaType": schema.schema_type}
    return json.dumps({**schema_type, "schema": schema.text}).encode()
