"""Client of a schema registry with Confluent's HTTP API, used on the driver.

The client registers a schema, looks it up, or fetches the latest schema of a subject. The tasks receive the schema id
with their encoder and never connect to the registry. A stream plans each micro-batch separately, so the client caches
schemas in the process: registered schemas for up to a minute, and the latest schema for each start of a stream. The
process is Spark's Python worker. Spark stops a worker that has been idle for a minute, so the next micro-batch queries
the registry again.

Requests are idempotent, so they are retried after errors that may be temporary. The timeout
`schema.registry.request.timeout.ms` covers all attempts and backoffs. Text from the registry appears in errors and logs
on one line, with bounded length, and without the credentials that were sent.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import math
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple
from uuid import UUID

from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.diagnostics.text import format_count, mask_secrets, sanitize
from spark_kafka_sink.errors import ConfigurationError, OptionFault, SchemaRegistryError
from spark_kafka_sink.network.http_client import (
    HttpResponse,
    HttpResponseTooLong,
    describe_http_error,
    find_url_error,
    is_https,
    is_loopback,
    open_connection,
    parse_json_object,
    send_request,
)
from spark_kafka_sink.network.security.tls_context import TlsConfig, build_client_ssl_context

MAX_RESPONSE_BYTES = 16 << 20
MAX_RETRIES = 3
OPTION_PREFIX = "schema.registry."
_BACKOFF_S = 0.1
"""Backoff before the first retry. It doubles with each further retry."""
_RETRIABLE_STATUSES = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_NOT_FOUND_ERRORS = (40401, 40402, 40403)
"""The registry's error codes for an unknown subject, version or schema."""
_MAX_CACHED_SCHEMAS = 1_000
_MAX_CACHE_AGE_S = 60.0
"""Maximum age of a cached schema. Without a limit, a program that runs for days would miss new rules of a subject."""
_WRITE_RULE_LISTS = ("domainRules", "encodingRules")
_NON_WRITE_RULE_MODES = ("READ", "UPGRADE", "DOWNGRADE", "UPDOWN")
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_OPTION = "schema.registry.request.timeout.ms"

