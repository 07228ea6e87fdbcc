"""BootstrapLookup: retries the lookup of bootstrap.servers for up to bootstrap.resolve.timeout.ms (KIP-909).

It serves clients that are created before any name can be resolved, for example in a container whose network is still
starting.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

from spark_kafka_sink.client.bootstrap import (
    BOOTSTRAP_SERVERS_OPTION,
    ResolvedServers,
    parse_bootstrap_servers,
    resolve_servers,
)
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.host_lookups import BackgroundLookup
from spark_kafka_sink.errors import ConfigurationError, OptionProblem
from spark_kafka_sink.network.system import System


class BootstrapLookup:
    """Looks up bootstrap.servers until at least one name is resolved or the timeout has passed.

    The timeout starts with the first attempt. It does not interrupt an attempt that is running.
    """

    def __init__(self, config: ClientConfig, system: System, wakeup: Callable[[], None] | None = None) -> None:
        """Create a lookup that has not started. Raise ConfigurationError if an address is not HOST:PORT.

        `wakeup`: called after each attempt, on the background thread that runs the attempts. If it is None,
        `try_resolve` resolves the names on the calling thread.
        """
        parse_bootstrap_servers(config.bootstrap_servers)
        self._servers = config.bootstrap_servers
        self._dns_lookup = config.client_dns_lookup
        self._system = system
        self._timeout_ms = config.bootstrap_resolve_timeout_ms
        self._retry_backoff_ms = config.retry_backoff_ms
        self._wakeup = wakeup
        self._lookup: BackgroundLookup[ResolvedServers] | None = None
        self._deadline_ms = math.inf  # until the first call of `try_resolve`, which starts the timeout
        self._next_attempt_ms = -math.inf  # the first attempt is due immediately
        self._has_attempted = False
        self.failure_text = "the lookup has not finished"
        """The names that the last attempt could not resolve, each with the reason.

        Until the first attempt has finished, this says that there is no result yet.
        """

    def try_resolve(self) -> tuple[Node, ...]:
        """Start an attempt to resolve the bootstrap names if one is due, or collect the result of the current attempt.

        Return the resolved nodes. The tuple is empty if no attempt is due, if the attempt is still running, or if it
        has resolved no name. Raise ConfigurationError once the timeout has passed, without trying again.
        """
        now_ms = self._system.now()
        if self._deadline_ms == math.inf:
            self._deadline_ms = now_ms + self._timeout_ms
        if now_ms < self._due_ms():
            return ()
        if self._next_attempt_ms >= self._deadline_ms:  # the deadline has passed before the next attempt was due
            raise self._build_timeout_error()
        resolved_servers = self._resolve_servers()
        if resolved_servers is None:  # the attempt is still running
            return ()
        self.failure_text = resolved_servers.failures
        self._has_attempted = True
        now_ms = self._system.now()
        self._next_attempt_ms = now_ms + self._retry_backoff_ms
        if not resolved_servers.nodes and now_ms >= self._deadline_ms:
            raise self._build_timeout_error()
        return resolved_servers.nodes

    def _build_timeout_error(self) -> ConfigurationError:
        message_template = "could not be resolved within {timeout_ms} ms ({bootstrap.resolve.timeout.ms}): {failures}"
        values = {"timeout_ms": str(self._timeout_ms), "failures": self.failure_text}
        return ConfigurationError(OptionProblem(BOOTSTRAP_SERVERS_OPTION, message_template, values))

    def wait_ms(self) -> float:
        """Return the number of milliseconds after which `try_resolve` must be called again.

        Return inf while an attempt is running, because the caller is woken when the attempt ends.
        """
        if self._lookup is not None:
            return math.inf
        return max(0.0, self._due_ms() - self._system.now())

    def _due_ms(self) -> float:
        """Return the time of the next attempt or, if the deadline comes first, the deadline."""
        return min(self._next_attempt_ms, self._deadline_ms)

    def _resolve_servers(self) -> ResolvedServers | None:
        """Start an attempt if none is running. Return the attempt's result, or None while it is running."""
        level = logging.DEBUG if self._has_attempted else logging.WARNING  # warn only after the first attempt
        look_up = partial(resolve_servers, self._servers, self._dns_lookup, self._system, level)
        if self._wakeup is None:
            return look_up()
        lookup = self._lookup or BackgroundLookup(self._system, look_up, self._wakeup)
        if not lookup.is_finished:
            self._lookup = lookup
            return None
        self._lookup = None
        return lookup.result()
