"""If a job is cancelled while it writes, its tasks are killed and leave no connection behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink.testing import EmbeddedBroker, assert_topic_equals, embedded_broker, read_topic
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.needs("java")

ESTABLISHED = "01"


def yield_slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, 100):
            time.sleep(0.01)
            yield batch.slice(start, 100)


def count_connections(broker: EmbeddedBroker) -> int:
    """Count the established connections of all processes to the broker in the kernel's list."""
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == ESTABLISHED for row in rows)


@pytest.mark.parametrize("options", [{}, {"writeMethod": "mapInArrow"}])
def test_cancelled_job_leaves_no_connection_and_next_job_writes(spark: SparkSession, options: dict[str, str]) -> None:
    with embedded_broker(topics={"t": 2, "next": 1}) as broker:
        slow_rows = (
            spark.range(0, 2_000_000, 1, 2)
            .mapInArrow(yield_slowly, "id LONG")
            .selectExpr("CAST(id AS STRING) AS value")
        )
        writer = (
            slow_rows.write.format("pykafka")
            .options(**options)
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        )
        failures: list[Exception] = []

        def run() -> None:
            try:
                spark.sparkContext.setJobGroup("killed", "a job that is cancelled", interruptOnCancel=True)
                writer.option("topic", "t").save()
            except Exception as error:
                failures.append(error)

        job = threading.Thread(target=run)
        job.start()
        wait_until(lambda: read_topic(broker.bootstrap_servers, "t").num_rows > 0)
        assert count_connections(broker) > 0
        spark.sparkContext.cancelJobGroup("killed")
        job.join(WAIT_TIMEOUT_SECONDS)
        assert len(failures) == 1
        wait_until(lambda: count_connections(broker) == 0)

        expected_rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
        expected_rows.write.format("pykafka").options(**broker.topic("next").spark_options).save()
        assert_topic_equals(expected_rows, broker.topic("next"))
