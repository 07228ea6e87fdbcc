"""The node to which each route leads."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.cluster import ClusterSnapshot, Node, PartitionInfo, TopicInfo
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.request import (
    TRANSACTION_KEY_TYPE,
    BrokerRoute,
    CoordinatorRoute,
    LeaderRoute,
    Role,
    Route,
)
from spark_kafka_sink.requests.routing import MAX_COORDINATORS, Routing
from tests.fake_system import FakeSystem

NODE, OTHER = Node(1, "b1", 9092), Node(2, "b2", 9092)
X = CoordinatorRoute(TRANSACTION_KEY_TYPE, "x")


def routing(choose_node: Node | None = NODE) -> Routing:
    metadata = Metadata([NODE], ClientConfig(("b1:9092",)), system=FakeSystem(), allow_auto_topic_creation=False)
    return Routing(metadata, lambda now_ms: choose_node)


def test_coordinator_is_known_from_add_until_forget() -> None:
    routes = routing()
    assert routes.find_node(X, 0) is None
    routes.add_coordinator(X, OTHER)
    assert routes.find_node(X, 0) is OTHER
    routes.forget(X)
    assert routes.find_node(X, 0) is None


def test_keeps_most_recently_added_coordinators() -> None:
    routes = routing()
    keys = [CoordinatorRoute(TRANSACTION_KEY_TYPE, str(number)) for number in range(MAX_COORDINATORS + 5)]
    for key in keys:
        routes.add_coordinator(key, NODE)
    routes.add_coordinator(keys[-1], OTHER)
    assert [key for key in keys if routes.find_node(key, 0) is not None] == keys[5:]


def test_any_node_serves_a_request_for_an_unknown_controller() -> None:
    assert routing().find_node(Role.CONTROLLER, 0) is NODE
    assert routing().find_node(Role.ANY_BROKER, 0) is NODE
    assert routing(None).find_node(Role.ANY_BROKER, 0) is None


def test_broker_route_leads_to_that_broker() -> None:
    assert routing().find_node(BrokerRoute(OTHER), 0) is OTHER


def test_unknown_leader_requests_metadata() -> None:
    routes = routing()
    version = routes._metadata.request_update()
    routes._metadata._is_full_update_requested = False
    assert routes.find_node(LeaderRoute("t", 0), 0) is None
    assert routes._metadata._is_full_update_requested
    assert version is not None


@pytest.mark.parametrize(
    ("route", "is_requested"), [(LeaderRoute("t", 0), True), (Role.CONTROLLER, True), (Role.ANY_BROKER, False)]
)
def test_forgotten_leader_or_controller_requests_metadata(route: Route, is_requested: bool) -> None:
    routes = routing()
    routes._metadata._is_full_update_requested = False
    routes.forget(route)
    assert routes._metadata._is_full_update_requested == is_requested


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        (None, ""),
        (TopicInfo("t", error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION), "topic t: UNKNOWN_TOPIC_OR_PARTITION (3)"),
        (TopicInfo("t", partitions=(PartitionInfo("t", 0, None, None),)), "The topic has 1 partition, numbered from 0"),
        (TopicInfo("t", partitions=(PartitionInfo("t", 0, None, None), PartitionInfo("t", 1, None, None))), ""),
    ],
)
def test_missing_leader_is_an_error_if_topic_or_partition_is_missing(topic: TopicInfo | None, message: str) -> None:
    routes = routing()
    routes._metadata.snapshot = ClusterSnapshot(topics={} if topic is None else {"t": topic})
    error = routes.find_leader_error(LeaderRoute("t", 1))
    assert message in str(error) if message else error is None
