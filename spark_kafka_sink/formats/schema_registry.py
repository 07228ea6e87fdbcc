"""A client of a Schema Registry that speaks Confluent's HTTP interface, for the driver.

It asks for the id of a schema: registers it, looks it up, or takes the latest of a subject. Tasks get the id in the
header of their records and never talk to the registry. A stream plans each of its micro-batches anew, so the id of a
schema is kept for the life of the process, and so is the latest schema for each start of a stream. The process is
Spark's Python worker: Spark ends one that was idle for a minute, and the next micro-batch asks again.

A question is asked again where the registry may do better in a moment: a request that is made twice does nothing more
than once. All of it, each try and each wait, has the time of `schema.registry.request.timeout.ms`. What a registry says
comes into an error or a log on one line, of bounded length, and without the credentials that it was sent.
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
from functools import lru_cache
from typing import Any, NamedTuple

from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.diagnostics.text import format_count, mask_secrets, sanitize
from spark_kafka_sink.errors import ConfigurationError, OptionFault, SchemaRegistryError
from spark_kafka_sink.network.http_exchange import (
    HttpResponse,
    HttpResponseTooLong,
    asked,
    connected,
    failure_words,
    is_encrypted,
    is_loopback,
    json_object,
    url_fault,
)
from spark_kafka_sink.network.security.tls_context import TlsConfig, client_context

ANSWER_BYTES_MAX = 16 << 20
RETRIES_MAX = 3
_BACKOFF_S = 0.1
_TRY_AGAIN = (408, 429, 500, 502, 503, 504)
_KNOWN_MAX = 1_000
_NOT_FOUND = (40401, 40402, 40403)
_WRITE_RULE_LISTS = ("domainRules", "encodingRules")
_NON_WRITE_RULE_MODES = ("READ", "UPGRADE", "DOWNGRADE", "UPDOWN")
OPTION_PREFIX = "schema.registry."
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_TIMEOUT = "schema.registry.request.timeout.ms"

_log = logging.getLogger(__name__)


class Schema(NamedTuple):
    """A schema as a registry keeps it. `kind` is AVRO, JSON or PROTOBUF; `name` that of its record or message."""

    kind: str
    text: str
    name: str


class RegisteredSchema(NamedTuple):
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
        if (self.user_info or self.token) and any(not (is_encrypted(url) or is_loopback(url)) for url in self.urls):
            warn_once(_log, "schema.registry.url is http: the credentials travel in clear. Use https.")


class _Unanswered(NamedTuple):
    """One address gave no answer that counts; it may be asked again after `wait_s`, if at all."""

    words: str
    wait_s: float = 0.0


class SchemaRegistryClient:
    """Not for several threads: the driver plans one write after the other."""

    def __init__(
        self,
        config: RegistryConfig,
        *,
        now_s: Callable[[], float] = time.monotonic,
        wait_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._now_s = now_s
        self._wait_s = wait_s
        self._context: ssl.SSLContext | None = None
        if any(is_encrypted(url) for url in config.urls):
            try:
                self._context = client_context(config.tls)
            except ConfigurationError as error:
                raise error.with_prefix(OPTION_PREFIX) from error
        self._headers = {"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE}
        secrets = [config.token]
        if config.token is not None:
            self._headers["Authorization"] = f"Bearer {config.token}"
        elif config.user_info is not None:
            encoded = base64.b64encode(config.user_info.encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
            secrets += [config.user_info, config.user_info.partition(":")[2], encoded]
        self._secrets = [secret for secret in secrets if secret]
        self._known: dict[tuple[Any, ...], RegisteredSchema] = {}

    def register(self, subject: str, schema: Schema) -> int:
        """The id of the schema, which is registered as the subject's newest version if it is none yet."""
        return self._once("register", subject, schema).id

    def lookup(self, subject: str, schema: Schema) -> int:
        """The id of a schema that the subject has already."""
        return self._once("lookup", subject, schema).id

    def latest(self, subject: str, *, is_serialized: bool = False, start: str | None = None) -> RegisteredSchema:
        """The newest version of the subject; that of a Protobuf schema as a descriptor, if it `is_serialized`.

        `start`: which start of a stream asks; it gets what it got before. None: a job, which gets what is newest now.
        """
        what = "serialized" if is_serialized else "latest"
        return self._asked(what, subject, None) if start is None else self._once(what, subject, None, start)

    def _once(self, what: str, subject: str, schema: Schema | None, start: str = "") -> RegisteredSchema:
        key = (what, subject, schema, start)
        if key not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = self._asked(what, subject, schema)
        return self._known[key]

    def _asked(self, what: str, subject: str, schema: Schema | None) -> RegisteredSchema:
        path = _subject_path(subject)
        if schema is None:
            query = "?format=serialized" if what == "serialized" else ""
            answer = self._latest_version(subject, query)
        else:
            path += "/versions" if what == "register" else ""
            query = "?normalize=true" if self._config.normalize else ""
            answer = self._request("POST", path + query, schema, subject)
        has_rule_set = "schema" in answer or "ruleSet" in answer
        # A follower of the registry forwards a registration to its leader and may see the new version a moment later.
        version = answer if has_rule_set else self._latest_version(subject, retry_statuses=(404, *_TRY_AGAIN))
        self._reject_write_rules(subject, version)
        number, kind, text = answer.get("id"), answer.get("schemaType", "AVRO"), answer.get("schema", "")
        if type(number) is not int or not 0 <= number < 1 << 31 or not isinstance(text, str):
            raise SchemaRegistryError(
                f"The schema registry's answer about the subject '{subject}' has no id of a schema."
            )
        if schema is None and answer.get("references"):
            raise SchemaRegistryError(
                f"The latest schema of the subject '{subject}' refers to other subjects, which is not supported. Give "
                "the whole schema with valueSchema and set schemaSource to 'lookup'."
            )
        return RegisteredSchema(number, self.shown(str(kind), 40), text)

    def _latest_version(
        self, subject: str, query: str = "", retry_statuses: Sequence[int] = _TRY_AGAIN
    ) -> Mapping[str, Any]:
        path = f"{_subject_path(subject)}/versions/latest{query}"
        return self._request("GET", path, None, subject, retry_statuses)

    def _reject_write_rules(self, subject: str, version: Mapping[str, Any]) -> None:
        """Raise SchemaRegistryError if serializers must execute rules of this version of the subject.

        A registry copies the default rules of a subject and the rules of its previous version into each new version, so
        the rule set of the version is complete. A registry that answers a registration with the id alone does not say
        which rules apply; the caller passes the subject's latest version then.
        """
        rules = find_write_rules(version.get("ruleSet"))
        if rules:
            raise SchemaRegistryError(
                f"The subject '{subject}' has {format_count(len(rules), 'active write rule')} in the schema registry, "
                f"which this connector cannot execute: {self.shown(', '.join(rules))}. Disable the rules for this "
                "subject, or write the topic with a client that executes them."
            )

    def shown(self, words: str, characters_max: int = 1_000) -> str:
        """Words that came from the registry, as they may stand in an error or a log."""
        return sanitize(mask_secrets(words, self._secrets), characters_max)

    def _request(
        self,
        method: str,
        path: str,
        schema: Schema | None,
        subject: str,
        retry_statuses: Sequence[int] = _TRY_AGAIN,
    ) -> Mapping[str, Any]:
        """Asks each address, and all of them again after a wait, until one answers or the time is over."""
        until_s = self._now_s() + self._config.timeout_ms / 1000
        for attempt in range(1, RETRIES_MAX + 2):
            faults: list[_Unanswered] = []
            for number, url in enumerate(self._config.urls):
                share_s = (until_s - self._now_s()) / (len(self._config.urls) - number)
                found = self._asked_once(method, url, path, schema, share_s, retry_statuses)
                if isinstance(found, _Unanswered):
                    faults.append(found)
                elif found.status == 200:
                    return json_object(found.data)
                else:
                    raise SchemaRegistryError(self._refusal(found, subject, schema))
            words = "; ".join(fault.words for fault in faults)
            # All addresses rest as long as the one that wants the longest rest, except those that are not asked again.
            rests_s = [fault.wait_s for fault in faults if fault.wait_s < math.inf]
            left_s = until_s - self._now_s()
            rest_s = max([_BACKOFF_S * 2 ** (attempt - 1), *rests_s])
            if attempt > RETRIES_MAX or not rests_s or rest_s >= left_s:
                break
            _log.warning("The schema registry gave no answer (%s). It is asked again in %.1f s.", words, rest_s)
            self._wait_s(rest_s)
        if max(rests_s, default=0.0) > max(0.0, left_s):
            words += f"; it asks to wait for {rest_s:.0f} s, and {max(0.0, left_s):.1f} s are left"
        raise SchemaRegistryError(
            f"The schema registry gave no answer ({words}). It was asked {format_count(attempt, 'time')} and may take "
            f"{self._config.timeout_ms} ms in all ({_TIMEOUT}). Check schema.registry.url, and that the driver can "
            "reach it."
        )

    def _asked_once(
        self,
        method: str,
        url: str,
        path: str,
        schema: Schema | None,
        timeout_s: float,
        retry_statuses: Sequence[int],
    ) -> HttpResponse | _Unanswered:
        """What one address answers within this time."""
        whole, until_s = url.rstrip("/") + path, self._now_s() + timeout_s
        try:
            connection = connected(whole, self._context, timeout_s)
            answer = asked(
                connection,
                method,
                whole,
                self._headers,
                _body(schema),
                timeout_s=max(0.001, until_s - self._now_s()),
                bytes_max=ANSWER_BYTES_MAX,
            )
        except (HttpResponseTooLong, ssl.SSLCertVerificationError) as error:
            return _Unanswered(f"{url}: {failure_words(error)}", math.inf)
        except (OSError, http.client.HTTPException) as error:
            return _Unanswered(f"{url}: {failure_words(error)}")
        if answer.status not in retry_statuses:
            return answer
        said = self._message(json_object(answer.data))
        return _Unanswered(f"{url}: status {answer.status} {said}".rstrip(), _seconds(answer.retry_after))

    def _refusal(self, found: HttpResponse, subject: str, schema: Schema | None) -> str:
        status, answer = found.status, json_object(found.data)
        about = f"The schema registry refused the request about the subject '{subject}' (status {status})"
        if status in (401, 403):
            return f"{about}: {self._remedy_of_credentials()}"
        if answer.get("error_code") in _NOT_FOUND or status == 404:
            missing = "has no version" if schema is None else "does not have this schema"
            return (
                f"The subject '{subject}' {missing} in the schema registry. Register it, or set schemaSource to "
                "'register'."
            )
        if status == 409:
            return (
                f"The schema is not compatible with earlier versions of the subject '{subject}'. Change the columns or "
                "the schema so that old readers understand it, or the subject's compatibility level. "
                f"{self._message(answer)}"
            ).rstrip()
        return f"{about}: {self._message(answer) or 'no reason given'}"

    def _remedy_of_credentials(self) -> str:
        if self._config.token is not None:
            return "check the token in schema.registry.bearer.auth.token and what its owner may do."
        if self._config.user_info is not None:
            return "check the credentials in schema.registry.basic.auth.user.info and what they may do."
        return (
            "the request had no credentials: set schema.registry.basic.auth.user.info or "
            "schema.registry.bearer.auth.token."
        )

    def _message(self, answer: Mapping[str, Any]) -> str:
        message = answer.get("message")
        return self.shown(message) if isinstance(message, str) else ""


