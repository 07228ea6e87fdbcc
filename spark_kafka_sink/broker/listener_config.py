"""ListenerConfig: address, security and thread settings of the embedded broker's listeners."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.errors import ConfigurationError

ALL_INTERFACES = ("", "0.0.0.0", "::")
ANY_FREE_PORT = 0
"""The port number with which the operating system chooses a free port."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListenerConfig:
    """Settings of the listeners; each node has one listener."""

    host: str = "127.0.0.1"
    advertised_host: str | None = None
    """Host name in Metadata responses. Defaults to `host`, or to the machine's name if `host` means all interfaces."""
    ports: Sequence[int] = ()
    """Port of each node, by node id. Nodes without an entry listen on any free port."""
    security: ListenerSecurity = field(default_factory=ListenerSecurity)
    network_threads: int = 2
    """Number of threads that read requests and write responses (`num.network.threads`)."""
    io_threads: int = 2
    """Number of threads that handle requests (`num.io.threads`). If 0, the network threads handle them."""
    max_queued_requests: int = 500
    """Maximum number of requests waiting for an I/O thread (`queued.max.requests`)."""

    def __post_init__(self) -> None:
        bounds = (
            ("num.network.threads", self.network_threads, 1),
            ("num.io.threads", self.io_threads, 0),
            ("queued.max.requests", self.max_queued_requests, 1),
        )
        errors = [f"{name} must be at least {lowest}, not {value}." for name, value, lowest in bounds if value < lowest]
        if errors:
            raise ConfigurationError(errors)

    def find_port(self, node_id: int) -> int:
        """Return the port on which the node listens; ANY_FREE_PORT if `ports` has no entry for the node."""
        return self.ports[node_id] if node_id < len(self.ports) else ANY_FREE_PORT

    def resolve_advertised_host(self) -> str:
        """Return the host name for clients to connect to.

        A listener on all interfaces has no single address to connect to, so it advertises `advertised_host` or else the
        machine's name. For such a listener, this method also logs a warning, because other machines can connect.
        """
        if self.host not in ALL_INTERFACES:
            return self.advertised_host or self.host
        host_name = self.advertised_host or _find_resolvable_hostname()
        access_note = "" if self.security.uses_sasl else ", and anyone who can reach this machine can read and write"
        name_note = "" if self.advertised_host else "; set advertised_host if clients cannot resolve that name"
        _log.warning(
            "The embedded broker is listening on all interfaces%s. It advertises the host name %s%s",
            access_note,
            host_name,
            name_note,
        )
        return host_name


def _find_resolvable_hostname() -> str:
    """Return this machine's host name, or localhost if the machine cannot resolve its own name."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
