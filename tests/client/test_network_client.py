"""Successful requests of the network client. Failures are in test_network_client_*.py and test_connections_*.py."""

from __future__ import annotations

import threading

import pytest

from spark_kafka_sink.client import network_client
from spark_kafka_sink.errors import DisconnectedError, IllegalStateError, UnsupportedVersionError
from spark_kafka_sink.network.authenticator import MIN_RESERVED_CORRELATION_ID
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.produce import ProduceRequest, ProduceResponse
from spark_kafka_sink.protocol.schema import VersionRange
from tests.client.metadata_responses import metadata_response, topic
from tests.client.rig import Rig, ready_rig
from tests.client.scripted_broker import ReceivedRequest

PID = InitProducerIdResponse(producer_id=7)


def test_first_polls_connect_and_fetch_versions_and_metadata() -> None:
    rig = Rig().bootstrap()
    assert [request.api_key for request in rig.broker.requests] == [ApiKey.API_VERSIONS, ApiKey.METADATA]
    assert len(rig.system.connects) == 1
    assert set(rig.metadata.snapshot.nodes) == {0, 1, 2}
    assert rig.responses == [], "responses to the client's own requests are not returned"


def test_ready_connects_to_node() -> None:
    rig = Rig().bootstrap()
    assert not rig.client.ready(rig.node(1), rig.now)
    assert not rig.client.is_ready(1, rig.now)
    rig.poll_until(lambda: rig.client.ready(rig.node(1), rig.now))
    assert len(rig.brokers[1].requests) == 1


