"""Spark's option strings -> SinkOptions, frozen and typed; every fault of them in one ConfigurationError.

Three kinds of names arrive, lower-cased by Spark:

- `kafka.<name>`: an option of the Java producer. The producer's own table says what is known, and refuses the rest.
- the names in SINK_OPTIONS: what this data source itself understands; those that Spark's own sink has too are named
  alike.
- the names in others.py, which mean nothing to a sink and are passed over with a warning.

Any other name is a mistake and is refused, with the name meant. This runs on the driver, before any task; what it
returns is pickled to the tasks. The values may hold passwords: no repr shows any, and no error that of an option of
SECURITY_OPTIONS, of a secret one or of an unknown one, which may be one of them misspelt.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from spark_kafka_sink.client.option_parsing import ParsedOptions, parse_option_values
from spark_kafka_sink.client.option_suggestions import suggest_option_name
from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.errors import ConfigurationError, OptionFault
from spark_kafka_sink.formats.options import find_encoded_sides, parse_format_options
from spark_kafka_sink.formats.registry_options import REGISTRY_PREFIX, parse_registry_options
from spark_kafka_sink.producer.config import ProducerConfig, parse_producer_options
from spark_kafka_sink.producer.options import NO_OTHER_PARTITIONER
from spark_kafka_sink.spark.constants import (
    ALREADY_CHECKED_OPTION,
    CONCURRENT_TASKS_OPTION,
    DISTRIBUTED_BY_OPTION,
    FORMAT_NAME,
    INTERNAL_OPTIONS,
)
from spark_kafka_sink.spark.options.create_topic import TOPIC_CONFIG_PREFIX, parse_new_topic, topic_configs
from spark_kafka_sink.spark.options.delivery import parse_delivery
from spark_kafka_sink.spark.options.distribution import parse_distribution
from spark_kafka_sink.spark.options.ignored_options import CONSUMER_OPTIONS, REGISTRY_PREFIXES, SOURCE_OPTIONS
from spark_kafka_sink.spark.options.names import (
    ASYNC_PROGRESS_OPTIONS,
    JAVA_CLASS_OPTION_REMEDIES,
    KAFKA_PREFIX,
    KAFKA_SPELLING,
    PRODUCER_NAMES,
    SINK_SPELLING,
    TABLE_AND_FILE_OPTIONS,
)
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.options.table import OPTION_NAMES_BY_LOWERCASE, SINK_OPTIONS

_log = logging.getLogger(__name__)

_SURE = 0.75
"""How near a name must be to be the one that was meant: 'mergeSchema' and 'keySchema' are at 0.7."""
_ASYNC_PROGRESS_NAMES = {name.lower(): name for name in ASYNC_PROGRESS_OPTIONS}
_SOURCE_NAMES = {name.lower() for name in SOURCE_OPTIONS}

# Where a bulk writer of columns does clearly better than with the Java client's default; docs/options.md says why.
BULK_DEFAULTS: dict[str, str] = {"batch.size": "524288", "linger.ms": "100", "send.buffer.bytes": "-1"}

# Refused in the words of Spark's own sink.
_REFUSED = {
    "key.serializer": "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer.",
    "value.serializer": (
        "Kafka option 'value.serializer' is not supported as value are serialized with ByteArraySerializer."
    ),
    "transactional.id": "Kafka option 'transactional.id' cannot be set: each task needs one of its own.",
}
_IN_PLACE_OF_A_PARTITIONER = (
    "Compute the partition into the column 'partition'; without one, rows with a key go where the Java client sends "
    "them"
)
_NEEDS_REGISTER = (
    "needs spark_kafka_sink.register(spark) in the program that writes, and save(), start(), saveAsTable() or "
    "toTable(): elsewhere Spark asks a data source in Python too late to change how many tasks there are."
)


def parse_options(options: Mapping[str, str]) -> SinkOptions:
    lowered = {name.lower(): value for name, value in options.items()}
    given = _without_others({name: value for name, value in lowered.items() if name not in INTERNAL_OPTIONS})
    own = {name: value for name, value in given.items() if not name.startswith(KAFKA_PREFIX)}
    kafka = {name.removeprefix(KAFKA_PREFIX): value for name, value in given.items() if name.startswith(KAFKA_PREFIX)}

    parsed_options = _read(own)
    values = parsed_options.values
    topic, report_topic = values["topic"], values["reportTopic"]
    new_topic = parse_new_topic(parsed_options, topic, topic_configs(own))
    distribution = parse_distribution(parsed_options)
    dead_letter_topic = _dead_letter_topic(parsed_options)
    formats = parse_format_options(parsed_options)
    registry = parse_registry_options(parsed_options, formats, topic)
    producer, parsed_producer_options, of_producer = _producer_options(kafka)
    delivery = parse_delivery(parsed_options, parsed_producer_options)
    log_topic = None if delivery is None else delivery.topic
    bytes_per_second = _bytes_per_second(parsed_options, lowered.get(CONCURRENT_TASKS_OPTION))
    _check_topics(
        parsed_options,
        topic=topic,
        deadLetterTopic=dead_letter_topic,
        reportTopic=report_topic,
        decisionLogTopic=log_topic,
    )
    faults = [*_faults_of_names(own), *parsed_options.faults.render(SINK_SPELLING), *of_producer]
    if faults:
        raise ConfigurationError(faults)
    return SinkOptions(
        producer=producer,
        topic=topic,
        new_topic=None if ALREADY_CHECKED_OPTION in lowered else new_topic,
        distribution=None if DISTRIBUTED_BY_OPTION in lowered else distribution,
        dead_letter_topic=dead_letter_topic,
        check_connection=values["checkConnection"],
        report_path=values["reportPath"],
        report_topic=report_topic,
        report_callback=values["reportCallback"],
        bytes_per_second=bytes_per_second,
        formats=formats,
        registry=registry,
        exactly_once=delivery,
    )


def _read(own: Mapping[str, str]) -> ParsedOptions:
    known = {OPTION_NAMES_BY_LOWERCASE[name]: value for name, value in own.items() if name in OPTION_NAMES_BY_LOWERCASE}
    return parse_option_values(SINK_OPTIONS, known, (), FORMAT_NAME)


def _without_others(given: Mapping[str, str]) -> dict[str, str]:
    """Without the options of Spark's source, of consumers and of registries, which the sink has no use for."""
    has_format = bool(find_encoded_sides(given))
    skipped_rows = [name for name in given if _is_of_others(name, has_format)]
    if skipped_rows:
        words = "Options of Spark's Kafka source, of consumers or of schema registries are passed over: "
        warn_once(_log, words + ", ".join(sorted(skipped_rows)))
    return {name: value for name, value in given.items() if name not in skipped_rows}


