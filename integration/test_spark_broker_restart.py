"""A broker restarts during a Spark write: each row is stored once, in the order of its task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.cluster_jobs import hold_second_half
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import StoredRecord, create_topic, open_record_counter, read_topic
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

PARTITIONS = 3
ROWS = 40_000
TASKS = 2
BATCH_ROWS = 500
MIDDLE = 1_000


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Make Spark pass rows to the sink in batches of 500, so that the rows before a gate are written."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name) or ""
    spark.conf.set(name, BATCH_ROWS)
    yield
    spark.conf.set(name, before)


@pytest.mark.usefixtures("small_batches")
def test_batch_continues_after_broker_restart(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    """Half of the rows wait for the gate, which is opened while the broker is down."""
    topic = create_topic(kafka.bootstrap(), partitions=PARTITIONS)
    gate = tmp_path / "gate"
    rows = spark.range(0, ROWS, 1, TASKS).mapInArrow(hold_second_half(gate, ROWS // TASKS), "id LONG")
    frame = rows.selectExpr("CAST(id AS STRING) AS value", f"CAST(id % {PARTITIONS} AS INT) AS partition")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap()).option("topic", topic)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(writer.save)
        try:
            with open_record_counter(kafka.bootstrap(), topic) as count:
                wait_until(lambda: count() >= MIDDLE or writing.done())
            kafka.stop_node(1)
        finally:
            gate.touch()
        kafka.start_node(1)
        writing.result()
    assert_each_once_and_in_order(read_topic(kafka.bootstrap(), topic))


def assert_each_once_and_in_order(records: list[StoredRecord]) -> None:
    """Check that each partition contains the rows of each task once, and in the order of the task."""
    numbers = [int(record.value or b"") for record in records]
    assert sorted(numbers) == list(range(ROWS))
    last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    for record, number in zip(records, numbers, strict=True):
        stream = (record.partition, number * TASKS // ROWS)
        assert last[stream] < number
        last[stream] = number
