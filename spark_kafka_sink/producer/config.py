"""ProducerConfig: the Java producer's options, parsed once, checked together, frozen.

All faults of a configuration are in one ConfigurationError, and each sentence begins with the option's name. A
name that the Java producer does not know is a fault too: a misspelt option that is silently passed over is found at two
in the morning. Values never appear in a fault unless they are the user's harmless ones: secrets are parsed elsewhere
(network/security_config.py), and what is unknown is not shown, because it may be a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spark_kafka_sink.client.option_parsing import (
    INT_MAX,
    Option,
    Reading,
    boolean,
    names,
    natural_int,
    natural_long,
    one_of,
    read_options,
    sent_name,
    text,
    whole,
)
from spark_kafka_sink.client.options import CLIENT_OPTIONS, CONNECTION_OPTIONS, ClientConfig, settle_connections
from spark_kafka_sink.errors import ConfigurationError, MissingDependencyError
from spark_kafka_sink.network.security_config import SECURITY_OPTIONS, SecurityConfig
from spark_kafka_sink.records.compression import Codec, require

# The table of the Java producer's options: every name that it knows, with its default of today and its bounds.
#
# Each row has a parser; some have a reason why the option cannot mean anything here (`refused`). Nothing is accepted
# and then passed over. The rows that are about connections, requests and metadata come from client/options.py, those
# of TLS and SASL are in network/security.


KAFKA_CLASSES = "org.apache.kafka.clients.producer."


def _acks(value: object) -> int:
    chosen = one_of("all", "-1", "0", "1")(value)
    return -1 if chosen == "all" else int(str(chosen))


def _gzip_level(value: object) -> int:
    number = whole(-1, 9)(value)
    if number == 0:
        raise ValueError("must be -1 or from 1 to 9")
    return int(str(number))


def _partitioner(value: object) -> str:
    name = text(value)
    known = ("internals.DefaultPartitioner", "UniformStickyPartitioner", "RoundRobinPartitioner", "")
    for short in known:
        if name in (short, KAFKA_CLASSES + short):
            return short
    raise ValueError(
        "is a Java class that cannot run here: pass a Python callable as KafkaProducer(partitioner=...), or use "
        + ", ".join(KAFKA_CLASSES + short for short in known if short)
    )


_NO_SERIALIZER = "it names a Java class; pass key_serializer= and value_serializer= to KafkaProducer instead"

_DELIVERY = (
    Option("acks", -1, _acks, "all: stored by all in-sync replicas; 1: by the leader; 0: not even answered"),
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
        "retries neither double nor reorder; off by itself if acks, retries or "
        "max.in.flight.requests.per.connection conflict and it was not asked for",
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
        "batches are compressed as a whole",
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

PRODUCER_OPTIONS: dict[str, Option] = {
    option.name: option for option in (*CONNECTION_OPTIONS, *_DELIVERY, *_BATCHING, *_OBSERVATION, *_JAVA_ONLY)
}


__all__ = ["PRODUCER_OPTIONS", "ProducerConfig"]

_log = logging.getLogger(__name__)
_IN_FLIGHT_MAX_WITH_IDEMPOTENCE = 5
_OF_IDEMPOTENCE = {"enable_idempotence", "acks", "retries", "max_in_flight_requests_per_connection"}


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """One field per option of PRODUCER_OPTIONS that is honoured; times in ms, sizes in bytes. Can be pickled."""

    bootstrap_servers: tuple[str, ...]
    client_id: str
    client_dns_lookup: str
    send_buffer_bytes: int
    receive_buffer_bytes: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    connections_max_idle_ms: int
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    metadata_recovery_strategy: str
    metadata_recovery_rebootstrap_trigger_ms: int
    acks: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    enable_idempotence: bool
    transaction_timeout_ms: int
    transactional_id: str | None = None
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_request_size: int
    compression_type: str
    compression_level: int | None
    partitioner_class: str
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    metrics_sample_window_ms: int
    metrics_num_samples: int
    security: SecurityConfig

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> ProducerConfig:
        """Check everything that the user gave; raises ConfigurationError with all faults."""
        reading = read_options(PRODUCER_OPTIONS, options, SECURITY_OPTIONS, "producer")
        settle_connections(reading)
        values = reading.values
        values["compression_level"] = _compression_level(reading)
        _check_codec(reading)
        _check_delivery_timeout(reading)
        _check_idempotence(reading)
        if values["partitioner_class"] == "UniformStickyPartitioner":
            values["partitioner_ignore_keys"] = True
        if reading.faults:
            raise ConfigurationError(reading.faults)
        known: dict[str, Any] = {one.name: values[one.name] for one in fields(cls)}
        return cls(**known)

    def client_config(self) -> ClientConfig:
        """The part that is about connections, requests and metadata."""
        known: dict[str, Any] = {
            one.name: getattr(self, one.name) for one in fields(ClientConfig) if hasattr(self, one.name)
        }
        return ClientConfig(**known)

    @property
    def codec(self) -> Codec:
        """compression.type as the record format's number."""
        return Codec[self.compression_type.upper()]


