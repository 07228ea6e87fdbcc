"""BootstrapLookup: the repeated lookup of bootstrap.servers with bootstrap.resolve.timeout.ms (KIP-909).

The client is created before a name can be resolved, for example in a container whose network is still starting.
"""

from __future__ import annotations

import logging
import math

from spark_kafka_sink.client.bootstrap import BOOTSTRAP_SERVERS_OPTION, parse_bootstrap_servers, resolve_servers
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import ConfigurationError, OptionFault
from spark_kafka_sink.network.system import System


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
            nodes, self.failures = resolve_servers(self._servers, self._dns_lookup, self._system, level)
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
