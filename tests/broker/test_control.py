"""Operations of Control that change the cluster, and the errors for unknown nodes, topics and partitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.produce import (
    ProduceResponseLeaderIdAndEpoch,
)
from tests.broker.cluster_cases import NOT_LEADER, produce
from tests.broker.cluster_cases import client as client
from tests.broker.cluster_cases import cluster as cluster
from tests.broker.cluster_cases import system as system
from tests.broker.wire_client import WireClient, batch, partition_response, produce_request
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster


def test_previous_leader_returns_moved_leader(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.move_leader("t", 0, 1)
    response = client.request(produce_request(batch(b"a")), 12)
    assert partition_response(response).error_code == NOT_LEADER
    assert partition_response(response).current_leader == ProduceResponseLeaderIdAndEpoch(leader_id=1, leader_epoch=1)
    assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == [(1, "broker1", 9093)]
    assert partition_response(client.request(produce_request(batch(b"a")), 12, node=1)).error_code == 0


def test_stopped_node_closes_and_refuses_connections_and_loses_leadership(
    client: WireClient, cluster: SimulatedCluster, system: FakeSystem
) -> None:
    assert produce(client) == 0
    cluster.control.stop_node(0)
    client.selector.poll(10)
    assert list(client.selector.disconnected) == ["0"]
    client.selector.connect("0", system.resolve("broker0", 9092)[0])
    client.selector.poll(10)
    assert list(client.selector.disconnected) == ["0"]
    metadata = client.request(MetadataRequest(topics=None), 9, node=1)
    assert [node.node_id for node in metadata.brokers] == [1]
    assert {p.leader_id for topic in metadata.topics for p in topic.partitions} == {1}
    cluster.control.start_node(0)
    assert produce(client) == NOT_LEADER


def test_refuses_new_connections_and_keeps_open_ones(
    client: WireClient, cluster: SimulatedCluster, system: FakeSystem
) -> None:
    assert produce(client) == 0
    cluster.control.refuse_connections(0)
    assert produce(client) == 0
    other_client = WireClient(system)
    other_client.selector.connect("0", system.resolve("broker0", 9092)[0])
    other_client.selector.poll(10)
    assert list(other_client.selector.disconnected) == ["0"]
    cluster.control.accept_connections(0)
    assert produce(other_client) == 0


def test_too_few_in_sync_replicas_fail_only_acks_all(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.create_topic("strict", 1, {"min.insync.replicas": "2"})
    assert produce(client, topic="strict") == 0
    cluster.control.shrink_in_sync("strict", 1)
    assert produce(client, topic="strict") == error_codes.NOT_ENOUGH_REPLICAS
    assert partition_response(client.request(produce_request(batch(b"a"), "strict", acks=1), 9)).error_code == 0
    cluster.control.restore_in_sync("strict")
    assert produce(client, topic="strict") == 0


def test_hides_topic_from_metadata_only(client: WireClient, cluster: SimulatedCluster) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True)
    cluster.control.hide_topic("t")
    assert client.request(request, 9).topics[0].error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client) == 0
    cluster.control.show_topic("t")
    assert client.request(request, 9).topics[0].error_code == 0


def test_recreated_topic_has_new_id_and_no_records(client: WireClient, cluster: SimulatedCluster) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    produce(client)
    deleted_id = client.request(request, 12).topics[0].topic_id
    cluster.control.delete_topic("t")
    assert produce(client) == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    cluster.control.create_topic("t", 1)
    assert client.request(request, 12).topics[0].topic_id != deleted_id
    assert cluster.values("t") == []


def test_added_partitions_have_leaders_in_metadata(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.add_partitions("t", 4)
    (topic,) = client.request(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9).topics
    assert [(p.partition_index, p.leader_id) for p in topic.partitions] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_moves_coordinator_to_another_node(client: WireClient, cluster: SimulatedCluster) -> None:
    for node in (0, 1):
        cluster.control.move_coordinator("x", node)
        coordinator = client.request(FindCoordinatorRequest(coordinator_keys=["x"], key_type=1)).coordinators[0]
        assert coordinator.node_id == node
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)
    assert client.request(request, 5).error_code == error_codes.NOT_COORDINATOR
    assert client.request(request, 5, node=1).error_code == 0


@pytest.mark.parametrize(
    "operation",
    [
        lambda control: control.stop_node(2),
        lambda control: control.start_node(2),
        lambda control: control.refuse_connections(2),
        lambda control: control.accept_connections(2),
        lambda control: control.move_leader("t", 0, 2),
        lambda control: control.move_coordinator("x", 2),
        lambda control: control.when("PRODUCE", node=2),
    ],
)
def test_rejects_unknown_node_and_lists_known_nodes(
    cluster: SimulatedCluster, operation: Callable[[Control], object]
) -> None:
    with pytest.raises(KeyError, match=r"Node 2 does not exist in the embedded broker; it has \[0, 1\]"):
        operation(cluster.control)


@pytest.mark.parametrize(
    "operation",
    [
        lambda control, topic, partition: control.move_leader(topic, partition, 1),
        lambda control, topic, partition: control.delete_records(topic, partition, 1),
        lambda control, topic, partition: control.forget_producers(topic, partition),
    ],
)
@pytest.mark.parametrize("partition", [-1, 2])
def test_rejects_unknown_partition_with_partition_count(
    cluster: SimulatedCluster, operation: Callable[[Control, str, int], object], partition: int
) -> None:
    with pytest.raises(KeyError, match=f"Topic t has no partition {partition}: it has 2, numbered from 0"):
        operation(cluster.control, "t", partition)


@pytest.mark.parametrize(
    "operation",
    [
        lambda control: control.move_leader("none", 0, 1),
        lambda control: control.shrink_in_sync("none"),
        lambda control: control.restore_in_sync("none"),
        lambda control: control.delete_topic("none"),
        lambda control: control.add_partitions("none", 2),
        lambda control: control.hide_topic("none"),
        lambda control: control.show_topic("none"),
        lambda control: control.delete_records("none", 0, 1),
        lambda control: control.forget_producers("none", 0),
    ],
)
def test_rejects_unknown_topic_and_lists_known_topics(
    cluster: SimulatedCluster, operation: Callable[[Control], object]
) -> None:
    with pytest.raises(KeyError, match=r"Topic none does not exist in the embedded broker; it has \['other', 't'\]"):
        operation(cluster.control)