def _is_of_others(name: str, has_format: bool) -> bool:
    """Return whether the sink ignores the option. With a format, `schema.registry.*` are options of the sink."""
    if has_format and name.startswith(REGISTRY_PREFIX):
        return False
    bare = name.removeprefix(KAFKA_PREFIX)
    return name in _SOURCE_NAMES or bare in CONSUMER_OPTIONS or bare.startswith(REGISTRY_PREFIXES)


def _faults_of_names(own: Mapping[str, str]) -> list[str]:
    known = (*OPTION_NAMES_BY_LOWERCASE, *(f"{TOPIC_CONFIG_PREFIX.lower()}{name}" for name in topic_configs(own)))
    return [_fault_of_name(name) for name in sorted(own) if name not in known]


def _fault_of_name(name: str) -> str:
    if name == "path":
        return "Option 'path', from save(path), means nothing to Kafka. Use the topic option for setting a topic."
    if name in PRODUCER_NAMES:
        return f"Unknown option '{name}'. The producer's options have a prefix: 'kafka.{name}'."
    if name in TABLE_AND_FILE_OPTIONS:
        return f"Option '{name}' is one of tables or files, and means nothing to Kafka: leave it out."
    if name in _ASYNC_PROGRESS_NAMES:
        return (
            f"Option '{_ASYNC_PROGRESS_NAMES[name]}' is not supported: Spark tracks progress asynchronously only for "
            "its own Kafka sink. Leave it out."
        )
    return f"Unknown option '{name}'. {_meant(name)}"


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name, OPTION_NAMES_BY_LOWERCASE, n=1, cutoff=_SURE)
    if near:
        return f"Did you mean '{OPTION_NAMES_BY_LOWERCASE[near[0]]}'?"
    known = ", ".join(name for name in SINK_OPTIONS if "." not in name)
    all_known = f"{known}, those of schema.registry, and the producer's options with the prefix 'kafka.'"
    suggestion = KAFKA_SPELLING.format_text(suggest_option_name(name.removeprefix("kafka"), PRODUCER_NAMES))
    return suggestion or f"Known are: {all_known}."


