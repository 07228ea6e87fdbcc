"""Spark's option strings -> SinkOptions, frozen and typed; every fault of them in one ConfigurationError.

Three kinds of names arrive, lower-cased by Spark:

- `kafka.<name>`: an option of the Java producer. The producer's own table says what is known, and refuses the rest.
- the names in OPTIONS: what this data source itself understands; those that Spark's own sink has too are named alike.
- the names in SOURCE_OPTIONS and CONSUMER_OPTIONS and those of registries. Jobs often keep one dictionary for all
  directions and Spark's own sink runs with them, so they are passed over here too, with a warning.

Any other name is a mistake and is refused, with the name meant. This runs on the driver, before any task; what it
returns is pickled to the tasks. The values may hold passwords: no repr shows any, and no error that of an option of
SECURITY_OPTIONS or of an unknown one, which may be one of them misspelt.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from spark_kafka_sink.client.other_names import meant, unknown_option
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.formats.planning import WITH_REGISTRY
from spark_kafka_sink.held_log import warn_once
from spark_kafka_sink.producer.config import PRODUCER_OPTIONS, ProducerConfig
from spark_kafka_sink.reports.store import fault_of
from spark_kafka_sink.spark.options.delivery import DELIVERY_OPTIONS, parse_delivery
from spark_kafka_sink.spark.options.formats import FORMAT_OPTIONS, SIDES, parse_formats
from spark_kafka_sink.spark.options.names import (
    IN_PLACE_OF_CLASSES,
    KAFKA_PREFIX,
    OF_TABLES_AND_FILES,
    PRODUCER_NAMES,
    as_in_spark,
)
from spark_kafka_sink.spark.options.registry import PREFIX as REGISTRY_PREFIX
from spark_kafka_sink.spark.options.registry import REGISTRY_OPTIONS, parse_registry
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.words import MICRO_BATCH, START
from spark_kafka_sink.words import TOPIC_NAME_RULE, is_topic_name

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Option:
    """One row of docs/options.md."""

    name: str
    default: str
    meaning: str


OPTIONS = (
    Option("topic", "", "the topic to write to; overrides the `topic` column"),
    Option("includeHeaders", "false", "accepted as in Spark's own sink, where too the `headers` column alone decides"),
    *(Option(name, "", meaning) for name, meaning in FORMAT_OPTIONS),
    *(Option(*row) for row in REGISTRY_OPTIONS),
    Option("onRecordError", "fail", "`fail` fails the task; `deadLetter` writes refused records to `deadLetterTopic`"),
    Option("deadLetterTopic", "", "where refused records go; needed with `onRecordError` = `deadLetter`"),
    Option(
        "checkConnection", "true", "let the driver find out whether Kafka can be written to, before any task starts"
    ),
    Option(
        "reportPath",
        "",
        "a file, or a folder on a file system, that gets a report in JSON for each commit: "
        "the driver [writes there](security.md#who-may-set-a-jobs-options)",
    ),
    Option("reportTopic", "", "a topic that gets this report as a record"),
    Option(
        "reportCallback",
        "",
        "a Python function, as `module:function`, that the driver "
        "[imports and calls](security.md#who-may-set-a-jobs-options) with this report",
    ),
    *(Option(*row) for row in DELIVERY_OPTIONS),
    Option("checkpointLocation", "", "of a stream; Spark's own"),
    Option("queryName", "", "of a stream; Spark's own, passed by"),
)

SOURCE_OPTIONS = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
)

CONSUMER_OPTIONS = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "check.crcs",
    "client.rack",
    "default.api.timeout.ms",
    "enable.auto.commit",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "isolation.level",
    "key.deserializer",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "value.deserializer",
)

REGISTRY_PREFIXES = (REGISTRY_PREFIX, "basic.auth.", "bearer.auth.", "apicurio.")

_SURE = 0.75
"""How near a name must be to be the one that was meant: 'mergeSchema' and 'keySchema' are at 0.7."""
_OWN_NAMES = {option.name.lower(): option.name for option in OPTIONS}
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


def parse_options(options: Mapping[str, str]) -> SinkOptions:
    given = _without_others({name.lower(): value for name, value in options.items()})
    producer = {
        name.removeprefix(KAFKA_PREFIX): value for name, value in given.items() if name.startswith(KAFKA_PREFIX)
    }
    own = {name: value for name, value in given.items() if not name.startswith(KAFKA_PREFIX)}

    faults = _faults_of_names(own)
    topic = _topic(own, "topic", faults)
    dead_letter_topic = _dead_letter_topic(own, faults)
    report_topic = _topic(own, "reportTopic", faults)
    report_path = _report_path(own, faults)
    _boolean(own, "includeHeaders", faults)
    check_connection = _boolean(own, "checkConnection", faults)
    formats = parse_formats(own, faults)
    registry = parse_registry(own, formats, topic, faults)
    delivery = parse_delivery(own, producer, faults)
    log_topic = None if delivery is None else delivery.topic
    faults += _used_twice(
        topic=topic, deadLetterTopic=dead_letter_topic, reportTopic=report_topic, decisionLogTopic=log_topic
    )
    producer = _producer_options(producer, faults)
    if faults:
        raise ConfigurationError(faults)
    return SinkOptions(
        producer=producer,
        topic=topic,
        dead_letter_topic=dead_letter_topic,
        check_connection=check_connection,
        report_path=report_path,
        report_topic=report_topic,
        report_callback=own.get("reportcallback", "").strip() or None,
        formats=formats,
        registry=registry,
        exactly_once=delivery,
    )


def _without_others(given: Mapping[str, str]) -> dict[str, str]:
    """Without the options of Spark's source, of consumers and of registries, which the sink has no use for."""
    has_registry = any(given.get(f"{side}format", "").strip().lower() in WITH_REGISTRY for side in SIDES)
    passed_over = [name for name in given if _is_of_others(name, has_registry)]
    if passed_over:
        words = "Options of Spark's Kafka source, of consumers or of schema registries are passed over: "
        warn_once(_log, words + ", ".join(sorted(passed_over)))
    return {
        name: value for name, value in given.items() if name not in passed_over and name not in (MICRO_BATCH, START)
    }


