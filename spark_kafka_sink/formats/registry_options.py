"""Options for the schema registry, and for the choice of schemas and subjects, such as `schemaSource`.

The options for the registry, `schema.registry.*`, are named as in Confluent's serializers.

Write the text of a problem as a predicate, such as "must be positive.", because OptionProblem puts the option's name
before it. Braces enclose the name of an option or of a value, and are replaced when the problem is shown to the user:

    problems.add("keySubject", "requires {keyFormat}, which is {format}.", format=key_format)  # an option and a value
    problems.add("keySubject", f"requires {option_placeholder(format_option)}.")  # an option in a variable
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.client.option_parsing import (
    INT_MAX,
    ParsedOptions,
    build_choice_parser,
    build_integer_parser,
    parse_boolean,
    parse_optional_text,
    parse_text,
)
from spark_kafka_sink.errors import (
    PLAIN_SPELLING,
    ConfigurationError,
    OptionProblems,
    OptionSpelling,
    option_placeholder,
)
from spark_kafka_sink.formats.options import FormatOptions
from spark_kafka_sink.formats.registry_transport import REGISTRY_PREFIX, RegistryConfig, parse_registry_urls
from spark_kafka_sink.network.security.tls_context import TlsConfig
from spark_kafka_sink.network.security.tls_options import parse_tls
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.options import HiddenValueError, Option, check_text

# Values of the options that select schemas and subjects. Users type them.
SCHEMA_SOURCES = ("register", "lookup", "latest")
SCHEMA_ID_LOCATIONS = ("prefix", "header")
TOPIC_STRATEGY, RECORD_STRATEGY, TOPIC_RECORD_STRATEGY = "topic", "record", "topicRecord"
SUBJECT_NAME_STRATEGIES = (TOPIC_STRATEGY, RECORD_STRATEGY, TOPIC_RECORD_STRATEGY)
_REGISTRY_COUNTERPARTS = {"json": "json-schema-confluent", "avro": "avro-confluent"}
"""Formats without a schema registry, and the corresponding formats that use one."""
_SCHEMA_ID_LOCATION_REPLACEMENT = "{schemaIdLocation}, where 'header' corresponds to HeaderSchemaIdSerializer"
_SUBJECT_NAME_STRATEGY_REPLACEMENT = (
    "{subjectNameStrategy}, where 'topic', 'record' and 'topicRecord' correspond to TopicNameStrategy, "
    "RecordNameStrategy and TopicRecordNameStrategy"
)
SERIALIZER_OPTIONS: dict[str, str] = {
    "auto.register.schemas": "{schemaSource}, where 'lookup' corresponds to false",
    "use.latest.version": "{schemaSource}, where 'latest' corresponds to true",
    "normalize.schemas": "{schema.registry.normalize.schemas}",
    "key.schema.id.serializer": _SCHEMA_ID_LOCATION_REPLACEMENT,
    "value.schema.id.serializer": _SCHEMA_ID_LOCATION_REPLACEMENT,
    "key.subject.name.strategy": _SUBJECT_NAME_STRATEGY_REPLACEMENT,
    "value.subject.name.strategy": _SUBJECT_NAME_STRATEGY_REPLACEMENT,
}
"""The option to use here, by the name in Confluent's serializers, without REGISTRY_PREFIX."""
_CREDENTIAL_OPTIONS: dict[str, str] = {
    "basic.auth.": "{schema.registry.basic.auth.user.info}, which contains the credentials",
    "bearer.auth.": "{schema.registry.bearer.auth.token}, which contains the token",
}
"""The option to use here, by the first part of the name in Confluent's serializers."""


@dataclass(frozen=True)
class RegistryOptions:
    """The connection to the schema registry, and the rules that select schemas and subjects."""

    config: RegistryConfig
    schema_source: str = "register"
    """One of SCHEMA_SOURCES."""
    subject_name_strategy: str = TOPIC_STRATEGY
    """One of SUBJECT_NAME_STRATEGIES."""
    schema_id_location: str = "prefix"
    """One of SCHEMA_ID_LOCATIONS."""
    partitioner_ignores_schema_id: bool = False
    """Whether the partition of a key depends only on the bytes after its schema id."""

    @property
    def has_id_in_header(self) -> bool:
        return self.schema_id_location == "header"

    def build_subject_name(self, record_part: str, topic: str | None, schema_name: str) -> str:
        """Return the name of the subject under which the schema is registered.

        `record_part`: the part of the record that has the schema, "key" or "value".
        `topic`: the topic; may be None only with the strategy `record`, which does not use it.
        `schema_name`: the full name of the record or message; the strategy `topic` does not use it.
        """
        if self.subject_name_strategy == TOPIC_STRATEGY:
            return f"{topic}-{record_part}"
        if self.subject_name_strategy == RECORD_STRATEGY:
            return schema_name
        assert self.subject_name_strategy == TOPIC_RECORD_STRATEGY
        return f"{topic}-{schema_name}"


