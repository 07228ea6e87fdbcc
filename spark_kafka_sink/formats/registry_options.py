"""The options of a schema registry: `schema.registry.*`, under the names of Confluent's own serializers, and ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.client.option_parsing import (
    INT_MAX,
    ParsedOptions,
    choice_parser,
    integer_parser,
    parse_boolean,
    parse_optional_text,
    parse_text,
)
from spark_kafka_sink.errors import ConfigurationError, OptionFaults
from spark_kafka_sink.formats.options import FormatOptions
from spark_kafka_sink.formats.schema_registry import OPTION_PREFIX, RegistryConfig, parse_registry_urls
from spark_kafka_sink.network.security.tls_options import parse_tls
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.options import HiddenValueError, Option

REGISTRY_PREFIX = OPTION_PREFIX
SOURCES = ("register", "lookup", "latest")
_REGISTRY_FORMATS = {"json": "json-schema-confluent", "avro": "avro-confluent"}
"""Formats without a schema registry, and the corresponding format that has one."""
STRATEGIES = ("topic", "record", "topicRecord")


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


def _token(value: object) -> str | None:
    token = parse_optional_text(value)
    if token and not (token.isprintable() and token.isascii()):
        raise HiddenValueError("has a line break or another character that no token has")
    return token


_TLS = tuple(
    Option(
        f"{REGISTRY_PREFIX}{option.name}",
        option.default or "",
        parse_text,
        option.description.replace("the broker's", "the registry's"),
        secret=option.secret,
    )
    for option in SECURITY_OPTIONS.values()
    if option.name.startswith("ssl.") and not option.unsupported_reason and not option.ignored
)
REGISTRY_OPTIONS = (
    Option(
        "schema.registry.url",
        "",
        parse_text,
        "the addresses of the registry, between commas; the next is asked if one is down",
    ),
    Option(
        "schema.registry.basic.auth.user.info",
        None,
        parse_optional_text,
        "`user:password` for the registry.",
        secret=True,
    ),
    Option("schema.registry.bearer.auth.token", None, _token, "a token for the registry.", secret=True),
    Option(
        "schema.registry.request.timeout.ms",
        RegistryConfig.timeout_ms,
        integer_parser(1, INT_MAX),
        "how long a question to the registry may take, with each try and each wait",
    ),
    Option(
        "schema.registry.normalize.schemas",
        RegistryConfig.normalize,
        parse_boolean,
        "let the registry compare schemas in their normal form",
    ),
    Option(
        "schemaSource",
        RegistryOptions.source,
        choice_parser(*SOURCES),
        "`register` a new schema; `lookup`: it must be there; `latest`: take the subject's",
    ),
    Option(
        "subjectNameStrategy",
        RegistryOptions.strategy,
        choice_parser(*STRATEGIES),
        "`topic`: `<topic>-value`; `record`: the schema's name; `topicRecord`: both",
    ),
    *_TLS,
)


def parse_registry_options(
    parsed_options: ParsedOptions, formats: Sequence[FormatOptions], topic: str | None
) -> RegistryOptions | None:
    """The registry of the formats that have one, None if none has."""
    sides = [options for options in formats if options.has_registry]
    if not sides:
        if {"valueFormat", "keyFormat"} & parsed_options.invalid_fields:
            return None
        remedies = [
            f" The format '{options.format}' writes no schema id: set {{{options.side}Format}} to "
            f"'{_REGISTRY_FORMATS[options.format]}', or remove the option."
            for options in formats
        ]
        for option in REGISTRY_OPTIONS:
            if option.name in parsed_options.raw_values:
                text = f"has no effect, as no format has a schema registry.{''.join(remedies)}"
                parsed_options.faults.add(option.name, text)
        return None
    registry = _registry(parsed_options)
    for options in sides:
        _check_subject(options, registry, topic, parsed_options.faults)
    return registry


def _check_subject(options: FormatOptions, registry: RegistryOptions, topic: str | None, faults: OptionFaults) -> None:
    if options.subject:
        return
    subject = f"{options.side}Subject"
    if topic is None and registry.strategy != "record":
        faults.add(
            subject,
            f"must be set, as the schema of the {options.side} has no subject. Set {{topic}} in its place, or "
            "{subjectNameStrategy} to 'record'.",
        )
    if registry.source == "latest" and registry.strategy != "topic" and not options.schema.name:
        faults.add(
            "schemaSource",
            f"is 'latest' and {{subjectNameStrategy}} '{registry.strategy}', so the record's name must be in "
            f"{{{options.side}SchemaName}}, or the subject in {{{subject}}}.",
        )


def _registry(parsed_options: ParsedOptions) -> RegistryOptions:
    values = {name.removeprefix("schema_registry_"): value for name, value in parsed_options.values.items()}
    urls: tuple[str, ...] = ()
    try:
        urls = parse_registry_urls(values["url"])
    except ConfigurationError as error:
        parsed_options.faults += error.unrendered_faults
    if values["basic_auth_user_info"] and values["bearer_auth_token"]:
        parsed_options.faults.add(
            "schema.registry.basic.auth.user.info", "cannot be set together with {schema.registry.bearer.auth.token}."
        )
    of_tls = OptionFaults()
    tls = parse_tls(
        {
            option.name.removeprefix(REGISTRY_PREFIX): parsed_options.values[option.field]
            for option in _TLS
            if option.name in parsed_options.raw_values
        },
        of_tls,
    )
    parsed_options.faults += of_tls.with_prefix(REGISTRY_PREFIX)
    config = RegistryConfig(
        urls=urls,
        user_info=values["basic_auth_user_info"],
        token=values["bearer_auth_token"],
        tls=tls,
        timeout_ms=values["request_timeout_ms"],
        normalize=values["normalize_schemas"],
    )
    return RegistryOptions(config, values["schemaSource"], values["subjectNameStrategy"])
