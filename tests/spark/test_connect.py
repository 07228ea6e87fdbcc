"""Spark Connect: the client knows neither the JVM nor the Python workers, and the drop-in works all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_kafka_sink.testing import embedded_broker, read_topic

pytestmark = pytest.mark.needs("java")


def test_the_default_save_mode_appends_and_others_are_refused() -> None:
    with embedded_broker(topics={"t": 2}) as broker:
        command = [sys.executable, "-m", "tests.spark.connect_job", broker.bootstrap_servers, "t"]
        job = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=False)
        assert job.returncode == 0, job.stderr[-5000:]
        written = read_topic(broker.bootstrap_servers, "t")
    assert "session: pyspark.sql.connect" in job.stdout
    rows = zip(written.column("key").to_pylist(), written.column("value").to_pylist(), strict=True)
    assert sorted(rows) == sorted((b"%d" % n, b"%d" % (n * 2)) for n in range(100))
    for mode in ("Overwrite", "Ignore"):
        assert f"Save mode {mode} not allowed for Kafka." in job.stdout