def _parse_user_info(value: object) -> str | None:
    """Return the user name and password, or None for an empty string. Raise HiddenValueError for invalid text."""
    user_info = parse_optional_text(value)
    if user_info:
        check_text(user_info)
    return user_info


def _parse_token(value: object) -> str | None:
    """Return the bearer token, or None for an empty string. Raise HiddenValueError for characters that are invalid."""
    token = parse_optional_text(value)
    if token and not (token.isprintable() and token.isascii()):
        raise HiddenValueError("contains a line break or another character that is invalid in a token")
    return token


_TLS_OPTIONS = tuple(
    Option(
        f"{REGISTRY_PREFIX}{option.name}",
        option.default or "",
        option.parse,
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
        "URLs of the schema registry, separated by commas; if one fails, the next one is tried",
    ),
    Option(
        "schema.registry.basic.auth.user.info",
        None,
        _parse_user_info,
        "credentials for the schema registry, as `user:password`",
        secret=True,
    ),
    Option(
        "schema.registry.bearer.auth.token", None, _parse_token, "bearer token for the schema registry", secret=True
    ),
    Option(
        "schema.registry.request.timeout.ms",
        RegistryConfig.timeout_ms,
        build_integer_parser(1, INT_MAX),
        "the timeout of a request to the schema registry, including all retries and backoffs",
    ),
    Option(
        "schema.registry.normalize.schemas",
        RegistryConfig.normalize,
        parse_boolean,
        "true: the schema registry normalizes schemas before it compares them",
    ),
    Option(
        "schemaSource",
        RegistryOptions.schema_source,
        build_choice_parser(*SCHEMA_SOURCES),
        "`register`: register the schema if the subject does not have it; `lookup`: use the registered schema and fail "
        "if there is none; `latest`: use the latest schema of the subject",
    ),
    Option(
        "subjectNameStrategy",
        RegistryOptions.subject_name_strategy,
        build_choice_parser(*SUBJECT_NAME_STRATEGIES),
        "the name of the subject: `topic`: `<topic>-value` or `<topic>-key`; `record`: the name of the schema; "
        "`topicRecord`: `<topic>-<name of the schema>`",
    ),
    Option(
        "schemaIdLocation",
        RegistryOptions.schema_id_location,
        build_choice_parser(*SCHEMA_ID_LOCATIONS),
        "`prefix`: the schema id precedes each value and key; `header`: a record header has the GUID of the schema, "
        "and [values and keys have no prefix](registry.md#put-the-schema-id-into-a-header)",
    ),
    Option(
        "partitionerIgnoreSchemaId",
        RegistryOptions.partitioner_ignores_schema_id,
        parse_boolean,
        "true: the partition of a key does not depend on the schema id before it, so that a key "
        "[keeps its partition](registry.md#keep-keys-in-their-partition) when its schema gets a new id",
    ),
    *_TLS_OPTIONS,
)


def suggest_for_serializers(name: str) -> str | None:
    """Return a suggestion if the name is an option of Confluent's serializers, else None.

    The suggestion is text for an OptionProblem.
    """
    name = name.removeprefix(REGISTRY_PREFIX)
    credential_option = next((text for prefix, text in _CREDENTIAL_OPTIONS.items() if name.startswith(prefix)), None)
    replacement = SERIALIZER_OPTIONS.get(name, credential_option)
    return None if replacement is None else f"That is the name in Confluent's serializers. Instead, use {replacement}."


def parse_registry_options(
    parsed_options: ParsedOptions,
    formats: Sequence[FormatOptions],
    topic: str | None,
    option_spelling: OptionSpelling = PLAIN_SPELLING,
) -> RegistryOptions | None:
    """Return the registry options, or None if no format uses a schema registry.

    Add a problem to `parsed_options` for each option that is invalid, has no effect or conflicts with another option.

    `formats`: the format options of the value and the key; empty if neither has a format.
    `topic`: the option `topic`, or None if it is not set.
    `option_spelling`: the way the user writes option names, for the errors of requests to the registry.
    """
    registry_formats = [options for options in formats if options.has_registry]
    if not registry_formats:
        # The user may have misspelled a format that does use a registry, so do not say that the options are useless.
        if not {"valueFormat", "keyFormat"} & parsed_options.invalid_fields:
            _reject_registry_options(parsed_options, formats)
        return None
    registry = _parse_registry(parsed_options, option_spelling)
    for options in registry_formats:
        _check_subject(options, registry, topic, parsed_options.problems)
    if registry.partitioner_ignores_schema_id:
        _check_keys_have_prefix(formats, registry, parsed_options)
    return registry


def _reject_registry_options(parsed_options: ParsedOptions, formats: Sequence[FormatOptions]) -> None:
    """Add a problem for each registry option that the user has set. None of the formats uses a schema registry."""
    remedies = [
        f" The format '{options.format}' writes no schema id: set {option_placeholder(options.option_names.format)} "
        f"to '{_REGISTRY_COUNTERPARTS[options.format]}', or remove the option."
        for options in formats
    ]
    for option in REGISTRY_OPTIONS:
        if option.name in parsed_options.raw_values:
            problem = f"has no effect, because no format uses a schema registry.{''.join(remedies)}"
            parsed_options.problems.add(option.name, problem)


