"""The partition of each key equals the one that Kafka's own producer chooses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from spark_kafka_sink import KafkaProducer, RecordColumns
from tests.waiting import WAIT_TIMEOUT_SECONDS

pytestmark = pytest.mark.needs("kafka")

PARTITIONS = 7


def test_assigns_keys_to_same_partitions_as_java_producer(kafka: KafkaCluster) -> None:
    java_topic, our_topic = (
        create_topic(kafka.bootstrap(), partitions=PARTITIONS, for_java_producer=True) for _ in range(2)
    )
    # The hash reads words of four bytes. Keys of 1 to about 60 bytes have every remainder; some are not ASCII.
    keys = [("é" if n % 3 == 0 else "") + "k" * (n % 59) + str(n) for n in range(2_000)]
    lines = "".join(f"{key}\tv\n" for key in keys).encode()
    kafka.run_tool(
        "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", kafka.bootstrap(), "--topic", java_topic,
        "--reader-property", "parse.key=true", stdin=lines,
    )  # fmt: skip
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap()}) as producer:
        columns = RecordColumns(value=pa.array(["v"] * len(keys)), key=pa.array(keys))
        producer.send_columns(our_topic, columns).result(WAIT_TIMEOUT_SECONDS).raise_for_failures()
    placed = [{r.key: r.partition for r in read_topic(kafka.bootstrap(), topic)} for topic in (java_topic, our_topic)]
    assert len(placed[0]) == len(keys)
    assert placed[1] == placed[0]
