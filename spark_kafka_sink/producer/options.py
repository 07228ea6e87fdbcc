"""PRODUCER_OPTIONS: the table of all options of the Java producer, with their defaults and limits.

Each option has a parser. If an option cannot work in Python, it has an `unsupported_reason`, and only its default is
accepted. If an option has no effect, its description says so. The options for connections, requests and metadata come
from client/options.py. The TLS and SASL options are in network/security_options.py.

Run `make docs` after a change: docs/options.md, the fields of ProducerConfig and typed_options.py are generated from
the table.
"""

from __future__ import annotations

from spark_kafka_sink.client.option_parsing import (
    INT_MAX,
    build_choice_parser,
    build_integer_parser,
    parse_boolean,
    parse_list,
    parse_non_negative_int,
    parse_non_negative_long,
    parse_protocol_name,
    parse_text,
)
from spark_kafka_sink.client.options import CLIENT_OPTIONS, CONNECTION_OPTIONS
from spark_kafka_sink.network.security_options import SHADED_PACKAGE_PREFIX
from spark_kafka_sink.options import Option, build_option_table

_PARTITIONER_PACKAGE = "org.apache.kafka.clients.producer."

ACKS_PARSER = build_choice_parser("all", "-1", "0", "1")
"""Parses acks to one of these strings, which `_parse_acks` converts to a number."""


def _parse_acks(value: object) -> int:
    """Parse acks to the number that the protocol uses, which is -1 for `all`."""
    acks = ACKS_PARSER(value)
    return -1 if acks == "all" else int(acks)


def _parse_gzip_level(value: object) -> object:
    """Parse a compression level of gzip: -1, or 1 to 9.

    Level 0, which would store the bytes uncompressed, is invalid, as in the Java client.
    """
    level = build_integer_parser(-1, 9)(value)
    if level == 0:
        raise ValueError("must be -1 or from 1 to 9")
    return level


ROUND_ROBIN_PARTITIONER = "RoundRobinPartitioner"
UNIFORM_STICKY_PARTITIONER = "UniformStickyPartitioner"
UNSUPPORTED_PARTITIONER_MESSAGE = (
    "must be DefaultPartitioner, UniformStickyPartitioner or RoundRobinPartitioner: another Java class cannot run here"
)


def _parse_partitioner_class(value: object) -> str:
    """Parse the class name of a Java partitioner, with or without its package. Return the name without its package."""
    class_name = parse_text(value).removeprefix(SHADED_PACKAGE_PREFIX).removeprefix(_PARTITIONER_PACKAGE)
    class_name = class_name.removeprefix("internals.")
    if class_name not in ("DefaultPartitioner", UNIFORM_STICKY_PARTITIONER, ROUND_ROBIN_PARTITIONER, ""):
        raise ValueError(f"{UNSUPPORTED_PARTITIONER_MESSAGE}; pass a Python callable as KafkaProducer(partitioner=...)")
    return class_name


_SERIALIZER_CLASS_UNSUPPORTED = (
    "it names a Java class; pass key_serializer= and value_serializer= to KafkaProducer instead"
)

_DELIVERY = (
    Option(
        "acks",
        -1,
        _parse_acks,
        "all: a record is acknowledged when all in-sync replicas have stored it; 1: when the leader has; 0: brokers "
        "do not respond, so records may be lost",
    ),
    Option(
        "retries",
        INT_MAX,
        parse_non_negative_int,
        "maximum number of retries of a batch; limit the time with delivery.timeout.ms instead",
    ),
    CLIENT_OPTIONS["retry.backoff.ms"],
    CLIENT_OPTIONS["retry.backoff.max.ms"],
    CLIENT_OPTIONS["request.timeout.ms"],
    Option(
        "delivery.timeout.ms",
        120_000,
        parse_non_negative_int,
        "time within which a record is acknowledged or fails, including all retries",
    ),
    Option(
        "max.block.ms",
        60_000,
        parse_non_negative_long,
        "maximum time that a call of send waits for metadata and memory before it fails",
    ),
    CLIENT_OPTIONS["max.in.flight.requests.per.connection"],
    Option(
        "enable.idempotence",
        True,
        parse_boolean,
        "true: retries neither duplicate nor reorder records. If the option is not set and acks is not all or retries "
        "is 0, idempotence is disabled with a warning. Must be false with more than 5 requests in flight",
    ),
    Option(
        "transaction.timeout.ms",
        60_000,
        parse_non_negative_int,
        "the coordinator aborts a transaction that stays open for longer than this",
    ),
    Option(
        "transactional.id",
        None,
        parse_protocol_name,
        "the identity of a producer that writes in transactions; it fences earlier ones",
    ),
    Option(
        "transaction.two.phase.commit.enable",
        False,
        parse_boolean,
        "transactions stay open until an external coordinator commits or aborts them",
        unsupported_reason="no released broker supports it",
    ),
)