def test_node_is_not_ready_during_reauthentication(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig().bootstrap()
    rig.make_ready(0)
    monkeypatch.setattr(rig.selector, "is_channel_ready", lambda channel_id: channel_id != "0")
    assert not rig.client.is_ready(0, rig.now)
    assert not rig.client.ready(rig.node(0), rig.now)


def test_rejects_send_to_node_that_is_not_ready() -> None:
    rig = Rig().bootstrap()
    with pytest.raises(IllegalStateError, match=r"INIT_PRODUCER_ID request .* the node is not ready"):
        rig.send(1)


def test_returns_response_with_request_and_tag() -> None:
    rig = ready_rig()
    request = rig.send(tag="mine")
    rig.deliver()
    assert rig.client.in_flight_request_count() == rig.client.in_flight_request_count(0) == 1
    rig.broker.last_request(ApiKey.INIT_PRODUCER_ID).respond(PID, after_ms=20)
    rig.poll_until(lambda: bool(rig.responses))
    (response,) = rig.responses
    assert (response.request, response.request.tag) == (request, "mine")
    assert (response.message, response.latency_ms) == (PID, 20)
    assert not rig.client.in_flight_request_count()


def test_returns_responses_in_request_order() -> None:
    rig = ready_rig()
    requests = []
    for _ in range(5):
        requests.append(rig.send())
        rig.deliver()
    assert not rig.client.is_ready(0, rig.now), "five requests are in flight"
    for received in rig.broker.find_requests(ApiKey.INIT_PRODUCER_ID):
        received.respond(PID)
    rig.poll_until(lambda: len(rig.responses) == 5)
    assert [response.request for response in rig.responses] == requests


def test_partially_written_request_delays_next_request() -> None:
    rig = ready_rig()
    rig.system.connections[-1].stall()
    rig.send(message=ProduceRequest(acks=1, transactional_id="x" * 20_000))
    for _ in range(7):  # requests of 30 kB soon fill the window of 128 kB
        rig.poll()
        if rig.client.is_ready(0, rig.now):
            rig.send(message=ProduceRequest(acks=1, transactional_id="x" * 30_000))
    assert not rig.client.is_ready(0, rig.now)
    in_flight = rig.client.in_flight_request_count(0)
    assert in_flight <= 5
    rig.system.connections[-1].resume()
    rig.deliver()
    assert len(rig.broker.find_requests(ApiKey.PRODUCE)) == in_flight


def test_request_without_response_completes_when_written() -> None:
    rig = ready_rig()
    request = rig.send(message=ProduceRequest(acks=0), expect_response=False)
    rig.poll_until(lambda: bool(rig.responses))
    (response,) = rig.responses
    assert (response.request, response.message, response.disconnected) == (request, None, False)
    assert not rig.client.in_flight_request_count(0)


def test_mixes_requests_with_and_without_response() -> None:
    rig = ready_rig()
    with_response = rig.send(message=ProduceRequest(acks=1))
    rig.deliver()
    without_response = rig.send(message=ProduceRequest(acks=0), expect_response=False)
    rig.deliver()
    rig.broker.find_requests(ApiKey.PRODUCE)[0].respond(ProduceResponse())
    rig.poll_until(lambda: len(rig.responses) == 2)
    assert [response.request for response in rig.responses] == [without_response, with_response]


def test_correlation_ids_increase_and_stay_below_reserved_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network_client.MAX_CORRELATION_ID <= MIN_RESERVED_CORRELATION_ID
    monkeypatch.setattr(network_client, "MAX_CORRELATION_ID", 3)
    rig = Rig()
    ids = []
    for _ in range(4):
        request = rig.client.new_client_request(0, MetadataRequest(), 0.0)
        ids.append(request.correlation_id)
    assert ids == [1, 2, 0, 1]


def test_node_is_not_ready_while_metadata_is_due() -> None:
    rig = ready_rig()
    rig.metadata.request_update()
    rig.system.advance(1_000)
    assert not rig.client.is_ready(0, rig.now)
    assert not rig.client.ready(rig.node(0), rig.now)
    rig.poll_until(lambda: rig.client.ready(rig.node(0), rig.now))


def test_refreshes_metadata_after_maximum_age() -> None:
    rig = ready_rig(metadata_max_age_ms=60_000)
    version = rig.metadata.version
    rig.pass_time(59_000)
    assert rig.metadata.version == version
    rig.pass_time(2_000)
    assert rig.metadata.version == version + 1


def test_fetches_new_topic_in_next_poll() -> None:
    rig = ready_rig()
    for broker in rig.brokers:
        broker.metadata = metadata_response(topic("t", 4))
    rig.metadata.add_topic("t", rig.now)
    rig.poll_until(lambda: rig.metadata.snapshot.partition_count("t") == 4, limit_ms=10)


def test_retries_metadata_response_without_brokers() -> None:
    rig = Rig(1)
    rig.broker.metadata = metadata_response(nodes=0)
    rig.pass_time(50)
    assert rig.metadata.snapshot.is_bootstrap
    assert len(rig.broker.find_requests(ApiKey.METADATA)) == 1
    rig.broker.metadata = metadata_response(nodes=1)
    rig.bootstrap()
    assert len(rig.broker.find_requests(ApiKey.METADATA)) == 2


def test_api_versions_send_software_name_and_return_features() -> None:
    rig = Rig()
    rig.broker.api_versions = ApiVersionsResponse(
        finalized_features_epoch=3,
        finalized_features=[FinalizedFeatureKey(name="transaction.version", max_version_level=2)],
    )
    assert rig.client.finalized_features.levels == {}
    rig.bootstrap()
    request = rig.broker.requests[0]
    assert request.header.api_version == 3
    assert isinstance(request.message, ApiVersionsRequest)
    assert request.message.client_software_name == "spark-kafka-sink"
    assert rig.client.finalized_features.levels == {"transaction.version": 2}


def test_connects_to_broker_that_resets_connections_on_newer_api_versions() -> None:
    """Azure Event Hubs does so."""
    rig = Rig(1)
    rig.broker.versions[ApiKey.API_VERSIONS] = VersionRange(0, 3)

    def reset(received: ReceivedRequest) -> bool:
        is_too_new = received.api_key is ApiKey.API_VERSIONS and received.header.api_version > 3
        if is_too_new:
            received.connection.reset()
        return is_too_new

    rig.broker.on_request = reset
    rig.bootstrap()
    rig.make_ready()


def rig_rejecting_api_versions_above(max_version: int, *, returns_range: bool) -> Rig:
    rig = Rig(1)

    def reject(received: ReceivedRequest) -> bool:
        if received.api_key is not ApiKey.API_VERSIONS or received.header.api_version <= max_version:
            return False
        response = ApiVersionsResponse(error_code=error_codes.UNSUPPORTED_VERSION)
        if returns_range:
            response.api_keys = [ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=max_version)]
        received.header = type(received.header)(
            18, 0, received.header.correlation_id, None
        )  # encodes the response in version 0
        received.respond(response)
        return True

    rig.broker.on_request = reject
    return rig


def test_retries_api_versions_in_version_of_broker() -> None:
    rig = rig_rejecting_api_versions_above(2, returns_range=True)
    rig.bootstrap()
    assert len(rig.broker.find_requests(ApiKey.API_VERSIONS)) == 2
    assert rig.broker.last_request(ApiKey.API_VERSIONS).header.api_version == 2
    assert len(rig.system.connects) == 1


def test_retries_api_versions_in_version_0_without_hint() -> None:
    rig = rig_rejecting_api_versions_above(2, returns_range=False)
    rig.bootstrap()
    assert [received.header.api_version for received in rig.broker.find_requests(ApiKey.API_VERSIONS)] == [0, 0]
    assert isinstance(rig.broker.last_request(ApiKey.API_VERSIONS).message, ApiVersionsRequest)
    assert len(rig.system.connects) == 1


def test_retries_api_versions_in_version_0_after_rejection_in_its_layout() -> None:
    """The mock cluster of librdkafka rejects a version that it does not support in that version's layout."""
    rig = Rig(1)

    def reject(received: ReceivedRequest) -> bool:
        if received.api_key is not ApiKey.API_VERSIONS or received.header.api_version <= 2:
            return False
        known = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=2)
        received.respond(ApiVersionsResponse(error_code=error_codes.UNSUPPORTED_VERSION, api_keys=[known]))
        return True

    rig.broker.on_request = reject
    rig.bootstrap()
    assert rig.broker.last_request(ApiKey.API_VERSIONS).header.api_version == 0
    assert len(rig.system.connects) == 1


