"""Three real brokers that are killed, restarted, suspended or stopped: each record is stored once and in order."""

from __future__ import annotations

import threading

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic
from integration.support.scenario import LONG_TIMEOUT_OPTIONS, assert_all_stored_once_in_order, run
from integration.support.topic_metadata import fetch_leaders

pytestmark = pytest.mark.needs("kafka")


@pytest.fixture
def topic(kafka3: KafkaCluster) -> str:
    return create_topic(kafka3.bootstrap(), partitions=6, replicas=3)


def _config(cluster: KafkaCluster, **options: object) -> dict[str, object]:
    return LONG_TIMEOUT_OPTIONS | {"bootstrap.servers": cluster.bootstrap(), "request.timeout.ms": 10_000, **options}


def _find_leader(cluster: KafkaCluster, topic: str) -> int:
    return fetch_leaders(cluster.bootstrap().split(",")[0], topic)[0]


def test_1_stores_each_record_once_despite_killed_leader(kafka3: KafkaCluster, topic: str) -> None:
    leader = _find_leader(kafka3, topic)
    results = run(
        _config(kafka3),
        topic,
        inject=lambda: kafka3.kill(leader),
        repair=lambda: kafka3.start_node(leader),
        continues=True,
    )
    assert_all_stored_once_in_order(kafka3.bootstrap(), topic, results)


def test_2_stores_each_record_once_during_rolling_restart(kafka3: KafkaCluster, topic: str) -> None:
    def restart_all() -> None:
        for node_id in (1, 2, 3):
            kafka3.restart(node_id)

    restart_thread = threading.Thread(target=restart_all)
    results = run(_config(kafka3), topic, inject=restart_thread.start, repair=restart_thread.join)
    assert_all_stored_once_in_order(kafka3.bootstrap(), topic, results)


def test_5_stores_each_record_once_after_suspended_broker_times_out(kafka3: KafkaCluster, topic: str) -> None:
    leader = _find_leader(kafka3, topic)
    config = _config(kafka3, **{"request.timeout.ms": 3_000})
    try:
        results = run(config, topic, inject=lambda: kafka3.pause(leader), continues=True)
    finally:
        kafka3.resume(leader)
    assert_all_stored_once_in_order(kafka3.bootstrap(), topic, results)


def test_12_retries_until_enough_replicas_are_in_sync(kafka3: KafkaCluster, topic: str) -> None:
    def stop_two_brokers() -> None:
        kafka3.stop_node(1)
        kafka3.stop_node(2)

    def restart_brokers() -> None:
        kafka3.start_node(1, wait=False)
        kafka3.start_node(2)

    results = run(_config(kafka3), topic, inject=stop_two_brokers, repair=restart_brokers)
    assert_all_stored_once_in_order(kafka3.bootstrap(), topic, results)
