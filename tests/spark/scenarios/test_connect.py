"""Spark Connect: the drop-in works although the client has no access to the JVM or the Python workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink.testing import assert_topic_equals, embedded_broker
from tests.documents import blocks
from tests.spark_session import connect_address

pytestmark = [pytest.mark.needs("java"), pytest.mark.data_source]

TOPICS = {"t": 2, "t-placed": 5, "t-stream": 1, "t-update": 5, "t-once": 2, "t-key": 2, "t-sums": 1}
UNAUTHORIZED = {
    "overwrite": "ConfigurationError Save mode Overwrite not allowed for Kafka.",
    "ignore": "ConfigurationError Save mode Ignore not allowed for Kafka.",
    "continuous": "ConfigurationError trigger(continuous=...) is not supported",
    "tpoic": "ConfigurationError Unknown option 'tpoic'. 'topic' is also set: remove 'tpoic'.",
    "topic": "PreflightError Cannot write to Kafka; nothing was written. Topic 'not-there' does not exist.",
    "kafka.bootstrap.servers": "no-such-host.invalid:1: the name cannot be resolved",
    "no value": "SchemaError Required attribute 'value' not found",
}


def test_connect_writes_batches_and_streams_and_rejects_mistakes_early(spark: SparkSession, tmp_path: Path) -> None:
    with embedded_broker(topics=TOPICS) as broker:
        command = [sys.executable, "-m", "tests.spark.connect_job", connect_address(spark), broker.bootstrap_servers]
        job = subprocess.run(
            [*command, "t", str(tmp_path)], capture_output=True, text=True, errors="replace", check=False
        )
        assert job.returncode == 0, job.stderr[-5000:]
        for topic in ("t", "t-placed", "t-stream", "t-update", "t-once", "t-key"):
            expected = spark.range(100).selectExpr("CAST(id AS STRING) AS key", "CAST(id * 2 AS STRING) AS value")
            assert_topic_equals(expected, broker.topic(topic))
        sums = spark.createDataFrame([("2",), ("3",), ("3",)], "value STRING")
        assert_topic_equals(sums, broker.topic("t-sums"))
    assert "session: pyspark.sql.connect" in job.stdout
    output = dict(re.findall(r"^(.+?): (.*)$", job.stdout, re.MULTILINE))
    for mistake, words in UNAUTHORIZED.items():
        assert words in output[mistake]
        assert "Traceback" not in output[mistake]
    assert (output["upstream tasks"], output["upstream tasks of the write"]) == ("0", "4")


def test_documented_connect_session_connects(spark: SparkSession) -> None:
    (code,) = (block for block in blocks("docs/deploying.md") if ".remote(" in block)
    program = code.replace("sc://server:15002", connect_address(spark)) + "print(spark.range(3).count())\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "3\n", done.stderr[-5000:]
