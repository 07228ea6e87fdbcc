"""Fixtures of the integration tests: Kafka clusters with one and three brokers, a registry, a Spark cluster.

All fixtures have session scope, so the tests of one run share them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from integration.support.artifacts import connector_jars
from integration.support.kafka_cluster import LISTENERS, KafkaCluster, read_log_tail
from integration.support.proxy import Proxy
from integration.support.registry import run_schema_registry
from tests.interrupts import restore_sigint

if TYPE_CHECKING:
    from integration.support.spark_cluster import StandaloneCluster

FREQUENT_TIMEOUT_CHECKS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""Brokers abort timed out transactions within 0.5 s instead of 10 s."""


def pytest_configure() -> None:
    restore_sigint()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of each Kafka node's log to the report of a failed test, because the log itself is soon deleted."""
    report = yield
    if report.failed:
        clusters = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, KafkaCluster)]
        nodes = [node for cluster in clusters for node in cluster.nodes.values()]
        report.sections += [(f"Log of Kafka node {node.node_id}", read_log_tail(node.log)) for node in nodes]
    return report


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A node with all listeners. Tests create their own topics and must not stop the node."""
    folder = tmp_path_factory.mktemp("kafka") / "cluster"
    with KafkaCluster(folder, listeners=LISTENERS, properties=FREQUENT_TIMEOUT_CHECKS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_version_1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A node with transaction.version 1. The node of `kafka` has version 2, the default of Kafka 4."""
    folder = tmp_path_factory.mktemp("kafka-version-1") / "cluster"
    with KafkaCluster(folder, properties=FREQUENT_TIMEOUT_CHECKS, features=("transaction.version=1",)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def strict_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A node that creates no topics automatically, and removes producer states within a second.

    Clients of PLAINTEXT may do everything, other clients only what an ACL allows. Tests resume the node if they suspend
    it.
    """
    properties = {
        "allow.everyone.if.no.acl.found": "false",
        "auto.create.topics.enable": "false",
        "producer.id.expiration.ms": "300",
        "producer.id.expiration.check.interval.ms": "100",
    }
    listeners = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "MTLS", "EXPIRED")
    folder = tmp_path_factory.mktemp("strict-kafka") / "cluster"
    with KafkaCluster(folder, listeners=listeners, properties=properties) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers and a controller, with 3 replicas and min.insync.replicas 2. Tests restart the nodes they stop."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka3") / "cluster", brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, Proxy]]:
    """A node and a proxy in front of it. Each test sets the mode of the proxy first."""
    folder = tmp_path_factory.mktemp("proxied") / "cluster"
    with (
        Proxy() as proxy,
        KafkaCluster(
            folder,
            listeners=("PLAINTEXT", "PROXIED"),
            advertised_ports={1: proxy.port},
            properties=FREQUENT_TIMEOUT_CHECKS,
        ) as cluster,
    ):
        proxy.target = ("localhost", cluster.nodes[1].ports["PROXIED"])
        yield cluster, proxy


@pytest.fixture(scope="session")
def registry_url() -> Iterator[str]:
    """The address of a schema registry with Confluent's API."""
    with run_schema_registry() as url:
        yield url


@pytest.fixture(scope="session")
def spark_kafka_jars() -> list[Path]:
    """The jars of Spark's own Kafka connector, for `spark.jars`."""
    return connector_jars()


@pytest.fixture(scope="session")
def linearizability_checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of tools/linearizability."""
    from integration.support.linearizability import build_checker

    return build_checker(tmp_path_factory.mktemp("linearizability"))


@pytest.fixture(scope="module")
def recorded_histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for histories of the decision log: each test that records one adds a folder with its name."""
    return tmp_path_factory.mktemp("histories")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the package, built from this source tree."""
    from integration.support.spark_cluster import build_wheel

    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def wheel_python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of an environment with the wheel and its dependencies, next to an archive of the environment."""
    from integration.support.spark_cluster import build_environment

    return build_environment(tmp_path_factory.mktemp("wheel-environment"), wheel)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A Spark cluster on this machine. Tests must end their drivers, because a driver occupies all cores."""
    from integration.support.spark_cluster import StandaloneCluster

    with StandaloneCluster(tmp_path_factory.mktemp("spark-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The Spark session that tests/spark also use, with Spark's own connector on its class path."""
    # not needed, and slow to import, without Spark
    from tests.spark_session import enable_kafka_client_log, shared_spark

    session = shared_spark()
    enable_kafka_client_log(session)
    return session
