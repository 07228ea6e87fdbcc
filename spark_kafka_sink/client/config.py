"""ClientConfig: a client's settings for connections, requests and metadata, with their defaults.

options.py parses the options that users set. Producers have more options and derive their ClientConfig from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_kafka_sink.client.bootstrap import USE_ALL_DNS_IPS
from spark_kafka_sink.network.security_config import SecurityConfig

# The values of metadata.recovery.strategy.
REBOOTSTRAP = "rebootstrap"
NO_RECOVERY = "none"


@dataclass(frozen=True)
class ClientConfig:
    """A client's settings. Times are in milliseconds, sizes in bytes."""

    bootstrap_servers: tuple[str, ...]
    client_id: str = ""
    client_dns_lookup: str = USE_ALL_DNS_IPS
    bootstrap_resolve_timeout_ms: int = 0
    """The time limit for resolving bootstrap.servers. 0 means to resolve them once, when the client is created."""
    security: SecurityConfig = field(default_factory=SecurityConfig)
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    socket_connection_setup_timeout_max_ms: int = 30_000
    connections_max_idle_ms: int = 540_000
    send_buffer_bytes: int = 131_072
    receive_buffer_bytes: int = 32_768
    max_in_flight_requests_per_connection: int = 5
    metadata_max_age_ms: int = 300_000
    metadata_max_idle_ms: int = 300_000
    metadata_recovery_strategy: str = REBOOTSTRAP
    metadata_recovery_rebootstrap_trigger_ms: int = 300_000
    metadata_cluster_check_enable: bool = True
