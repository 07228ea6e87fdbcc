"""The one Spark of a test run: a JVM takes seconds to start, and a process can have only one.

tests/spark and integration both take it from here. Spark's own Kafka connector is on its class path where it has been
fetched, so that what was written can be read by format("kafka").
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

SMALL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Settings of every Spark that the tests start, also of those in processes of their own."""

MASTER = "local[2]"
CONNECT = "connect"
"""In place of a master: a server of Spark Connect in a JVM of its own, and this process its client."""

# What `remote("local")` sets; but that listens on a fixed port, and on all interfaces.
_CONNECT_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


def start_spark(settings: Mapping[str, str], master: str = MASTER) -> SparkSession:
    # Spark's workers must be the Python of the tests, else they miss its packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_connect = master == CONNECT
    builder = SparkSession.builder.master(MASTER if is_connect else master).appName("spark-kafka-sink-tests")
    for name, value in (SMALL | (_CONNECT_SERVER if is_connect else {}) | dict(settings)).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if is_connect:
        session = _client_of(session)
    register(session)
    return session


def _client_of(server: SparkSession) -> SparkSession:
    """A session of Spark Connect whose server is in this process's JVM."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    jvm: Any = server._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    client: Any = ConnectSession.builder.remote(f"sc://127.0.0.1:{service.__getattr__('MODULE$').localPort()}")
    session: SparkSession = client.getOrCreate()
    return session


@cache
def shared_spark() -> SparkSession:
    folder = Path(tempfile.mkdtemp(prefix="spark-tests-"))
    jars = ",".join(str(jar) for jar in connector_jars())
    session = start_spark({"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.jars": jars})
    session.sparkContext.setLogLevel("OFF")
    return session
