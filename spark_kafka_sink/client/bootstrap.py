"""Bootstrap nodes: the addresses of bootstrap.servers, with negative node ids because the real ids are unknown.

Every host name is resolved once at the start, so that a misspelt name raises ConfigurationError at once instead of
timing out later. If at least one name can be resolved, the others are only logged as warnings: a decommissioned broker
may have lost its DNS entry.

With bootstrap.resolve.timeout.ms, a client is created before a name can be resolved, for example in a container whose
network is still starting. It repeats the lookup until the timeout (KIP-909).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import ConfigurationError, NetworkError, OptionFault, OptionFaults
from spark_kafka_sink.network.system import System

if TYPE_CHECKING:
    from spark_kafka_sink.client.config import ClientConfig

BOOTSTRAP_SERVERS_OPTION = "bootstrap.servers"
USE_ALL_DNS_IPS = "use_all_dns_ips"
RESOLVE_CANONICAL = "resolve_canonical_bootstrap_servers_only"
MAX_PORT = 65535

# A scheme such as PLAINTEXT:// is accepted and ignored, as in other clients. IPv6 addresses are enclosed in brackets.
_ADDRESS_PATTERN = re.compile(
    r"(?:[0-9a-zA-Z\-_.]+://)?(?:\[([0-9a-fA-F:.%\w]+)\]|([0-9a-zA-Z\-_.]+)):([0-9]{1,5})", re.ASCII
)

_log = logging.getLogger(__name__)


def parse_bootstrap_servers(servers: Sequence[str]) -> list[tuple[str, int]]:
    """Return host and port of each server. Raise ConfigurationError with all servers that are not HOST:PORT."""
    addresses: list[tuple[str, int]] = []
    faults = OptionFaults()
    for server in servers:
        match = _ADDRESS_PATTERN.fullmatch(server.strip())
        if "@" in server:  # The address is not shown: the part before the '@' may be a password.
            text = "has an address that contains '@'. Put user and password into {sasl.jaas.config}."
            faults.add(BOOTSTRAP_SERVERS_OPTION, text)
        elif match is None:
            faults.add(BOOTSTRAP_SERVERS_OPTION, "has {address!r}, which is not HOST:PORT.", address=server.strip())
        elif not 0 < int(match[3]) <= MAX_PORT:
            text = f"has {{address!r}}, whose port is not between 1 and {MAX_PORT}."
            faults.add(BOOTSTRAP_SERVERS_OPTION, text, address=server.strip())
        else:
            addresses.append((match[1] or match[2], int(match[3])))
    if not servers:
        faults.add(BOOTSTRAP_SERVERS_OPTION, "has no address.")
    if faults:
        raise ConfigurationError(faults)
    return list(dict.fromkeys(addresses))


def bootstrap_nodes(servers: Sequence[str], dns_lookup: str, system: System) -> tuple[Node, ...]:
    """Resolve the servers' names. With RESOLVE_CANONICAL, each address becomes a node under its canonical name.

    Raise ConfigurationError if no name can be resolved.
    """
    nodes, failures = _resolve(servers, dns_lookup, system, logging.WARNING)
    if not nodes:
        text = "has no address that can be resolved: {failures}"
        raise ConfigurationError(OptionFault(BOOTSTRAP_SERVERS_OPTION, text, {"failures": failures}))
    return nodes


class BootstrapLookup:
    """The lookup of bootstrap.servers that is repeated until a name is resolved or the timeout has passed.

    The timeout begins with the first attempt. Names are resolved on the thread of the caller.
    """

    def __init__(self, config: ClientConfig, system: System) -> None:
        """Raise ConfigurationError if an address is not HOST:PORT."""
        parse_bootstrap_servers(config.bootstrap_servers)
        self._servers = config.bootstrap_servers
        self._dns_lookup = config.client_dns_lookup
        self._system = system
        self._timeout_ms = config.bootstrap_resolve_timeout_ms
        self._retry_ms = config.retry_backoff_ms
        self._deadline_ms: float | None = None
        self._due_ms = -math.inf
        self.failures = ""
        """The reasons why the last attempt has resolved no name."""

    def attempt(self) -> tuple[Node, ...]:
        """Resolve the names if an attempt is due. Return no nodes if none is due, or if no name was resolved.

        Raise ConfigurationError after the timeout. No attempt is made then.
        """
        now = self._system.now()
        if self._deadline_ms is None:
            self._deadline_ms = now + self._timeout_ms
        if now < self._due_ms:
            return ()
        if self._due_ms < self._deadline_ms:
            level = logging.DEBUG if self.failures else logging.WARNING
            nodes, self.failures = _resolve(self._servers, self._dns_lookup, self._system, level)
            now = self._system.now()
            if nodes or now < self._deadline_ms:
                self._due_ms = min(now + self._retry_ms, self._deadline_ms)
                return nodes
            self._due_ms = self._deadline_ms
        text = f"has no address that could be resolved within {self._timeout_ms} ms "
        text += "({bootstrap.resolve.timeout.ms}): {failures}"
        raise ConfigurationError(OptionFault(BOOTSTRAP_SERVERS_OPTION, text, {"failures": self.failures}))

    def wait_ms(self) -> float:
        """Return the time until the next attempt is due."""
        return max(0.0, self._due_ms - self._system.now())


def _resolve(
    servers: Sequence[str], dns_lookup: str, system: System, failure_level: int
) -> tuple[tuple[Node, ...], str]:
    """Return a node for each host, and the reasons why other names could not be resolved."""
    hosts: list[tuple[str, int]] = []
    failures: list[str] = []
    for host, port in parse_bootstrap_servers(servers):
        try:
            addresses = system.resolve(host, port)
        except NetworkError as error:
            _log.log(failure_level, "%s: %s", BOOTSTRAP_SERVERS_OPTION, error)
            failures.append(str(error))
            continue
        if dns_lookup == RESOLVE_CANONICAL:
            hosts.extend((system.canonical_name(address), port) for address in addresses)
        else:
            hosts.append((host, port))
    nodes = tuple(Node(-1 - index, host, port) for index, (host, port) in enumerate(dict.fromkeys(hosts)))
    return nodes, "; ".join(failures)
