"""Three real brokers that die, restart, fall behind and refuse: nothing lost, nothing doubled, order kept."""

from __future__ import annotations

import threading

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic
from integration.support.scenario import PATIENT, assert_all_stored_once_in_order, run
from integration.support.topic_metadata import leaders

pytestmark = pytest.mark.needs("kafka")


@pytest.fixture
def topic(kafka3: KafkaCluster) -> str:
    return create_topic(kafka3.bootstrap(), partitions=6, replicas=3)


def _config(cluster: KafkaCluster, **more: object) -> dict[str, object]:
    return PATIENT | {"bootstrap.servers": cluster.bootstrap(), "request.timeout.ms": 10_000, **more}


def _leader(cluster: KafkaCluster, topic: str) -> int:
    return leaders(cluster.bootstrap().split(",")[0], topic)[0]


def test_1_a_killed_leader_loses_nothing(kafka3: KafkaCluster, topic: str) -> None:
    leader = _leader(kafka3, topic)
    results = run(
        _config(kafka3), topic, fault=lambda: kafka3.kill(leader), heal=lambda: kafka3.start_node(leader), survives=True
    )
    assert_all_stored_once_in_order(kafka3.bootstrap(), topic, results)


def test_2_a_rolling_restart_loses_nothing_and_raises_no_error(kafka3: KafkaCluster, topic: str) -> None:
    def roll() -> None:
        for node_id in (1, 2, 3):
            kafka3.restart(node_id)

    rolling = threading.Thread(target=roll)
    results = run(_config(kafka3), topic, fault=rolling.start, heal=rolling.join)
    assert_all_stored_once_in_order(kafka3.bootstrap(), topic, results)


def test_5_a_paused_broker_is_given_up_at_the_request_timeout_and_the_others_go_on(
    kafka3: KafkaCluster, topic: str
) -> None:
    leader = _leader(kafka3, topic)
    config = _config(kafka3, **{"request.timeout.ms": 3_000})
    try:
        results = run(config, topic, fault=lambda: kafka3.pause(leader), survives=True)
    finally:
        kafka3.resume(leader)
    assert_all_stored_once_in_order(kafka3.bootstrap(), topic, results)


def test_12_with_too_few_replicas_in_sync_records_wait_until_they_are_back(kafka3: KafkaCluster, topic: str) -> None:
    def too_few() -> None:
        kafka3.stop_node(1)
        kafka3.stop_node(2)

    def back() -> None:
        kafka3.start_node(1, wait=False)
        kafka3.start_node(2)

    results = run(_config(kafka3), topic, fault=too_few, heal=back)
    assert_all_stored_once_in_order(kafka3.bootstrap(), topic, results)
