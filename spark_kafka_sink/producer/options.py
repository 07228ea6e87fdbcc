"""The table of the Java producer's options: every name that it knows, with its default of today and its bounds.

Each row has a parser; some have a reason why the option is rejected (`refused`): it cannot mean anything here or is
not supported yet. Nothing is accepted and then ignored. The rows that are about connections, requests and metadata come
from client/options.py, those of TLS and SASL are in network/security.
"""

from __future__ import annotations

from spark_kafka_sink.client.option_parsing import (
    INT_MAX,
    boolean,
    names,
    natural_int,
    natural_long,
    one_of,
    sent_name,
    text,
    whole,
)
from spark_kafka_sink.client.options import CLIENT_OPTIONS, CONNECTION_OPTIONS
from spark_kafka_sink.options import Option, option_table

KAFKA_CLASSES = "org.apache.kafka.clients.producer."


ACKS = one_of("all", "-1", "0", "1")


def _acks(value: object) -> int:
    chosen = ACKS(value)
    return -1 if chosen == "all" else int(chosen)


def _gzip_level(value: object) -> int:
    number = whole(-1, 9)(value)
    if number == 0:
        raise ValueError("must be -1 or from 1 to 9")
    return int(str(number))


NO_OTHER_PARTITIONER = (
    "must be DefaultPartitioner, UniformStickyPartitioner or RoundRobinPartitioner: another Java class cannot run here"
)


def _partitioner(value: object) -> str:
    """One of the Java client's own, with or without its package."""
    short = text(value).removeprefix(KAFKA_CLASSES).removeprefix("internals.")
    if short not in ("DefaultPartitioner", "UniformStickyPartitioner", "RoundRobinPartitioner", ""):
        raise ValueError(f"{NO_OTHER_PARTITIONER}; pass a Python callable as KafkaProducer(partitioner=...)")
    return short


_NO_SERIALIZER = "it names a Java class; pass key_serializer= and value_serializer= to KafkaProducer instead"

_DELIVERY = (
    Option("acks", -1, _acks, "all: stored by all in-sync replicas; 1: by the leader; 0: no answer, rows may be lost"),
    Option(
        "retries",
        INT_MAX,
        natural_int,
        "how often a batch is sent again; delivery.timeout.ms is the better limit",
    ),
    CLIENT_OPTIONS["retry.backoff.ms"],
    CLIENT_OPTIONS["retry.backoff.max.ms"],
    CLIENT_OPTIONS["request.timeout.ms"],
    Option(
        "delivery.timeout.ms",
        120_000,
        natural_int,
        "a record is acknowledged or has failed after this, retries included",
    ),
    Option(
        "max.block.ms",
        60_000,
        natural_long,
        "how long send waits for metadata and for memory before it gives up",
    ),
    CLIENT_OPTIONS["max.in.flight.requests.per.connection"],
    Option(
        "enable.idempotence",
        True,
        boolean,
        "retries neither double nor reorder; off by itself, with a warning, if acks is not all or retries is 0 and it "
        "was not asked for; with more than 5 requests in flight it must be false",
    ),
    Option(
        "transaction.timeout.ms", 60_000, natural_int, "the coordinator aborts a transaction that is open for longer"
    ),
    Option(
        "transactional.id",
        None,
        sent_name,
        "the identity of a producer that writes in transactions; it fences earlier ones",
    ),
    Option(
        "transaction.two.phase.commit.enable",
        False,
        boolean,
        "transactions that stay open until an external coordinator decides",
        refused="no released broker offers it",
    ),
)

