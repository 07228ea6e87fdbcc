"""Listening: on which addresses an embedded broker listens, how it is secured, and which name it gives to clients."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_kafka_sink.broker.listener_security import ListenerSecurity

ALL_INTERFACES = ("", "0.0.0.0", "::")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listening:
    """`ports` are those of the nodes in turn; nodes without one get any free port."""

    host: str = "127.0.0.1"
    advertised_host: str | None = None
    ports: Sequence[int] = ()
    security: ListenerSecurity = field(default_factory=ListenerSecurity)
    processors: int = 2

    def name_for_clients(self) -> str:
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
