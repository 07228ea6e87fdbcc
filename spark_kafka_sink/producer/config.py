"""ProducerConfig: the Java producer's options, parsed once, checked together, frozen.

All faults of a configuration are told in one ConfigurationError, and each sentence begins with the option's name. A
name that the Java producer does not know is a fault too: a misspelt option that is silently passed over is found at two
in the morning. Values never appear in a fault unless they are the user's harmless ones: secrets are parsed elsewhere
(network/security/config.py), and what is unknown is not shown, because nobody can say whether it is a secret.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spark_kafka_sink.client.bootstrap import parse_bootstrap_servers
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security.config import SECURITY_OPTIONS, SecurityConfig, security_config
from spark_kafka_sink.producer.option_table import INT_MAX, PRODUCER_OPTIONS, ProducerOption
from spark_kafka_sink.records.compression import Codec

__all__ = ["PRODUCER_OPTIONS", "ProducerConfig", "ProducerOption"]

_log = logging.getLogger(__name__)
_IN_FLIGHT_MAX_WITH_IDEMPOTENCE = 5


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
        faults: list[str] = []
        wrong: set[str] = set()  # fields; what they were meant to be is not known, so nothing is compared with them
        given = {name: value for name, value in options.items() if value is not None}
        values: dict[str, Any] = {option.field: option.default for option in PRODUCER_OPTIONS.values()}
        security_given = {name: value for name, value in given.items() if name in SECURITY_OPTIONS}
        for name, value in given.items():
            option = PRODUCER_OPTIONS.get(name)
            if option is not None:
                before = len(faults)
                values[option.field] = _parse_one(option, value, faults)
                if len(faults) > before:
                    wrong.add(option.field)
            elif name not in security_given:
                faults.append(_unknown(name))
        values["security"] = _security(security_given, faults)
        if not any(fault.startswith("bootstrap.servers") for fault in faults):
            _check_servers(values["bootstrap_servers"], faults)
        values["compression_level"] = _compression_level(values, given)
        _check_backoffs(values, given)
        if not wrong & {"delivery_timeout_ms", "linger_ms", "request_timeout_ms"}:
            _check_delivery_timeout(values, given, faults)
        if not wrong & {"enable_idempotence", "acks", "retries", "max_in_flight_requests_per_connection"}:
            _check_idempotence(values, given, faults)
        if values["partitioner_class"] == "UniformStickyPartitioner":
            values["partitioner_ignore_keys"] = True
        if faults:
            raise ConfigurationError(faults)
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


def _parse_one(option: ProducerOption, value: object, faults: list[str]) -> object:
    try:
        parsed = option.parse(value)
    except ValueError as error:
        reason = f"cannot be set: {option.refused}" if option.refused else error
        faults.append(f"{option.name} {reason}.")
        return option.default
    if option.refused and parsed != option.default:
        faults.append(f"{option.name} cannot be set: {option.refused}.")
        return option.default
    return parsed


def _unknown(name: object) -> str:
    known = [*PRODUCER_OPTIONS, *SECURITY_OPTIONS]
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"{name} is not an option of the Kafka producer." + (f" Is {near[0]} meant?" if near else "")


def _security(given: Mapping[str, object], faults: list[str]) -> SecurityConfig | None:
    try:
        return security_config(given)
    except ConfigurationError as error:
        faults.extend(error.faults)
        return None


def _check_servers(servers: tuple[str, ...], faults: list[str]) -> None:
    if not servers:
        faults.append("bootstrap.servers is not set: give host:port of at least one broker.")
        return
    try:
        parse_bootstrap_servers(servers)
    except ConfigurationError as error:
        faults.extend(error.faults)


def _compression_level(values: Mapping[str, Any], given: Mapping[str, object]) -> int | None:
    name = f"compression.{values['compression_type']}.level"
    return values[PRODUCER_OPTIONS[name].field] if name in given and name in PRODUCER_OPTIONS else None


def _check_backoffs(values: dict[str, Any], given: Mapping[str, object]) -> None:
    """A first wait above the longest one: the Java client lowers it, or raises the other if only the first was set."""
    for name in ("reconnect_backoff", "retry_backoff"):
        first, longest = f"{name}_ms", f"{name}_max_ms"
        if values[first] > values[longest]:
            if longest.replace("_", ".") in given:
                values[first] = values[longest]
            else:
                values[longest] = values[first]


def _check_delivery_timeout(values: dict[str, Any], given: Mapping[str, object], faults: list[str]) -> None:
    least = min(values["linger_ms"] + values["request_timeout_ms"], INT_MAX)
    if values["delivery_timeout_ms"] >= least:
        return
    if "delivery.timeout.ms" in given:
        faults.append(
            f"delivery.timeout.ms ({values['delivery_timeout_ms']}) must be at least linger.ms + request.timeout.ms, "
            f"which is {least}."
        )
    else:
        _log.warning("delivery.timeout.ms is raised to linger.ms + request.timeout.ms, which is %d.", least)
        values["delivery_timeout_ms"] = least


def _check_idempotence(values: dict[str, Any], given: Mapping[str, object], faults: list[str]) -> None:
    if not values["enable_idempotence"]:
        return
    asked = "enable.idempotence" in given
    conflicts: list[str] = []
    if values["acks"] != -1:
        conflicts.append("acks must be all")
    if values["retries"] == 0:
        conflicts.append("retries must not be 0")
    if values["max_in_flight_requests_per_connection"] > _IN_FLIGHT_MAX_WITH_IDEMPOTENCE:
        words = f"max.in.flight.requests.per.connection must be at most {_IN_FLIGHT_MAX_WITH_IDEMPOTENCE}"
        if not asked:
            faults.append(f"{words}, or enable.idempotence must be set to false.")
        conflicts.append(words)
    if asked:
        faults.extend(f"enable.idempotence is true: {conflict}." for conflict in conflicts)
    elif conflicts:
        _log.warning("Idempotence is off, because %s for it: a retry may double records.", " and ".join(conflicts))
        values["enable_idempotence"] = False
