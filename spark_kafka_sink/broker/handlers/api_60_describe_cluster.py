"""DescribeCluster: return the cluster id and the running nodes."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


def handle(context: RequestContext, request: DescribeClusterRequest) -> HandlerResult:
    """List the running nodes. The first of them is the controller."""
    running_nodes = context.cluster.list_running_nodes()
    return DescribeClusterResponse(
        error_code=context.find_injected_error_code(),
        cluster_id=context.cluster.cluster_id,
        controller_id=running_nodes[0].id if running_nodes else -1,
        brokers=[
            DescribeClusterBroker(broker_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in running_nodes
        ],
    )
