"""A client for one thread sleeps while it waits, whatever its clock can tell apart and whatever was answered before."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.options import client_config
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.reader.blocking_client import BlockingClient, Question
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


def test_a_pause_sleeps_though_a_question_has_an_answer_that_no_caller_has_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where one was asked beside another one, and only the other one's answer says that there is a pause."""
    system = FakeSystem(now_ms=50_000, latency_ms=1)
    cluster = SimulatedCluster(system, topics={"t": 1})
    client = BlockingClient(client_config({"bootstrap.servers": cluster.bootstrap_servers}), system=system)
    client.topic("t")
    node = client.any_node()
    assert node is not None
    asked = client.start(Question(node, MetadataRequest()))
    turns, work = 0, client._work

    def counted(now: float, timeout_ms: float) -> None:
        nonlocal turns
        turns += 1
        assert turns < 1_000, "it spins"
        work(now, timeout_ms)

    monkeypatch.setattr(client, "_work", counted)
    client.pause(100)
    assert asked.has_ended
    assert client.step(system.now() + 1) == [asked], "who asks for it gets it"
    client.close()
