"""A simulated cluster of two nodes, and a client that produces to it."""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol import error_codes
from tests.broker.wire_client import WireClient, batch, partition_response, produce_request
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

NOT_LEADER = error_codes.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def system() -> FakeSystem:
    return FakeSystem(latency_ms=1)


@pytest.fixture
def cluster(system: FakeSystem) -> SimulatedCluster:
    return SimulatedCluster(system, nodes=2, topics={"t": 2, "other": 2})


@pytest.fixture
def client(system: FakeSystem, cluster: SimulatedCluster) -> WireClient:
    return WireClient(system)


def produce(client: WireClient, value: bytes = b"a", topic: str = "t", version: int = 9) -> int | None:
    """Produce a record. Return the error code, or None if the connection was closed instead of a response."""
    response = client.request(produce_request(batch(value), topic), version)
    return None if response is None else partition_response(response).error_code
