"""Spark's option strings -> SinkOptions, frozen and typed; every fault of them in one ConfigurationError.

Three kinds of names arrive, lower-cased by Spark:

- `kafka.<name>`: an option of the Java producer. The producer's own table says what is known, and refuses the rest.
- the names in OPTIONS: what this data source itself understands; those that Spark's own sink has too are named alike.
- the names in SOURCE_OPTIONS, and `kafka.` with one of CONSUMER_OPTIONS: those of Spark's Kafka *source*. Jobs often
  keep one dictionary for both directions and Spark's sink passes over them, so this one does too.

Any other name is a mistake and is refused, with the name meant. This runs on the driver, before any task; what it
returns is pickled to the tasks. The values may hold passwords: no repr shows any, and no error that of an option of
SECURITY_OPTIONS or of an unknown one, which may be one of them misspelt.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security.config import SECURITY_OPTIONS
from spark_kafka_sink.producer.config import PRODUCER_OPTIONS, ProducerConfig
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE, is_topic_name
from spark_kafka_sink.spark.format_options import FORMAT_OPTIONS, parse_formats
from spark_kafka_sink.spark.registry_options import REGISTRY_OPTIONS, parse_registry
from spark_kafka_sink.spark.sink_options import SinkOptions

KAFKA_PREFIX = "kafka."
_MEANT = re.compile(r"Is (\S+) meant\?")


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
    Option("reportPath", "", "a file on the driver's machine that gets one line of JSON for each commit"),
    Option("checkpointLocation", "", "of a stream; Spark's own, passed by"),
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
    "check.crcs",
    "client.rack",
    "default.api.timeout.ms",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "group.instance.id",
    "heartbeat.interval.ms",
    "isolation.level",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "session.timeout.ms",
)

_PRODUCER_NAMES = (*PRODUCER_OPTIONS, *SECURITY_OPTIONS)

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
    given = {name.lower(): value for name, value in options.items()}
    producer = {
        name.removeprefix(KAFKA_PREFIX): value for name, value in given.items() if name.startswith(KAFKA_PREFIX)
    }
    own = {name: value for name, value in given.items() if not name.startswith(KAFKA_PREFIX)}

    faults = _faults_of_names(own)
    topic = _topic(own, "topic", faults)
    dead_letter_topic = _dead_letter_topic(own, topic, faults)
    _boolean(own, "includeHeaders", faults)
    check_connection = _boolean(own, "checkConnection", faults)
    formats = parse_formats(own, faults)
    registry = parse_registry(own, formats, topic, faults)
    producer = _producer_options(producer, faults)
    if faults:
        raise ConfigurationError(faults)
    return SinkOptions(
        producer=producer,
        topic=topic,
        dead_letter_topic=dead_letter_topic,
        check_connection=check_connection,
        report_path=own.get("reportpath") or None,
        formats=formats,
        registry=registry,
    )


def _faults_of_names(own: Mapping[str, str]) -> list[str]:
    known = {option.name.lower(): option.name for option in OPTIONS}
    passed_by = {name.lower() for name in SOURCE_OPTIONS}
    faults = []
    for name in sorted(own):
        if name in known or name in passed_by:
            continue
        if name == "path":
            faults.append(
                "Option 'path', from save(path), means nothing to Kafka. Use the topic option for setting a topic."
            )
        elif name in _PRODUCER_NAMES:
            faults.append(f"Unknown option '{name}'. The producer's options have a prefix: 'kafka.{name}'.")
        else:
            faults.append(f"Unknown option '{name}'.{_meant(name, known)}")
    return faults


def _meant(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f" Did you mean '{known[near[0]]}'?"
    near = difflib.get_close_matches(name.removeprefix("kafka"), _PRODUCER_NAMES, n=1)
    if near:
        return f" Did you mean 'kafka.{near[0]}'?"
    return " Known are: " + ", ".join(known.values()) + ", and the producer's options with the prefix 'kafka.'."


def _topic(own: Mapping[str, str], option: str, faults: list[str]) -> str | None:
    value = own.get(option.lower())
    if value is None:
        return None
    topic = value.strip()
    if not is_topic_name(topic):
        faults.append(f"Option '{option}': {topic!r} is no name for a topic; it takes {TOPIC_NAME_RULE}.")
    return topic


def _dead_letter_topic(own: Mapping[str, str], topic: str | None, faults: list[str]) -> str | None:
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
    elif dead_letter_topic == topic:
        faults.append(f"Option 'deadLetterTopic': {topic!r} is the topic itself; refused records need another.")
    return dead_letter_topic


def _boolean(own: Mapping[str, str], option: str, faults: list[str]) -> bool:
    default = next(known.default for known in OPTIONS if known.name == option)
    value = own.get(option.lower(), default).strip().lower()
    if value not in ("true", "false"):
        faults.append(f"Option '{option}' must be 'true' or 'false', not {value!r}.")
    return value == "true"


def _producer_options(given: dict[str, str], faults: list[str]) -> dict[str, str]:
    faults.extend(words for name, words in _REFUSED.items() if name in given)
    passed_by = (*_REFUSED, *CONSUMER_OPTIONS)
    producer = BULK_DEFAULTS | {name: value for name, value in given.items() if name not in passed_by}
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
    if name not in producer:
        return fault
    words = KAFKA_PREFIX + _MEANT.sub(rf"Is {KAFKA_PREFIX}\1 meant?", fault)
    value = producer[name]
    shown = name in PRODUCER_OPTIONS and " must be " in fault and repr(value) not in fault
    return f"{words} It is {value!r}." if shown else words