@lru_cache(maxsize=16)
def get_registry_client(config: RegistryConfig) -> SchemaRegistryClient:
    """One for each configuration of this process."""
    return SchemaRegistryClient(config)


def parse_registry_urls(text: str) -> tuple[str, ...]:
    """Addresses between commas. ConfigurationError repeats none of them: one may hold a password."""
    urls = tuple(part.strip() for part in text.split(",") if part.strip())
    for url in urls:
        fault = url_fault(url) or ("must have no query ('?...') in it" if "?" in url else None)
        if fault is not None:
            remedy = "; set {schema.registry.basic.auth.user.info}" if "password" in fault else ""
            raise ConfigurationError(OptionFault("schema.registry.url", f"{{fault}}{remedy}.", {"fault": fault}))
    if not urls:
        raise ConfigurationError(
            OptionFault("schema.registry.url", "is not set; a format that ends in '-confluent' needs it.")
        )
    return urls


def find_write_rules(rule_set: object) -> list[str]:
    """Name the active rules of a `ruleSet` that apply when a record is written.

    Only a rule that is disabled, or whose mode is known to concern readers or migrations, is left out.
    """
    if rule_set is None:
        return []
    lists = [rule_set.get(name) or [] for name in _WRITE_RULE_LISTS] if isinstance(rule_set, Mapping) else [rule_set]
    rules = [rule for entries in lists for rule in (entries if isinstance(entries, list) else [entries])]
    return [_describe_rule(rule) for rule in rules if not _is_inactive_rule(rule)]


def _is_inactive_rule(rule: object) -> bool:
    return isinstance(rule, Mapping) and (rule.get("disabled") is True or rule.get("mode") in _NON_WRITE_RULE_MODES)


def _describe_rule(rule: object) -> str:
    if not isinstance(rule, Mapping):
        return "a rule of unknown form"
    return f"'{rule.get('name')}' (type {rule.get('type')}, mode {rule.get('mode')})"


def _subject_path(subject: str) -> str:
    return f"/subjects/{urllib.parse.quote(subject, safe='')}"


def _body(schema: Schema | None) -> bytes | None:
    if schema is None:
        return None
    kind = {} if schema.kind == "AVRO" else {"schemaType": schema.kind}
    return json.dumps({**kind, "schema": schema.text}).encode()


def _seconds(retry_after: str | None) -> float:
    """How long a registry asks to wait; 0 if it does not say, or says it as a date."""
    return float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdecimal() else 0.0
