"""The options of the Java client that concern connections, requests and metadata: the one table, and the one reader.

A producer has all of these, and more (producer/config.py). The rows of TLS and SASL
are in network/security. The defaults are those of ClientConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_kafka_sink.client.bootstrap import RESOLVE_CANONICAL, USE_ALL_DNS_IPS, parse_bootstrap_servers
from spark_kafka_sink.client.config import NO_RECOVERY, REBOOTSTRAP, ClientConfig
from spark_kafka_sink.client.option_parsing import (
    INT_MAX,
    LONG_MAX,
    Reading,
    names,
    natural_int,
    natural_long,
    one_of,
    read_options,
    sent_text,
    whole,
)
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security_config import SecurityConfig, security_config
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.options import Option, option_table

CONNECTION_OPTIONS = (
    Option("bootstrap.servers", (), names, "host:port of a few brokers; the others are learnt from them"),
    Option("client.id", "", sent_text, "the name in the brokers' logs and quotas; producer-<number> if not set"),
    Option(
        "client.dns.lookup",
        ClientConfig.client_dns_lookup,
        one_of(USE_ALL_DNS_IPS, RESOLVE_CANONICAL),
        "use_all_dns_ips tries every address of a name; resolve_canonical_bootstrap_servers_only "
        "replaces bootstrap names by the canonical names of their addresses",
    ),
    Option(
        "send.buffer.bytes",
        ClientConfig.send_buffer_bytes,
        whole(-1, INT_MAX),
        "SO_SNDBUF; -1 leaves it to the system",
    ),
    Option(
        "receive.buffer.bytes",
        ClientConfig.receive_buffer_bytes,
        whole(-1, INT_MAX),
        "SO_RCVBUF; -1 leaves it to the system",
    ),
    Option(
        "reconnect.backoff.ms",
        ClientConfig.reconnect_backoff_ms,
        natural_long,
        "the first wait before a broker is connected to again",
    ),
    Option(
        "reconnect.backoff.max.ms",
        ClientConfig.reconnect_backoff_max_ms,
        natural_long,
        "the wait doubles up to this, give or take a fifth",
    ),
    Option(
        "socket.connection.setup.timeout.ms",
        ClientConfig.socket_connection_setup_timeout_ms,
        natural_long,
        "the first time allowed for a connection",
    ),
    Option(
        "socket.connection.setup.timeout.max.ms",
        ClientConfig.socket_connection_setup_timeout_max_ms,
        natural_long,
        "the time allowed doubles up to this",
    ),
    Option(
        "connections.max.idle.ms",
        ClientConfig.connections_max_idle_ms,
        whole(-1, LONG_MAX),
        "an idle connection is closed after this",
    ),
    Option(
        "metadata.max.age.ms",
        ClientConfig.metadata_max_age_ms,
        natural_long,
        "leaders and partitions are asked for again after this",
    ),
    Option(
        "metadata.max.idle.ms",
        ClientConfig.metadata_max_idle_ms,
        whole(5000, LONG_MAX),
        "a topic not written to for this long is forgotten",
    ),
    Option(
        "metadata.recovery.strategy",
        ClientConfig.metadata_recovery_strategy,
        one_of(REBOOTSTRAP, NO_RECOVERY),
        "rebootstrap: when no known broker answers, the bootstrap servers are resolved and asked again; none: they are "
        "not",
    ),
    Option(
        "metadata.recovery.rebootstrap.trigger.ms",
        ClientConfig.metadata_recovery_rebootstrap_trigger_ms,
        natural_int,
        "how long no broker answers before that happens",
    ),
)

_REQUEST_OPTIONS = (
    Option(
        "retry.backoff.ms", ClientConfig.retry_backoff_ms, natural_long, "the first wait before a batch is sent again"
    ),
    Option(
        "retry.backoff.max.ms",
        ClientConfig.retry_backoff_max_ms,
        natural_long,
        "the wait doubles up to this, give or take a fifth",
    ),
    Option(
        "request.timeout.ms",
        ClientConfig.request_timeout_ms,
        natural_int,
        "a connection that does not answer for this long is closed",
    ),
    Option(
        "max.in.flight.requests.per.connection",
        ClientConfig.max_in_flight_requests_per_connection,
        whole(1, INT_MAX),
        "unanswered requests per broker; at most 5 with idempotence",
    ),
)

CLIENT_OPTIONS = option_table((*CONNECTION_OPTIONS, *_REQUEST_OPTIONS))


def client_config(options: Mapping[str, object]) -> ClientConfig:
    """Read client and security options; ConfigurationError with everything that is wrong with them."""
    reading = read_options(CLIENT_OPTIONS, options, SECURITY_OPTIONS, "client")
    values = reading.values | settled_connections(reading)
    if reading.faults:
        raise ConfigurationError(reading.faults)
    # An option without a field is a TypeError here: it would have no effect.
    honoured = {option.field: values[option.field] for option in CLIENT_OPTIONS.values() if option.is_honoured}
    return ClientConfig(**honoured, security=values["security"])


def settled_connections(reading: Reading) -> dict[str, Any]:
    """The values that take the place of those that were read, security among them."""
    security = _security(reading)
    _check_servers(reading)
    return {"security": security, **_settled_backoffs(reading)}


def _security(reading: Reading) -> SecurityConfig | None:
    try:
        return security_config({name: value for name, value in reading.given.items() if name in SECURITY_OPTIONS})
    except ConfigurationError as error:
        reading.faults += error.unrendered_faults
    return None


def _check_servers(reading: Reading) -> None:
    servers = reading.values["bootstrap_servers"]
    if "bootstrap_servers" in reading.wrong:
        return
    if not servers:
        reading.faults.add("bootstrap.servers", "is not set: give host:port of at least one broker.")
        return
    try:
        parse_bootstrap_servers(servers)
    except ConfigurationError as error:
        reading.faults += error.unrendered_faults


def _settled_backoffs(reading: Reading) -> dict[str, int]:
    """A first wait above the longest one: the Java client lowers it, or raises the other if only the first was set."""
    settled: dict[str, int] = {}
    for name in ("reconnect_backoff", "retry_backoff"):
        first, longest = f"{name}_ms", f"{name}_max_ms"
        if reading.values[first] > reading.values[longest]:
            lowers = longest.replace("_", ".") in reading.given
            settled |= {first: reading.values[longest]} if lowers else {longest: reading.values[first]}
    return settled