_log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class RegistryConfig:
    """The URLs and credentials of a schema registry."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls: TlsConfig = field(default_factory=TlsConfig)
    timeout_ms: int = 30_000
    normalize: bool = False

    def __post_init__(self) -> None:
        has_credentials = bool(self.user_info or self.token)
        # Requests to a loopback address do not leave this machine.
        is_exposed = any(not (is_https(url) or is_loopback(url)) for url in self.urls)
        if has_credentials and is_exposed:
            warn_once(_log, "schema.registry.url is http, which sends the credentials unencrypted. Use https.")


class _Operation(Enum):
    """The operation that a query performs."""

    REGISTER = "register"
    """Register the given schema, unless the subject already has it."""
    LOOKUP = "lookup"
    """Look up the id of the given schema."""
    GET_LATEST = "latest"
    """Get the latest schema as text."""
    GET_LATEST_SERIALIZED = "serialized"
    """Get the latest schema, which is a Protobuf schema, as a serialized descriptor."""


class _FailedAttempt(NamedTuple):
    """A failed request to one URL.

    `min_backoff_s`: the minimum delay before a retry, or None if a retry cannot succeed.
    """

    message: str
    min_backoff_s: float | None = 0.0


class SchemaRegistryClient:
    """A client of a schema registry. It is not thread-safe: the driver plans one write at a time."""

    def __init__(
        self,
        config: RegistryConfig,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._now_s = now_s
        self._sleep = sleep
        self._ssl_context: ssl.SSLContext | None = None
        if any(is_https(url) for url in config.urls):
            try:
                self._ssl_context = build_client_ssl_context(config.tls)
            except ConfigurationError as error:
                raise error.with_prefix(OPTION_PREFIX) from error
        self._headers = {"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE}
        secrets = [config.token]  # masked in errors and logs
        if config.token is not None:
            self._headers["Authorization"] = f"Bearer {config.token}"
        elif config.user_info is not None:
            _, _, password = config.user_info.partition(":")
            credentials = base64.b64encode(config.user_info.encode()).decode()
            self._headers["Authorization"] = f"Basic {credentials}"
            secrets += [config.user_info, password, credentials]
        self._secrets = [secret for secret in secrets if secret]
        self._cache: dict[tuple[Any, ...], tuple[RegisteredSchema, float]] = {}
        """Schemas, each with its expiry time on the monotonic clock."""

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return the registered schema, and register it as a new version of the subject if it is not registered yet."""
        return self._get_cached(_Operation.REGISTER, subject, schema)

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return the registered schema. Raise SchemaRegistryError if the subject does not have it."""
        return self._get_cached(_Operation.LOOKUP, subject, schema)

    def get_latest(
        self, subject: str, *, is_serialized: bool = False, stream_start: str | None = None
    ) -> RegisteredSchema:
        """Return the latest version of the subject.

        `is_serialized`: request a Protobuf schema as a serialized descriptor.
        `stream_start`: identifies one start of a Spark stream. All calls with the same value return the same version.
        If it is None, every call queries the registry.
        """
        operation = _Operation.GET_LATEST_SERIALIZED if is_serialized else _Operation.GET_LATEST
        if stream_start is None:
            return self._query(operation, subject, schema=None)
        return self._get_cached(operation, subject, schema=None, stream_start=stream_start)

    def sanitize(self, text: str, max_characters: int = 1_000) -> str:
        """Return text from the registry in a form that is safe in errors and logs."""
        return sanitize(mask_secrets(text, self._secrets), max_characters)

    def _get_cached(
        self, operation: _Operation, subject: str, schema: Schema | None, stream_start: str = ""
    ) -> RegisteredSchema:
        """Return a cached schema, or query the registry and cache the result.

        A cached schema expires after _MAX_CACHE_AGE_S or, if `stream_start` is set, never.
        """
        key = (operation, subject, schema, stream_start)
        cached_schema, expires_at_s = self._cache.get(key, (None, 0.0))
        if cached_schema is None or self._now_s() >= expires_at_s:
            if len(self._cache) >= _MAX_CACHED_SCHEMAS:
                self._cache.clear()
            cached_schema = self._query(operation, subject, schema)
            expires_at_s = math.inf if stream_start else self._now_s() + _MAX_CACHE_AGE_S
            self._cache[key] = cached_schema, expires_at_s
        return cached_schema

    def _query(self, operation: _Operation, subject: str, schema: Schema | None) -> RegisteredSchema:
        """Query the registry and check the response. Raise SchemaRegistryError if the schema cannot be used.

        `schema`: the schema to register or look up; None for the other operations.
        """
        if schema is None:
            query = "?format=serialized" if operation is _Operation.GET_LATEST_SERIALIZED else ""
            response = self._fetch_latest_version(subject, query)
        else:
            response = self._post_schema(operation, subject, schema)
        has_only_id = "schema" not in response and "ruleSet" not in response
        self._reject_write_rules(subject, self._fetch_registered_version(subject) if has_only_id else response)
        registered_schema = self._parse_registered_schema(subject, response)
        if schema is None and response.get("references"):
            raise SchemaRegistryError(
                f"The latest schema of subject '{subject}' has references to other subjects, which are not supported. "
                "Set valueSchema to a schema without references, and schemaSource to 'lookup'."
            )
        return registered_schema

    def _post_schema(self, operation: _Operation, subject: str, schema: Schema) -> Mapping[str, Any]:
        """Register the schema or look it up, and return the JSON object of the response."""
        path = _build_subject_path(subject) + ("/versions" if operation is _Operation.REGISTER else "")
        query = "?normalize=true" if self._config.normalize else ""
        return self._request("POST", path + query, schema, subject)

    def _fetch_registered_version(self, subject: str) -> Mapping[str, Any]:
        """Fetch the latest version, for its rules, after a registration whose response contains only the id."""
        # A registry follower forwards registrations to the leader, and may not see the new version immediately. So
        # status 404 is retried.
        return self._fetch_latest_version(subject, retriable_statuses=(HTTPStatus.NOT_FOUND, *_RETRIABLE_STATUSES))

    def _fetch_latest_version(
        self, subject: str, query: str = "", retriable_statuses: Sequence[int] = _RETRIABLE_STATUSES
    ) -> Mapping[str, Any]:
        """Return the JSON object of the latest version. `query` is a query string, including its `?`."""
        path = f"{_build_subject_path(subject)}/versions/latest{query}"
        return self._request("GET", path, schema=None, subject=subject, retriable_statuses=retriable_statuses)

    def _parse_registered_schema(self, subject: str, response: Mapping[str, Any]) -> RegisteredSchema:
        """Convert a response. Raise SchemaRegistryError if it has no valid schema id."""
        schema_id, text = response.get("id"), response.get("schema", "")
        # Compare the type, because isinstance() also accepts bools.
        if type(schema_id) is not int or not 0 <= schema_id < 1 << 31 or not isinstance(text, str):
            raise SchemaRegistryError(
                f"The schema registry's response about subject '{subject}' has no valid schema id."
            )
        schema_type = self.sanitize(str(response.get("schemaType", "AVRO")), max_characters=40)
        return RegisteredSchema(schema_id, schema_type, text, _parse_guid(response.get("guid")))

    def _reject_write_rules(self, subject: str, version: Mapping[str, Any]) -> None:
        """Raise SchemaRegistryError if this version of the subject has rules that serializers must execute.

        A registry copies the default rules of a subject and the rules of its previous version into each new version, so
        the rule set of the version is complete. A registry that answers a registration with the id alone does not say
        which rules apply. In this case `version` must be the subject's latest version.
        """
        rules = find_write_rules(version.get("ruleSet"))
        if rules:
            raise SchemaRegistryError(
                f"Subject '{subject}' has {format_count(len(rules), 'active write rule')} in the schema registry, "
                f"which this connector cannot execute: {self.sanitize(', '.join(rules))}. Disable the rules for this "
                "subject, or write the topic with a client that executes them."
            )

    def _request(
        self,
        method: str,
        path: str,
        schema: Schema | None,
        subject: str,
        retriable_statuses: Sequence[int] = _RETRIABLE_STATUSES,
    ) -> Mapping[str, Any]:
        """Send a request to each URL in turn, with retries, until one succeeds or the timeout expires.

        Each attempt tries every URL in turn, and divides the remaining time evenly among the URLs still to be tried.
        Return the JSON object of the response. Raise SchemaRegistryError if the registry rejects the request or the
        last attempt fails.

        `schema`: the request's body, or None for a request without a body.
        `subject`: the subject that error messages name.
        """
        deadline_s = self._now_s() + self._config.timeout_ms / 1000
        for attempt in range(1, MAX_RETRIES + 2):
            result = self._try_urls(method, path, schema, deadline_s, retriable_statuses)
            if isinstance(result, HttpResponse):
                if result.status == HTTPStatus.OK:
                    return parse_json_object(result.body)
                raise SchemaRegistryError(self._describe_rejection(result, subject, schema))
            message = "; ".join(failure.message for failure in result)
            # The next attempt tries all URLs, so it has to wait for the longest requested backoff.
            min_backoffs_s = [failure.min_backoff_s for failure in result if failure.min_backoff_s is not None]
            can_retry = attempt <= MAX_RETRIES and bool(min_backoffs_s)
            backoff_s = max([_BACKOFF_S * 2 ** (attempt - 1), *min_backoffs_s])
            remaining_s = deadline_s - self._now_s()
            if not can_retry or backoff_s >= remaining_s:
                break
            _log.warning("The request to the schema registry failed (%s). Retrying in %.1f s.", message, backoff_s)
            self._sleep(backoff_s)
        # The loop ends only with `break`, so its variables describe the last attempt.
        requested_backoff_s = max(min_backoffs_s, default=0.0)
        remaining_s = max(0.0, remaining_s)
        if requested_backoff_s > remaining_s:
            message += f"; the requested backoff is {requested_backoff_s:.0f} s, but only {remaining_s:.1f} s remain"
        raise SchemaRegistryError(
            f"The request to the schema registry failed after {format_count(attempt, 'attempt')}: "
            f"{message.removesuffix('.')}. The timeout is {self._config.timeout_ms} ms for all attempts "
            f"({_TIMEOUT_OPTION}). Check schema.registry.url, and that the driver can reach the registry."
        )

    def _try_urls(
        self, method: str, path: str, schema: Schema | None, deadline_s: float, retriable_statuses: Sequence[int]
    ) -> HttpResponse | list[_FailedAttempt]:
        """Send a request to each URL in turn. Return the first final response, or one failure for each URL."""
        failures: list[_FailedAttempt] = []
        for index, url in enumerate(self._config.urls):
            untried_count = len(self._config.urls) - index
            timeout_s = (deadline_s - self._now_s()) / untried_count
            result = self._try_request(method, url, path, schema, timeout_s, retriable_statuses)
            if isinstance(result, HttpResponse):
                return result
            failures.append(result)
        return failures

    def _try_request(
        self,
        method: str,
        url: str,
        path: str,
        schema: Schema | None,
        timeout_s: float,
        retriable_statuses: Sequence[int],
    ) -> HttpResponse | _FailedAttempt:
        """Send a request to one URL. Return a _FailedAttempt if the request may succeed later or with another URL."""
        full_url, deadline_s = url.rstrip("/") + path, self._now_s() + timeout_s
        try:
            connection = open_connection(full_url, self._ssl_context, timeout_s)
            response = send_request(
                connection,
                method,
                full_url,
                self._headers,
                _encode_body(schema),
                timeout_s=max(0.001, deadline_s - self._now_s()),
                max_bytes=MAX_RESPONSE_BYTES,
            )
        except (HttpResponseTooLong, ssl.SSLCertVerificationError) as error:
            return _FailedAttempt(f"{url}: {describe_http_error(error)}", min_backoff_s=None)
        except (OSError, http.client.HTTPException) as error:
            return _FailedAttempt(f"{url}: {describe_http_error(error)}")
        if response.status not in retriable_statuses:
            return response
        message = self._sanitize_message(parse_json_object(response.body))
        return _FailedAttempt(
            f"{url}: status {response.status} {message}".rstrip(), _parse_retry_after_s(response.retry_after)
        )

    def _describe_rejection(self, response: HttpResponse, subject: str, schema: Schema | None) -> str:
        """Describe the cause of an error response that is not retried, and its remedy."""
        status, body = response.status, parse_json_object(response.body)
        prefix = f"The schema registry rejected the request for subject '{subject}' (status {status})"
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return f"{prefix}: {self._describe_credentials_remedy()}"
        if body.get("error_code") in _NOT_FOUND_ERRORS or status == HTTPStatus.NOT_FOUND:
            problem = "has no version" if schema is None else "does not have this schema"
            return (
                f"Subject '{subject}' {problem} in the schema registry. Register the schema, or set schemaSource to "
                "'register'."
            )
        if status == HTTPStatus.CONFLICT:
            return (
                f"The schema is incompatible with earlier versions of subject '{subject}'. Change the columns or the "
                "schema so that consumers of earlier versions can read it, or change the compatibility level of the "
                f"subject. {self._sanitize_message(body)}"
            ).rstrip()
        return f"{prefix}: {self._sanitize_message(body) or 'no reason given'}"

    def _describe_credentials_remedy(self) -> str:
        if self._config.token is not None:
            return "check the token in schema.registry.bearer.auth.token and the permissions of its owner."
        if self._config.user_info is not None:
            return "check the credentials in schema.registry.basic.auth.user.info and their permissions."
        return (
            "the request had no credentials: set schema.registry.basic.auth.user.info or "
            "schema.registry.bearer.auth.token."
        )

    def _sanitize_message(self, body: Mapping[str, Any]) -> str:
        message = body.get("message")
        return self.sanitize(message) if isinstance(message, str) else ""


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


def parse_registry_urls(text: str) -> tuple[str, ...]:
    """Parse comma-separated URLs. The text of a ConfigurationError contains no URL, since a URL may hold a password."""
    urls = tuple(part.strip() for part in text.split(",") if part.strip())
    for url in urls:
        problem = find_url_error(url) or ("must have no query ('?...') in it" if "?" in url else None)
        if problem is not None:
            has_password = "password" in problem
            text = "{problem}; set {schema.registry.basic.auth.user.info}." if has_password else "{problem}."
            raise ConfigurationError(OptionFault("schema.registry.url", text, {"problem": problem}))
    if not urls:
        raise ConfigurationError(
            OptionFault("schema.registry.url", "is not set, but formats that end in '-confluent' require it.")
        )
    return urls


def find_write_rules(rule_set: object) -> list[str]:
    """Return descriptions of the active rules in a `ruleSet` that apply when a record is written.

    A rule is inactive only if it is disabled or if its mode is known to concern readers or migrations.
    """
    if rule_set is None:
        return []
    if isinstance(rule_set, Mapping):
        rule_lists = [rule_set.get(name) or [] for name in _WRITE_RULE_LISTS]
    else:
        rule_lists = [rule_set]  # report a rule set of unknown form as a rule
    rules: list[object] = []
    for rule_list in rule_lists:
        rules += rule_list if isinstance(rule_list, list) else [rule_list]
    return [_describe_rule(rule) for rule in rules if not _is_inactive_rule(rule)]


def _is_inactive_rule(rule: object) -> bool:
    return isinstance(rule, Mapping) and (rule.get("disabled") is True or rule.get("mode") in _NON_WRITE_RULE_MODES)


def _describe_rule(rule: object) -> str:
    if not isinstance(rule, Mapping):
        return "a rule of unknown form"
    return f"'{rule.get('name')}' (type {rule.get('type')}, mode {rule.get('mode')})"


def _build_subject_path(subject: str) -> str:
    return f"/subjects/{urllib.parse.quote(subject, safe='')}"


def _encode_body(schema: Schema | None) -> bytes | None:
    if schema is None:
        return None
    schema_type = {} if schema.schema_type == "AVRO" else {"schemaType": schema.schema_type}
    return json.dumps({**schema_type, "schema": schema.text}).encode()


def _parse_retry_after_s(retry_after: str | None) -> float:
    """Return the delay in a Retry-After header, or 0 if the header is missing or contains a date."""
    return float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdecimal() else 0.0
