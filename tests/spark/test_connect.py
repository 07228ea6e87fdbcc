"""Spark Connect: the client knows neither the JVM nor the Python workers, and the drop-in works all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink.testing import embedded_broker, read_topic
from tests.spark_session import connect_address

pytestmark = pytest.mark.needs("java")


def test_a_batch_appends_by_default_a_stream_is_written_and_other_modes_are_refused(spark: SparkSession) -> None:
    with embedded_broker(topics={"t": 2, "t-stream": 1}) as broker:
        command = [sys.executable, "-m", "tests.spark.connect_job", connect_address(spark)]
        job = subprocess.run(
            [*command, broker.bootstrap_servers, "t"], capture_output=True, text=True, errors="replace", check=False
        )
        assert job.returncode == 0, job.stderr[-5000:]
        for topic in ("t", "t-stream"):
            written = read_topic(broker.bootstrap_servers, topic)
            rows = zip(written.column("key").to_pylist(), written.column("value").to_pylist(), strict=True)
            assert sorted(rows) == sorted((b"%d" % n, b"%d" % (n * 2)) for n in range(100))
    assert "session: pyspark.sql.connect" in job.stdout
    for mode in ("Overwrite", "Ignore"):
        assert f"Save mode {mode} not allowed for Kafka." in job.stdout
