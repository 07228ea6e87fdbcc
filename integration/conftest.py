"""Real peers, shared by one test run: Kafka with one node and with three, Spark's own connector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from integration.support.artifacts import connector_jars
from integration.support.kafka_cluster import KafkaCluster
from integration.support.proxy import Proxy
from integration.support.registry import schema_registry
from tests.interrupts import restore_sigint

if TYPE_CHECKING:
    from integration.support.spark_cluster import StandaloneCluster

OVERDUE_SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""Transactions that have lasted too long are aborted within half a second, not within ten."""


def pytest_configure() -> None:
    restore_sigint()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One node, all listeners. Tests use topics of their own and leave the node running."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka") / "cluster", properties=OVERDUE_SOON) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_of_version_1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One node with transaction.version 1; `kafka` has 2, as Kafka 4 has by itself."""
    folder = tmp_path_factory.mktemp("kafka-version-1") / "cluster"
    with KafkaCluster(folder, properties=OVERDUE_SOON, features=("transaction.version=1",)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers and a controller; 3 replicas, min.insync.replicas 2. A test that stops a node starts it again."""
    with KafkaCluster(tmp_path_factory.mktemp("kafka3") / "cluster", brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, Proxy]]:
    """One node, and a proxy to it. Tests set the mode that they want at their beginning."""
    folder = tmp_path_factory.mktemp("proxied") / "cluster"
    with Proxy() as proxy, KafkaCluster(folder, advertised_ports={1: proxy.port}, properties=OVERDUE_SOON) as cluster:
        proxy.target = ("localhost", cluster.nodes[1].ports["PROXIED"])
        yield cluster, proxy


@pytest.fixture(scope="session")
def registry_url() -> Iterator[str]:
    """A schema registry with Confluent's interface."""
    with schema_registry() as url:
        yield url


@pytest.fixture(scope="session")
def spark_kafka_jars() -> list[Path]:
    """For `spark.jars`: what format("kafka") needs."""
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
    """The package as it is installed from an index."""
    from integration.support.spark_cluster import built_wheel

    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def wheel_python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of an environment with the wheel and what it depends on, which is packed beside it."""
    from integration.support.spark_cluster import build_environment

    return build_environment(tmp_path_factory.mktemp("wheel-environment"), wheel)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A Spark cluster on this machine. A driver that is left takes its cores from the next one."""
    from integration.support.spark_cluster import StandaloneCluster

    with StandaloneCluster(tmp_path_factory.mktemp("spark-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The session that tests/spark use too, with Spark's own connector on its class path."""
    from tests.spark_session import shared_spark  # not needed, and slow to import, without Spark

    return shared_spark()
