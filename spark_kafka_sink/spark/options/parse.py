"""Parser that turns Spark's option strings into SinkOptions. One ConfigurationError reports all invalid options.

Spark passes option names in lowercase. In classic Spark, the methods that `register` installs pass them as the user
wrote them. Messages show the documented name of a known option, and the name of an unknown option as it was passed.

There are three kinds of options:

- `kafka.<name>` is an option of the Java producer. The producer's own table lists the valid names.
- Options in SINK_OPTIONS belong to this data source. Those that Spark's own sink also has keep its names.
- Options in ignored_options.py have no meaning for a sink. They are ignored with a warning.

Any other name is rejected, and the error suggests a similar name. Parsing runs on the driver before any task, and its
result is pickled and sent to the tasks.

The text of a problem is a template: the name of an option or of a value in braces is replaced when the problem is shown
to the user (OptionProblem).

Option values may contain passwords, so no repr shows a value. No error shows the value of an option in
SECURITY_OPTIONS, of another secret option, or of an unknown option, which may be a misspelt secret.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

from spark_kafka_sink.client.option_parsing import ParsedOptions, parse_option_values
from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.errors import ConfigurationError, OptionProblem, option_placeholder
from spark_kafka_sink.formats.options import find_encoded_parts, has_registry_format, parse_format_options
from spark_kafka_sink.formats.registry_options import parse_registry_options
from spark_kafka_sink.producer.config import ProducerConfig, parse_producer_options
from spark_kafka_sink.producer.options import (
    ROUND_ROBIN_PARTITIONER,
    UNIFORM_STICKY_PARTITIONER,
)
from spark_kafka_sink.spark.constants import (
    ALREADY_CHECKED_OPTION,
    CONCURRENT_TASKS_OPTION,
    DISTRIBUTED_BY_OPTION,
    FORMAT_NAME,
    INTERNAL_OPTIONS,
    LINEAGE_DIRECTORY_OPTION,
)
from spark_kafka_sink.spark.options.client_rack import check_rack_awareness, parse_shared_kafka_options
from spark_kafka_sink.spark.options.create_topic import TOPIC_CONFIG_PREFIX, extract_topic_configs, parse_new_topic
from spark_kafka_sink.spark.options.delivery import parse_delivery
from spark_kafka_sink.spark.options.distribution import parse_distribution
from spark_kafka_sink.spark.options.ignored_options import (
    CONSUMER_OPTIONS,
    REGISTRY_PREFIXES,
    SERIALIZER_PREFIXES,
    SOURCE_OPTIONS,
)
from spark_kafka_sink.spark.options.names import (
    ASYNC_PROGRESS_OPTIONS,
    KAFKA_PREFIX,
    PRODUCER_OPTION_NAMES,
    REJECTED_OPTION_MESSAGES,
    SINK_OPTION_SPELLING,
    TABLE_AND_FILE_OPTIONS,
    render_kafka_problem,
)
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.options.table import OPTION_NAMES_BY_LOWERCASE, SINK_OPTIONS
from spark_kafka_sink.spark.options.unknown_options import UnknownOptionMessages

_log = logging.getLogger(__name__)

_FOREIGN_OPTION_NAMES_BY_LOWERCASE = {
    name.lower(): name for name in (*SOURCE_OPTIONS, *TABLE_AND_FILE_OPTIONS, *ASYNC_PROGRESS_OPTIONS)
}
"""Options that are not for a Kafka sink, as they are documented. Each is ignored or rejected with its own message."""

BULK_DEFAULTS: dict[str, str] = {"batch.size": "524288", "linger.ms": "100", "send.buffer.bytes": "-1"}
"""Defaults that differ from the Java client's because they make bulk writes clearly faster. See docs/options.md."""

_REGISTER_REQUIRED_MESSAGE = (
    "requires spark_kafka_sink.register(spark) in the program that writes, and save(), start(), saveAsTable() or "
    "toTable(). Without them, Spark calls a Python data source too late to change the number of tasks."
)