_BATCHING = (
    Option("batch.size", 16_384, natural_int, "records of one partition travel together up to this many bytes"),
    Option("linger.ms", 5, natural_long, "how long a batch that is not full waits for more records"),
    Option(
        "buffer.memory",
        33_554_432,
        natural_long,
        "bytes held from send to acknowledgement; send waits when it is full",
    ),
    Option(
        "max.request.size",
        1_048_576,
        natural_int,
        "the largest request, and the largest record before compression",
    ),
    Option(
        "compression.type",
        "none",
        one_of("none", "gzip", "snappy", "lz4", "zstd"),
        "none, gzip, snappy, lz4 or zstd; a batch is compressed as a whole",
    ),
    Option("compression.gzip.level", -1, _gzip_level, "1 (fast) to 9 (small); -1 is gzip's own default"),
    Option("compression.lz4.level", 9, whole(1, 17), "1 to 17; 9 is the fast default as in Java"),
    Option("compression.zstd.level", 3, whole(-131_072, 22), "negative (fastest) to 22 (smallest)"),
    Option(
        "partitioner.class",
        "",
        _partitioner,
        "of the Java partitioners: DefaultPartitioner, UniformStickyPartitioner or RoundRobinPartitioner",
    ),
    Option("partitioner.ignore.keys", False, boolean, "true: keys do not decide about the partition"),
    Option(
        "partitioner.adaptive.partitioning.enable",
        True,
        boolean,
        "rows without a key go less often to partitions whose broker is slow",
    ),
    Option(
        "partitioner.availability.timeout.ms",
        0,
        natural_long,
        "rows without a key avoid a broker that took nothing for this long; 0: never",
    ),
)

_NOT_SUPPORTED_YET = (
    Option(
        "partitioner.rack.aware",
        False,
        boolean,
        "rows without a key prefer partitions whose leader is in the rack of the client (KIP-1123)",
        refused="not supported yet: partitions are chosen without regard to racks (KIP-1123). Leave it out",
    ),
    Option(
        "client.rack",
        "",
        text,
        "the rack of the client, for partitioner.rack.aware (KIP-1123)",
        refused="not supported yet: only {partitioner.rack.aware} would read it (KIP-1123). Leave it out",
    ),
    Option(
        "bootstrap.resolve.timeout.ms",
        0,
        natural_long,
        "how long the names of bootstrap.servers are looked up again after the producer was created; 0: not at all",
        refused="not supported yet: {bootstrap.servers} is resolved once, when the producer is created. Leave it out",
    ),
    Option(
        "metadata.cluster.check.enable",
        False,
        boolean,
        "brokers check that a connection was meant for them (KIP-1242)",
        refused="not supported yet: connections do not name the cluster and node that they are for (KIP-1242). "
        "Leave it out",
    ),
    Option(
        "buffer.memory.allocation.strategy",
        "full",
        one_of("full", "incremental"),
        "how batches take their memory from buffer.memory (KIP-1332)",
        refused="not supported yet: the strategy of allocation cannot be chosen (KIP-1332). Leave it out",
    ),
)

_OBSERVATION = (
    Option("metrics.sample.window.ms", 30_000, natural_long, "the length of one window of the rates and averages"),
    Option("metrics.num.samples", 2, whole(1, INT_MAX), "how many windows rates and averages look back on"),
    Option(
        "metrics.recording.level",
        "INFO",
        one_of("INFO", "DEBUG", "TRACE"),
        "INFO is the only level there is",
        refused="all metrics here are of level INFO",
    ),
    Option(
        "metric.reporters",
        (),
        names,
        "Java classes that export metrics",
        refused="it names Java classes; read KafkaProducer.metrics() instead",
    ),
    Option(
        "enable.metrics.push",
        False,
        boolean,
        "metrics are not pushed to the brokers (KIP-714)",
        refused="pushing metrics to the brokers (KIP-714) is not available",
    ),
)

_JAVA_ONLY = tuple(
    Option(name, (), names, meaning, refused=reason)
    for name, meaning, reason in (
        ("key.serializer", "Java class", _NO_SERIALIZER),
        ("value.serializer", "Java class", _NO_SERIALIZER),
        ("interceptor.classes", "Java classes", "it names Java classes; pass interceptors= to KafkaProducer instead"),
        ("config.providers", "Java classes", "it names Java classes; put the values themselves into the options"),
    )
)

PRODUCER_OPTIONS = option_table(
    (*CONNECTION_OPTIONS, *_DELIVERY, *_BATCHING, *_OBSERVATION, *_NOT_SUPPORTED_YET, *_JAVA_ONLY)
)
