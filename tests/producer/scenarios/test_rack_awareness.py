"""Rows without a key stay in the producer's rack, with send() and with send_columns()."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, RecordColumns
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.waiting import WAIT_TIMEOUT_SECONDS

RACKS = ("a", "b", "c")
VALUE = b"v" * 1000


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"t": 9}, nodes=3, racks=RACKS) as broker:
        yield broker


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    options = {**broker.client_options, "partitioner.rack.aware": True, "client.rack": "b", "linger.ms": 0}
    with KafkaProducer(options) as producer:
        yield producer


def partitions_in(broker: EmbeddedBroker, rack: str) -> set[int]:
    leaders = {partition.index: partition.leader for partition in broker.cluster.topic("t").partitions}
    return {index for index, leader in leaders.items() if leader == RACKS.index(rack)}


def written_by_columns(producer: KafkaProducer) -> set[int]:
    result = producer.send_columns("t", RecordColumns(pa.array([VALUE] * 1_000))).result(WAIT_TIMEOUT_SECONDS)
    result.raise_for_failures()
    return set(result.partitions)


def written_by_send(producer: KafkaProducer) -> set[int]:
    futures = [producer.send("t", VALUE) for _ in range(1_000)]
    return {future.result(WAIT_TIMEOUT_SECONDS).partition for future in futures}


def test_columns_and_single_records_go_to_leaders_in_the_rack(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    in_rack = partitions_in(broker, "b")
    assert len(in_rack) == 3
    assert written_by_columns(producer) == in_rack
    assert written_by_send(producer) == in_rack


def test_rows_are_written_elsewhere_after_the_rack_has_lost_its_broker(
    broker: EmbeddedBroker, producer: KafkaProducer
) -> None:
    in_rack = written_by_columns(producer)
    broker.control.stop_node(RACKS.index("b"))
    assert not partitions_in(broker, "b")
    written_by_columns(producer)
    assert written_by_columns(producer) - in_rack
