"""Choice of the least loaded node for requests that any broker can answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.connections import Connections
from spark_kafka_sink.client.in_flight import InFlightRequests

UNRESPONSIVE_AFTER_MS = 1_000.0
"""Time without a response after which a node counts as unresponsive. The client then requests metadata from another
node, because the cluster may have elected new leaders."""


@dataclass(frozen=True)
class NodeChoice:
    """The result of choose_node. `node` is None if no node can be used or connected to now."""

    node: Node | None
    has_connected_node: bool
    """Whether any node is connected, even if it could not be chosen because it is busy or throttled."""


def choose_node(
    nodes: Sequence[Node],
    connections: Connections,
    in_flight: InFlightRequests,
    is_responsive: Callable[[int], bool],
    rng: Random,
    now_ms: float,
) -> NodeChoice:
    """Choose the ready node with the fewest requests in flight; break ties at random.

    If no node is ready, choose one that is being connected, so that no second connection is opened in the meantime. If
    no node is being connected either, choose the node whose last connection attempt is the oldest.

    Choose an unresponsive node only as a last resort. A suspended broker process still accepts connections, and a
    client that waited for it would not request the new leaders of its partitions from other brokers.
    """
    nodes = rng.sample(nodes, len(nodes))  # the sorts below are stable, so ties keep this random order
    states = connections.states
    has_connected_node = any(states.is_connected(node.id) for node in nodes)
    ready_nodes = [node for node in nodes if connections.is_ready(node.id, now_ms) and in_flight.can_send_more(node.id)]
    ready_nodes.sort(key=lambda node: in_flight.count(node.id))
    connecting_nodes = [node for node in nodes if states.is_preparing_connection(node.id)]
    connectable_nodes = [node for node in nodes if states.can_connect(node.id, now_ms)]
    connectable_nodes.sort(key=lambda node: states.last_attempt_ms(node.id))
    usable_nodes = ready_nodes + connecting_nodes
    responsive_nodes = [node for node in usable_nodes if is_responsive(node.id)]
    candidates = responsive_nodes + connectable_nodes + usable_nodes  # in order of preference
    return NodeChoice(candidates[0] if candidates else None, has_connected_node)
