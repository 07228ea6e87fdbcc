"""The Java client's options for connections, requests and metadata, and their conversion to a ClientConfig.

Producers have these options and more (see producer/options.py). The TLS and SASL options are in
network/security_options.py. The defaults come from ClientConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_kafka_sink.client.bootstrap import RESOLVE_CANONICAL, USE_ALL_DNS_IPS, parse_bootstrap_servers
from spark_kafka_sink.client.config import NO_RECOVERY, REBOOTSTRAP, ClientConfig
from spark_kafka_sink.client.option_parsing import (
    INT_MAX,
    LONG_MAX,
    ParsedOptions,
    build_choice_parser,
    build_integer_parser,
    parse_boolean,
    parse_list,
    parse_non_negative_int,
    parse_non_negative_long,
    parse_option_values,
    parse_protocol_string,
)
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security_config import SecurityConfig, parse_security_config
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.options import Option, build_option_table

CONNECTION_OPTIONS = (
    Option("bootstrap.servers", (), parse_list, "host:port of a few brokers; the client discovers the others"),
    Option(
        "client.id",
        "",
        parse_protocol_string,
        "name of the client in the brokers' logs and quotas; producer-<number> if not set",
    ),
    Option(
        "client.dns.lookup",
        ClientConfig.client_dns_lookup,
        build_choice_parser(USE_ALL_DNS_IPS, RESOLVE_CANONICAL),
        "use_all_dns_ips: the client tries every address of a host; resolve_canonical_bootstrap_servers_only: it also "
        "replaces each bootstrap host with the canonical names of its addresses",
    ),
    Option(
        "bootstrap.resolve.timeout.ms",
        ClientConfig.bootstrap_resolve_timeout_ms,
        parse_non_negative_long,
        "0: the client resolves bootstrap.servers when it is created, and fails if no name can be resolved; otherwise "
        "it retries for this long in the background, and then every call fails",
    ),
    Option(
        "send.buffer.bytes",
        ClientConfig.send_buffer_bytes,
        build_integer_parser(-1, INT_MAX),
        "size of the socket's send buffer (SO_SNDBUF); -1 for the default of the operating system",
    ),
    Option(
        "receive.buffer.bytes",
        ClientConfig.receive_buffer_bytes,
        build_integer_parser(-1, INT_MAX),
        "size of the socket's receive buffer (SO_RCVBUF); -1 for the default of the operating system",
    ),
    Option(
        "reconnect.backoff.ms",
        ClientConfig.reconnect_backoff_ms,
        parse_non_negative_long,
        "initial wait before the client reconnects to a broker",
    ),
    Option(
        "reconnect.backoff.max.ms",
        ClientConfig.reconnect_backoff_max_ms,
        parse_non_negative_long,
        "maximum wait before the client reconnects to a broker; the wait doubles with each failure, and varies by up "
        "to 20%",
    ),
    Option(
        "socket.connection.setup.timeout.ms",
        ClientConfig.socket_connection_setup_timeout_ms,
        parse_non_negative_long,
        "initial timeout for establishing a connection, including the host name lookup",
    ),
    Option(
        "socket.connection.setup.timeout.max.ms",
        ClientConfig.socket_connection_setup_timeout_max_ms,
        parse_non_negative_long,
        "maximum timeout for establishing a connection; the timeout doubles with each failure",
    ),
    Option(
        "connections.max.idle.ms",
        ClientConfig.connections_max_idle_ms,
        build_integer_parser(-1, LONG_MAX),
        "idle connections are closed after this time",
    ),
    Option(
        "metadata.max.age.ms",
        ClientConfig.metadata_max_age_ms,
        parse_non_negative_long,
        "metadata of partitions and leaders is refreshed after this time",
    ),
    Option(
        "metadata.max.idle.ms",
        ClientConfig.metadata_max_idle_ms,
        build_integer_parser(5000, LONG_MAX),
        "metadata of a topic that is not used for this long is dropped",
    ),
    Option(
        "metadata.recovery.strategy",
        ClientConfig.metadata_recovery_strategy,
        build_choice_parser(REBOOTSTRAP, NO_RECOVERY),
        "rebootstrap: the client returns to the bootstrap servers when no known broker responds; none: it does not",
    ),
    Option(
        "metadata.recovery.rebootstrap.trigger.ms",
        ClientConfig.metadata_recovery_rebootstrap_trigger_ms,
        parse_non_negative_int,
        "with metadata.recovery.strategy rebootstrap: the client returns to the bootstrap servers when a metadata "
        "update is due and no broker has responded for this long",
    ),
    Option(
        "metadata.cluster.check.enable",
        ClientConfig.metadata_cluster_check_enable,
        parse_boolean,
        "true: the client tells each broker which cluster and broker a connection is meant for, so that a misrouted "
        "connection is rejected and the client returns to the bootstrap servers; needs brokers of Kafka 4.4 or newer "
        "and metadata.recovery.strategy rebootstrap",
    ),
)

_REQUEST_OPTIONS = (
    Option(
        "retry.backoff.ms",
        ClientConfig.retry_backoff_ms,
        parse_non_negative_long,
        "initial wait before a failed request is retried",
    ),
    Option(
        "retry.backoff.max.ms",
        ClientConfig.retry_backoff_max_ms,
        parse_non_negative_long,
        "maximum wait before a failed request is retried; the wait doubles with each failure, and varies by up to 20%",
    ),
    Option(
        "request.timeout.ms",
        ClientConfig.request_timeout_ms,
        parse_non_negative_int,
        "a connection is closed if a request has no response for this long",
    ),
    Option(
        "max.in.flight.requests.per.connection",
        ClientConfig.max_in_flight_requests_per_connection,
        build_integer_parser(1, INT_MAX),
        "requests in flight per broker; at most 5 with idempotence",
    ),
)

CLIENT_OPTIONS = build_option_table((*CONNECTION_OPTIONS, *_REQUEST_OPTIONS))


def parse_client_config(options: Mapping[str, object]) -> ClientConfig:
    """Build a ClientConfig from client and security options.

    Raise a single ConfigurationError that lists all problems.
    """
    parsed_options = parse_option_values(CLIENT_OPTIONS, options, SECURITY_OPTIONS, "client")
    values = parsed_options.values | resolve_connection_values(parsed_options)
    if parsed_options.problems:
        raise ConfigurationError(parsed_options.problems)
    # An option without a field in ClientConfig would silently have no effect. ClientConfig() raises TypeError instead.
    field_values = {option.field: values[option.field] for option in CLIENT_OPTIONS.values() if option.has_effect}
    return ClientConfig(**field_values, security=values["security"])


def resolve_connection_values(parsed_options: ParsedOptions) -> dict[str, Any]:
    """Check the connection options against each other. Return the values that replace or extend the parsed ones.

    The result includes `security`, which is None if the security options have problems. All problems are added to
    `parsed_options`.
    """
    security = _parse_security(parsed_options)
    _check_bootstrap_servers(parsed_options)
    return {"security": security, **_adjust_backoffs(parsed_options)}


def _parse_security(parsed_options: ParsedOptions) -> SecurityConfig | None:
    """Parse the security options. If any is invalid, add the problems to `parsed_options` and return None."""
    try:
        return parse_security_config(
            {name: value for name, value in parsed_options.raw_values.items() if name in SECURITY_OPTIONS}
        )
    except ConfigurationError as error:
        parsed_options.problems += error.unrendered_problems
    return None


def _check_bootstrap_servers(parsed_options: ParsedOptions) -> None:
    """Add a problem if there is no bootstrap server, and one for each that is not HOST:PORT."""
    servers = parsed_options.values["bootstrap_servers"]
    if "bootstrap_servers" in parsed_options.invalid_fields:
        return
    if not servers:
        parsed_options.problems.add("bootstrap.servers", "is not set. Set it to host:port of at least one broker.")
        return
    try:
        parse_bootstrap_servers(servers)
    except ConfigurationError as error:
        parsed_options.problems += error.unrendered_problems


def _adjust_backoffs(parsed_options: ParsedOptions) -> dict[str, int]:
    """Return new values for the backoffs that must change, so that no initial backoff exceeds its maximum.

    Like the Java client, lower the initial backoff if the user has set the maximum; otherwise raise the maximum.
    """
    adjusted_values: dict[str, int] = {}
    for name in ("reconnect_backoff", "retry_backoff"):
        initial_field, max_field = f"{name}_ms", f"{name}_max_ms"
        initial_ms, max_ms = parsed_options.values[initial_field], parsed_options.values[max_field]
        if initial_ms > max_ms:
            is_max_set = max_field.replace("_", ".") in parsed_options.raw_values
            adjusted_values |= {initial_field: max_ms} if is_max_set else {max_field: initial_ms}
    return adjusted_values