_BATCHING = (
    Option(
        "batch.size",
        16_384,
        parse_non_negative_int,
        "maximum size of a batch, in bytes; a batch has records of one partition",
    ),
    Option(
        "linger.ms",
        5,
        parse_non_negative_long,
        "maximum time that a batch which is not full waits for more records; up to 100 ms longer while every leader "
        "of the topic has a full request, or after records took a long time to encode; flush waits for neither",
    ),
    Option(
        "buffer.memory",
        33_554_432,
        parse_non_negative_long,
        "memory, in bytes, for records that are not acknowledged yet; send waits when it is used up",
    ),
    Option(
        "buffer.memory.allocation.strategy",
        "full",
        build_choice_parser("full", "incremental"),
        "no effect: as with incremental in Java, memory is reserved for waiting records, and never for the whole "
        "batch.size of each partition; unlike in Java, that also works with compression",
        ignored=True,
    ),
    Option(
        "max.request.size",
        1_048_576,
        parse_non_negative_int,
        "maximum size of a request, in bytes, and of a record before compression",
    ),
    Option(
        "compression.type",
        "none",
        build_choice_parser("none", "gzip", "snappy", "lz4", "zstd"),
        "none, gzip, snappy, lz4 or zstd; a batch is compressed as a whole",
    ),
    Option("compression.gzip.level", -1, _parse_gzip_level, "1 (fast) to 9 (small); -1 is gzip's own default"),
    Option(
        "compression.lz4.level", 9, build_integer_parser(1, 17), "1 to 17; 9 selects the fast compressor, as in Java"
    ),
    Option("compression.zstd.level", 3, build_integer_parser(-131_072, 22), "negative (fastest) to 22 (smallest)"),
    Option(
        "partitioner.class",
        "",
        _parse_partitioner_class,
        "a partitioner of the Java client: DefaultPartitioner, UniformStickyPartitioner or RoundRobinPartitioner",
    ),
    Option(
        "partitioner.ignore.keys", False, parse_boolean, "true: the producer chooses partitions without regard to keys"
    ),
    Option(
        "partitioner.adaptive.partitioning.enable",
        True,
        parse_boolean,
        "true: rows without a key go less often to partitions whose broker is slow",
    ),
    Option(
        "partitioner.availability.timeout.ms",
        0,
        parse_non_negative_long,
        "rows without a key avoid a broker to which no batch could be sent for this long; 0: never",
    ),
    Option(
        "partitioner.rack.aware",
        False,
        parse_boolean,
        "true: rows without a key go to partitions whose leader is in client.rack, or to all partitions if there are "
        "none; rows with a key or a requested partition are not affected; cannot be combined with "
        "RoundRobinPartitioner",
    ),
    Option(
        "client.rack",
        "",
        parse_text,
        "the rack or zone of this client, spelled as `broker.rack`; only partitioner.rack.aware uses it",
    ),
)

_OBSERVATION = (
    Option(
        "metrics.sample.window.ms",
        30_000,
        parse_non_negative_long,
        "length of one window of the rates and averages",
    ),
    Option(
        "metrics.num.samples",
        2,
        build_integer_parser(1, INT_MAX),
        "number of windows over which rates and averages are computed",
    ),
    Option(
        "metrics.recording.level",
        "INFO",
        build_choice_parser("INFO", "DEBUG", "TRACE"),
        "INFO is the only level",
        unsupported_reason="all metrics have the level INFO",
    ),
    Option(
        "metric.reporters",
        (),
        parse_list,
        "Java classes that export metrics",
        unsupported_reason="it names Java classes; read KafkaProducer.metrics() instead",
    ),
    Option(
        "enable.metrics.push",
        False,
        parse_boolean,
        "metrics are not pushed to the brokers (KIP-714)",
        unsupported_reason="pushing metrics to the brokers (KIP-714) is not available",
    ),
)

_JAVA_ONLY = tuple(
    Option(name, (), parse_list, description, unsupported_reason=reason)
    for name, description, reason in (
        ("key.serializer", "Java class", _SERIALIZER_CLASS_UNSUPPORTED),
        ("value.serializer", "Java class", _SERIALIZER_CLASS_UNSUPPORTED),
        ("interceptor.classes", "Java classes", "it names Java classes; pass interceptors= to KafkaProducer instead"),
        ("config.providers", "Java classes", "it names Java classes; put the values themselves into the options"),
    )
)

PRODUCER_OPTIONS = build_option_table((*CONNECTION_OPTIONS, *_DELIVERY, *_BATCHING, *_OBSERVATION, *_JAVA_ONLY))
