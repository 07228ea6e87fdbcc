"""Distribution by partition: rows of a key are stored in order, in the partition that the Java client chooses."""

from __future__ import annotations

from collections import defaultdict

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import StoredRecord, create_topic, read_topic

pytestmark = pytest.mark.needs("kafka", "connector")

TASKS = 10
"""Number of tasks. Each task has one row of each key."""
ROWS = 3_000
KEYS = 300
PARTITIONS = 7


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Rows of ten tasks. The numbers of a key descend from task to task, and must be written in ascending order.

    The lengths of the keys, which include letters beyond ASCII, cover the four remainders that murmur2 distinguishes.
    """
    of = f"id % {KEYS}"
    key = f"concat(CASE WHEN {of} % 3 = 0 THEN 'ключ' ELSE '' END, repeat('k', {of} % 50), {of})"
    columns = (f"{key} AS key", f"CAST({ROWS} - id AS STRING) AS value", f"{ROWS} - id AS number")
    return spark.range(0, ROWS, 1, TASKS).selectExpr(*columns)


def written(
    rows: DataFrame, kafka: KafkaCluster, sink: str = "pykafka", **distribution_options: str
) -> list[StoredRecord]:
    topic = create_topic(kafka.bootstrap(), partitions=PARTITIONS, for_java_producer=sink == "kafka")
    base_options = {"kafka.bootstrap.servers": kafka.bootstrap(), "topic": topic, **distribution_options}
    frame = rows if sink == "pykafka" else rows.drop("number").coalesce(4)
    frame.write.format(sink).options(**base_options).save()
    return read_topic(kafka.bootstrap(), topic)


def places(records: list[StoredRecord]) -> list[tuple[int, bytes | None, bytes | None]]:
    return sorted((record.partition, record.key, record.value) for record in records)


def assert_in_order(records: list[StoredRecord]) -> None:
    numbers: dict[bytes | None, list[int]] = defaultdict(list)
    for record in records:
        assert record.value is not None
        numbers[record.key].append(int(record.value))
    assert len(numbers) == KEYS
    assert all(of_key == sorted(of_key) for of_key in numbers.values())


def test_partition_distribution_matches_sparks_sink_and_orders_rows_of_key(
    rows: DataFrame, kafka: KafkaCluster
) -> None:
    """Compare with Spark's own sink, which writes with the Java client."""
    distribution_options = {"distribution": "partition", "orderBy": "number", "deliveryGuarantee": "exactly-once"}
    ours, theirs = written(rows, kafka, **distribution_options), written(rows, kafka, sink="kafka")
    assert len(ours) == ROWS
    assert places(ours) == places(theirs)
    assert_in_order(ours)
    with pytest.raises(AssertionError):
        assert_in_order(theirs)  # not ordered, because the rows of a key come from many tasks
