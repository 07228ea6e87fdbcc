"""A client of a Schema Registry that speaks Confluent's HTTP interface, for the driver.

It asks for the id of a schema: registers it, looks it up, or takes the latest of a subject. Tasks get the id in the
header of their records and never talk to the registry. The id of a schema is kept for the life of the process, and so
is the latest schema for a stream until it is started again, since a stream plans each of its micro-batches anew.

urllib3 carries the requests, with retries where the registry may do better in a moment; a request that is made twice
does nothing more than once. Answers are bounded, redirects are not followed.
"""

from __future__ import annotations

import json
import logging
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from spark_kafka_sink.errors import ConfigurationError, MissingDependencyError, SchemaRegistryError
from spark_kafka_sink.network.security.tls_context import TlsConfig, client_context

ANSWER_BYTES_MAX = 16 << 20
RETRIES_MAX = 3
_TRY_AGAIN = (408, 429, 500, 502, 503, 504)
_KNOWN_MAX = 1_000
_NOT_FOUND = (40401, 40402, 40403)
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_log = logging.getLogger(__name__)


class Schema(NamedTuple):
    """A schema as a registry keeps it. `kind` is AVRO, JSON or PROTOBUF; `name` that of its record or message."""

    kind: str
    text: str
    name: str


class Registered(NamedTuple):
    id: int
    kind: str
    text: str


@dataclass(frozen=True)
class RegistryConfig:
    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls: TlsConfig = field(default_factory=TlsConfig)
    timeout_ms: int = 30_000
    normalize: bool = False

    def __post_init__(self) -> None:
        if (self.user_info or self.token) and any(_is_open(url) for url in self.urls):
            _warn_once("schema.registry.url is http: the credentials travel in clear. Use https.")


class SchemaRegistry:
    """Not for several threads: the driver plans one write after the other."""

    def __init__(self, config: RegistryConfig) -> None:
        self._config = config
        self._pool = _pool(config)
        self._known: dict[tuple[Any, ...], Registered] = {}

    def register(self, subject: str, schema: Schema) -> int:
        """The id of the schema, which is registered as the subject's newest version if it is none yet."""
        return self._once("register", subject, schema).id

    def lookup(self, subject: str, schema: Schema) -> int:
        """The id of a schema that the subject has already."""
        return self._once("lookup", subject, schema).id

    def latest(self, subject: str, *, is_serialized: bool = False, start: str | None = None) -> Registered:
        """The newest version of the subject; that of a Protobuf schema as a descriptor, if it `is_serialized`.

        `start`: which start of a stream asks; it gets what it got before. None: a job, which gets what is newest now.
        """
        what = "serialized" if is_serialized else "latest"
        return self._asked(what, subject, None) if start is None else self._once(what, subject, None, start)

    def _once(self, what: str, subject: str, schema: Schema | None, start: str = "") -> Registered:
        key = (what, subject, schema, start)
        if key not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = self._asked(what, subject, schema)
        return self._known[key]

    def _asked(self, what: str, subject: str, schema: Schema | None) -> Registered:
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}"
        if schema is None:
            query = "?format=serialized" if what == "serialized" else ""
            answer = self._request("GET", f"{path}/versions/latest{query}", None, subject)
        else:
            path += "/versions" if what == "register" else ""
            query = "?normalize=true" if self._config.normalize else ""
            answer = self._request("POST", path + query, schema, subject)
        number, kind, text = answer.get("id"), answer.get("schemaType", "AVRO"), answer.get("schema", "")
        if not isinstance(number, int) or not 0 <= number < 1 << 31 or not isinstance(text, str):
            raise SchemaRegistryError(
                f"The schema registry's answer about the subject '{subject}' has no id of a schema."
            )
        if schema is None and answer.get("references"):
            raise SchemaRegistryError(
                f"The latest schema of the subject '{subject}' refers to other subjects, which is not supported. Give "
                "the whole schema with valueSchema and set schemaSource to 'lookup'."
            )
        return Registered(number, str(kind), text)

    def _request(self, method: str, path: str, schema: Schema | None, subject: str) -> Mapping[str, Any]:
        faults = []
        for url in self._config.urls:
            try:
                status, data = self._exchange(method, url.rstrip("/") + path, _body(schema))
            except SchemaRegistryError as error:
                faults.append(f"{url}: {error}")
                continue
            answer = _json_object(data)
            if status == 200:
                return answer
            if status not in _TRY_AGAIN:
                raise SchemaRegistryError(_refusal(status, answer, subject, schema))
            faults.append(f"{url}: status {status} {_message(answer)}".rstrip())
        raise SchemaRegistryError(
            f"The schema registry gave no answer ({'; '.join(faults)}). Check schema.registry.url, and that the driver "
            "can reach it."
        )

    def _exchange(self, method: str, url: str, body: bytes | None) -> tuple[int, bytes]:
        import urllib3

        try:
            response = self._pool.request(method, url, body=body, preload_content=False, redirect=False)
            with response:
                data = response.read(ANSWER_BYTES_MAX + 1)
        except urllib3.exceptions.HTTPError as error:
            raise SchemaRegistryError(_words(error)) from error
        if len(data) > ANSWER_BYTES_MAX:
            raise SchemaRegistryError(f"the answer exceeds {ANSWER_BYTES_MAX} bytes")
        return response.status, data


