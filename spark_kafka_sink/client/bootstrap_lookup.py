"""BootstrapLookup: the repeated lookup of bootstrap.servers with bootstrap.resolve.timeout.ms (KIP-909).

The client is created before a name can be resolved, for example in a container whose network is still starting.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

from spark_kafka_sink.client.bootstrap import BOOTSTRAP_SERVERS_OPTION, parse_bootstrap_servers, resolve_servers
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.host_lookups import BackgroundLookup
from spark_kafka_sink.errors import ConfigurationError, OptionFault
from spark_kafka_sink.network.system import System


class BootstrapLookup:
    """The lookup of bootstrap.servers that is repeated until a name is resolved or the timeout has passed.

    The timeout begins with the first attempt, and does not end an attempt that is running.
    """

    def __init__(self, config: ClientConfig, system: System, wakeup: Callable[[], None] | None = None) -> None:
        """Raise ConfigurationError if an address is not HOST:PORT.

        `wakeup`: called when an attempt, which runs on a thread of its own, has finished. Without it, `attempt` itself
        resolves the names.
        """
        parse_bootstrap_servers(config.bootstrap_servers)
        self._servers = config.bootstrap_servers
        self._dns_lookup = config.client_dns_lookup
        self._system = system
        self._timeout_ms = config.bootstrap_resolve_timeout_ms
        self._retry_ms = config.retry_backoff_ms
        self._wakeup = wakeup
        self._lookup: BackgroundLookup[tuple[tuple[Node, ...], str]] | None = None
        self._deadline_ms: float | None = None
        self._due_ms = -math.inf
        self._has_failed = False
        self.failures = "their lookup has not finished"
        """The reasons why the last attempt has resolved no name."""

    def attempt(self) -> tuple[Node, ...]:
        """Begin to resolve the names if an attempt is due.

        Return the nodes once a name was resolved. Return no nodes while an attempt is running, or until the next one is
        due. After the timeout, make no further attempt and raise ConfigurationError.
        """
        now = self._system.now()
        if self._deadline_ms is None:
            self._deadline_ms = now + self._timeout_ms
        if now < self._due_ms:
            return ()
        if self._due_ms < self._deadline_ms:
            result = self._resolve_servers()
            if result is None:
                return ()
            nodes, self.failures = result
            self._has_failed = True
            now = self._system.now()
            if nodes or now < self._deadline_ms:
                self._due_ms = min(now + self._retry_ms, self._deadline_ms)
                return nodes
            self._due_ms = self._deadline_ms
        text = f"has no address that could be resolved within {self._timeout_ms} ms "
        text += "({bootstrap.resolve.timeout.ms}): {failures}"
        raise ConfigurationError(OptionFault(BOOTSTRAP_SERVERS_OPTION, text, {"failures": self.failures}))

    def wait_ms(self) -> float:
        """Return the time until the next attempt is due; inf while one is running, whose end wakes up the caller."""
        return math.inf if self._lookup is not None else max(0.0, self._due_ms - self._system.now())

    def _resolve_servers(self) -> tuple[tuple[Node, ...], str] | None:
        """Return the nodes and the failures of the current attempt, or None while it is running."""
        level = logging.DEBUG if self._has_failed else logging.WARNING
        look_up = partial(resolve_servers, self._servers, self._dns_lookup, self._system, level)
        if self._wakeup is None:
            return look_up()
        lookup = self._lookup or BackgroundLookup(self._system, look_up, self._wakeup)
        if not lookup.is_finished:
            self._lookup = lookup
            return None
        self._lookup = None
        return lookup.result()
