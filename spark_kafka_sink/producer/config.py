"""ProducerConfig: the Java producer's options, parsed and validated together.

One ConfigurationError reports all invalid options, in one sentence per option, which begins with the option's name.
Unknown options are errors, too, because a misspelled option would otherwise go unnoticed until production.

Errors show invalid values, but never secrets. Secrets are parsed in network/security_config.py, and the value of an
unknown option is not shown, because it may be a secret.

A *problem* is the error of one option. Its text is a template, in which `{linger.ms}` stands for the name of that
option as the user spells it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.option_parsing import INT_MAX, ParsedOptions, parse_option_values
from spark_kafka_sink.client.options import resolve_connection_values
from spark_kafka_sink.errors import ConfigurationError, MissingDependencyError
from spark_kafka_sink.network.security_config import SecurityConfig
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS, ROUND_ROBIN_PARTITIONER, UNIFORM_STICKY_PARTITIONER
from spark_kafka_sink.records.compression import Codec, require_codec

_log = logging.getLogger(__name__)
_MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5
"""Brokers recognize duplicates only among the last five batches of a producer in each partition."""
_IN_FLIGHT_OPTION = "max.in.flight.requests.per.connection"
_IDEMPOTENCE_FIELDS = {"enable_idempotence", "acks", "retries", "max_in_flight_requests_per_connection"}
"""The fields that determine whether the producer is idempotent."""


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """The parsed options, with one field for each option of PRODUCER_OPTIONS that has an effect. Picklable.

    Times are in milliseconds, sizes in bytes.
    """

    compression_level: int | None
    """The level for the codec set in compression.type; None for the codec's default level."""
    security: SecurityConfig
    # Generated from PRODUCER_OPTIONS by `python -m tools.typed_options_source`:
    bootstrap_servers: tuple[str, ...]
    client_id: str
    client_dns_lookup: str
    bootstrap_resolve_timeout_ms: int
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
    metadata_cluster_check_enable: bool
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
    transactional_id: str | None
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_request_size: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    partitioner_class: str
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    partitioner_rack_aware: bool
    client_rack: str
    metrics_sample_window_ms: int
    metrics_num_samples: int
    # End of the generated fields.

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> ProducerConfig:
        """Parse and validate options. Raise one ConfigurationError that lists all errors."""
        return cls.from_parsed_options(parse_producer_options(options))

    @classmethod
    def from_parsed_options(cls, parsed_options: ParsedOptions) -> ProducerConfig:
        """Check the parsed options against each other, and build the configuration.

        Raise one ConfigurationError that lists all errors, including those found during parsing.
        """
        # All of these functions add the problems that they find to `parsed_options.problems`.
        connection_values = resolve_connection_values(parsed_options)
        _check_codec(parsed_options)
        _check_rack(parsed_options)
        delivery_timeout_ms = _resolve_delivery_timeout_ms(parsed_options)
        is_idempotent = _resolve_idempotence(parsed_options)
        if parsed_options.problems:
            raise ConfigurationError(parsed_options.problems)
        if parsed_options.values["acks"] == 0:
            _log.warning(
                "acks=0: brokers acknowledge nothing. Records can be lost without an error, and results and reports "
                "count records that were sent. Set acks=all to count records that were stored."
            )
        values = {
            **parsed_options.values,
            **connection_values,
            "delivery_timeout_ms": delivery_timeout_ms,
            "enable_idempotence": is_idempotent,
        }
        # UniformStickyPartitioner ignores keys in the Java client, too.
        if values["partitioner_class"] == UNIFORM_STICKY_PARTITIONER:
            values["partitioner_ignore_keys"] = True
        # If an option has an effect but this class has no field for it, cls() below raises TypeError.
        field_values = {option.field: values[option.field] for option in PRODUCER_OPTIONS.values() if option.has_effect}
        compression_level = _find_compression_level(parsed_options)
        return cls(**field_values, compression_level=compression_level, security=values["security"])

    def client_config(self) -> ClientConfig:
        """Return the options for connections, requests and metadata."""
        return ClientConfig(**{field.name: getattr(self, field.name) for field in fields(ClientConfig)})

    @property
    def codec(self) -> Codec:
        """The codec set in compression.type."""
        return Codec[self.compression_type.upper()]


def parse_producer_options(options: Mapping[str, object]) -> ParsedOptions:
    """Parse each option separately, and collect the errors in the result.

    TLS and SASL options are accepted here, but only ProducerConfig.from_parsed_options() parses them. It also checks
    all options against each other.
    """
    return parse_option_values(PRODUCER_OPTIONS, options, other_names=SECURITY_OPTIONS, component="producer")