class _ParsedKafkaOptions(NamedTuple):
    """The options with the prefix `kafka.`."""

    producer_options: dict[str, str]
    """The unparsed options for KafkaProducer, including this sink's defaults."""
    parsed_options: ParsedOptions
    problems: list[str]
    """One error message for each invalid option."""


def parse_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Their names may be in any case.

    Raise ConfigurationError with one message for each invalid option.
    """
    options_by_lowercase = {name.lower(): value for name, value in options.items()}
    spellings = {name.lower(): name for name in options} | _FOREIGN_OPTION_NAMES_BY_LOWERCASE
    user_options = {name: value for name, value in options_by_lowercase.items() if name not in INTERNAL_OPTIONS}
    sink_options, kafka_options = _split_by_prefix(_drop_ignored_options(user_options, spellings))
    # The steps add problems to `parsed_options`. The error lists these problems in the order of the steps.
    parsed_options = _parse_sink_options(sink_options)
    values = parsed_options.values
    topic, report_topic = values["topic"], values["reportTopic"]
    new_topic = parse_new_topic(parsed_options, topic, extract_topic_configs(sink_options))
    distribution = parse_distribution(parsed_options)
    dead_letter_topic = _parse_dead_letter_topic(parsed_options)
    formats = parse_format_options(parsed_options)
    registry = parse_registry_options(parsed_options, formats, topic)
    shared_kafka_options = parse_shared_kafka_options(parsed_options, kafka_options)
    messages = UnknownOptionMessages(spellings)
    unknown_option_problems = _find_unknown_options(sink_options, messages)
    kafka = _parse_kafka_options(shared_kafka_options, messages)
    check_rack_awareness(parsed_options, kafka.parsed_options, kafka_options, distribution)
    delivery = parse_delivery(parsed_options, kafka.parsed_options)
    _check_receipt_destination(parsed_options)
    _check_producer_options(parsed_options, kafka.parsed_options)
    bytes_per_second = _parse_bytes_per_second(parsed_options, options_by_lowercase.get(CONCURRENT_TASKS_OPTION))
    topics = {"topic": topic, "deadLetterTopic": dead_letter_topic, "reportTopic": report_topic}
    if delivery is not None:
        topics["decisionLogTopic"] = delivery.log_topic
    _check_topics_differ(parsed_options, topics)
    problems = [*unknown_option_problems, *parsed_options.problems.render(SINK_OPTION_SPELLING), *kafka.problems]
    if problems:
        raise ConfigurationError(problems)
    # A write that `register` has already checked or distributed must not repeat these steps.
    return SinkOptions(
        producer_options=kafka.producer_options,
        topic=topic,
        new_topic=None if ALREADY_CHECKED_OPTION in options_by_lowercase else new_topic,
        distribution=None if DISTRIBUTED_BY_OPTION in options_by_lowercase else distribution,
        dead_letter_topic=dead_letter_topic,
        check_connection=values["checkConnection"],
        report_path=values["reportPath"],
        report_topic=report_topic,
        report_callback=values["reportCallback"],
        lineage_directory=options_by_lowercase.get(LINEAGE_DIRECTORY_OPTION),
        include_digests=values["receipt"],
        bytes_per_second=bytes_per_second,
        rack_env_variable=values["clientRackEnv"],
        formats=formats,
        registry=registry,
        write_method=values["writeMethod"],
        exactly_once_options=delivery,
    )


def _split_by_prefix(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split the options into the sink's own and Kafka's. Kafka's options are returned without the prefix `kafka.`."""
    sink_options: dict[str, str] = {}
    kafka_options: dict[str, str] = {}
    for name, value in options.items():
        if name.startswith(KAFKA_PREFIX):
            kafka_options[name.removeprefix(KAFKA_PREFIX)] = value
        else:
            sink_options[name] = value
    return sink_options, kafka_options


def _parse_sink_options(sink_options: Mapping[str, str]) -> ParsedOptions:
    """Parse the known options of the sink. `_find_unknown_options` reports the others."""
    known_options = {
        OPTION_NAMES_BY_LOWERCASE[name]: value
        for name, value in sink_options.items()
        if name in OPTION_NAMES_BY_LOWERCASE
    }
    return parse_option_values(SINK_OPTIONS, known_options, (), FORMAT_NAME)


