"""Which broker to ask what any of them can answer: the least loaded node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.connections import Connections
from spark_kafka_sink.client.in_flight import InFlightRequests

SUSPICIOUS_MS = 1_000.0
"""When a node has been silent for so long, another one is asked: the cluster may have elected another leader."""


@dataclass(frozen=True)
class NodeChoice:
    node: Node | None
    any_connected: bool
    """Some connection stands, although it may be too busy, or throttled, to be chosen."""


def choose_node(
    nodes: Sequence[Node],
    connections: Connections,
    in_flight: InFlightRequests,
    is_lively: Callable[[int], bool],
    random: Random,
    now: float,
) -> NodeChoice:
    """Ready with the fewest requests; else one on its way to being ready, so that no second connection is begun while
    the first is made; else the one that was tried least recently. Equals are shuffled.

    A node that is not lively has owed an answer or a connection for SUSPICIOUS_MS, and comes after all others: a
    suspended process accepts each connection, and while the client waited for it no other broker would be asked who
    leads its partitions now.
    """
    nodes = random.sample(nodes, len(nodes))
    states = connections.states
    any_connected = any(states.is_connected(node.id) for node in nodes)
    sendable = [node for node in nodes if connections.is_ready(node.id, now) and in_flight.can_send_more(node.id)]
    sendable.sort(key=lambda node: in_flight.count(node.id))
    begun = sendable + [node for node in nodes if states.is_preparing(node.id)]
    connectable = [node for node in nodes if states.can_connect(node.id, now)]
    connectable.sort(key=lambda node: states.last_attempt_ms(node.id))
    lively = [node for node in begun if is_lively(node.id)]
    return NodeChoice(next(iter(lively + connectable + begun), None), any_connected)
