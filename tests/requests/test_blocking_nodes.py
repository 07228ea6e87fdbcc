"""Topics, leaders and nodes of the blocking client: missing topics, moved and unreachable nodes, and timeouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_sink.client.client_request import ClientResponse
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    DisconnectedError,
    MetadataTimeoutError,
    UnsupportedVersionError,
)
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.reader.list_offsets import LATEST_TIMESTAMP, ListOffsets
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.engine import MAX_UNKNOWN_TOPIC_MS, Call
from spark_kafka_sink.requests.topics import DescribeTopic
from tests.fake_system import FakeSystem
from tests.requests.node_message import NodeMessage, send_to
from tests.simulated_cluster import SimulatedCluster

TIMEOUT_MS = 10_000.0
NODE_TIMEOUT_MS = 1_500.0
ROUND_TRIPS_MS = 100.0
"""Far more than a few round trips in the simulated cluster take, and less than any timeout."""


def connect(cluster: SimulatedCluster, **options: int) -> BlockingClient:
    config = ClientConfig(tuple(cluster.bootstrap_servers.split(",")), **options)  # type: ignore[arg-type]
    return BlockingClient(config, timeout_ms=TIMEOUT_MS, node_timeout_ms=NODE_TIMEOUT_MS, system=cluster.system)


@pytest.fixture
def cluster() -> SimulatedCluster:
    return SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 1})


@pytest.fixture
def client(cluster: SimulatedCluster) -> Iterator[BlockingClient]:
    with connect(cluster) as client:
        yield client


def describe_all_topics(client: BlockingClient, node: Node) -> MetadataResponse:
    return send_to(client, node, MetadataResponse, MetadataRequest(topics=[]))


def begin_calls(client: BlockingClient, node: Node, count: int) -> list[Call[Message]]:
    """Begin calls to a node that are not retried."""
    requests = [NodeMessage(node, MetadataRequest(topics=[])) for _ in range(count)]
    return [client.begin([request], should_retry=False) for request in requests]


def fetch_node(client: BlockingClient, node_id: int) -> Node:
    return next(node for node in client.fetch_nodes() if node.id == node_id)


def test_forbidden_topic_fails_without_waiting(cluster: SimulatedCluster, client: BlockingClient) -> None:
    cluster.control.when(api=ApiKey.METADATA, topic="t", times=None).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    started_ms = client.now()
    with pytest.raises(AuthorizationError):
        client.wait_for_topic("t")
    assert client.now() - started_ms < ROUND_TRIPS_MS


def test_missing_topic_fails_before_timeout(client: BlockingClient) -> None:
    started_ms = client.now()
    with pytest.raises(BrokerError, match="topic missing: UNKNOWN_TOPIC_OR_PARTITION"):
        client.wait_for_topic("missing")
    assert MAX_UNKNOWN_TOPIC_MS < client.now() - started_ms < TIMEOUT_MS


def test_request_for_missing_partition_fails_before_timeout(client: BlockingClient) -> None:
    client.wait_for_topic("t")
    started_ms = client.now()
    with pytest.raises(BrokerError, match=r"topic t, partition 99: UNKNOWN_TOPIC_OR_PARTITION .* has 1 partition, "):
        client.send(ListOffsets("t", [99], LATEST_TIMESTAMP, isolation=0))
    assert MAX_UNKNOWN_TOPIC_MS < client.now() - started_ms < TIMEOUT_MS


def test_waits_for_topic_that_is_created_later(cluster: SimulatedCluster, client: BlockingClient) -> None:
    cluster.system.after(2_000, lambda: cluster.control.create_topic("late", 3))
    started_ms = client.now()
    assert len(client.wait_for_topic("late").partitions) == 3
    assert 2_000 <= client.now() - started_ms < 4_000


def test_unknown_leader_is_looked_up(cluster: SimulatedCluster, client: BlockingClient) -> None:
    client.wait_for_topic("t")
    cluster.control.add_partitions("t", 6)
    assert client.find_leader("t", 5) is None
    client.pause(5_000)
    assert client.find_leader("t", 5) is not None


def test_call_times_out_although_one_of_its_requests_succeeded(
    cluster: SimulatedCluster, client: BlockingClient
) -> None:
    cluster.control.create_topic("failing")
    cluster.control.when(api=ApiKey.METADATA, topic="failing", times=None).fail(codes.UNKNOWN_SERVER_ERROR)
    started_ms = client.now()
    with pytest.raises(MetadataTimeoutError, match="UNKNOWN_SERVER_ERROR"):
        client.send_all([DescribeTopic("t"), DescribeTopic("failing")])
    assert client.now() - started_ms < 2 * TIMEOUT_MS


def test_request_is_sent_to_new_address_of_node(cluster: SimulatedCluster, client: BlockingClient) -> None:
    describe_all_topics(client, fetch_node(client, 1))
    cluster.stop_node(1)
    cluster.core.nodes[1].host = "moved"
    cluster.accept_connections(1)
    moved = fetch_node(client, 1)
    assert moved.host == "moved"
    describe_all_topics(client, moved)
    assert cluster.system.connects[-1][1].host == "moved"


def test_request_waits_for_new_connection_to_node_that_was_unreachable(
    cluster: SimulatedCluster, client: BlockingClient
) -> None:
    node = fetch_node(client, 1)
    cluster.stop_node(1)
    with pytest.raises(DisconnectedError, match=r"broker 1 \(broker1:9093\) cannot be reached"):
        describe_all_topics(client, node)
    cluster.start_node(1)
    assert describe_all_topics(client, node).brokers


def reset_connection(cluster: SimulatedCluster, client: BlockingClient) -> Node:
    """Connect to a node and stop it. The client has not noticed yet that the connection is reset."""
    node = fetch_node(client, 1)
    describe_all_topics(client, node)  # connects
    cluster.stop_node(1)
    cluster.system.advance(ROUND_TRIPS_MS)
    return node


def test_lost_connection_fails_queued_requests_without_another_attempt(
    cluster: SimulatedCluster, client: BlockingClient
) -> None:
    node = reset_connection(cluster, client)
    connection_count = len(cluster.system.connects)
    for call in begin_calls(client, node, 2):
        with pytest.raises(DisconnectedError):
            client.finish(call)
    assert len(cluster.system.connects) == connection_count


def test_only_sent_requests_are_in_doubt_after_lost_connection(
    cluster: SimulatedCluster, client: BlockingClient
) -> None:
    calls = begin_calls(client, reset_connection(cluster, client), 2)
    for call in calls:
        with pytest.raises(DisconnectedError):
            client.finish(call)
    assert [bool(call.in_doubt_keys) for call in calls] == [True, False]


def test_request_to_unreachable_node_is_not_in_doubt(cluster: SimulatedCluster, client: BlockingClient) -> None:
    node = fetch_node(client, 1)
    cluster.stop_node(1)
    (call,) = begin_calls(client, node, 1)
    with pytest.raises(DisconnectedError):
        client.finish(call)
    assert call.in_doubt_keys == set()


def test_unsupported_request_does_not_end_other_calls(client: BlockingClient) -> None:
    node = fetch_node(client, 0)
    describe_all_topics(client, node)  # connects
    unsupported = NodeMessage(node, MetadataRequest(topics=[]), VersionRange(99, 99))
    unsupported_call = client.begin([unsupported], should_retry=False)
    assert client.send(DescribeTopic("t")).topics[0].error_code == codes.NONE
    with pytest.raises(UnsupportedVersionError):
        client.finish(unsupported_call)


def test_unsupported_request_fails_without_waiting(client: BlockingClient) -> None:
    node = fetch_node(client, 0)
    describe_all_topics(client, node)  # connects
    started_ms = client.now()
    with pytest.raises(UnsupportedVersionError):
        send_to(client, node, MetadataResponse, MetadataRequest(topics=[]), versions=VersionRange(99, 99))
    assert client.now() == started_ms


def test_fatal_error_of_the_metadata_ends_a_waiting_call(client: BlockingClient) -> None:
    call = client.begin([DescribeTopic("t")])
    client.metadata.set_fatal_error(AuthenticationError("rejected"))
    started_ms = client.now()
    with pytest.raises(AuthenticationError):
        client.finish(call)
    assert client.now() == started_ms


def test_call_fails_with_fatal_error_instead_of_unreachable_node(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll closes the connection to the node, whose requests are still queued."""
    (call,) = begin_calls(client, fetch_node(client, 1), 1)
    monkeypatch.setattr(client._client, "ready", lambda *_: False)
    monkeypatch.setattr(client._client, "has_connection_failed", lambda _: False)

    def reject_credentials(_timeout_ms: float, _now_ms: float) -> list[ClientResponse]:
        monkeypatch.setattr(client._client, "has_connection_failed", lambda _: True)
        client.metadata.set_fatal_error(AuthenticationError("rejected"))
        return []

    monkeypatch.setattr(client._client, "poll", reject_credentials)
    with pytest.raises(AuthenticationError):
        client.finish(call)


