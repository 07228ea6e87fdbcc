"""A client for one thread leaves a node that says nothing, whatever its clock can tell apart."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.options import client_config
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.reader.blocking_client import BlockingClient
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

SILENCE_MS = 3_000.0
TOO_LITTLE_MS = 1e-12
"""Added to a clock that stands at some seconds, this changes nothing."""


def test_a_silent_node_is_left_though_what_remains_of_its_time_is_less_than_the_clock_can_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = FakeSystem(now_ms=50_000, latency_ms=1)
    cluster = SimulatedCluster(system, topics={"t": 1})
    config = client_config({"bootstrap.servers": cluster.bootstrap_servers})
    client = BlockingClient(config, silence_ms=SILENCE_MS, system=system)
    client.topic("t")
    whole = client._client.silence_ms

    def silence_ms(node_id: int, now: float) -> float:
        assert system.selects < 10_000, "it spins"
        found = whole(node_id, now)
        return SILENCE_MS - TOO_LITTLE_MS if abs(found - SILENCE_MS) < 1 else found

    monkeypatch.setattr(client._client, "silence_ms", silence_ms)
    cluster.control.when(api=ApiKey.METADATA).never_answer()
    client.topic("t", fresh=True)
    assert system.now() > 50_000 + SILENCE_MS
    client.close()
