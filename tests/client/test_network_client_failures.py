"""What goes wrong: connections lost, refused, too slow; answers late, cut, or for somebody else; nobody there."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import AuthenticationError, MetadataTimeoutError, UnsupportedVersionError
from spark_kafka_sink.network.channel import ChannelState, ChannelStateKind
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.api_keys import ApiKey, VersionRange
from spark_kafka_sink.protocol.messages import (
    ApiVersionsResponse,
    InitProducerIdResponse,
    MetadataResponse,
    MetadataResponseBroker,
)
from tests.client.answers import metadata_answer
from tests.client.rig import Rig, ready_rig
from tests.client.scripted_broker import Received, ScriptedBroker
from tests.fake_system import FakeConnection, Peer

PID = InitProducerIdResponse(producer_id=7)


def failed_in_order(rig: Rig, count: int) -> bool:
    ids = [response.request.correlation_id for response in rig.responses]
    return len(ids) == count and ids == sorted(ids) and all(response.disconnected for response in rig.responses)


def with_requests(count: int, **options: Any) -> Rig:
    rig = ready_rig(**options)
    for _ in range(count):
        rig.send()
        rig.deliver()
    return rig


def test_a_request_that_times_out_takes_its_connection_and_all_its_requests_with_it() -> None:
    rig = with_requests(3, request_timeout_ms=1_000)
    sent = rig.now
    rig.poll_until(lambda: bool(rig.responses))
    assert rig.now == sent + 1_000, "neither early nor late"
    assert failed_in_order(rig, 3)
    assert all(response.timed_out for response in rig.responses)
    assert "broker 0 (b0:9092) did not answer within request.timeout.ms" in rig.responses[0].reason
    assert rig.client.connection_failed(0)
    rig.broker.last(ApiKey.INIT_PRODUCER_ID).answer(PID)
    rig.pass_time(100)
    assert len(rig.responses) == 3, "the late answer is nobody's"


def test_a_request_may_have_a_time_limit_of_its_own() -> None:
    rig = ready_rig(request_timeout_ms=30_000)
    sent = rig.now
    rig.send(timeout_ms=200)
    rig.poll_until(lambda: bool(rig.responses))
    assert rig.now == sent + 200


def test_a_lost_connection_fails_its_requests_in_order_and_asks_for_metadata() -> None:
    rig = with_requests(3)
    version = rig.metadata.version
    rig.system.connections[-1].reset()
    rig.poll_until(lambda: bool(rig.responses))
    assert failed_in_order(rig, 3)
    assert not any(response.timed_out for response in rig.responses)
    assert "b0:9092" in rig.responses[0].reason
    rig.poll_until(lambda: rig.metadata.version > version, limit_ms=1_000)


def test_answers_that_came_before_the_connection_was_lost_still_count() -> None:
    rig = with_requests(3)
    first = rig.broker.of(ApiKey.INIT_PRODUCER_ID)[0]
    first.answer(PID)
    first.connection.close()
    rig.poll_until(lambda: len(rig.responses) == 3)
    assert [response.message is not None for response in rig.responses] == [True, False, False]


def test_a_disconnect_on_request_gives_the_requests_back_with_the_next_poll() -> None:
    rig = with_requests(2)
    rig.client.disconnect(0, rig.now)
    assert rig.client.connection_failed(0)
    rig.poll()
    assert failed_in_order(rig, 2)
    rig.client.disconnect(0, rig.now)
    assert rig.poll() == []
    rig.make_ready()


def test_a_node_that_is_closed_gives_nothing_back_and_is_as_good_as_new() -> None:
    rig = with_requests(2)
    rig.client.close_node(0, rig.now)
    rig.pass_time(50)
    assert rig.responses == []
    assert not rig.client.has_in_flight_requests()
    assert rig.client.connection_delay(0, rig.now) == 0


def test_a_connection_can_be_closed_while_it_is_being_made() -> None:
    rig = Rig().bootstrapped()
    rig.system.swallow("b1", 9092)
    rig.client.ready(rig.node(1), rig.now)
    rig.client.disconnect(1, rig.now)
    rig.pass_time(100)
    rig.system.listen("b1", 9092, rig.brokers[1])
    rig.make_ready(1)


@pytest.mark.parametrize("by_us", [False, True])
def test_a_connection_lost_while_versions_are_asked_is_made_again(by_us: bool) -> None:
    rig = Rig().bootstrapped()
    rig.brokers[1].on_request = lambda received: True
    rig.client.ready(rig.node(1), rig.now)
    rig.poll_until(lambda: len(rig.brokers[1].of(ApiKey.API_VERSIONS)) == 1, step_ms=1)
    if by_us:
        rig.client.disconnect(1, rig.now)
    else:
        rig.brokers[1].requests[0].connection.close()
    rig.pass_time(100)
    assert rig.client.connection_failed(1)
    assert not rig.client.has_in_flight_requests(1)
    rig.brokers[1].on_request = lambda received: False
    rig.make_ready(1)
    assert rig.responses == []


def test_a_lost_question_for_metadata_is_asked_again_elsewhere() -> None:
    rig = Rig(2, bootstrap=(Node(-1, "b0", 9092), Node(-2, "b1", 9092)))

    def hang_up(received: Received) -> bool:
        if received.api_key is ApiKey.METADATA:
            received.connection.close()
        return received.api_key is ApiKey.METADATA

    rig.brokers[0].on_request = hang_up
    rig.bootstrapped()
    assert len(rig.brokers[1].of(ApiKey.METADATA)) == 1


def test_a_refused_connection_is_tried_again_later_and_later() -> None:
    rig = Rig(1)
    rig.system.refuse("b0", 9092)
    rig.pass_time(20_000)
    times = [time for time, _ in rig.system.connects]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[0] <= 300
    assert all(pause <= 2_000 for pause in pauses)
    assert sum(pauses[-5:]) >= 5 * 800
    assert len(times) < 40, "no tight loop"
    rig.system.listen("b0", 9092, rig.broker)
    rig.bootstrapped()


def test_a_connection_that_does_not_come_about_is_given_up_and_its_time_grows() -> None:
    rig = Rig(1, socket_connection_setup_timeout_ms=1_000, socket_connection_setup_timeout_max_ms=4_000)
    rig.system.swallow("b0", 9092)
    rig.pass_time(30_000)
    times = [time for time, _ in rig.system.connects]
    pauses = [after - before for before, after in pairwise(times)]
    assert 800 <= pauses[0] <= 1_400
    assert all(3_000 <= pause <= 6_000 for pause in pauses[3:])
    assert "no connection within" in rig.metadata.unreachable_words()


def test_a_channel_that_never_becomes_ready_is_given_up_like_any_other_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig().bootstrapped()
    monkeypatch.setattr(type(rig.selector), "is_channel_ready", lambda self, channel_id: channel_id != "1")
    rig.client.ready(rig.node(1), rig.now)
    began = rig.now
    rig.poll_until(lambda: rig.client.connection_failed(1), step_ms=100_000)
    assert 8_000 <= rig.now - began <= 12_000
    assert rig.brokers[1].requests == []


def test_all_addresses_of_a_name_are_tried() -> None:
    rig = Rig(1)
    rig.system.names["b0"] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    rig.system.listen("10.0.0.3", 9092, rig.broker)
    rig.bootstrapped()
    assert [address.sockaddr[0] for _, address in rig.system.connects] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def test_a_node_is_found_again_at_its_new_address() -> None:
    rig = Rig(1)
    rig.system.names["b0"] = ["10.0.0.1"]
    rig.system.listen("10.0.0.1", 9092, rig.broker)
    rig.bootstrapped()
    rig.make_ready()
    rig.system.names["b0"] = ["10.0.0.2"]
    rig.system.refuse("10.0.0.1", 9092)
    rig.system.listen("10.0.0.2", 9092, rig.broker)
    for connection in rig.system.connections:
        connection.reset()
    rig.pass_time(10)
    rig.make_ready()
    assert rig.system.connects[-1][1].sockaddr[0] == "10.0.0.2"


def test_a_name_that_is_lost_is_looked_up_again() -> None:
    rig = Rig().bootstrapped()
    rig.system.names["b1"] = []
    assert not rig.client.ready(rig.node(1), rig.now)
    assert rig.client.connection_failed(1)
    assert "b1:9092: the name cannot be resolved" in rig.metadata.unreachable_words()
    del rig.system.names["b1"]
    rig.make_ready(1)


def test_who_waits_for_metadata_learns_of_every_address_that_was_tried() -> None:
    rig = Rig(2, bootstrap=(Node(-1, "b0", 9092), Node(-2, "b1", 9092)))
    rig.system.names["b0"] = ["10.0.0.9"]
    rig.system.refuse("b1", 9092)
    rig.pass_time(5_000)
    with pytest.raises(MetadataTimeoutError) as failure:
        rig.metadata.await_update(rig.metadata.version, 0)
    assert "b0:9092 (10.0.0.9): " in str(failure.value)
    assert "b1:9092: " in str(failure.value)
    assert "refused" in str(failure.value)


class NoKafka(Peer):
    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        connection.close()


def test_a_listener_that_hangs_up_on_us_is_said_to_be_perhaps_of_another_protocol() -> None:
    rig = Rig(1)
    rig.system.listen("b0", 9092, NoKafka())
    rig.pass_time(3_000)
    assert "security.protocol" in rig.metadata.unreachable_words()


def garbage(connection: FakeConnection, data: bytes) -> None:
    connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def minus_one(connection: FakeConnection, data: bytes) -> None:
    connection.send(struct.pack(">i", -1))


def two_gigabytes(connection: FakeConnection, data: bytes) -> None:
    connection.send(struct.pack(">i", 2**31 - 1))


def a_short_frame(connection: FakeConnection, data: bytes) -> None:
    connection.send(struct.pack(">i", 2) + b"ab")


class Hostile(Peer):
    def __init__(self, answer: Callable[[FakeConnection, bytes], None]) -> None:
        self._answer = answer

    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        self._answer(connection, data)


@pytest.mark.parametrize("hostile", [garbage, minus_one, two_gigabytes, a_short_frame])
def test_hostile_bytes_end_the_connection_and_nothing_else(
    hostile: Callable[[FakeConnection, bytes], None],
) -> None:
    rig = Rig(2, bootstrap=(Node(-1, "b0", 9092), Node(-2, "b1", 9092)))
    rig.system.listen("b0", 9092, Hostile(hostile))
    rig.bootstrapped()
    assert len(rig.system.open_sockets) <= 2


def test_an_answer_with_the_wrong_correlation_id_ends_the_connection() -> None:
    rig = with_requests(3)
    received = rig.broker.of(ApiKey.INIT_PRODUCER_ID)[0]
    received.answer(PID, correlation_id=received.header.correlation_id + 1)
    rig.poll_until(lambda: bool(rig.responses))
    assert failed_in_order(rig, 3)
    assert "answer to request" in rig.responses[0].reason
    rig.make_ready()


def test_an_answer_that_cannot_be_decoded_fails_its_request_and_all_behind_it() -> None:
    rig = with_requests(3)
    received = rig.broker.of(ApiKey.INIT_PRODUCER_ID)[0]
    received.answer_bytes(struct.pack(">i", received.header.correlation_id) + b"\xff\xff")
    rig.poll_until(lambda: bool(rig.responses))
    assert failed_in_order(rig, 3)
    assert "unintelligible" in rig.responses[0].reason


def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    rig = ready_rig()
    received = rig.broker.requests[-1]
    received.answer_bytes(struct.pack(">i", 5))
    received.connection.system.connections[-1].send(struct.pack(">ii", 4, 5))
    rig.pass_time(10)
    assert rig.client.connection_failed(0)
    rig.make_ready()


def fail_authentication(rig: Rig, node_id: int, error: AuthenticationError) -> None:
    """As the selector reports it, whatever the mechanism was."""
    rig.selector.close_channel(str(node_id))
    original = rig.selector.poll

    def poll(timeout_ms: float) -> None:
        original(0)
        rig.selector.disconnected[str(node_id)] = ChannelState(ChannelStateKind.AUTHENTICATION_FAILED, error)
        rig.selector.poll = original  # type: ignore[method-assign]

    rig.selector.poll = poll  # type: ignore[method-assign]
    rig.poll()


def test_a_failed_authentication_is_told_apart_and_ends_all_waits_for_metadata() -> None:
    rig = ready_rig()
    request = rig.send()
    rig.deliver()
    error = AuthenticationError("b0:9092: wrong password")
    fail_authentication(rig, 0, error)
    assert rig.client.authentication_exception(0) is error
    assert rig.client.connection_failed(0)
    (response,) = rig.responses
    assert (response.request, response.authentication_error, response.disconnected) == (request, error, True)
    with pytest.raises(AuthenticationError, match="wrong password"):
        rig.metadata.await_update(rig.metadata.version, 1e9)
    rig.make_ready()
    assert rig.client.authentication_exception(0) is None


def test_a_failed_authentication_ends_the_question_for_metadata_that_was_under_way() -> None:
    rig = ready_rig()
    rig.broker.on_request = lambda received: received.api_key is ApiKey.METADATA
    for broker in rig.brokers:
        broker.on_request = rig.broker.on_request
    rig.metadata.request_update()
    rig.pass_time(200)
    fail_authentication(rig, 0, AuthenticationError("no"))
    with pytest.raises(AuthenticationError):
        rig.metadata.await_update(rig.metadata.version, 1e9)
    for broker in rig.brokers:
        broker.on_request = lambda received: False
    version = rig.metadata.version
    rig.poll_until(lambda: rig.metadata.version > version, limit_ms=5_000)


def test_a_broker_too_new_or_too_old_for_metadata_ends_all_waits_with_its_name() -> None:
    rig = Rig(1)
    rig.broker.versions[ApiKey.METADATA] = VersionRange(90, 99)
    rig.pass_time(100)
    with pytest.raises(UnsupportedVersionError, match=r"b0:9092.*too new.*METADATA.*90-99"):
        rig.metadata.await_update(rig.metadata.version, 1e9)


def test_a_broker_that_refuses_api_versions_is_left_and_tried_again() -> None:
    rig = Rig(1)
    rig.broker.api_versions = ApiVersionsResponse(error_code=error_codes.INVALID_REQUEST)
    rig.pass_time(1_000)
    assert "refused to tell its API versions: INVALID_REQUEST" in rig.metadata.unreachable_words()
    assert len(rig.system.connects) > 1
    rig.broker.api_versions = ApiVersionsResponse()
    rig.bootstrapped()


def test_an_idle_connection_that_was_closed_is_nobodys_fault() -> None:
    rig = ready_rig(connections_max_idle_ms=5_000)
    rig.pass_time(6_000)
    rig.pass_time(1_000)
    assert rig.broker.closed > 0
    assert "idle" not in rig.metadata.unreachable_words()
    rig.make_ready()


def test_if_no_known_broker_can_be_tried_the_configured_addresses_are() -> None:
    rig = Rig(2, bootstrap=(Node(-1, "boot", 9092),))
    rig.system.listen("boot", 9092, rig.broker)
    rig.bootstrapped()
    rig.make_ready()
    moved = MetadataResponse(brokers=[MetadataResponseBroker(node_id=7, host="fresh", port=9092)])
    rig.system.listen("boot", 9092, ScriptedBroker(moved))
    rig.system.listen("fresh", 9092, ScriptedBroker(moved))
    for index in range(2):
        rig.system.refuse(f"b{index}", 9092)
    for connection in rig.system.connections:
        connection.reset()
    rig.poll_until(lambda: 7 in rig.metadata.snapshot.nodes, limit_ms=10_000)
    rig.make_ready(7)


def test_many_addresses_that_refuse_are_tried_one_after_the_other_with_pauses() -> None:
    rig = Rig(1, bootstrap=tuple(Node(-1 - index, f"gone{index}", 9092) for index in range(50)))
    rig.pass_time(2_000)
    assert 2 <= len(rig.system.connects) <= 8


def test_without_the_recovery_strategy_the_known_brokers_are_all_there_is() -> None:
    rig = ready_rig(brokers=1, metadata_recovery_strategy="none")
    rig.system.refuse("b0", 9092)
    rig.system.connections[-1].reset()
    for connection in rig.system.connections:
        connection.reset()
    rig.pass_time(400_000)
    assert not rig.metadata.snapshot.is_bootstrap
    assert list(rig.metadata.snapshot.nodes) == [0]


def test_brokers_that_connect_but_never_answer_are_left_after_the_trigger() -> None:
    rig = ready_rig(brokers=2, metadata_recovery_rebootstrap_trigger_ms=100_000, request_timeout_ms=5_000)
    silent = True
    for broker in rig.brokers:
        broker.on_request = lambda received: silent and received.api_key is ApiKey.METADATA
    rig.metadata.request_update()
    rig.pass_time(95_000)
    assert not rig.metadata.snapshot.is_bootstrap
    rig.poll_until(lambda: rig.metadata.snapshot.is_bootstrap, limit_ms=20_000)
    silent = False
    rig.bootstrapped()


def test_a_broker_may_send_us_back_to_the_configured_addresses() -> None:
    rig = ready_rig(brokers=2)
    rig.send()
    rig.deliver()
    before = len(rig.system.connects)
    sent_away = metadata_answer()
    sent_away.error_code = error_codes.REBOOTSTRAP_REQUIRED
    good = rig.broker.metadata
    for broker in rig.brokers:
        broker.metadata = sent_away
    rig.metadata.request_update()
    rig.poll_until(lambda: rig.metadata.snapshot.is_bootstrap, limit_ms=1_000)
    assert failed_in_order(rig, 1), "all connections are left"
    for broker in rig.brokers:
        broker.metadata = good
    rig.bootstrapped()
    assert len(rig.system.connects) > before


def test_no_request_is_ever_lost_whatever_happens_to_its_connection() -> None:
    """Over connections that end in all ways: every request comes back exactly once, in order."""
    rig = ready_rig(request_timeout_ms=500)
    sent = []
    for turn in range(60):
        rig.make_ready()
        for _ in range(turn % 5 + 1):
            if rig.client.is_ready(0, rig.now):
                sent.append(rig.send().correlation_id)
                rig.deliver()
        waiting = rig.broker.of(ApiKey.INIT_PRODUCER_ID)[-3:]
        if turn % 4 == 0 and rig.client.in_flight_request_count(0) == 1:
            waiting[-1].answer(PID)
        elif turn % 4 == 1:
            waiting[-1].connection.reset()
        elif turn % 4 == 2:
            waiting[-1].answer_bytes(b"junk")
        rig.poll_until(lambda: not rig.client.has_in_flight_requests(0))
    assert [response.request.correlation_id for response in rig.responses] == sent


def logged(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.levelname for record in caplog.records if words in record.getMessage()]


def test_a_broker_that_closes_an_idle_connection_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "spark_kafka_sink.client")
    rig = ready_rig()
    for connection in rig.system.connections:
        connection.close()
    rig.pass_time(60_000)
    assert "INFO" in logged(caplog, "Disconnected: b0:9092")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_connection_that_is_closed_here_because_it_was_idle_is_told_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "spark_kafka_sink.client")
    rig = ready_rig(connections_max_idle_ms=10_000)
    rig.pass_time(60_000)
    assert set(logged(caplog, "idle for 10000 ms")) == {"DEBUG"}


def test_a_broker_that_cannot_be_reached_is_warned_of_once_and_its_return_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "spark_kafka_sink.client")
    rig = ready_rig(brokers=1)
    for _ in range(2):
        caplog.clear()
        rig.system.refuse("b0", 9092)
        for connection in rig.system.connections:
            connection.close()
        rig.pass_time(120_000)
        assert len(rig.system.connects) > 50, "it is tried again and again"
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert warnings[0] == "No connection: b0:9092: Connection refused"
        rig.system.listen("b0", 9092, rig.broker)
        rig.bootstrapped()
        rig.make_ready()
        assert logged(caplog, "Connected: b0:9092") == ["INFO"]