def test_request_version_is_highest_that_broker_and_caller_support() -> None:
    rig = Rig(1)
    rig.broker.versions[ApiKey.PRODUCE] = VersionRange(3, 9)
    rig.bootstrap()
    rig.make_ready()
    assert rig.client.latest_usable_version(0, ApiKey.PRODUCE) == 9
    assert rig.client.latest_usable_version(0, ApiKey.PRODUCE, VersionRange(0, 8)) == 8
    versions = rig.client.find_api_versions(0)
    assert versions is not None
    assert versions.ranges[ApiKey.PRODUCE] == VersionRange(3, 9)
    assert rig.client.find_api_versions(99) is None
    rig.send(message=ProduceRequest(acks=1), versions=VersionRange(3, 7))
    rig.deliver()
    assert rig.broker.last_request(ApiKey.PRODUCE).header.api_version == 7


def test_returns_version_error_instead_of_sending_unsupported_request() -> None:
    rig = Rig(1)
    rig.broker.versions[ApiKey.PRODUCE] = VersionRange(90, 99)
    rig.bootstrap()
    rig.make_ready()
    request = rig.send(message=ProduceRequest(acks=1))
    (response,) = rig.poll(1_000)
    assert response.request is request
    assert isinstance(response.version_error, UnsupportedVersionError)
    for phrase in ("broker 0 (b0:9092)", "PRODUCE", "90-99", "too new"):
        assert phrase in response.reason
    assert rig.broker.find_requests(ApiKey.PRODUCE) == []


def test_returns_error_for_field_missing_in_negotiated_version() -> None:
    rig = Rig(1)
    rig.broker.versions[ApiKey.LIST_OFFSETS] = VersionRange(1, 1)
    rig.bootstrap()
    rig.make_ready()
    request = rig.send(message=ListOffsetsRequest(isolation_level=1))
    (response,) = rig.poll()
    assert response.request is request
    assert "ListOffsetsRequest.isolation_level does not exist in version 1" in response.reason
    assert rig.client.is_ready(0, rig.now), "nothing was sent"


def test_throttled_node_is_not_ready_and_deadlines_are_extended() -> None:
    rig = ready_rig(request_timeout_ms=1_000)
    rig.send(message=ProduceRequest(acks=1))
    rig.deliver()
    second = rig.send(message=ProduceRequest(acks=1))
    rig.deliver()
    rig.broker.find_requests(ApiKey.PRODUCE)[0].respond(ProduceResponse(throttle_time_ms=5_000))
    rig.poll_until(lambda: len(rig.responses) == 1)
    assert not rig.client.is_ready(0, rig.now)
    assert rig.client.poll_delay_ms(0, rig.now) == 5_000
    rig.pass_time(4_000)
    assert not rig.client.is_ready(0, rig.now)
    assert rig.client.in_flight_request_count(0) == 1, "throttle time extends the deadline"
    rig.broker.find_requests(ApiKey.PRODUCE)[1].respond(ProduceResponse())
    rig.pass_time(1_000)
    assert rig.responses[-1].request is second
    assert rig.client.is_ready(0, rig.now)


def test_request_times_out_after_throttle_time() -> None:
    rig = ready_rig(request_timeout_ms=1_000)
    for _ in range(2):
        rig.send(message=ProduceRequest(acks=1))
        rig.deliver()
    rig.broker.find_requests(ApiKey.PRODUCE)[0].respond(ProduceResponse(throttle_time_ms=5_000))
    rig.pass_time(5_999)
    assert len(rig.responses) == 1
    rig.pass_time(2)
    assert rig.responses[-1].timed_out


def test_ignores_throttle_time_of_old_broker() -> None:
    rig = Rig(1)
    rig.broker.versions[ApiKey.PRODUCE] = VersionRange(3, 5)
    rig.bootstrap()
    rig.make_ready()
    rig.send(message=ProduceRequest(acks=1))
    rig.deliver()
    rig.broker.last_request(ApiKey.PRODUCE).respond(ProduceResponse(throttle_time_ms=5_000))
    rig.poll_until(lambda: bool(rig.responses))
    assert rig.client.is_ready(0, rig.now)


def test_poll_ends_at_timeout_or_wakeup() -> None:
    rig = ready_rig()
    before = rig.now
    rig.poll(250)
    assert rig.now == before + 250
    rig.client.wakeup()
    rig.poll(10_000)
    assert rig.now == before + 250


def test_close_ends_polls_and_closes_sockets() -> None:
    rig = ready_rig()
    rig.send()
    rig.deliver()
    rig.client.initiate_close()
    with pytest.raises(DisconnectedError):
        rig.poll()
    with pytest.raises(DisconnectedError):
        rig.send()
    rig.client.close()
    rig.client.close()
    assert not rig.system.open_sockets


def test_another_thread_can_initiate_close() -> None:
    rig = ready_rig()
    thread = threading.Thread(target=rig.client.initiate_close)
    thread.start()
    thread.join()
    with pytest.raises(DisconnectedError):
        rig.poll()
