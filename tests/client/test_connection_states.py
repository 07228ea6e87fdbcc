from __future__ import annotations

import math
import socket
from random import Random

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.connection_states import ConnectionState, ConnectionStates
from spark_kafka_sink.errors import AuthenticationError, DisconnectedError, IllegalStateError
from spark_kafka_sink.network.system import SocketAddress

NODE = Node(1, "broker", 9092)
OTHER = Node(2, "other", 9092)


class FakeResolver:
    """A resolver with addresses that tests can change."""

    def __init__(self) -> None:
        self.ips: dict[str, list[str]] = {"broker": ["10.0.0.1"], "other": ["10.0.0.2"]}
        self.resolved_hosts: list[str] = []

    def resolve(self, host: str, port: int) -> list[SocketAddress]:
        self.resolved_hosts.append(host)
        if not self.ips[host]:
            raise DisconnectedError(f"{host}:{port}: the name cannot be resolved")
        return [SocketAddress(host, port, socket.AF_INET, (ip, port)) for ip in self.ips[host]]


@pytest.fixture
def resolver() -> FakeResolver:
    return FakeResolver()


@pytest.fixture
def states(resolver: FakeResolver) -> ConnectionStates:
    return ConnectionStates(
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=1_000,
        setup_timeout_ms=10_000,
        setup_timeout_max_ms=30_000,
        resolve=resolver.resolve,
        rng=Random(3),
    )


def make_ready(states: ConnectionStates, node: Node = NODE, now_ms: float = 0.0) -> None:
    states.start_connecting(node, now_ms)
    states.mark_checking_api_versions(node.id)
    states.mark_ready(node.id, now_ms)


def ip(address: SocketAddress | None) -> str:
    assert address is not None
    return str(address.sockaddr[0])


def test_connection_passes_through_states_until_ready(states: ConnectionStates) -> None:
    assert states.state(1, 0) is ConnectionState.DISCONNECTED
    assert states.can_connect(1, 0)
    states.start_connecting(NODE, 0)
    assert states.is_preparing_connection(1)
    assert not states.is_connected(1)
    assert not states.can_connect(1, 0)
    states.mark_checking_api_versions(1)
    assert states.is_preparing_connection(1)
    assert states.is_connected(1)
    assert not states.is_ready(1, 0)
    states.mark_ready(1, 0)
    assert states.is_ready(1, 0)
    assert not states.is_preparing_connection(1)
    assert states.connection_delay_ms(1, 0) == math.inf
    states.mark_disconnected(1, 100)
    assert states.has_failed(1)


def test_rejects_transitions_outside_the_state_table(states: ConnectionStates) -> None:
    with pytest.raises(IllegalStateError, match="never been a connection"):
        states.mark_disconnected(1, 0)
    states.start_connecting(NODE, 0)
    with pytest.raises(IllegalStateError, match="cannot go"):
        states.start_connecting(NODE, 0)
    with pytest.raises(IllegalStateError, match="cannot go"):
        states.mark_ready(1, 0)
    states.mark_disconnected(1, 0)
    with pytest.raises(IllegalStateError, match="cannot go"):
        states.mark_checking_api_versions(1)


def test_api_versions_can_be_checked_twice(states: ConnectionStates) -> None:
    states.start_connecting(NODE, 0)
    states.mark_checking_api_versions(1)
    states.mark_checking_api_versions(1)
    states.mark_ready(1, 0)
    assert states.is_ready(1, 0)


def test_each_node_has_its_own_state(states: ConnectionStates) -> None:
    make_ready(states, NODE)
    states.start_connecting(OTHER, 0)
    states.mark_disconnected(1, 10)
    assert states.has_failed(1)
    assert states.is_preparing_connection(2)
    states.mark_checking_api_versions(2)
    states.mark_ready(2, 10)
    assert states.is_ready(2, 10)


def test_disconnected_node_can_connect_after_backoff(states: ConnectionStates) -> None:
    make_ready(states)
    states.mark_disconnected(1, 1_000)
    delay = states.connection_delay_ms(1, 1_000)
    assert 40 <= delay <= 60
    assert not states.can_connect(1, 1_000 + delay - 1)
    assert states.can_connect(1, 1_000 + delay)
    assert states.connection_delay_ms(1, 1_000 + delay) == 0