# --- slow and unresponsive nodes


def test_unresponsive_node_fails_its_requests_at_its_timeout(cluster: SimulatedCluster) -> None:
    with connect(cluster, max_in_flight_requests_per_connection=1) as client:
        node = fetch_node(client, 1)
        describe_all_topics(client, node)  # connects
        cluster.control.when(api=ApiKey.METADATA, node=1).never_respond()
        started_ms = client.now()
        for call in begin_calls(client, node, 2):
            with pytest.raises(DisconnectedError, match=r"^broker 1 \(broker1:9093\) did not respond within 1500 ms"):
                client.finish(call)
        assert client.now() - started_ms == pytest.approx(NODE_TIMEOUT_MS, abs=5)


def test_timeout_of_node_is_the_first_one_again_after_a_response(cluster: SimulatedCluster) -> None:
    with connect(cluster) as client:
        node = fetch_node(client, 1)
        for _ in range(2):
            describe_all_topics(client, node)
            cluster.control.when(api=ApiKey.METADATA, node=1).never_respond()
            started_ms = client.now()
            with pytest.raises(DisconnectedError):
                describe_all_topics(client, node)
            assert client.now() - started_ms == pytest.approx(NODE_TIMEOUT_MS, abs=5)


def test_queued_requests_wait_while_their_node_responds(cluster: SimulatedCluster) -> None:
    with connect(cluster, max_in_flight_requests_per_connection=1) as client:
        node = fetch_node(client, 1)
        cluster.control.when(api=ApiKey.METADATA, node=1, times=None).delay(1_000)
        started_ms = client.now()
        for call in begin_calls(client, node, 12):
            client.finish(call, 60_000)
        assert client.now() - started_ms > TIMEOUT_MS


def test_request_fails_if_its_node_accepts_none_within_the_timeout(
    cluster: SimulatedCluster, client: BlockingClient
) -> None:
    node = fetch_node(client, 1)
    cluster.control.when(api=ApiKey.METADATA, node=1).throttle(60_000)
    describe_all_topics(client, node)
    (call,) = begin_calls(client, node, 1)
    started_ms = client.now()
    with pytest.raises(DisconnectedError, match=r"broker 1 \(broker1:9093\) was not ready within 10000 ms"):
        client.finish(call, 60_000)
    assert client.now() - started_ms == pytest.approx(TIMEOUT_MS, abs=1_000)