def with_keywords(options: Mapping[str, object] | None, keywords: Mapping[str, object]) -> Mapping[str, object]:
    """The options, and those given as keyword arguments: `linger_ms` is linger.ms.

    A name that is no option with dots either is left as it is: the complaint then knows it from other clients.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(
            'options are keyword arguments, KafkaProducer(bootstrap_servers="host:9092"), or a dictionary, '
            f"not {type(options).__name__}"
        )
    if not keywords:
        return options or {}
    named: dict[str, object] = {}
    for keyword, value in keywords.items():
        name = keyword.replace("_", ".")
        named[name if name in PRODUCER_OPTIONS or name in SECURITY_OPTIONS else keyword] = value
    twice = sorted(named.keys() & (options or {}).keys())
    if twice:
        raise ConfigurationError([f"{name} is given twice, in the dictionary and as a keyword." for name in twice])
    return {**(options or {}), **named}


def _compression_level(reading: Reading) -> int | None:
    option = PRODUCER_OPTIONS.get(f"compression.{reading.values['compression_type']}.level")
    return reading.values[option.field] if option is not None and option.name in reading.given else None


def _check_codec(reading: Reading) -> None:
    if "compression_type" in reading.wrong:
        return
    try:
        require(Codec[reading.values["compression_type"].upper()])
    except MissingDependencyError as error:
        reading.faults.append(f"compression.type: {error}")


def _check_delivery_timeout(reading: Reading) -> None:
    values = reading.values
    least = min(values["linger_ms"] + values["request_timeout_ms"], INT_MAX)
    if values["delivery_timeout_ms"] >= least or reading.wrong & {
        "delivery_timeout_ms",
        "linger_ms",
        "request_timeout_ms",
    }:
        return
    if "delivery.timeout.ms" in reading.given:
        reading.faults.append(
            f"delivery.timeout.ms ({values['delivery_timeout_ms']}) must be at least linger.ms + request.timeout.ms, "
            f"which is {least}."
        )
    else:
        _log.warning("delivery.timeout.ms is raised to linger.ms + request.timeout.ms, which is %d.", least)
        values["delivery_timeout_ms"] = least


def _check_idempotence(reading: Reading) -> None:
    values = reading.values
    transactional = values["transactional_id"] is not None
    asked = transactional or "enable.idempotence" in reading.given
    if reading.wrong & _OF_IDEMPOTENCE:
        return
    if not values["enable_idempotence"]:
        if transactional:
            reading.faults.append("enable.idempotence must not be false, because transactional.id is set.")
        return
    conflicts: list[str] = []
    if values["acks"] != -1:
        conflicts.append("acks must be all")
    if values["retries"] == 0:
        conflicts.append("retries must not be 0")
    if values["max_in_flight_requests_per_connection"] > _IN_FLIGHT_MAX_WITH_IDEMPOTENCE:
        words = f"max.in.flight.requests.per.connection must be at most {_IN_FLIGHT_MAX_WITH_IDEMPOTENCE}"
        if not asked:
            reading.faults.append(f"{words}, or enable.idempotence must be set to false.")
        conflicts.append(words)
    if asked:
        why = "transactional.id is set" if transactional else "enable.idempotence is true"
        reading.faults.extend(f"{why}: {conflict}." for conflict in conflicts)
    elif conflicts:
        _log.warning("Idempotence is off, because %s for it: a retry may double records.", " and ".join(conflicts))
        values["enable_idempotence"] = False
