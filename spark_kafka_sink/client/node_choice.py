"""Whom to ask what any broker can answer: the least loaded node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.connections import Connections
from spark_kafka_sink.client.in_flight import InFlightRequests


@dataclass(frozen=True)
class NodeChoice:
    node: Node | None
    any_connected: bool
    """Some connection stands, although it may be too busy, or throttled, to be chosen."""


def choose_node(
    nodes: Sequence[Node], connections: Connections, in_flight: InFlightRequests, random: Random, now: float
) -> NodeChoice:
    """Ready with the fewest requests; else one on its way to being ready, so that no second connection is begun while
    the first is made; else the one that was tried least recently. Equals are shuffled."""
    nodes = random.sample(nodes, len(nodes))
    states = connections.states
    any_connected = any(states.is_connected(node.id) for node in nodes)
    sendable = [node for node in nodes if connections.is_ready(node.id, now) and in_flight.can_send_more(node.id)]
    if sendable:
        return NodeChoice(min(sendable, key=lambda node: in_flight.count(node.id)), any_connected)
    preparing = next((node for node in nodes if states.is_preparing(node.id)), None)
    if preparing is not None:
        return NodeChoice(preparing, any_connected)
    connectable = [node for node in nodes if states.can_connect(node.id, now)]
    return NodeChoice(min(connectable, key=lambda node: states.last_attempt_ms(node.id), default=None), any_connected)
