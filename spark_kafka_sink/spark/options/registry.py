"""The options of a schema registry: `schema.registry.*`, under the names of Confluent's own serializers, and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.formats.schema_registry import RegistryConfig, check_urls
from spark_kafka_sink.network.security.tls_options import parse_tls
from spark_kafka_sink.network.security_config import SECURITY_OPTIONS
from spark_kafka_sink.spark.options.formats import FormatOptions

PREFIX = "schema.registry."
SOURCES = ("register", "lookup", "latest")
STRATEGIES = ("topic", "record", "topicRecord")

_TLS = tuple(
    (
        f"{PREFIX}{option.name}",
        option.default or "",
        option.doc.replace("the broker's", "the registry's") + (" **Secret.**" if option.secret else ""),
    )
    for option in SECURITY_OPTIONS.values()
    if option.name.startswith("ssl.") and not option.refused and not option.ignored
)
REGISTRY_OPTIONS = (
    ("schema.registry.url", "", "the addresses of the registry, between commas; the next is asked if one is down"),
    ("schema.registry.basic.auth.user.info", "", "`user:password` for the registry. **Secret.**"),
    ("schema.registry.bearer.auth.token", "", "a token for the registry. **Secret.**"),
    (
        "schema.registry.request.timeout.ms",
        "30000",
        "how long a question to the registry may take, with each try and each wait",
    ),
    ("schema.registry.normalize.schemas", "false", "let the registry compare schemas in their normal form"),
    ("schemaSource", "register", "`register` a new schema; `lookup`: it must be there; `latest`: take the subject's"),
    ("subjectNameStrategy", "topic", "`topic`: `<topic>-value`; `record`: the schema's name; `topicRecord`: both"),
    *_TLS,
)
"""Names, defaults and meanings, for the table of all options."""


@dataclass(frozen=True)
class RegistryOptions:
    config: RegistryConfig
    source: str = SOURCES[0]
    strategy: str = STRATEGIES[0]

    def subject(self, side: str, topic: str | None, schema_name: str) -> str:
        """Under which name a schema of the topic's values or keys is kept."""
        if self.strategy == "topic":
            return f"{topic}-{side}"
        return schema_name if self.strategy == "record" else f"{topic}-{schema_name}"


def parse_registry(
    own: Mapping[str, str], formats: Sequence[FormatOptions], topic: str | None, faults: list[str]
) -> RegistryOptions | None:
    """The registry of the formats that have one; None if none has. `own` has its names in lower case."""
    sides = [options for options in formats if options.has_registry]
    if not sides:
        faults += [
            f"Option '{name}' has no effect, as no format has a schema registry."
            for name, _, _ in REGISTRY_OPTIONS
            if name.lower() in own
        ]
        return None
    registry = _registry(own, faults)
    for options in sides:
        if options.subject:
            continue
        if topic is None and registry.strategy != "record":
            faults.append(
                f"The schema of the {options.side} has no subject: set the option topic, {options.side}Subject, or "
                "subjectNameStrategy to 'record'."
            )
        if registry.source == "latest" and registry.strategy != "topic" and not options.schema.name:
            faults.append(
                f"schemaSource is 'latest' and subjectNameStrategy '{registry.strategy}', so the record's name must be "
                f"in {options.side}SchemaName, or the subject in {options.side}Subject."
            )
    return registry


def _registry(own: Mapping[str, str], faults: list[str]) -> RegistryOptions:
    given = {name.removeprefix(PREFIX): value.strip() for name, value in own.items() if name.startswith(PREFIX)}
    try:
        urls = check_urls(given.get("url", ""))
    except ConfigurationError as error:
        faults += error.faults
        urls = ()
    if given.get("basic.auth.user.info") and given.get("bearer.auth.token"):
        faults.append("schema.registry.basic.auth.user.info and schema.registry.bearer.auth.token exclude each other.")
    if not given.get("bearer.auth.token", "").isprintable() or not given.get("bearer.auth.token", "").isascii():
        faults.append("schema.registry.bearer.auth.token has a line break or another character that no token has.")
    tls_faults: list[str] = []
    tls = parse_tls(given, tls_faults)
    faults += [PREFIX + fault for fault in tls_faults]
    config = RegistryConfig(
        urls=urls,
        user_info=given.get("basic.auth.user.info") or None,
        token=given.get("bearer.auth.token") or None,
        tls=tls,
        timeout_ms=_milliseconds(given.get("request.timeout.ms", "30000"), faults),
        normalize=_boolean(given.get("normalize.schemas", "false"), faults),
    )
    source = _one_of(SOURCES, "schemaSource", own, faults)
    return RegistryOptions(config, source, _one_of(STRATEGIES, "subjectNameStrategy", own, faults))


def _milliseconds(text: str, faults: list[str]) -> int:
    if text.isdecimal() and 0 < int(text) < 1 << 31:
        return int(text)
    faults.append(f"schema.registry.request.timeout.ms must be a number of milliseconds, not {text!r}.")
    return 30_000


def _boolean(text: str, faults: list[str]) -> bool:
    if text.lower() not in ("true", "false"):
        faults.append(f"schema.registry.normalize.schemas must be 'true' or 'false', not {text!r}.")
    return text.lower() == "true"


def _one_of(known: tuple[str, ...], option: str, own: Mapping[str, str], faults: list[str]) -> str:
    given = own.get(option.lower(), known[0]).strip()
    found = next((name for name in known if name.lower() == given.lower()), None)
    if found is None:
        faults.append(f"Option '{option}' must be one of {', '.join(known)}, not {given!r}.")
    return found or known[0]