def _bytes_per_second(parsed_options: ParsedOptions, max_concurrent_tasks: str | None) -> float | None:
    """The share of one task. It is a fault if `register` has not said how many write at once."""
    limit: int | None = parsed_options.values["maxBytesPerSecond"]
    if max_concurrent_tasks is not None:
        return None if limit is None else limit / int(max_concurrent_tasks)
    for name in ("maxTasks", "maxBytesPerSecond"):
        if name in parsed_options.raw_values:
            parsed_options.faults.add(name, _NEEDS_REGISTER)
    return None


def _check_topics(parsed_options: ParsedOptions, **topics: str | None) -> None:
    """Check that no two options name one topic. `topics`: by the names of the options, None where an option is not
    set."""
    for (first, topic), (second, other) in combinations(topics.items(), 2):
        if topic is not None and topic == other:
            parsed_options.faults.add(
                first, f"is {{topic!r}}, and so is {{{second}}}. Each needs its own topic.", topic=topic
            )


def _dead_letter_topic(parsed_options: ParsedOptions) -> str | None:
    """The dead-letter topic, or None when a refused record fails the task."""
    topic: str | None = parsed_options.values["deadLetterTopic"]
    if {"onRecordError", "deadLetterTopic"} & parsed_options.invalid_fields:
        return topic
    if parsed_options.values["onRecordError"] == "fail":
        if topic is not None:
            parsed_options.faults.add("deadLetterTopic", "has no effect unless {onRecordError} is 'deadLetter'.")
        return None
    if topic is None:
        parsed_options.faults.add("onRecordError", "is 'deadLetter', so {deadLetterTopic} must be set.")
    return topic


def _producer_options(given: dict[str, str]) -> tuple[dict[str, str], ParsedOptions, list[str]]:
    """What the producer gets, what it reads there, and its faults in the words of a job."""
    faults = [words for name, words in _REFUSED.items() if name in given]
    producer = BULK_DEFAULTS | {name: value for name, value in given.items() if name not in _REFUSED}
    if not producer.get("bootstrap.servers", "").strip():
        faults.append("Kafka option bootstrap.servers is not set. Please make sure it is set and retry.")
        # Stands in for the missing one, so that the other options are looked at as well.
        producer["bootstrap.servers"] = "localhost:9092"
    parsed_options = parse_producer_options(producer)
    try:
        ProducerConfig.of(parsed_options)
    except ConfigurationError as error:
        faults.extend(_in_words_of_a_job(fault) for fault in error.unrendered_faults)
    return producer, parsed_options, faults


def _in_words_of_a_job(fault: str | OptionFault) -> str:
    """Render a fault of the producer, with what a job does in place of the Java class that it names."""
    if isinstance(fault, str):
        return fault
    if fault.option in JAVA_CLASS_OPTION_REMEDIES:
        remedy = JAVA_CLASS_OPTION_REMEDIES[fault.option]
        return f"{KAFKA_PREFIX}{fault.option} cannot be set: it names a Java class. {remedy}."
    if fault.option == "partitioner.class":
        problem = f"{NO_OTHER_PARTITIONER}. {_IN_PLACE_OF_A_PARTITIONER}"
        fault = replace(fault, values={**fault.values, "problem": problem})
    return fault.render(KAFKA_SPELLING)
