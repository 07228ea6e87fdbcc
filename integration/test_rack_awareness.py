"""Rows without a key are written to leaders in the rack of the producer, in a cluster with broker.rack."""

from __future__ import annotations

import pyarrow as pa
import pytest

from integration.support.kafka_cluster import KafkaCluster, build_rack_name
from integration.support.librdkafka import create_topic
from spark_kafka_sink import KafkaProducer, RecordColumns
from tests.waiting import WAIT_TIMEOUT_SECONDS

pytestmark = pytest.mark.needs("kafka")


@pytest.mark.parametrize("node", [1, 2, 3])
def test_rows_without_key_go_to_leaders_in_the_rack_of_the_client(kafka3: KafkaCluster, node: int) -> None:
    topic = create_topic(kafka3.bootstrap(), partitions=9)
    options = {
        "bootstrap.servers": kafka3.bootstrap(),
        "partitioner.rack.aware": "true",
        "client.rack": build_rack_name(node),
    }
    with KafkaProducer(options) as producer:
        columns = RecordColumns(pa.array([b"v" * 1000] * 1_000))
        sent_columns = producer.send_columns(topic, columns)
        futures = [producer.send(topic, b"single") for _ in range(100)]
        result = sent_columns.result(WAIT_TIMEOUT_SECONDS)
        result.raise_for_failures()
        written = set(result.partitions) | {future.result(WAIT_TIMEOUT_SECONDS).partition for future in futures}
        leaders = {partition.index: partition.leader for partition in producer.partitions_for(topic)}
    in_rack = {index for index, leader in leaders.items() if leader == node}
    assert 0 < len(in_rack) < len(leaders)
    assert written == in_rack