def _check_keys_have_prefix(
    formats: Sequence[FormatOptions], registry: RegistryOptions, parsed_options: ParsedOptions
) -> None:
    """Add a problem if `partitionerIgnoreSchemaId` has no effect because keys have no schema id before them."""
    key_format = next((options for options in formats if options.record_part == "key"), None)
    has_schema_id = key_format is not None and key_format.has_registry
    # An invalid keyFormat has a problem of its own, and may have been meant as a format with a schema id.
    has_own_problem = "keyFormat" in parsed_options.invalid_fields
    if not has_schema_id and not has_own_problem:
        format_name = "" if key_format is None else key_format.format
        reason = f"is '{format_name}', which writes no schema id" if format_name else "is not set"
        counterpart = _REGISTRY_COUNTERPARTS.get(format_name, "avro-confluent")
        parsed_options.problems.add(
            "partitionerIgnoreSchemaId",
            "has no effect, because {keyFormat} {reason}. Set {keyFormat} to '{counterpart}', or remove the option.",
            reason=reason,
            counterpart=counterpart,
        )
    if registry.has_id_in_header:
        parsed_options.problems.add(
            "partitionerIgnoreSchemaId",
            "has no effect, because {schemaIdLocation} is 'header', so the keys have no prefix. Remove the option.",
        )


def _check_subject(
    options: FormatOptions, registry: RegistryOptions, topic: str | None, problems: OptionProblems
) -> None:
    """Add a problem if the subject is not set and cannot be derived, because the topic or the schema name is unknown.

    `options`: the options of the value or the key.
    `topic`: the option `topic`, or None if it is not set.
    """
    if options.subject:
        return
    subject_option = options.option_names.subject
    if topic is None and registry.subject_name_strategy != RECORD_STRATEGY:
        problems.add(
            subject_option,
            "must be set, because the subject of the {record_part} schema depends on the topic, and {topic} is not "
            "set. You can set {topic} instead, or set {subjectNameStrategy} to 'record'.",
            record_part=options.record_part,
        )
    # With 'latest', the subject is needed to fetch the schema, so the record name cannot come from the schema itself.
    needs_record_name = registry.schema_source == "latest" and registry.subject_name_strategy != TOPIC_STRATEGY
    if needs_record_name and not options.schema.name:
        strategy_placeholder = option_placeholder("subjectNameStrategy")
        name_placeholder = option_placeholder(options.option_names.schema_name)
        problems.add(
            "schemaSource",
            f"cannot be 'latest' while {strategy_placeholder} is '{registry.subject_name_strategy}' and the record "
            f"name is unknown. Set the name in {name_placeholder}, or the subject in "
            f"{option_placeholder(subject_option)}.",
        )


def _parse_registry(parsed_options: ParsedOptions, option_spelling: OptionSpelling) -> RegistryOptions:
    """Build the options from the parsed values. Add errors about URLs, credentials and TLS to the problems."""
    # The fields of dotted options are named like `schema_registry_url`.
    option_values = {name.removeprefix("schema_registry_"): value for name, value in parsed_options.values.items()}
    urls: tuple[str, ...] = ()
    try:
        urls = parse_registry_urls(option_values["url"])
    except ConfigurationError as error:
        parsed_options.problems += error.unrendered_problems
    if option_values["basic_auth_user_info"] and option_values["bearer_auth_token"]:
        parsed_options.problems.add(
            "schema.registry.basic.auth.user.info", "cannot be set together with {schema.registry.bearer.auth.token}."
        )
    config = RegistryConfig(
        urls=urls,
        user_info=option_values["basic_auth_user_info"],
        token=option_values["bearer_auth_token"],
        tls=_parse_registry_tls(parsed_options),
        timeout_ms=option_values["request_timeout_ms"],
        normalize=option_values["normalize_schemas"],
        option_spelling=option_spelling,
    )
    return RegistryOptions(
        config,
        schema_source=option_values["schemaSource"],
        subject_name_strategy=option_values["subjectNameStrategy"],
        schema_id_location=option_values["schemaIdLocation"],
        partitioner_ignores_schema_id=option_values["partitionerIgnoreSchemaId"],
    )


def _parse_registry_tls(parsed_options: ParsedOptions) -> TlsConfig:
    """Parse the registry's `ssl.*` options, which have the names of Kafka's after REGISTRY_PREFIX.

    Return the defaults if a value is not valid text. Without this value, the other options could not be checked.
    """
    if any(option.field in parsed_options.invalid_fields for option in _TLS_OPTIONS):
        return TlsConfig()
    kafka_options = {
        option.name.removeprefix(REGISTRY_PREFIX): parsed_options.values[option.field]
        for option in _TLS_OPTIONS
        if option.name in parsed_options.raw_values
    }
    tls_problems = OptionProblems()
    tls = parse_tls(kafka_options, tls_problems)
    parsed_options.problems += tls_problems.with_prefix(REGISTRY_PREFIX)
    return tls
