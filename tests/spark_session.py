"""The shared Spark session of a test run: a JVM takes seconds to start, and a process can have only one.

tests/spark and integration both use it. Spark's own Kafka connector is on the class path if it was downloaded, so that
tests can read topics with format("kafka"). The session also serves Spark Connect, on a free port, so that a client in
another process needs no JVM of its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from integration.support.artifacts import connector_jars
from spark_kafka_sink import register
from spark_kafka_sink.spark.pyspark_versions import HAS_PYTHON_DATA_SOURCES
from tests.runner.class_archive import archive_options

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options for a JVM that lives for a minute: otherwise it would spend half of its start on compiling code."""
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
    # Timeout of connections between Python and the JVM. On a busy machine the default, 15 seconds, was too short.
    "spark.python.authenticate.socketTimeout": "5m",
}
"""Settings of all Spark sessions in tests, including those in other processes."""

MASTER = "local[2]"

CONNECT_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
"""Settings of a session that serves Spark Connect. `remote("local")` would use a fixed port on all interfaces."""


def start_spark(settings: Mapping[str, str], master: str = MASTER) -> SparkSession:
    # Spark's workers must run the tests' Python interpreter, because others lack the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("spark-kafka-sink-tests")
    for name, value in (SMALL | dict(settings)).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def connect_address(server: SparkSession) -> str:
    """Return the Spark Connect address of a session that was started with CONNECT_SERVER."""
    jvm: Any = server._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{service.__getattr__('MODULE$').localPort()}"


def connect_session(address: str) -> SparkSession:
    """Connect to a Spark Connect server. The process must not have a classic Spark session."""
    builder: Any = SparkSession.builder
    session: SparkSession = builder.remote(address).getOrCreate()
    register(session)
    return session


def gateway_environment(session: SparkSession) -> dict[str, str]:
    """Return the environment variables with which another Python process uses the JVM of a session.

    spark-submit sets the same variables for the program that it starts.
    """
    gateway: Any = session.sparkContext._gateway
    parameters = gateway.gateway_parameters
    return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}


def restore_callbacks(session: SparkSession) -> None:
    """Let the JVM call functions of this process again after another process has used the JVM.

    A process that starts a foreachBatch query directs all callbacks of the JVM to itself.
    """
    gateway: Any = session.sparkContext._gateway
    if gateway.__dict__.get("_callback_server") is not None:  # getattr would look for a name in the JVM
        server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
        server.resetCallbackClient(server.getCallbackClient().getAddress(), gateway._python_proxy_port)


def attach_spark() -> SparkSession:
    """Return the running session of the JVM that `gateway_environment` names."""
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    java_context = gateway.jvm.JavaSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    conf = SparkConf(_jconf=java_context.getConf())
    session = SparkSession(SparkContext(gateway=gateway, jsc=java_context, conf=conf))
    register(session)
    return session


def enable_kafka_client_log(session: SparkSession) -> None:
    """Let the Kafka clients of the JVM log their connections and retries to stderr, although the root level is OFF.

    pytest adds this output to the report of a failed test. A client's error itself often names only a timeout.
    """
    gateway: Any = session.sparkContext._gateway
    log4j = gateway.jvm.org.apache.logging.log4j
    for logger in ("org.apache.kafka.clients.NetworkClient", "org.apache.kafka.clients.producer.internals"):
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.INFO)


@cache
def shared_spark() -> SparkSession:
    folder = Path(tempfile.mkdtemp(prefix="spark-tests-"))
    settings = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    if HAS_PYTHON_DATA_SOURCES:
        # Neither the jars of the connector nor Spark Connect run in Spark 3.5, which has another version of Scala.
        settings |= {"spark.jars": ",".join(str(jar) for jar in connector_jars())} | CONNECT_SERVER
    session = start_spark(settings)
    session.sparkContext.setLogLevel("OFF")
    return session
