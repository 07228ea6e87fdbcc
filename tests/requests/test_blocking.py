"""The blocking client sleeps while it waits instead of spinning."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.client_request import ClientResponse
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.topics import DescribeTopic
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

NODE_TIMEOUT_MS = 3_000.0
BELOW_CLOCK_RESOLUTION_MS = 1e-12
"""A time so short that adding it to a clock value of some seconds changes nothing."""


def test_leaves_unresponsive_node_when_remaining_time_is_below_clock_resolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = FakeSystem(now_ms=50_000, latency_ms=1)
    cluster = SimulatedCluster(system, topics={"t": 1})
    config = parse_client_config({"bootstrap.servers": cluster.bootstrap_servers})
    client = BlockingClient(config, node_timeout_ms=NODE_TIMEOUT_MS, system=system)
    client.wait_for_topic("t")
    original = NetworkClient.unresponsive_ms

    def unresponsive_ms(client: NetworkClient, node_id: int, now_ms: float) -> float:
        assert system.selects < 10_000, "the client spins"
        unresponsive = original(client, node_id, now_ms)
        return NODE_TIMEOUT_MS - BELOW_CLOCK_RESOLUTION_MS if abs(unresponsive - NODE_TIMEOUT_MS) < 1 else unresponsive

    monkeypatch.setattr(NetworkClient, "unresponsive_ms", unresponsive_ms)
    cluster.control.when(api=ApiKey.METADATA).never_respond()
    client.wait_for_topic("t", refresh=True)
    assert system.now() > 50_000 + NODE_TIMEOUT_MS
    client.close()


def test_pause_sleeps_while_a_completed_call_is_not_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = FakeSystem(now_ms=50_000, latency_ms=1)
    cluster = SimulatedCluster(system, topics={"t": 1})
    client = BlockingClient(parse_client_config({"bootstrap.servers": cluster.bootstrap_servers}), system=system)
    client.wait_for_topic("t")
    call = client.begin([DescribeTopic("t")])
    polls, poll = 0, NetworkClient.poll

    def count_polls(client: NetworkClient, timeout_ms: float, now_ms: float) -> list[ClientResponse]:
        nonlocal polls
        polls += 1
        assert polls < 1_000, "the client spins"
        return poll(client, timeout_ms, now_ms)

    monkeypatch.setattr(NetworkClient, "poll", count_polls)
    client.pause(100)
    assert call.is_done
    assert client.finish(call)["t"].topics[0].error_code == 0
    client.close()
