"""Exactly-once writes to a real Kafka cluster with both transaction versions. librdkafka reads the committed rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, find_end_offset, produce_all, read_topic
from integration.support.plain_driver import Brokers
from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError, PreflightError
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    Query,
    connect_client,
    death_after_claim,
    death_before,
    list_open_ids,
    rows,
    stale_end_offsets,
)
from tests.history import check_batches
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")


@pytest.fixture(params=["kafka_version_1", "kafka"])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """A cluster with transaction version 1, and one with version 2."""
    found: KafkaCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def query(cluster: KafkaCluster) -> Query:
    topic = create_topic(cluster.bootstrap(), partitions=2)
    return Query(
        cast(EmbeddedBroker, Brokers(cluster.bootstrap())), prefix=topic, data=topic, query=f"query-of-{topic}"
    )


def read_values(query: Query) -> list[bytes]:
    return [record.value or b"" for record in read_topic(query.broker.bootstrap_servers, query.data)]


def check(query: Query, *numbers: int) -> None:
    """Check that consumers read each row of these batches once, and no other rows."""
    check_batches({f"batch {number}": [row.encode() for row in rows(number)] for number in numbers}, read_values(query))


def test_batches_become_visible_when_committed(query: Query) -> None:
    for number in range(10):
        query.run(number)
    start = query.begin()
    written = query.write_tasks(start, 10)
    check(query, *range(10))
    query.commit(start, 10, written)
    check(query, *range(11))
    assert start.entry.timeout_ms == 900_000


@pytest.mark.parametrize("where", ["decision", "commit", "done", "superseded"])
def test_next_driver_finishes_batch_of_dead_driver(query: Query, where: str) -> None:
    query.run(0)
    start = query.begin()
    written = query.write_tasks(start, 1)
    query.write(start, 1, "of an attempt that lost", attempt=1)
    with death_before(where):
        query.commit(start, 1, written)
    again = query.with_new_driver()
    start = again.begin()
    assert list_open_ids(query.broker, query.prefix, query.data) == []
    assert start.is_decided(again.batch(1)) == (where != "decision")
    if where == "decision":
        again.commit(start, 1, again.write_tasks(start, 1))
    again.run(2)
    check(query, 0, 1, 2)


def test_rejects_older_of_two_drivers(query: Query) -> None:
    query.run(0)
    start = query.begin()
    written = query.write_tasks(start, 1)
    newer = query.with_new_driver()
    newer_start = newer.begin()
    with pytest.raises(ExactlyOnceError, match="a newer driver has taken over"):
        query.commit(start, 1, written)
    assert not query.abort(start, 1)
    with pytest.raises(ExactlyOnceError, match="A newer driver has taken over"):
        query.begin()
    newer.commit(newer_start, 1, newer.write_tasks(newer_start, 1))
    check(query, 0, 1)


def test_aborted_rows_never_become_visible(query: Query) -> None:
    start = query.begin()
    query.write_tasks(start, 0)
    assert query.abort(start, 0)
    assert list_open_ids(query.broker, query.prefix, query.data) == []
    query.run(0)
    check(query, 0)


def test_compaction_keeps_decision_before_invalid_claim(query: Query, cluster: KafkaCluster) -> None:
    """A driver reads too little from a stale leader, claims and dies; then Kafka's log cleaner runs."""
    log = create_topic(
        cluster.bootstrap(),
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.0001",
        max_compaction_lag_ms="100",
        segment_ms="100",
    )
    query = replace(query, log=log)
    query.run(0)
    old_end = log_end_offset(query)
    query.run(1)
    with stale_end_offsets(old_end, 2), death_after_claim():
        query.with_new_driver().begin()
    wait_until(lambda: is_compacted(query))
    third = query.with_new_driver(name="driver-3")
    assert third.begin().is_decided(third.batch(1))
    third.run(2)
    check(query, 0, 1, 2)


def log_end_offset(query: Query) -> int:
    consumer = Consumer({"bootstrap.servers": query.broker.bootstrap_servers, "group.id": "witness"})
    try:
        return find_end_offset(consumer, TopicPartition(query.log, 0))
    finally:
        consumer.close()


def is_compacted(query: Query) -> bool:
    """Return whether each key of the log has one record. The records of another key begin segments of their own."""
    producer = Producer({"bootstrap.servers": query.broker.bootstrap_servers})
    produce_all(producer, query.log, [(b"other", b"")])
    keys = [record.key for record in read_topic(query.broker.bootstrap_servers, query.log) if record.key != b"other"]
    return len(keys) == len(set(keys))


def test_names_decided_transaction_that_brokers_aborted(query: Query) -> None:
    start = query.begin()
    written = query.write_tasks(start, 0)
    with death_before("commit"):
        query.commit(start, 0, written)
    lost = written[1].transactional_id
    with connect_client(query.broker, query.data) as client:
        init_producer_id(client, lost, 60_000)
    with pytest.raises(CommitLostError, match=f"{lost} \\(rows of Spark's partition 1"):
        query.with_new_driver().begin()
    assert read_values(query) == [b"0/0"]


def test_rejects_log_with_delete_policy_before_the_first_row(query: Query, cluster: KafkaCluster) -> None:
    log = create_topic(cluster.bootstrap(), cleanup_policy="compact,delete")
    message = rf"nothing was written: topic {log}, .* cleanup.policy=compact,delete\."
    settings = replace(query.settings, options=ExactlyOnceOptions(log_topic=log))
    with Driver(settings) as driver, pytest.raises(PreflightError, match=message):
        driver.begin(query.name)


def test_spark_stream_and_job_write_each_row_once(spark: SparkSession, cluster: KafkaCluster, tmp_path: Path) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=2)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap(),
        "topic": topic,
        "deliveryGuarantee": "exactly-once",
    }
    (tmp_path / "words").mkdir()
    words = spark.readStream.option("maxFilesPerTrigger", "1").text(str(tmp_path / "words"))
    for batch in range(3):
        for number in range(2):
            (tmp_path / "words" / f"{batch}-{number}.txt").write_text(f"{batch}-{number}\n")
        writer = words.writeStream.format("pykafka").options(**options).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        if batch == 1:  # Spark runs the last batch again, as if it had not recorded its commit
            newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            newest.unlink()
            newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value").repartition(4)
    for _ in range(2):
        frame.write.format("pykafka").options(**options, idempotencyKey=topic).save()
    batches = {f"batch {batch}": [f"{batch}-{number}".encode() for number in range(2)] for batch in range(3)}
    batches["the job"] = [b"%d" % number for number in range(100)]
    check_batches(batches, [record.value or b"" for record in read_topic(cluster.bootstrap(), topic)])
