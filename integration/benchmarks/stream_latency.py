"""Benchmark of the latency of a record from Kafka to Kafka through a Spark stream, with pykafka and Spark's own sink.

    python -m integration.benchmarks.stream_latency [SECONDS]

It starts Kafka and Spark, sends a record every 20 ms to one topic, and runs a stream that copies them to another topic
in micro-batches without pauses, twice with each sink. The target topic uses LogAppendTime, so the latency of a record
is the difference of two timestamps of this machine: its creation and its append to the target topic. The durations of
micro-batches come from Spark's progress. The measurement starts five seconds after the first micro-batch.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from integration.support.artifacts import connector_jars
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.testing import read_topic
from tests.spark_session import start_spark
from tests.waiting import wait_until

WARM_UP_S = 5.0
SEND_INTERVAL_S = 0.02
STEPS = ("triggerExecution", "addBatch", "walCommit", "commitOffsets")


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name, KafkaCluster(Path(name) / "kafka") as cluster:
        spark = start_spark({"spark.jars": ",".join(map(str, connector_jars()))})
        spark.sparkContext.setLogLevel("OFF")
        for turn in range(2):
            for sink in ("pykafka", "kafka"):
                print(turn + 1, sink, measure(spark, cluster.bootstrap(), sink, f"{name}/{sink}-{turn}", seconds))
        spark.stop()


def measure(spark: SparkSession, servers: str, sink: str, checkpoint: str, seconds: float) -> str:
    """Run a stream, and measure it for `seconds` after the warm-up. Return the figures as text."""
    source = create_topic(servers)
    target = create_topic(servers, for_java_producer=True, message_timestamp_type="LogAppendTime")
    stop_event = threading.Event()
    sender = threading.Thread(target=send, args=(servers, source, stop_event))
    options = {"kafka.bootstrap.servers": servers}
    records = spark.readStream.format("kafka").options(**options).option("subscribe", source).load()
    writer = records.selectExpr("CAST(CAST(timestamp AS DOUBLE) * 1000 AS STRING) AS value").writeStream.format(sink)
    query = writer.options(**options).option("topic", target).option("checkpointLocation", checkpoint).start()
    sender.start()
    wait_until(
        lambda: any(progress_row["numInputRows"] for progress_row in query.recentProgress), lambda: str(query.status)
    )
    time.sleep(WARM_UP_S)
    started, before = time.time(), len(query.recentProgress)
    time.sleep(seconds)
    progress = query.recentProgress[before:]
    query.stop()
    stop_event.set()
    sender.join()
    table = read_topic(servers, target)
    created_ms = np.array([float(value) for value in table["value"].to_pylist()])
    appended_ms = table["timestamp"].cast("timestamp[ms]").cast("int64").to_numpy()
    latencies = (appended_ms - created_ms)[created_ms > started * 1000]
    batches = [row["durationMs"] for row in progress if row["numInputRows"]]
    steps = ", ".join(f"{step} {np.median([batch.get(step, 0) for batch in batches]):.0f}" for step in STEPS)
    p50, p95, p99 = np.percentile(latencies, (50, 95, 99))
    return (
        f"{len(latencies)} records, latency p50 {p50:.0f} p95 {p95:.0f} p99 {p99:.0f} ms; "
        f"{len(batches)} micro-batches, medians in ms: {steps}"
    )


def send(servers: str, topic: str, stop_event: threading.Event) -> None:
    with KafkaProducer({"bootstrap.servers": servers, "linger.ms": "0"}) as producer:
        while not stop_event.wait(SEND_INTERVAL_S):
            producer.send(topic, b"x")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0)
