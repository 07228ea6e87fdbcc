"""Misrouted connections: ApiVersions requests name the intended cluster and node (KIP-1242)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import encode_response
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.schema import VersionRange
from tests.client.rig import Rig
from tests.client.scripted_broker import ReceivedRequest, ScriptedBroker


def api_versions_requests(rig: Rig, broker: int) -> list[tuple[int, str | None, int]]:
    """Return version, cluster id and node id of each ApiVersions request that a broker has received."""
    received = rig.brokers[broker].find_requests(ApiKey.API_VERSIONS)
    messages = [(request.header.api_version, request.message) for request in received]
    return [
        (version, message.cluster_id, message.node_id)
        for version, message in messages
        if isinstance(message, ApiVersionsRequest)
    ]


def connected_rig(**options: Any) -> Rig:
    """Build a Rig with a bootstrap connection and a connection to broker 1."""
    rig = Rig(2, **options).bootstrap()
    rig.make_ready(1)
    return rig


def reject_version_5(received: ReceivedRequest) -> bool:
    """Respond to ApiVersions v5 as a broker that does not support it, and announces the range of its `versions`."""
    if received.api_key is not ApiKey.API_VERSIONS or received.header.api_version < 5:
        return False
    broker = received.connection.peer
    assert isinstance(broker, ScriptedBroker)
    known = broker.versions[ApiKey.API_VERSIONS]
    response = ApiVersionsResponse(
        error_code=error_codes.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=known.min, max_version=known.max)],
    )
    received.respond_bytes(b"".join(encode_response(response, 0, received.header.correlation_id)))
    return True


def test_names_cluster_and_node_once_both_are_known() -> None:
    rig = connected_rig()
    assert api_versions_requests(rig, 0) == [(3, None, -1)]
    assert api_versions_requests(rig, 1) == [(5, "cluster", 1)]


@pytest.mark.parametrize(
    "options", [{"metadata_cluster_check_enable": False}, {"metadata_recovery_strategy": "none"}], ids=str
)
def test_names_neither_without_check_or_without_recovery(options: dict[str, Any]) -> None:
    assert api_versions_requests(connected_rig(**options), 1) == [(5, None, -1)]


def test_brokers_before_kafka_4_4_get_one_request_per_connection() -> None:
    rig = Rig(2)
    for broker in rig.brokers:
        broker.versions[ApiKey.API_VERSIONS] = VersionRange(0, 4)
    rig.bootstrap()
    rig.make_ready(1)
    assert [version for version, _, _ in api_versions_requests(rig, 1)] == [3]


def test_checks_first_newer_broker_after_bootstrap_from_an_older_one() -> None:
    rig = Rig(3)
    rig.brokers[0].versions[ApiKey.API_VERSIONS] = VersionRange(0, 4)
    rig.brokers[0].on_request = reject_version_5
    rig.bootstrap()
    rig.make_ready(1)
    assert api_versions_requests(rig, 1) == [(3, None, -1), (5, "cluster", 1)]
    rig.make_ready(2)
    assert api_versions_requests(rig, 2) == [(5, "cluster", 2)]
    rig.make_ready(0)
    assert [version for version, _, _ in api_versions_requests(rig, 0)] == [3, 5, 4]


@pytest.mark.parametrize(
    "options", [{"metadata_cluster_check_enable": False}, {"metadata_recovery_strategy": "none"}], ids=str
)
def test_first_newer_broker_gets_one_request_without_check(options: dict[str, Any]) -> None:
    rig = Rig(2, **options)
    rig.brokers[0].versions[ApiKey.API_VERSIONS] = VersionRange(0, 4)
    rig.bootstrap()
    rig.make_ready(1)
    assert api_versions_requests(rig, 1) == [(3, None, -1)]


def test_broker_that_announces_the_check_but_rejects_it_can_be_used() -> None:
    rig = Rig(2)
    rig.brokers[0].versions[ApiKey.API_VERSIONS] = VersionRange(0, 4)

    rig.brokers[1].on_request = reject_version_5
    rig.bootstrap()
    rig.make_ready(1)
    assert [version for version, _, _ in api_versions_requests(rig, 1)] == [3, 5, 4]


@pytest.mark.parametrize("bootstrap_version", [4, 5])
def test_misrouted_connection_is_closed_and_client_bootstraps_again(
    bootstrap_version: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(2)
    rig.brokers[0].versions[ApiKey.API_VERSIONS] = VersionRange(0, bootstrap_version)
    rig.bootstrap()

    def reject_misrouted(received: ReceivedRequest) -> bool:
        if not isinstance(received.message, ApiVersionsRequest) or received.message.cluster_id is None:
            return False
        received.respond(ApiVersionsResponse(error_code=error_codes.REBOOTSTRAP_REQUIRED))
        return True

    rig.brokers[1].on_request = reject_misrouted
    node = rig.node(1)
    with caplog.at_level(logging.WARNING):
        rig.poll_until(lambda: rig.client.ready(node, rig.now) or rig.metadata.snapshot.is_bootstrap, limit_ms=1_000)
    assert rig.metadata.snapshot.is_bootstrap
    expected = "the connection is for broker 1 (b1:9092) of cluster cluster, but a broker with another id or of another"
    assert [message for message in caplog.messages if expected in message]
    rig.bootstrap()
    loss = rig.metadata.connection_failure(1)
    assert loss is not None
    assert expected in loss.detail
    assert loss.has_responded
