"""The clients of drivers, cached between batches.

They are cached because connecting and authenticating takes longer than all requests of a batch. Tasks do not use these
clients: they send their transaction requests on the connections of their producers.
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
"""How long an operation may go without progress before it fails."""
NODE_TIMEOUT_MS = 3_000.0
"""How long a node may be unresponsive before it is disconnected. Doubles with each consecutive timeout."""
_MAX_IN_FLIGHT = 50


def create_leases() -> Leases[BlockingClient]:
    """Create a cache that keeps at most four idle clients."""
    return Leases(lambda client: client.close(), max_idle=4)


CLIENTS = create_leases()
"""The cached clients of the drivers in this process."""


def create_client(
    config: ClientConfig, *, timeout_ms: float = TIMEOUT_MS, system: System | None = None
) -> BlockingClient:
    config = replace(config, max_in_flight_requests_per_connection=_MAX_IN_FLIGHT)
    return BlockingClient(config, timeout_ms=timeout_ms, node_timeout_ms=NODE_TIMEOUT_MS, system=system)


@contextlib.contextmanager
def lease_client(config: ClientConfig, *, system: System | None = None) -> Iterator[BlockingClient]:
    """Lease a cached client, or create one if none is idle.

    `system`: for tests only. If it is set, the client is new, and is closed instead of cached.
    """
    if system is not None:
        with contextlib.closing(create_client(config, system=system)) as client:
            yield client
        return
    with CLIENTS.lease(config, lambda: create_client(config), CLIENT_IDLE_SECONDS) as client:
        yield client