def _drop_ignored_options(options: Mapping[str, str], spellings: Mapping[str, str]) -> dict[str, str]:
    """Drop the options that the sink ignores, and log a warning that names them.

    `spellings`: the names to show, by lowercase name.
    """
    has_format, has_registry = bool(find_encoded_parts(options)), has_registry_format(options)
    ignored_names = [name for name in options if _is_ignored(name, has_format=has_format, has_registry=has_registry)]
    if ignored_names:
        names = ", ".join(spellings[name] for name in sorted(ignored_names))
        warn_once(_log, f"Ignored options of Spark's Kafka source, of consumers or of schema registries: {names}")
    return {name: value for name, value in options.items() if name not in ignored_names}


def _is_ignored(name: str, *, has_format: bool, has_registry: bool) -> bool:
    """Return whether the sink ignores the option.

    `has_format`: whether the value or the key has a format.
    `has_registry`: whether a format uses a schema registry. Options of Confluent's serializers are then rejected. If
    credentials among them were ignored, requests to the registry would be sent without them. An option that only names
    the source of the credentials is ignored: jobs usually set it together with the credentials. If its value stands for
    Kafka's own (SASL_INHERIT or SASL_OAUTHBEARER_INHERIT), requests to the registry are sent without credentials.
    """
    unprefixed_name = name.removeprefix(KAFKA_PREFIX)
    if _FOREIGN_OPTION_NAMES_BY_LOWERCASE.get(name) in SOURCE_OPTIONS or unprefixed_name in CONSUMER_OPTIONS:
        return True
    contains_credentials = not unprefixed_name.endswith(".auth.credentials.source")
    if has_registry and contains_credentials and unprefixed_name.startswith(SERIALIZER_PREFIXES):
        return False
    is_sink_option = has_format and name in OPTION_NAMES_BY_LOWERCASE
    return unprefixed_name.startswith(REGISTRY_PREFIXES) and not is_sink_option


def _find_unknown_options(sink_options: Mapping[str, str], messages: UnknownOptionMessages) -> list[str]:
    """Return one error message for each unknown option.

    `sink_options`: the options without the prefix `kafka.`, with names in lowercase.
    """
    prefix = TOPIC_CONFIG_PREFIX.lower()
    known_options = (*OPTION_NAMES_BY_LOWERCASE, *(f"{prefix}{name}" for name in extract_topic_configs(sink_options)))
    return [
        messages.describe_sink_option(name, sink_options[name])
        for name in sorted(sink_options)
        if name not in known_options
    ]


def _parse_bytes_per_second(parsed_options: ParsedOptions, concurrent_tasks: str | None) -> float | None:
    """Return one task's share of maxBytesPerSecond, or None if there is no limit.

    Add a problem to `parsed_options` for maxTasks and for maxBytesPerSecond if the option is set but cannot be applied.

    `concurrent_tasks`: the internal option that the methods installed by `register` set; None if these methods were not
    called or had no need for it.
    """
    limit: int | None = parsed_options.values["maxBytesPerSecond"]
    if concurrent_tasks is not None:
        return None if limit is None else limit / int(concurrent_tasks)
    for name in ("maxTasks", "maxBytesPerSecond"):
        if name in parsed_options.raw_values:
            parsed_options.problems.add(name, _REGISTER_REQUIRED_MESSAGE)
    return None


def _check_receipt_destination(parsed_options: ParsedOptions) -> None:
    """Add a problem to `parsed_options` if a receipt is requested, but there is no report that could contain it."""
    destinations = ("reportPath", "reportTopic", "reportCallback")
    has_destination = any(parsed_options.values[name] or name in parsed_options.invalid_fields for name in destinations)
    if parsed_options.values["receipt"] and not has_destination:
        parsed_options.problems.add(
            "receipt",
            "is true, so {reportPath}, {reportTopic} or {reportCallback} must be set: a receipt is part of a report.",
        )


