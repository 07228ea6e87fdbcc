"""ClientConfig: the options of the Java client that concern connections, requests and metadata.

The default of each stands here and nowhere else. `client_config` reads options as Spark and the command line give
them; a producer has more options, reads them itself, and builds a ClientConfig.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_kafka_sink.client.bootstrap import RESOLVE_CANONICAL, USE_ALL_DNS_IPS, parse_bootstrap_servers
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.frame import FRAME_BYTES_MAX
from spark_kafka_sink.network.security.config import SECURITY_OPTIONS, SecurityConfig, security_config

REBOOTSTRAP = "rebootstrap"
NO_RECOVERY = "none"


@dataclass(frozen=True)
class ClientConfig:
    """Times in milliseconds, sizes in bytes."""

    bootstrap_servers: tuple[str, ...]
    client_id: str = ""
    client_dns_lookup: str = USE_ALL_DNS_IPS
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
    receive_message_max_bytes: int = FRAME_BYTES_MAX
    max_in_flight_requests_per_connection: int = 5
    metadata_max_age_ms: int = 300_000
    metadata_max_idle_ms: int = 300_000
    metadata_recovery_strategy: str = REBOOTSTRAP
    metadata_recovery_rebootstrap_trigger_ms: int = 300_000


CLIENT_OPTIONS: dict[str, str] = {
    field_.name.replace("_", "."): field_.name
    for field_ in dataclasses.fields(ClientConfig)
    if field_.name != "security"
}
"""Option name -> field of ClientConfig."""

_MINIMA = {
    "max.in.flight.requests.per.connection": 1,
    "receive.message.max.bytes": 1024,
    "metadata.max.idle.ms": 5_000,
    "send.buffer.bytes": -1,
    "receive.buffer.bytes": -1,
    "connections.max.idle.ms": -1,
}
_CHOICES = {
    "client.dns.lookup": (USE_ALL_DNS_IPS, RESOLVE_CANONICAL),
    "metadata.recovery.strategy": (REBOOTSTRAP, NO_RECOVERY),
}


def client_config(options: Mapping[str, object]) -> ClientConfig:
    """Reads client and security options; ConfigurationError with everything that is wrong with them."""
    faults: list[str] = []
    values: dict[str, object] = {}
    for name, value in options.items():
        if name in SECURITY_OPTIONS:
            continue
        if name not in CLIENT_OPTIONS:
            faults.append(_unknown(name))
            continue
        try:
            values[CLIENT_OPTIONS[name]] = _read(name, value)
        except ConfigurationError as error:
            faults.extend(error.faults)
    if "bootstrap.servers" not in options:
        faults.append("bootstrap.servers is missing: where is the first broker?")
    try:
        values["security"] = security_config({name: v for name, v in options.items() if name in SECURITY_OPTIONS})
    except ConfigurationError as error:
        faults.extend(error.faults)
    if faults:
        raise ConfigurationError(faults)
    return ClientConfig(**values)  # type: ignore[arg-type]  # each was read by the type of its field


def _read(name: str, value: object) -> object:
    if name == "bootstrap.servers":
        servers = tuple(str(value).split(",")) if isinstance(value, str) else tuple(map(str, _items(name, value)))
        parse_bootstrap_servers(servers)
        return servers
    if name in _CHOICES or name == "client.id":
        choices = _CHOICES.get(name)
        if choices is not None and value not in choices:
            raise ConfigurationError(f"{name} is {value!r}, but must be one of {', '.join(choices)}")
        return str(value)
    return _read_integer(name, value)


def _read_integer(name: str, value: object) -> int:
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    minimum = _MINIMA.get(name, 0)
    if number is None or number < minimum:
        raise ConfigurationError(f"{name} is {value!r}, but must be a whole number of at least {minimum}")
    return number


def _items(name: str, value: object) -> list[object]:
    if isinstance(value, list | tuple):
        return list(value)
    raise ConfigurationError(f"{name} is {value!r}, but must be a text or a list of texts")


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [*CLIENT_OPTIONS, *SECURITY_OPTIONS], n=1)
    return f"{name} is not an option" + (f"; {near[0]} is" if near else "")