def merge_keywords(options: Mapping[str, object] | None, keywords: Mapping[str, object]) -> Mapping[str, object]:
    """Merge the options with keyword arguments, such as `linger_ms` for linger.ms.

    If a keyword with dots instead of underscores is not the name of an option, it is kept unchanged. It may be an
    option of another Kafka client, and a later step then raises an error that suggests the equivalent.

    Raise ConfigurationError if an option is set both ways, or if `options` is not a mapping.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(
            'Pass options as keyword arguments, such as KafkaProducer(bootstrap_servers="host:9092"), or as a '
            f"dictionary, not as {type(options).__name__}."
        )
    if not keywords:
        return options or {}
    keyword_options: dict[str, object] = {}
    for keyword, value in keywords.items():
        option_name = keyword.replace("_", ".")
        is_option = option_name in PRODUCER_OPTIONS or option_name in SECURITY_OPTIONS
        keyword_options[option_name if is_option else keyword] = value
    duplicates = sorted(keyword_options.keys() & (options or {}).keys())
    if duplicates:
        raise ConfigurationError([f"{name} is set twice, in the dictionary and as a keyword." for name in duplicates])
    return {**(options or {}), **keyword_options}


def _find_compression_level(parsed_options: ParsedOptions) -> int | None:
    """Return the level set for the codec in compression.type; None if none is set or the codec has no levels."""
    level_option = PRODUCER_OPTIONS.get(f"compression.{parsed_options.values['compression_type']}.level")
    if level_option is None or level_option.name not in parsed_options.raw_values:
        return None
    level: int = parsed_options.values[level_option.field]
    return level


def _check_codec(parsed_options: ParsedOptions) -> None:
    """Add a problem if the codec set in compression.type is not available in this Python environment."""
    if "compression_type" in parsed_options.invalid_fields:
        return
    try:
        require_codec(Codec[parsed_options.values["compression_type"].upper()])
    except MissingDependencyError as error:
        parsed_options.problems += error.unrendered_problems


def _check_rack(parsed_options: ParsedOptions) -> None:
    """Add a problem for each reason why partitioner.rack.aware cannot take effect."""
    values = parsed_options.values
    if not values["partitioner_rack_aware"]:
        return
    if not values["client_rack"] and "client_rack" not in parsed_options.invalid_fields:
        problem = "is true, so {client.rack} must be set to the rack of this client, spelled as broker.rack."
        parsed_options.problems.add("partitioner.rack.aware", problem)
    if values["partitioner_class"] == ROUND_ROBIN_PARTITIONER:
        problem = "has no effect, because {partitioner.class} is RoundRobinPartitioner. Remove one of them."
        parsed_options.problems.add("partitioner.rack.aware", problem)


def _resolve_delivery_timeout_ms(parsed_options: ParsedOptions) -> int:
    """Return the effective delivery.timeout.ms, which is at least linger.ms + request.timeout.ms.

    If the default is below this minimum, it is increased to the minimum. If the user has set a value below the minimum,
    that is a problem.
    """
    values = parsed_options.values
    timeout_ms: int = values["delivery_timeout_ms"]
    min_timeout_ms: int = min(values["linger_ms"] + values["request_timeout_ms"], INT_MAX)
    has_invalid_field = bool(parsed_options.invalid_fields & {"delivery_timeout_ms", "linger_ms", "request_timeout_ms"})
    if has_invalid_field or timeout_ms >= min_timeout_ms:
        return timeout_ms
    if "delivery.timeout.ms" in parsed_options.raw_values:
        parsed_options.problems.add(
            "delivery.timeout.ms",
            "is {timeout_ms}, but must be at least {linger.ms} + {request.timeout.ms} ({min_timeout_ms}).",
            timeout_ms=timeout_ms,
            min_timeout_ms=min_timeout_ms,
        )
        return timeout_ms
    _log.warning("Increased delivery.timeout.ms to linger.ms + request.timeout.ms, which is %d", min_timeout_ms)
    return min_timeout_ms


def _resolve_idempotence(parsed_options: ParsedOptions) -> bool:
    """Return whether the producer is idempotent.

    If the user has requested idempotence, with enable.idempotence or a transactional.id, each option that conflicts
    with it is a problem. If not, a conflict disables idempotence with a warning. There is one exception: too many
    requests in flight are a problem unless enable.idempotence is false.
    """
    is_idempotent: bool = parsed_options.values["enable_idempotence"]
    is_transactional = parsed_options.values["transactional_id"] is not None
    if parsed_options.invalid_fields & _IDEMPOTENCE_FIELDS:
        return is_idempotent  # the value does not matter, because the invalid options are errors
    if not is_idempotent:
        if is_transactional:
            parsed_options.problems.add("enable.idempotence", "must not be false, because {transactional.id} is set.")
        return False
    conflicts = find_idempotence_conflicts(parsed_options)
    if is_transactional or "enable.idempotence" in parsed_options.raw_values:
        reason = "{transactional.id} is set" if is_transactional else "{enable.idempotence} is true"
        for option, requirement in conflicts.items():
            parsed_options.problems.add(option, f"{requirement}, because {reason}.")
        return True
    if _IN_FLIGHT_OPTION in conflicts:
        in_flight = parsed_options.values["max_in_flight_requests_per_connection"]
        parsed_options.problems.add(
            _IN_FLIGHT_OPTION,
            f"is {{in_flight}}, but {conflicts[_IN_FLIGHT_OPTION]}, or {{enable.idempotence}} must be set to false.",
            in_flight=in_flight,
        )
    elif conflicts:
        requirements = " and ".join(f"{option} {requirement}" for option, requirement in conflicts.items())
        _log.warning(
            "Disabled idempotence, for which %s. Brokers do not detect duplicates of retried records.", requirements
        )
    return not conflicts


def find_idempotence_conflicts(parsed_options: ParsedOptions) -> dict[str, str]:
    """Map each option that conflicts with idempotence to the requirement it violates, as in {"acks": "must be all"}."""
    values = parsed_options.values
    conflicts = {}
    if values["acks"] != -1:  # acks=all
        conflicts["acks"] = "must be all"
    if values["retries"] == 0:
        conflicts["retries"] = "must not be 0"
    if values["max_in_flight_requests_per_connection"] > _MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
        conflicts[_IN_FLIGHT_OPTION] = f"must be at most {_MAX_IN_FLIGHT_WITH_IDEMPOTENCE}"
    return conflicts
