"""EmbeddedCluster: invalid configurations. test_control.py tests the operations that change a cluster."""

from __future__ import annotations

import pytest

from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.errors import ConfigurationError


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
