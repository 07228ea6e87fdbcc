"""EmbeddedCluster: invalid configurations, and the nodes that lead and coordinate after stops and starts.

test_control.py tests the operations that change a cluster as a client observes them.
"""

from __future__ import annotations

from uuid import uuid4

import pytest

from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.topics import TopicDefinition
from spark_kafka_sink.errors import ConfigurationError
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ClusterConfig(nodes=0), "A cluster must have at least one node."),
        (ClusterConfig(nodes=1, racks=("a", "b")), "There are 2 racks for 1 nodes. Set one per node."),
    ],
)
def test_rejects_invalid_number_of_nodes_or_racks(config: ClusterConfig, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EmbeddedCluster(config)
    assert str(caught.value) == message


def test_nodes_beyond_racks_have_no_rack() -> None:
    cluster = EmbeddedCluster(ClusterConfig(nodes=3, racks=("a", "b")))
    assert [node.rack for node in cluster.nodes.values()] == ["a", "b", None]


def test_rejects_topic_whose_name_collides_with_another_one() -> None:
    cluster = EmbeddedCluster(ClusterConfig(), topics={"a.b": 1})
    with pytest.raises(ConfigurationError, match=r"Topic a_b collides with existing topic a\.b: the names differ"):
        cluster.create_topic("a_b")
    with pytest.raises(ConfigurationError, match=r"Topic c_d collides with existing topic c\.d"):
        cluster.create_topics([TopicDefinition("c.d"), TopicDefinition("c_d")])
    assert set(cluster.topics) == {"a.b"}
    cluster.delete_topic("a.b")
    cluster.create_topic("a_b")


def test_loads_stored_topics_with_colliding_names() -> None:
    cluster = EmbeddedCluster(ClusterConfig(), topics={"a.b": 1})
    cluster.create_topic("a_b", topic_id=uuid4())
    assert set(cluster.topics) == {"a.b", "a_b"}


def create_simulated_cluster() -> EmbeddedCluster:
    return SimulatedCluster(FakeSystem(), nodes=2, topics={"t": 2}).core


def list_leaders(cluster: EmbeddedCluster) -> list[int | None]:
    return [partition.leader for partition in cluster.topic("t").partitions]


def test_started_node_leads_partitions_that_have_no_leader() -> None:
    cluster = create_simulated_cluster()
    for node in (0, 1):
        cluster.stop_node(node)
    assert list_leaders(cluster) == [None, None]
    cluster.start_node(1)
    assert list_leaders(cluster) == [1, 1]
    cluster.start_node(0)
    assert list_leaders(cluster) == [1, 1], "a partition with a leader keeps it"


def test_coordinator_is_a_running_node_or_none() -> None:
    cluster = create_simulated_cluster()
    cluster.move_coordinator("x", 0)
    assert cluster.find_coordinator("x") is cluster.nodes[0]
    cluster.stop_node(0)
    assert cluster.find_coordinator("x") is cluster.nodes[1]
    cluster.stop_node(1)
    assert cluster.find_coordinator("x") is None
