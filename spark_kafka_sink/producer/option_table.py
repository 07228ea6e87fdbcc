"""The table of the Java producer's options: every name that it knows, with its default of today and its bounds.

Each row has a parser; some have a reason why the option cannot mean anything here (`refused`). Nothing is accepted and
then passed over. The rows of TLS and SASL are not here: network/security/config.py owns them. The defaults of
connections and metadata are those of ClientConfig. `meaning` is the sentence that a user reads; docs/options.md is
compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spark_kafka_sink.client.config import ClientConfig

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_NUMBER = re.compile("[+-]?[0-9]+")
KAFKA_CLASSES = "org.apache.kafka.clients.producer."

Parser = Callable[[object], object]
"""From what the user gave to the value used; raises ValueError with the end of a sentence: "must be ..."."""


@dataclass(frozen=True)
class ProducerOption:
    """One option of the Java producer."""

    name: str
    default: object
    parse: Parser
    meaning: str
    importance: Literal["high", "medium", "low"] = "low"
    refused: str = ""
    """Why another value than the default is refused; empty for an option that is honoured."""

    @property
    def field(self) -> str:
        """The name of the field of ProducerConfig."""
        return self.name.replace(".", "_")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value.strip()


def _non_empty_text(value: object) -> str:
    text = _text(value)
    if not text:
        raise ValueError("must not be empty")
    return text


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("must be true or false")


def _whole(lowest: int, highest: int) -> Parser:
    def parse(value: object) -> int:
        words = f"must be a whole number from {lowest} to {highest}"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(words)
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            raise ValueError(words)
        number = int(value)
        if not lowest <= number <= highest:
            raise ValueError(words)
        return number

    return parse


def _one_of(*choices: str) -> Parser:
    def parse(value: object) -> str:
        text = str(value).strip().lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""
        for choice in choices:
            if choice.lower() == text:
                return choice
        raise ValueError(f"must be one of {', '.join(choices)}")

    return parse


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        items = value.split(",")
    elif isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        items = list(value)
    else:
        raise ValueError("must be a list, or a string with commas")
    return tuple(item.strip() for item in items if item.strip())


def _acks(value: object) -> int:
    chosen = _one_of("all", "-1", "0", "1")(value)
    return -1 if chosen == "all" else int(str(chosen))


def _gzip_level(value: object) -> int:
    number = _whole(-1, 9)(value)
    if number == 0:
        raise ValueError("must be -1 or from 1 to 9")
    return int(str(number))


def _partitioner(value: object) -> str:
    name = _text(value)
    known = ("internals.DefaultPartitioner", "UniformStickyPartitioner", "RoundRobinPartitioner", "")
    for short in known:
        if name in (short, KAFKA_CLASSES + short):
            return short
    raise ValueError(
        "is a Java class that cannot run here: pass a Python callable as KafkaProducer(partitioner=...), or use "
        + ", ".join(KAFKA_CLASSES + short for short in known if short)
    )


_INT = _whole(0, INT_MAX)
_LONG = _whole(0, LONG_MAX)
_NO_SERIALIZER = "it names a Java class; pass key_serializer= and value_serializer= to KafkaProducer instead"

_CONNECTION = (
    ProducerOption(
        "bootstrap.servers", (), _names, "host:port of a few brokers; the others are learnt from them", "high"
    ),
    ProducerOption(
        "client.id", "", _text, "the name in the brokers' logs and quotas; producer-<number> if not set", "medium"
    ),
    ProducerOption(
        "client.dns.lookup",
        ClientConfig.client_dns_lookup,
        _one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "use_all_dns_ips tries every address of a name; the other value expands bootstrap names to canonical ones",
        "medium",
    ),
    ProducerOption(
        "send.buffer.bytes",
        ClientConfig.send_buffer_bytes,
        _whole(-1, INT_MAX),
        "SO_SNDBUF; -1 leaves it to the system",
        "medium",
    ),
    ProducerOption(
        "receive.buffer.bytes",
        ClientConfig.receive_buffer_bytes,
        _whole(-1, INT_MAX),
        "SO_RCVBUF; -1 leaves it to the system",
        "medium",
    ),
    ProducerOption(
        "reconnect.backoff.ms",
        ClientConfig.reconnect_backoff_ms,
        _LONG,
        "the first wait before a broker is connected to again",
    ),
    ProducerOption(
        "reconnect.backoff.max.ms",
        ClientConfig.reconnect_backoff_max_ms,
        _LONG,
        "the wait doubles up to this, give or take a fifth",
    ),
    ProducerOption(
        "socket.connection.setup.timeout.ms",
        ClientConfig.socket_connection_setup_timeout_ms,
        _LONG,
        "the first time allowed for a connection",
        "medium",
    ),
    ProducerOption(
        "socket.connection.setup.timeout.max.ms",
        ClientConfig.socket_connection_setup_timeout_max_ms,
        _LONG,
        "the time allowed doubles up to this",
        "medium",
    ),
    ProducerOption(
        "connections.max.idle.ms",
        ClientConfig.connections_max_idle_ms,
        _whole(-1, LONG_MAX),
        "an idle connection is closed after this",
        "medium",
    ),
    ProducerOption(
        "metadata.max.age.ms",
        ClientConfig.metadata_max_age_ms,
        _LONG,
        "leaders and partitions are asked for again after this",
    ),
    ProducerOption(
        "metadata.max.idle.ms",
        ClientConfig.metadata_max_idle_ms,
        _whole(5000, LONG_MAX),
        "a topic not written to for this long is forgotten",
    ),
    ProducerOption(
        "metadata.recovery.strategy",
        ClientConfig.metadata_recovery_strategy,
        _one_of("rebootstrap", "none"),
        "rebootstrap: when no known broker answers, the bootstrap servers are resolved and asked again",
    ),
    ProducerOption(
        "metadata.recovery.rebootstrap.trigger.ms",
        ClientConfig.metadata_recovery_rebootstrap_trigger_ms,
        _INT,
        "how long no broker answers before that happens",
    ),
)

_DELIVERY = (
    ProducerOption(
        "acks", -1, _acks, "all: stored by all in-sync replicas; 1: by the leader; 0: not even answered", "low"
    ),
    ProducerOption(
        "retries", INT_MAX, _INT, "how often a batch is sent again; delivery.timeout.ms is the better limit", "high"
    ),
    ProducerOption(
        "retry.backoff.ms", ClientConfig.retry_backoff_ms, _LONG, "the first wait before a batch is sent again"
    ),
    ProducerOption(
        "retry.backoff.max.ms",
        ClientConfig.retry_backoff_max_ms,
        _LONG,
        "the wait doubles up to this, give or take a fifth",
    ),
    ProducerOption(
        "request.timeout.ms",
        ClientConfig.request_timeout_ms,
        _INT,
        "a connection that does not answer for this long is closed",
        "medium",
    ),
    ProducerOption(
        "delivery.timeout.ms",
        120_000,
        _INT,
        "a record is acknowledged or has failed after this, retries included",
        "medium",
    ),
    ProducerOption(
        "max.block.ms", 60_000, _LONG, "how long send waits for metadata and for memory before it gives up", "medium"
    ),
    ProducerOption(
        "max.in.flight.requests.per.connection",
        ClientConfig.max_in_flight_requests_per_connection,
        _whole(1, INT_MAX),
        "unanswered requests per broker; at most 5 with idempotence",
    ),
    ProducerOption(
        "enable.idempotence",
        True,
        _boolean,
        "retries neither double nor reorder; off by itself if acks, retries or "
        "max.in.flight.requests.per.connection conflict and it was not asked for",
    ),
    ProducerOption(
        "transaction.timeout.ms", 60_000, _INT, "the coordinator aborts a transaction that is open for longer"
    ),
    ProducerOption(
        "transactional.id",
        None,
        _non_empty_text,
        "the identity of a producer that writes in transactions",
        refused="transactions are not available yet",
    ),
    ProducerOption(
        "transaction.two.phase.commit.enable",
        False,
        _boolean,
        "transactions that stay open until an external coordinator decides",
        refused="transactions are not available yet",
    ),
)

_BATCHING = (
    ProducerOption(
        "batch.size", 16_384, _INT, "records of one partition travel together up to this many bytes", "medium"
    ),
    ProducerOption("linger.ms", 5, _LONG, "how long a batch that is not full waits for more records", "medium"),
    ProducerOption(
        "buffer.memory",
        33_554_432,
        _LONG,
        "bytes held from send to acknowledgement; send waits when it is full",
        "high",
    ),
    ProducerOption(
        "max.request.size", 1_048_576, _INT, "the largest request, and the largest record before compression", "medium"
    ),
    ProducerOption(
        "compression.type",
        "none",
        _one_of("none", "gzip", "snappy", "lz4", "zstd"),
        "batches are compressed as a whole",
        "high",
    ),
    ProducerOption(
        "compression.gzip.level", -1, _gzip_level, "1 (fast) to 9 (small); -1 is gzip's own default", "medium"
    ),
    ProducerOption("compression.lz4.level", 9, _whole(1, 17), "1 to 17; 9 is the fast default as in Java", "medium"),
    ProducerOption("compression.zstd.level", 3, _whole(-131_072, 22), "negative (fastest) to 22 (smallest)", "medium"),
    ProducerOption(
        "partitioner.class",
        "",
        _partitioner,
        "of the Java partitioners: DefaultPartitioner, UniformStickyPartitioner or RoundRobinPartitioner",
        "medium",
    ),
    ProducerOption(
        "partitioner.ignore.keys", False, _boolean, "true: keys do not decide about the partition", "medium"
    ),
    ProducerOption(
        "partitioner.adaptive.partitioning.enable",
        True,
        _boolean,
        "rows without a key go less often to partitions whose broker is slow",
    ),
    ProducerOption(
        "partitioner.availability.timeout.ms",
        0,
        _LONG,
        "rows without a key avoid a broker that took nothing for this long; 0: never",
    ),
)

_OBSERVATION = (
    ProducerOption("metrics.sample.window.ms", 30_000, _LONG, "the length of one window of the rates and averages"),
    ProducerOption("metrics.num.samples", 2, _whole(1, INT_MAX), "how many windows rates and averages look back on"),
    ProducerOption(
        "metrics.recording.level",
        "INFO",
        _one_of("INFO", "DEBUG", "TRACE"),
        "INFO is the only level there is",
        refused="all metrics here are of level INFO",
    ),
    ProducerOption(
        "metric.reporters",
        (),
        _names,
        "Java classes that export metrics",
        refused="it names Java classes; read KafkaProducer.metrics() instead",
    ),
    ProducerOption(
        "enable.metrics.push",
        False,
        _boolean,
        "metrics are not pushed to the brokers (KIP-714)",
        refused="pushing metrics to the brokers (KIP-714) is not available",
    ),
)

_JAVA_ONLY = tuple(
    ProducerOption(name, (), _names, meaning, refused=reason)
    for name, meaning, reason in (
        ("key.serializer", "Java class", _NO_SERIALIZER),
        ("value.serializer", "Java class", _NO_SERIALIZER),
        ("interceptor.classes", "Java classes", "it names Java classes; pass interceptors= to KafkaProducer instead"),
        ("security.providers", "Java classes", "it names Java classes that cannot run here"),
        ("config.providers", "Java classes", "it names Java classes; put the values themselves into the options"),
    )
)

PRODUCER_OPTIONS: dict[str, ProducerOption] = {
    option.name: option for option in (*_CONNECTION, *_DELIVERY, *_BATCHING, *_OBSERVATION, *_JAVA_ONLY)
}