def _is_of_others(name: str, has_registry: bool) -> bool:
    if has_registry and name.startswith(REGISTRY_PREFIX):
        return False
    bare = name.removeprefix(KAFKA_PREFIX)
    return name in _SOURCE_NAMES or bare in CONSUMER_OPTIONS or bare.startswith(REGISTRY_PREFIXES)


def _faults_of_names(own: Mapping[str, str]) -> list[str]:
    faults = []
    for name in sorted(own):
        if name in _OWN_NAMES:
            continue
        if name == "path":
            faults.append(
                "Option 'path', from save(path), means nothing to Kafka. Use the topic option for setting a topic."
            )
        elif name in PRODUCER_NAMES:
            faults.append(f"Unknown option '{name}'. The producer's options have a prefix: 'kafka.{name}'.")
        elif name in OF_TABLES_AND_FILES:
            faults.append(f"Option '{name}' is one of tables or files, and means nothing to Kafka: leave it out.")
        else:
            faults.append(f"Unknown option '{name}'. {_meant(name)}")
    return faults


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name, _OWN_NAMES, n=1, cutoff=_SURE)
    if near:
        return f"Did you mean '{_OWN_NAMES[near[0]]}'?"
    known = ", ".join(name for name in _OWN_NAMES.values() if "." not in name)
    all_known = f"{known}, those of schema.registry, and the producer's options with the prefix 'kafka.'"
    return meant(name.removeprefix("kafka"), PRODUCER_NAMES, KAFKA_PREFIX) or f"Known are: {all_known}."


def _topic(own: Mapping[str, str], option: str, faults: list[str]) -> str | None:
    value = own.get(option.lower())
    if value is None:
        return None
    topic = value.strip()
    if not is_topic_name(topic):
        faults.append(f"Option '{option}': {topic!r} is no name for a topic; it takes {TOPIC_NAME_RULE}.")
    return topic


def _used_twice(**topics: str | None) -> list[str]:
    """By the names of their options; None: there is no such topic."""
    return [
        f"Options '{first}' and '{second}' are both {topic!r}; each needs a topic of its own."
        for (first, topic), (second, other) in combinations(topics.items(), 2)
        if topic is not None and topic == other
    ]


def _dead_letter_topic(own: Mapping[str, str], faults: list[str]) -> str | None:
    """The dead-letter topic, or None when a refused record fails the task."""
    reaction = own.get("onrecorderror", "fail").strip()
    dead_letter_topic = _topic(own, "deadLetterTopic", faults)
    if reaction.lower() == "fail":
        if dead_letter_topic is not None:
            faults.append("Option 'deadLetterTopic' has no effect unless 'onRecordError' is 'deadLetter'.")
        return None
    if reaction.lower() != "deadletter":
        faults.append(f"Option 'onRecordError' must be 'fail' or 'deadLetter', not {reaction!r}.")
    elif dead_letter_topic is None:
        faults.append("Option 'onRecordError' is 'deadLetter', so 'deadLetterTopic' must be set.")
    return dead_letter_topic


def _report_path(own: Mapping[str, str], faults: list[str]) -> str | None:
    path = own.get("reportpath", "").strip()
    fault = fault_of(path)
    if fault is not None:
        faults.append(f"Option 'reportPath': {fault}")
    return path or None


def _boolean(own: Mapping[str, str], option: str, faults: list[str]) -> bool:
    default = next(known.default for known in OPTIONS if known.name == option)
    value = own.get(option.lower(), default).strip().lower()
    if value not in ("true", "false"):
        faults.append(f"Option '{option}' must be 'true' or 'false', not {value!r}.")
    return value == "true"


def _producer_options(given: dict[str, str], faults: list[str]) -> dict[str, str]:
    faults.extend(words for name, words in _REFUSED.items() if name in given)
    unknown = [name for name in given if name not in PRODUCER_NAMES]
    faults.extend(unknown_option(name, PRODUCER_NAMES, "producer", KAFKA_PREFIX) for name in unknown)
    producer = BULK_DEFAULTS | {name: value for name, value in given.items() if name not in (*_REFUSED, *unknown)}
    if not producer.get("bootstrap.servers", "").strip():
        faults.append("Kafka option bootstrap.servers is not set. Please make sure it is set and retry.")
        # Stands in for the missing one, so that the other options are looked at as well.
        producer["bootstrap.servers"] = "localhost:9092"
    try:
        ProducerConfig.parse(producer)
    except ConfigurationError as error:
        faults.extend(_with_prefix(fault, producer) for fault in error.faults)
    return producer


def _with_prefix(fault: str, producer: Mapping[str, str]) -> str:
    """The producer's words with the names as they stand in the job, and with a value that is wrong and no secret."""
    name = fault.partition(" ")[0].rstrip(":")
    if name in IN_PLACE_OF_CLASSES:
        return f"{KAFKA_PREFIX}{name} cannot be set: it names a Java class. {IN_PLACE_OF_CLASSES[name]}."
    value = producer.get(name, "")
    shown = name in producer and name in PRODUCER_OPTIONS and " must be " in fault and repr(value) not in fault
    return as_in_spark(fault) + (f" It is {value!r}." if shown else "")