@lru_cache(maxsize=16)
def schema_registry(config: RegistryConfig) -> SchemaRegistry:
    """One for each configuration of this process."""
    return SchemaRegistry(config)


def check_urls(text: str) -> tuple[str, ...]:
    """Addresses between commas. ConfigurationError repeats none of them: one may hold a password."""
    urls = tuple(part.strip() for part in text.split(",") if part.strip())
    for url in urls:
        try:
            parts = urllib.parse.urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigurationError("schema.registry.url has an address that is none.") from error
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigurationError("schema.registry.url must be addresses that begin with https:// or http://.")
        if parts.username or parts.password:
            raise ConfigurationError(
                "schema.registry.url must have no user and password in it; set schema.registry.basic.auth.user.info."
            )
    if not urls:
        raise ConfigurationError("schema.registry.url is not set; a format that ends in '-confluent' needs it.")
    return urls


def _pool(config: RegistryConfig) -> Any:
    try:
        import urllib3
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            'A schema registry needs the package urllib3 on the driver: pip install "spark-kafka-sink[registry]".'
        ) from error
    headers = {"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE}
    if config.token is not None:
        headers["Authorization"] = f"Bearer {config.token}"
    elif config.user_info is not None:
        headers |= urllib3.make_headers(basic_auth=config.user_info)
    retries = urllib3.Retry(
        total=RETRIES_MAX,
        redirect=False,
        status_forcelist=_TRY_AGAIN,
        allowed_methods=None,
        backoff_factor=0.1,
        raise_on_status=False,
    )
    seconds = config.timeout_ms / 1000
    more: dict[str, Any] = {}
    if any(url.startswith("https") for url in config.urls):
        more = {"ssl_context": client_context(config.tls)}
        if not config.tls.check_hostname:
            more["assert_hostname"] = False
    return urllib3.PoolManager(headers=headers, retries=retries, timeout=urllib3.Timeout(seconds), **more)


def _body(schema: Schema | None) -> bytes | None:
    if schema is None:
        return None
    kind = {} if schema.kind == "AVRO" else {"schemaType": schema.kind}
    return json.dumps({**kind, "schema": schema.text}).encode()


def _refusal(status: int, answer: Mapping[str, Any], subject: str, schema: Schema | None) -> str:
    about = f"The schema registry refused the request about the subject '{subject}' (status {status})"
    if status in (401, 403):
        return f"{about}: check the credentials in schema.registry.basic.auth.user.info and what they may do."
    if answer.get("error_code") in _NOT_FOUND or status == 404:
        missing = "has no version" if schema is None else "does not have this schema"
        return (
            f"The subject '{subject}' {missing} in the schema registry. Register it, or set schemaSource to 'register'."
        )
    if status == 409:
        return (
            f"The schema is not compatible with earlier versions of the subject '{subject}'. Change the columns or the "
            f"schema so that old readers understand it, or the subject's compatibility level. {_message(answer)}"
        ).rstrip()
    return f"{about}: {_message(answer) or 'no reason given'}"


def _message(answer: Mapping[str, Any]) -> str:
    message = answer.get("message")
    return message[:1_000] if isinstance(message, str) else ""


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {str(reason)[:300]}"


def _json_object(data: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _is_open(url: str) -> bool:
    return url.startswith("http:") and urllib.parse.urlsplit(url).hostname not in _LOOPBACK


@lru_cache(maxsize=16)
def _warn_once(message: str) -> None:
    _log.warning("%s", message)
