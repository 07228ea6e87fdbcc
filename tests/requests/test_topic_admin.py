"""Creation of missing topics, and reading of topic settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.errors import AuthorizationError, BrokerError, UnsupportedVersionError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.deadline import compute_pause_ms
from spark_kafka_sink.requests.engine import MAX_UNKNOWN_TOPIC_MS
from spark_kafka_sink.requests.topic_admin import create_if_missing, fetch_topic_settings, topic_exists
from spark_kafka_sink.requests.transactions import LIST_TRANSACTIONS_PROBE
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
    assert len(client.metadata.snapshot.topics["new"].partitions) == 3
    assert not create_if_missing(client, NewTopic("new", 5, 1))
    assert len(client.wait_for_topic("new").partitions) == 3


def test_creates_topic_that_is_being_deleted(cluster: SimulatedCluster, client: BlockingClient) -> None:
    """While brokers delete a topic, they report that it exists and do not describe it."""
    cluster.control.when(api=ApiKey.CREATE_TOPICS, times=3).fail(codes.TOPIC_ALREADY_EXISTS)
    started_ms = client.now()
    assert create_if_missing(client, NewTopic("new", 3, 1))
    assert topic_exists(client, "new")
    assert client.now() - started_ms >= sum(map(compute_pause_ms, range(3))), "the backoff grows"


def test_error_names_purpose_when_description_is_rejected(cluster: SimulatedCluster, client: BlockingClient) -> None:
    cluster.control.when(api=ApiKey.METADATA, topic="t", times=None).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError, match="topic t, the log: TOPIC_AUTHORIZATION_FAILED"):
        topic_exists(client, "t", role="the log")


def test_creates_no_topic_on_brokers_without_the_prerequisite_request() -> None:
    version_limits = {ApiKey.LIST_TRANSACTIONS: VersionRange(1, 0)}
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1}, version_limits=version_limits)
    with BlockingClient(ClientConfig((cluster.bootstrap_servers,)), system=cluster.system) as client:
        with pytest.raises(UnsupportedVersionError):
            create_if_missing(client, NewTopic("new", 3, 1), prerequisite_request=LIST_TRANSACTIONS_PROBE)
        assert not topic_exists(client, "new")


def test_retries_while_the_controller_moves(cluster: SimulatedCluster, client: BlockingClient) -> None:
    cluster.control.when(api=ApiKey.CREATE_TOPICS, times=2).fail(codes.NOT_CONTROLLER)
    assert create_if_missing(client, NewTopic("new", 3, 1))


def test_error_names_purpose_and_cause_when_creation_is_rejected(
    cluster: SimulatedCluster, client: BlockingClient
) -> None:
    cluster.control.when(api=ApiKey.CREATE_TOPICS).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError, match="topic new, the log, does not exist and could not be created"):
        create_if_missing(client, NewTopic("new"), role="the log")
    assert not topic_exists(client, "new")


def test_retries_reading_of_settings(cluster: SimulatedCluster, client: BlockingClient) -> None:
    cluster.control.when(api=ApiKey.DESCRIBE_CONFIGS, times=2).fail(codes.REQUEST_TIMED_OUT)
    assert fetch_topic_settings(client, "t", ["cleanup.policy"]) == {"cleanup.policy": "delete"}
    cluster.control.when(api=ApiKey.DESCRIBE_CONFIGS).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="topic t: the attempt to describe the topic's settings was rejected"):
        fetch_topic_settings(client, "t", ["cleanup.policy"])


@pytest.mark.parametrize("code", [codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNKNOWN_SERVER_ERROR])
def test_waits_for_partitions_of_new_topic(cluster: SimulatedCluster, client: BlockingClient, code: int) -> None:
    """Brokers learn of a new topic one after another."""
    cluster.control.when(api=ApiKey.METADATA, topic="t", times=3).fail(code)
    assert len(client.wait_for_topic("t").partitions) == 1


def test_gives_up_on_topic_that_stays_unknown(cluster: SimulatedCluster, client: BlockingClient) -> None:
    started_ms = client.now()
    with pytest.raises(BrokerError, match="topic missing: UNKNOWN_TOPIC_OR_PARTITION"):
        client.wait_for_topic("missing")
    assert MAX_UNKNOWN_TOPIC_MS < client.now() - started_ms < MAX_UNKNOWN_TOPIC_MS + 1_000


def test_raises_immediately_for_topic_that_user_may_not_describe(
    cluster: SimulatedCluster, client: BlockingClient
) -> None:
    cluster.control.when(api=ApiKey.METADATA, topic="t", times=None).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    started_ms = client.now()
    with pytest.raises(AuthorizationError, match="topic t"):
        client.wait_for_topic("t")
    assert client.now() - started_ms < 1_000


def test_requests_metadata_of_partition_with_unknown_leader(cluster: SimulatedCluster, client: BlockingClient) -> None:
    client.wait_for_topic("t")
    cluster.control.add_partitions("t", 2)
    client.pause(1_000)
    assert client.find_leader("t", 1) is None
    client.pause(1_000)
    assert client.find_leader("t", 1) is not None
