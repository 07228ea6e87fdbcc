"""Kafka clients for Spark drivers, cached across batches.

They are cached because connecting and authenticating takes longer than all requests of a batch. Tasks do not use these
clients: they send transaction requests over their producers' connections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.network.system import System
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.idle_clients import CLIENT_IDLE_SECONDS, IdleClients

NO_PROGRESS_TIMEOUT_MS = 120_000.0
"""The time without progress after which an operation fails."""
NODE_TIMEOUT_MS = 3_000.0
"""The time after which an unresponsive node is disconnected. Doubles with each consecutive timeout."""
_MAX_IN_FLIGHT = 50
"""Maximum number of requests in flight on a connection. A driver commits many transactions at once, one per request."""
_MAX_IDLE_CLIENTS = 4
"""Maximum number of idle clients in the cache. Each has its own connections."""


def create_client_cache() -> IdleClients[BlockingClient]:
    """Create a cache of idle clients. The cache closes a client that it no longer keeps."""
    return IdleClients(close=lambda client: client.close(), max_idle=_MAX_IDLE_CLIENTS)


IDLE_DRIVER_CLIENTS = create_client_cache()
"""The idle clients of all drivers in this process. A client is removed from the cache while a driver leases it."""


def create_client(
    config: ClientConfig, *, timeout_ms: float = NO_PROGRESS_TIMEOUT_MS, system: System | None = None
) -> BlockingClient:
    """Create a client for transaction requests that are not sent over a producer's connections.

    `timeout_ms`: how long an operation may go without progress before it fails.
    """
    config = replace(config, max_in_flight_requests_per_connection=_MAX_IN_FLIGHT)
    return BlockingClient(config, timeout_ms=timeout_ms, node_timeout_ms=NODE_TIMEOUT_MS, system=system)


@contextlib.contextmanager
def lease_client(config: ClientConfig, *, system: System | None = None) -> Iterator[BlockingClient]:
    """Yield an idle client from the cache, or a new one if there is none. The client goes back to the cache afterwards.

    `system`: for tests only. If it is set, the client is new, and is closed instead of cached.
    """
    if system is not None:
        with contextlib.closing(create_client(config, system=system)) as client:
            yield client
        return
    with IDLE_DRIVER_CLIENTS.lease(config, lambda: create_client(config), CLIENT_IDLE_SECONDS) as client:
        yield client