def _check_producer_options(parsed_options: ParsedOptions, parsed_producer_options: ParsedOptions) -> None:
    """Add a problem to `parsed_options` for each of the sink's options that the producer's options make ineffective."""
    producer_values = parsed_producer_options.values
    if parsed_options.values["receipt"] and producer_values["acks"] == 0:
        parsed_options.problems.add(
            "receipt",
            f"is true, so {KAFKA_PREFIX}acks must not be 0: without acknowledgements, brokers return no offsets.",
        )
    if not parsed_options.values["partitionerIgnoreSchemaId"]:
        return
    key_ignoring_settings: list[str] = []
    if producer_values["partitioner_ignore_keys"]:
        key_ignoring_settings.append("partitioner.ignore.keys is true")
    partitioner_class = producer_values["partitioner_class"]
    if partitioner_class in (ROUND_ROBIN_PARTITIONER, UNIFORM_STICKY_PARTITIONER):
        key_ignoring_settings.append(f"partitioner.class is {partitioner_class}")
    for setting in key_ignoring_settings:
        parsed_options.problems.add(
            "partitionerIgnoreSchemaId", f"has no effect, because {KAFKA_PREFIX}{setting}. Remove one of them."
        )


def _check_topics_differ(parsed_options: ParsedOptions, topics: Mapping[str, str | None]) -> None:
    """Add a problem to `parsed_options` for each pair of options that name the same topic.

    `topics`: the topic of each option, by the option's name; None if the option is not set.
    """
    for (first_option, first_topic), (second_option, second_topic) in combinations(topics.items(), 2):
        if first_topic is not None and first_topic == second_topic:
            parsed_options.problems.add(
                first_option,
                f"is {{topic!r}}, and so is {option_placeholder(second_option)}. Set a different topic for each.",
                topic=first_topic,
            )


def _parse_dead_letter_topic(parsed_options: ParsedOptions) -> str | None:
    """Return the dead-letter topic, or None if a rejected record fails the task.

    Add a problem to `parsed_options` if only one of onRecordError and deadLetterTopic requests dead letters.
    """
    topic: str | None = parsed_options.values["deadLetterTopic"]
    if {"onRecordError", "deadLetterTopic"} & parsed_options.invalid_fields:
        return topic
    if parsed_options.values["onRecordError"] == "fail":
        if topic is not None:
            parsed_options.problems.add("deadLetterTopic", "has no effect unless {onRecordError} is 'deadLetter'.")
        return None
    if topic is None:
        parsed_options.problems.add("onRecordError", "is 'deadLetter', so {deadLetterTopic} must be set.")
    return topic


def _parse_kafka_options(kafka_options: dict[str, str], messages: UnknownOptionMessages) -> _ParsedKafkaOptions:
    """Parse the producer's options. `kafka_options`: the options by their names without the prefix `kafka.`."""
    problems = [message for name, message in REJECTED_OPTION_MESSAGES.items() if name in kafka_options]
    producer_options = BULK_DEFAULTS | {
        name: value for name, value in kafka_options.items() if name not in REJECTED_OPTION_MESSAGES
    }
    if not producer_options.get("bootstrap.servers", "").strip():
        problems.append("Kafka option bootstrap.servers is not set. Please make sure it is set and retry.")
        # With this placeholder, the other options can still be checked.
        producer_options["bootstrap.servers"] = "localhost:9092"
    parsed_options = parse_producer_options(producer_options)
    try:
        # Build the configuration only for its checks. SinkOptions parses it again when it is needed.
        ProducerConfig.from_parsed_options(parsed_options)
    except ConfigurationError as error:
        for problem in error.unrendered_problems:
            name = problem.option if isinstance(problem, OptionProblem) else ""
            if name in kafka_options and name not in PRODUCER_OPTION_NAMES:
                problems.append(messages.describe_kafka_option(name, kafka_options[name]))
            else:
                problems.append(render_kafka_problem(problem))
    return _ParsedKafkaOptions(producer_options, parsed_options, problems)
