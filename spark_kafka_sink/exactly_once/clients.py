"""Clients of drivers, cached between batches: connecting and authenticating take longer than a batch's requests.

Tasks use the connections of their producers instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.network.system import System
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.leases import CLIENT_IDLE_SECONDS, Leases

TIMEOUT_MS = 120_000.0
"""Maximum time without progress before an operation fails."""
NODE_TIMEOUT_MS = 3_000.0
"""Response timeout after which a node is disconnected. It grows when the node is used again."""
_MAX_IN_FLIGHT = 50


def create_leases() -> Leases[BlockingClient]:
    return Leases(lambda client: client.close(), max_idle=4)


CLIENTS = create_leases()
"""The cached clients of this process's drivers."""


def create_client(
    config: ClientConfig, *, timeout_ms: float = TIMEOUT_MS, system: System | None = None
) -> BlockingClient:
    config = replace(config, max_in_flight_requests_per_connection=_MAX_IN_FLIGHT)
    return BlockingClient(config, timeout_ms=timeout_ms, node_timeout_ms=NODE_TIMEOUT_MS, system=system)


@contextlib.contextmanager
def lease_client(config: ClientConfig, *, system: System | None = None) -> Iterator[BlockingClient]:
    """Lease a cached client, or create one. With `system`, which only tests set, the client is not cached."""
    if system is not None:
        with contextlib.closing(create_client(config, system=system)) as client:
            yield client
        return
    with CLIENTS.lease(config, lambda: create_client(config), CLIENT_IDLE_SECONDS) as client:
        yield client
