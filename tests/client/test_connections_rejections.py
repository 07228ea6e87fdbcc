"""Brokers that reject the client: failed authentication, and versions without overlap."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.metadata import UNREACHABLE_REMEDY
from spark_kafka_sink.errors import AuthenticationError, DecodeError, DisconnectedError, UnsupportedVersionError
from spark_kafka_sink.network.channel import ChannelState, ChannelStateKind
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsResponse
from spark_kafka_sink.protocol.schema import VersionRange
from tests.client.rig import BOOTSTRAP, Rig
from tests.client.scripted_broker import ScriptedBroker


def fail_authentication(rig: Rig, node_id: int, error: AuthenticationError) -> None:
    """Make the selector report a failed authentication, as it does for every mechanism."""
    end_channel(rig, node_id, ChannelState(ChannelStateKind.AUTHENTICATION_FAILED, error))


def end_channel(rig: Rig, node_id: int, final_state: ChannelState) -> None:
    """Make the selector report the end of a channel in this state."""
    rig.selector.close_channel(str(node_id))
    original = rig.selector.poll

    def poll(timeout_ms: float) -> None:
        original(0)
        rig.selector.disconnected[str(node_id)] = final_state
        rig.selector.poll = original  # type: ignore[method-assign]

    rig.selector.poll = poll  # type: ignore[method-assign]
    rig.poll()


def test_authentication_failure_of_only_broker_ends_metadata_waits() -> None:
    rig = Rig(1).bootstrap()
    rig.make_ready()
    request = rig.send()
    rig.deliver()
    error = AuthenticationError("b0:9092: wrong password")
    fail_authentication(rig, 0, error)
    assert rig.client.authentication_exception(0) is error
    assert rig.client.has_connection_failed(0)
    (response,) = rig.responses
    assert (response.request, response.authentication_error, response.disconnected) == (request, error, True)
    with pytest.raises(AuthenticationError, match="wrong password"):
        rig.metadata.await_update(rig.metadata.version, 0)
    rig.make_ready()
    assert rig.client.authentication_exception(0) is None


@pytest.mark.parametrize(("brokers", "believed"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_metadata_waits_end_after_rejection_by_all_or_three_brokers(brokers: int, believed: int) -> None:
    rig = Rig(brokers).bootstrap()
    rig.end_connection(-1)
    for node_id in range(believed):
        rig.metadata.raise_if_fatal()
        rig.make_ready(node_id)
        fail_authentication(rig, node_id, AuthenticationError(f"b{node_id} says no"))
    with pytest.raises(AuthenticationError, match="says no"):
        rig.metadata.raise_if_fatal()


def test_rejection_is_not_final_while_one_broker_accepts_credentials() -> None:
    rig = Rig(9).bootstrap()
    rig.make_ready(8)
    for node_id in range(8):
        rig.make_ready(node_id)
        fail_authentication(rig, node_id, AuthenticationError("no"))
    rig.metadata.raise_if_fatal()


def rig_with_rejecting_bootstrap_server() -> Rig:
    """Build a Rig with two bootstrap servers. The first is connected and does not respond to metadata requests."""
    rig = Rig(1, bootstrap=(BOOTSTRAP, Node(-2, "b1", 9092)))
    rig.system.refuse("b1", 9092)
    rig.broker.on_request = lambda received: received.api_key is ApiKey.METADATA
    rig.client.ready(rig.node(-1), rig.now)
    rig.poll_until(lambda: bool(rig.broker.find_requests(ApiKey.API_VERSIONS)), step_ms=1)
    return rig


def test_rejection_is_final_if_other_bootstrap_servers_are_unreachable() -> None:
    rig = rig_with_rejecting_bootstrap_server()
    rig.client.ready(rig.node(-2), rig.now)
    rig.poll_until(lambda: rig.client.has_connection_failed(-2), step_ms=1)
    fail_authentication(rig, -1, AuthenticationError("b0:9092: wrong password"))
    with pytest.raises(AuthenticationError, match="wrong password"):
        rig.metadata.raise_if_fatal()


def test_rejection_is_not_final_if_another_bootstrap_server_is_reachable() -> None:
    rig = rig_with_rejecting_bootstrap_server()
    rig.system.listen("b1", 9092, ScriptedBroker())
    fail_authentication(rig, -1, AuthenticationError("b0:9092: wrong password"))
    rig.metadata.raise_if_fatal()


def test_logs_rejected_credentials_once_as_error(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(1).bootstrap()
    rig.broker.on_request = lambda received: received.api_key is ApiKey.API_VERSIONS
    for _ in range(2):
        rig.poll_until(lambda: rig.client.ready(rig.node(0), rig.now) or rig.selector.is_channel_ready("0"))
        fail_authentication(rig, 0, AuthenticationError("b0:9092: wrong password"))
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == ["broker 0 (b0:9092): authentication failed: b0:9092: wrong password"]


@pytest.mark.parametrize(
    ("kind", "has_received", "expected"),
    [
        (ChannelStateKind.AUTHENTICATE, False, "during the TLS or SASL handshake: check security.protocol"),
        (ChannelStateKind.AUTHENTICATE, True, "during SASL authentication"),
        (ChannelStateKind.READY, False, "before any response: the listener may expect SASL or TLS, check security"),
        (ChannelStateKind.READY, True, "before the response to ApiVersions"),
    ],
)
def test_lost_connection_suggests_wrong_protocol_only_without_any_response(
    kind: ChannelStateKind, has_received: bool, expected: str
) -> None:
    rig = Rig(1).bootstrap()
    rig.broker.on_request = lambda received: received.api_key is ApiKey.API_VERSIONS
    rig.poll_until(lambda: rig.client.ready(rig.node(0), rig.now) or rig.selector.is_channel_ready("0"))
    end_channel(rig, 0, ChannelState(kind, DisconnectedError("b0:9092: connection reset"), has_received))
    failures = rig.metadata.describe_connection_failures()
    assert f"connection reset ({expected}" in failures
    assert ("security.protocol" in failures) is not has_received
    assert ("Check the host and port" in failures) is not has_received
    assert ("Check the log and the load of the broker" in failures) is has_received


def test_invalid_first_response_suggests_wrong_host_or_port() -> None:
    """For example, an HTTP server has responded."""
    rig = Rig(1).bootstrap()
    rig.broker.on_request = lambda received: received.api_key is ApiKey.API_VERSIONS
    rig.poll_until(lambda: rig.client.ready(rig.node(0), rig.now) or rig.selector.is_channel_ready("0"))
    end_channel(rig, 0, ChannelState(ChannelStateKind.READY, DecodeError("b0:9092: sent HTTP"), has_received=True))
    assert rig.metadata.describe_connection_failures().endswith(UNREACHABLE_REMEDY)


def test_keeps_loss_of_node_until_it_is_connected_again() -> None:
    rig = Rig(1).bootstrap()
    rig.make_ready()
    fail_authentication(rig, 0, AuthenticationError("b0:9092: wrong password"))
    assert rig.client.connection_losses[0].reason == "b0:9092: wrong password"
    rig.make_ready()
    assert 0 not in rig.client.connection_losses


def test_authentication_failure_ends_metadata_query_in_flight() -> None:
    rig = Rig(1).bootstrap()
    rig.make_ready()
    for broker in rig.brokers:
        broker.on_request = lambda received: received.api_key is ApiKey.METADATA
    rig.metadata.request_update()
    rig.pass_time(200)
    fail_authentication(rig, 0, AuthenticationError("no"))
    with pytest.raises(AuthenticationError):
        rig.metadata.await_update(rig.metadata.version, 0)
    for broker in rig.brokers:
        broker.on_request = lambda received: False
    version = rig.metadata.version
    rig.poll_until(lambda: rig.metadata.version > version, limit_ms=5_000)


def test_unsupported_metadata_version_ends_waits_and_names_broker() -> None:
    rig = Rig(1)
    rig.broker.versions[ApiKey.METADATA] = VersionRange(90, 99)
    rig.pass_time(100)
    with pytest.raises(UnsupportedVersionError, match=r"b0:9092.*too new.*90-99.*METADATA"):
        rig.metadata.await_update(rig.metadata.version, 1e9)


def test_reconnects_to_broker_that_rejects_api_versions() -> None:
    rig = Rig(1)
    rig.broker.api_versions = ApiVersionsResponse(error_code=error_codes.INVALID_REQUEST)
    rig.pass_time(1_000)
    failures = rig.metadata.describe_connection_failures()
    assert "rejected ApiVersions: INVALID_REQUEST" in failures
    assert failures.endswith("Check the log and the load of the broker, and of any proxy in front of it.")
    assert UNREACHABLE_REMEDY not in failures
    assert len(rig.system.connects) > 1
    rig.broker.api_versions = ApiVersionsResponse()
    rig.bootstrap()
