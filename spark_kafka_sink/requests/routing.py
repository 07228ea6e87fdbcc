"""Routing: finds the node for a route, using the metadata and a cache of coordinators."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.diagnostics.text import format_count, format_partition
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION, build_broker_error
from spark_kafka_sink.requests.request import BrokerRoute, CoordinatorRoute, LeaderRoute, Role, Route

MAX_COORDINATORS = 1_000
"""The maximum number of cached coordinators. If one is no longer cached, it is looked up again when it is needed."""


class Routing:
    """Finds the node for a route and caches coordinators. Not thread-safe."""

    def __init__(self, metadata: Metadata, choose_node: Callable[[float], Node | None]) -> None:
        """`choose_node`: takes the current time and returns a node for requests that any broker can handle."""
        self._metadata = metadata
        self._choose_node = choose_node
        self._coordinators: dict[CoordinatorRoute, Node] = {}

    def find_node(self, route: Route, now_ms: float) -> Node | None:
        """Return the node for the route; None if it is unknown, or if no node can be used now.

        If a leader is unknown, request a metadata update. Unknown coordinators are looked up by the caller.
        """
        snapshot = self._metadata.snapshot
        if isinstance(route, CoordinatorRoute):
            return self._coordinators.get(route)
        if isinstance(route, BrokerRoute):
            return route.node
        if isinstance(route, LeaderRoute):
            leader = snapshot.leader(route.topic, route.partition)
            if leader is None:
                self._metadata.request_update()
            return leader
        controller = snapshot.controller if route is Role.CONTROLLER else None
        return controller or self._choose_node(now_ms)

    def find_leader_error(self, route: LeaderRoute) -> KafkaSinkError | None:
        """Return the reason why a leader is unknown: the topic's error, or an error about a missing partition."""
        topic = self._metadata.snapshot.topics.get(route.topic)
        if topic is not None and topic.partitions and topic.partition(route.partition) is None:
            partitions = format_count(len(topic.partitions), "partition")
            advice = f"The topic has {partitions}, numbered from 0. It may have been recreated."
            destination = format_partition(route.topic, route.partition)
            return build_broker_error(UNKNOWN_TOPIC_OR_PARTITION, advice=advice, destination=destination)
        return self._metadata.topic_error(route.topic)

    def add_coordinator(self, route: CoordinatorRoute, node: Node) -> None:
        """Cache a coordinator. If the cache is full, drop the oldest one."""
        if route not in self._coordinators and len(self._coordinators) >= MAX_COORDINATORS:
            del self._coordinators[next(iter(self._coordinators))]  # the oldest entry
        self._coordinators[route] = node

    def forget(self, route: Route) -> None:
        """Forget the node of the route, so that it is looked up again.

        Call this when the node may no longer be the coordinator, leader or controller, or when it is unreachable.
        """
        if isinstance(route, CoordinatorRoute):
            self._coordinators.pop(route, None)
        elif isinstance(route, LeaderRoute) or route is Role.CONTROLLER:
            self._metadata.request_update()