def test_reconnect_backoff_grows_to_maximum_and_resets_on_success(states: ConnectionStates) -> None:
    now_ms = 0.0
    for expected in [50, 100, 200, 400, 800, 1_000, 1_000]:
        states.start_connecting(NODE, now_ms)
        states.mark_disconnected(1, now_ms)
        delay = states.connection_delay_ms(1, now_ms)
        assert expected * 0.8 <= delay <= min(expected * 1.2, 1_000)
        now_ms += delay
    make_ready(states, NODE, now_ms)
    states.mark_disconnected(1, now_ms)
    assert states.connection_delay_ms(1, now_ms) <= 60


def test_setup_timeout_grows_with_failures_and_resets_once_connected(states: ConnectionStates) -> None:
    now_ms = 0.0
    for expected in [10_000, 20_000, 30_000, 30_000]:
        states.start_connecting(NODE, now_ms)
        limit = states.setup_timeout_ms(1)
        assert expected * 0.8 <= limit <= min(expected * 1.2, 30_000)
        assert states.find_nodes_with_setup_timeout(now_ms + limit - 1) == []
        assert states.find_nodes_with_setup_timeout(now_ms + limit) == [1]
        assert states.next_setup_deadline_ms() == now_ms + limit
        states.mark_disconnected(1, now_ms + limit)
        now_ms += limit + 2_000
    states.start_connecting(NODE, now_ms)
    states.mark_checking_api_versions(1)
    assert states.setup_timeout_ms(1) <= 12_000
    assert states.find_nodes_with_setup_timeout(now_ms + 100_000) == [], "the setup timeout ends with the connection"
    assert states.next_setup_deadline_ms() == math.inf


def test_connection_delay_is_remaining_setup_timeout(states: ConnectionStates) -> None:
    states.start_connecting(NODE, 0)
    limit = states.setup_timeout_ms(1)
    assert states.connection_delay_ms(1, 3_000) == limit - 3_000
    assert states.connection_delay_ms(1, limit + 1) == 0


def test_authentication_failure_is_kept_until_next_success(states: ConnectionStates) -> None:
    error = AuthenticationError("wrong password")
    states.start_connecting(NODE, 0)
    states.mark_authentication_failed(1, 0, error)
    assert states.state(1, 0) is ConnectionState.AUTHENTICATION_FAILED
    assert states.authentication_exception(1) is error
    assert states.has_failed(1)
    assert not states.can_connect(1, 0), "a wrong password must not be tried in a tight loop"
    make_ready(states, NODE, 2_000)
    assert states.authentication_exception(1) is None


def test_credentials_are_rejected_after_all_addresses_were_tried(
    states: ConnectionStates, resolver: FakeResolver
) -> None:
    resolver.ips["broker"] = ["10.0.0.1", "10.0.0.2"]
    assert not states.has_rejected_credentials(1)
    states.start_connecting(NODE, 0)
    states.mark_authentication_failed(1, 0, AuthenticationError("unknown user"))
    assert not states.has_rejected_credentials(1), "there is another address"
    states.start_connecting(NODE, 2_000)
    assert not states.has_rejected_credentials(1), "the other address is being tried"
    states.mark_disconnected(1, 2_000)
    assert states.has_rejected_credentials(1), "the other address does not help"
    make_ready(states, NODE, 9_000)
    assert not states.has_rejected_credentials(1)


def test_credentials_are_rejected_when_ready_connection_fails_authentication(
    states: ConnectionStates, resolver: FakeResolver
) -> None:
    resolver.ips["broker"] = ["10.0.0.1", "10.0.0.2"]
    make_ready(states)
    states.mark_authentication_failed(1, 0, AuthenticationError("the token has expired"))
    assert states.has_rejected_credentials(1)


def test_throttled_node_is_not_ready_until_throttle_ends(states: ConnectionStates) -> None:
    make_ready(states)
    states.throttle(1, 500)
    assert states.state(1, 499) is ConnectionState.THROTTLED
    assert not states.is_ready(1, 499)
    assert states.is_connected(1)
    assert states.throttle_delay_ms(1, 100) == 400
    assert states.poll_delay_ms(1, 100) == 400
    assert states.is_ready(1, 500)
    assert states.poll_delay_ms(1, 500) == math.inf


