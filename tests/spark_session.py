"""The one Spark of a test run: a JVM takes seconds to start, and a process can have only one.

tests/spark and integration both take it from here. Spark's own Kafka connector is on its class path where it has been
fetched, so that what was written can be read by format("kafka"). It serves Spark Connect too, on a free port, so that
a client in another process needs no JVM of its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from integration.support.artifacts import connector_jars
from spark_kafka_sink import register
from tests.runner.class_archive import archive_options

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For a JVM that lives for a minute: half of the time of its start would go into compiling what is soon over."""
JVM = JVM_OPTIONS + archive_options()

SMALL = {
    "spark.driver.extraJavaOptions": JVM,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Where Python and the JVM connect to each other: a busy machine has taken longer than the default, 15 seconds.
    "spark.python.authenticate.socketTimeout": "5m",
}
"""Settings of every Spark that the tests start, also of those in processes of their own."""

MASTER = "local[2]"

CONNECT_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
"""For a Spark that serves Spark Connect; `remote("local")` would listen on a fixed port, and on all interfaces."""


def start_spark(settings: Mapping[str, str], master: str = MASTER) -> SparkSession:
    # Spark's workers must be the Python of the tests, else they miss its packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("spark-kafka-sink-tests")
    for name, value in (SMALL | dict(settings)).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def connect_address(server: SparkSession) -> str:
    """Where a Spark that was started with CONNECT_SERVER listens."""
    jvm: Any = server._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{service.__getattr__('MODULE$').localPort()}"


def connect_session(address: str) -> SparkSession:
    """A session of Spark Connect, for a process without a Spark of its own."""
    builder: Any = SparkSession.builder
    session: SparkSession = builder.remote(address).getOrCreate()
    register(session)
    return session


@cache
def shared_spark() -> SparkSession:
    folder = Path(tempfile.mkdtemp(prefix="spark-tests-"))
    jars = ",".join(str(jar) for jar in connector_jars())
    settings = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.jars": jars}
    session = start_spark(settings | CONNECT_SERVER)
    session.sparkContext.setLogLevel("OFF")
    return session
