"""Helpers that change topics return only when every broker knows the change."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from integration.support.librdkafka import create_topic, open_record_counter
from integration.support.topic_metadata import fetch_leaders, wait_until_gone, wait_until_known
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

PARTITIONS = 2


@pytest.fixture
def apart() -> Iterator[tuple[EmbeddedBroker, EmbeddedBroker]]:
    """Start two unconnected brokers. A topic of one is unknown to the other until the test creates it there, too."""
    with embedded_broker() as one, embedded_broker() as other:
        yield one, other


def addresses(brokers: tuple[EmbeddedBroker, EmbeddedBroker]) -> str:
    return ",".join(broker.bootstrap_servers for broker in brokers)


def knows(broker: EmbeddedBroker, topic: str) -> bool:
    return len(fetch_leaders(broker.bootstrap_servers, topic)) == PARTITIONS


def test_create_topic_waits_until_last_broker_knows_it(apart: tuple[EmbeddedBroker, EmbeddedBroker]) -> None:
    done = threading.Event()

    def create() -> None:
        create_topic(addresses(apart), "t", partitions=PARTITIONS)
        done.set()

    creating = threading.Thread(target=create)
    creating.start()
    wait_until(lambda: knows(apart[0], "t") or knows(apart[1], "t"))
    assert not done.wait(0.5)
    late = apart[1] if knows(apart[0], "t") else apart[0]
    late.create_topic("t", PARTITIONS)
    creating.join(WAIT_TIMEOUT_SECONDS)
    assert done.is_set()


def test_waits_until_all_partitions_are_known(apart: tuple[EmbeddedBroker, EmbeddedBroker]) -> None:
    one, other = apart
    one.create_topic("t", PARTITIONS)
    other.create_topic("t", PARTITIONS - 1)
    waiting = threading.Thread(target=wait_until_known, args=(addresses(apart), "t", PARTITIONS))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    other.control.delete_topic("t")
    other.create_topic("t", PARTITIONS)
    waiting.join(WAIT_TIMEOUT_SECONDS)
    assert not waiting.is_alive()


def test_wait_until_gone_waits_for_last_broker(apart: tuple[EmbeddedBroker, EmbeddedBroker]) -> None:
    one, other = apart
    other.create_topic("t", PARTITIONS)
    waiting = threading.Thread(target=wait_until_gone, args=(addresses((one, other)), "t"))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    other.control.delete_topic("t")
    waiting.join(WAIT_TIMEOUT_SECONDS)
    assert not waiting.is_alive()


def test_counts_records_when_the_leader_of_a_new_partition_accepts_requests() -> None:
    with embedded_broker() as broker:
        topic = create_topic(broker.bootstrap_servers)
        rule = broker.control.when(api=ApiKey.LIST_OFFSETS, times=2).fail(error_codes.NOT_LEADER_OR_FOLLOWER)
        with open_record_counter(broker.bootstrap_servers, topic) as count:
            assert count() == 0
        assert rule.affected_count == 2