def test_throttle_never_becomes_shorter(states: ConnectionStates) -> None:
    make_ready(states)
    states.throttle(1, 500)
    states.throttle(1, 300)
    assert states.throttle_delay_ms(1, 100) == 400
    states.throttle(1, 600)
    assert states.throttle_delay_ms(1, 100) == 500


def test_throttle_outlives_connection(states: ConnectionStates) -> None:
    make_ready(states)
    states.throttle(1, 5_000)
    states.mark_disconnected(1, 100)
    assert states.poll_delay_ms(1, 100) <= 60, "while disconnected, reconnecting comes first"
    make_ready(states, NODE, 1_000)
    assert not states.is_ready(1, 1_000)
    assert states.is_ready(1, 5_000)


def test_tries_all_addresses_before_resolving_again(states: ConnectionStates, resolver: FakeResolver) -> None:
    resolver.ips["broker"] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    tried = []
    for attempt in range(3):
        tried.append(ip(states.start_connecting(NODE, attempt)))
        states.mark_disconnected(1, attempt)
    assert tried == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert resolver.resolved_hosts == ["broker"]
    states.start_connecting(NODE, 3)
    assert resolver.resolved_hosts == ["broker", "broker"]


def test_resolves_single_address_again_for_each_attempt(states: ConnectionStates, resolver: FakeResolver) -> None:
    for attempt in range(3):
        assert ip(states.start_connecting(NODE, attempt)) == "10.0.0.1"
        states.mark_disconnected(1, attempt)
    assert len(resolver.resolved_hosts) == 3


def test_resolves_host_again_after_established_connection(states: ConnectionStates, resolver: FakeResolver) -> None:
    resolver.ips["broker"] = ["10.0.0.1", "10.0.0.2"]
    make_ready(states)
    resolver.ips["broker"] = ["10.9.9.9"]
    states.mark_disconnected(1, 10)
    assert ip(states.start_connecting(NODE, 100)) == "10.9.9.9"


def test_tries_another_address_before_the_lost_one(states: ConnectionStates, resolver: FakeResolver) -> None:
    resolver.ips["broker"] = ["10.0.0.1", "10.0.0.2"]
    make_ready(states)
    states.mark_disconnected(1, 10)
    assert ip(states.start_connecting(NODE, 100)) == "10.0.0.2"
    states.mark_disconnected(1, 110)
    assert ip(states.start_connecting(NODE, 300)) == "10.0.0.1", "the lost address is tried again later"


def test_unresolvable_host_counts_as_failed_attempt(states: ConnectionStates, resolver: FakeResolver) -> None:
    resolver.ips["broker"] = []
    with pytest.raises(DisconnectedError, match="broker:9092: the name cannot be resolved"):
        states.start_connecting(NODE, 0)
    states.mark_disconnected(1, 0)
    resolver.ips["broker"] = ["10.0.0.7"]
    assert ip(states.start_connecting(NODE, 100)) == "10.0.0.7"


@pytest.mark.parametrize("moved", [Node(1, "other", 9092), Node(1, "broker", 9999)])
def test_moved_node_is_resolved_at_its_new_address(
    states: ConnectionStates, resolver: FakeResolver, moved: Node
) -> None:
    resolver.ips["broker"] = ["10.0.0.1", "10.0.0.3"]
    states.start_connecting(NODE, 0)
    states.mark_disconnected(1, 0)
    address = states.start_connecting(moved, 1)
    assert address is not None
    assert (address.host, address.port) == (moved.host, moved.port)


def test_node_is_unreachable_only_if_last_attempt_failed(states: ConnectionStates) -> None:
    assert not states.is_unreachable(1)
    make_ready(states)
    states.mark_disconnected(1, 10)
    assert not states.is_unreachable(1), "the connection was lost, and no attempt has failed since"
    states.start_connecting(NODE, 100)
    assert not states.is_unreachable(1)
    states.mark_disconnected(1, 110)
    assert states.is_unreachable(1)
    make_ready(states, NODE, 1_000)
    assert not states.is_unreachable(1)
