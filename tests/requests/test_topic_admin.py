"""Creation of missing topics, and reading of topic settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.errors import AuthorizationError, BrokerError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.topic_admin import create_if_missing, fetch_topic_settings, topic_exists
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster


@pytest.fixture
def cluster() -> SimulatedCluster:
    return SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 1})


@pytest.fixture
def client(cluster: SimulatedCluster) -> Iterator[BlockingClient]:
    config = ClientConfig(tuple(cluster.bootstrap_servers.split(",")))
    with BlockingClient(config, timeout_ms=10_000, system=cluster.system) as client:
        yield client


def test_creates_only_missing_topic(cluster: SimulatedCluster, client: BlockingClient) -> None:
    assert create_if_missing(client, NewTopic("new", 3, 1))
    assert not create_if_missing(client, NewTopic("new", 5, 1))
    assert len(client.topic("new").partitions) == 3


def test_creates_topic_that_is_being_deleted(cluster: SimulatedCluster, client: BlockingClient) -> None:
    """While brokers delete a topic, they report that it exists and do not describe it."""
    cluster.control.when(api=ApiKey.CREATE_TOPICS, times=3).fail(codes.TOPIC_ALREADY_EXISTS)
    assert create_if_missing(client, NewTopic("new", 3, 1))
    assert topic_exists(client, "new")


def test_retries_while_the_controller_moves(cluster: SimulatedCluster, client: BlockingClient) -> None:
    cluster.control.when(api=ApiKey.CREATE_TOPICS, times=2).fail(codes.NOT_CONTROLLER)
    assert create_if_missing(client, NewTopic("new", 3, 1))


def test_error_names_purpose_and_cause_when_creation_is_rejected(
    cluster: SimulatedCluster, client: BlockingClient
) -> None:
    cluster.control.when(api=ApiKey.CREATE_TOPICS).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError, match="topic new, the log, does not exist and could not be created"):
        create_if_missing(client, NewTopic("new"), purpose=", the log")
    assert not topic_exists(client, "new")


def test_retries_reading_of_settings(cluster: SimulatedCluster, client: BlockingClient) -> None:
    cluster.control.when(api=ApiKey.DESCRIBE_CONFIGS, times=2).fail(codes.REQUEST_TIMED_OUT)
    assert fetch_topic_settings(client, "t", ["cleanup.policy"]) == {"cleanup.policy": "delete"}
    cluster.control.when(api=ApiKey.DESCRIBE_CONFIGS).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="topic t: the attempt to describe its settings was rejected"):
        fetch_topic_settings(client, "t", ["cleanup.policy"])
