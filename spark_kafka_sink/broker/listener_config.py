"""Listening: where and how securely an embedded broker listens, its threads, and the name that it gives to clients."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.errors import ConfigurationError

ALL_INTERFACES = ("", "0.0.0.0", "::")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListenerConfig:
    """`ports` are those of the nodes in turn; nodes without one get any free port."""

    host: str = "127.0.0.1"
    advertised_host: str | None = None
    ports: Sequence[int] = ()
    security: ListenerSecurity = field(default_factory=ListenerSecurity)
    network_threads: int = 2
    """Number of threads that read requests and write responses (`num.network.threads`)."""
    io_threads: int = 2
    """Number of threads that handle requests (`num.io.threads`); with 0 the network threads handle them."""
    max_queued_requests: int = 500
    """Largest number of requests that wait for an I/O thread (`queued.max.requests`)."""

    def __post_init__(self) -> None:
        bounds = (
            ("num.network.threads", self.network_threads, 1),
            ("num.io.threads", self.io_threads, 0),
            ("queued.max.requests", self.max_queued_requests, 1),
        )
        faults = [f"{name} must be at least {lowest}, not {value}." for name, value, lowest in bounds if value < lowest]
        if faults:
            raise ConfigurationError(faults)

    def resolve_advertised_host(self) -> str:
        """What Metadata says. All interfaces together are no address that a client could connect to."""
        if self.host not in ALL_INTERFACES:
            return self.advertised_host or self.host
        name = self.advertised_host or _name_of_this_machine()
        _log.warning(
            "the embedded broker listens on all interfaces%s. The name that clients get is %s%s",
            "" if self.security.uses_sasl else ": anyone who can reach this machine may read and write",
            name,
            "" if self.advertised_host else "; if that is wrong, give the advertised host",
        )
        return name


def _name_of_this_machine() -> str:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
