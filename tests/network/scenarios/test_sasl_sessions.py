"""Reauthentication before the end of a session (KIP-368)."""

from __future__ import annotations

from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.fake_system import FakeSocket
from tests.network.peers import frame, poll_until, received
from tests.network.security.sasl_peers import (
    Mutual,
    Password,
    ScriptedClient,
    authentication_counts,
    connect_and_authenticate,
    listener,
    sasl_channels,
    send_number,
    serve,
)


def test_reauthenticates_before_next_request_near_session_end() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = connect_and_authenticate(peer, sasl_channels(Password, share=0.9))
    system.advance(800)
    first = send_number(selector, 1)
    poll_until(selector, lambda: bool(selector.completed_receives))
    system.advance(150)
    del peer.log[:]
    second = send_number(selector, 2)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", second)]
    assert peer.requests == [first, second]
    assert peer.log == ["17", "36", "data"]


def test_reauthenticates_repeatedly() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = connect_and_authenticate(peer, sasl_channels(Mutual))
    for number in range(40):
        system.advance(300)
        payload = send_number(selector, number)
        poll_until(selector, lambda: bool(selector.completed_receives))
        assert received(selector) == [("a", payload)]
    assert peer.log.count("17") > 10
    assert authentication_counts(selector) == (1, 0, peer.log.count("17") - 1, 0)


def test_receives_earlier_responses_during_reauthentication() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = connect_and_authenticate(peer, sasl_channels(Password, share=0.9))
    system.advance(890)
    peer.response_delay_ms = 50
    first = send_number(selector, 1)
    selector.poll(0)
    system.advance(20)  # shortly before the end of the session, while the first response is in transit
    second = send_number(selector, 2)
    selector.poll(0)
    assert not selector.is_channel_ready("a")
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", first)]
    assert not selector.is_channel_ready("a")
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", second)]
    assert peer.log[-4:] == ["data", "17", "36", "data"]


def test_does_not_reauthenticate_during_partial_send() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = connect_and_authenticate(peer, sasl_channels(Password, share=0.9))
    system.connections[0].socket.max_write_bytes = 3
    payload = send_number(selector, 1)
    selector.poll(0)
    system.advance(950)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", payload)]
    assert peer.log[-1] == "data"


def test_rejected_reauthentication_is_an_authentication_failure() -> None:
    passwords = iter(["right-secret", "right-secret", "expired-secret"])
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = connect_and_authenticate(peer, sasl_channels(lambda: Password(next(passwords))))
    system.advance(950)
    send_number(selector, 1)
    poll_until(selector, lambda: "a" in selector.disconnected)
    assert selector.disconnected["a"].has_failed_authentication
    assert peer.requests == []
    assert authentication_counts(selector) == (1, 0, 0, 1)


def test_does_not_reauthenticate_without_session_lifetime() -> None:
    peer = listener()
    system, selector = connect_and_authenticate(peer, sasl_channels(Password))
    del peer.log[:]
    system.advance(100_000)
    send_number(selector, 1)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert peer.log == ["data"]


def test_does_not_reauthenticate_after_session_becomes_unlimited() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = connect_and_authenticate(peer, sasl_channels(Password))
    (authenticator,) = peer.authenticators.values()
    authenticator._max_session_lifetime_ms = 0
    for number in range(3):
        system.advance(950)
        send_number(selector, number)
        poll_until(selector, lambda: bool(selector.completed_receives))
    assert peer.log.count("17") == 2


def test_delivers_responses_received_before_reauthentication_is_disconnected() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = connect_and_authenticate(peer, sasl_channels(Password, share=0.9))
    system.advance(950)
    connection = system.connections[0]
    connection.socket.max_write_bytes = 1
    send_number(selector, 1)
    selector.poll(0)  # the first frame of the reauthentication is partially written
    responses = [b"\0\0\0\5one", b"\0\0\0\6two", b"\0\0\0\7three"]
    connection.send(map(frame, responses))
    connection.reset()
    system.advance(5)
    seen: list[bytes] = []
    while "a" not in selector.disconnected:
        selector.poll(10)
        seen += [payload for _, payload in received(selector)]
    assert seen == responses
    assert peer.requests == []


def test_listener_finishes_partial_frame_before_reauthentication_response() -> None:
    client = ScriptedClient(
        (SaslHandshakeRequest(mechanism="PASSWORD"), 1),
        (SaslAuthenticateRequest(auth_bytes=b"right-secret"), 1),
        (SaslHandshakeRequest(mechanism="PASSWORD"), 1),
    )
    selector = serve(client, connections_max_reauth_ms=1000)
    poll_until(selector, lambda: selector.is_channel_ready("c"))
    channel = selector.channel("c")
    assert channel is not None
    assert isinstance(channel.transport.socket, FakeSocket)
    connection = channel.transport.socket.connection
    assert connection is not None
    channel.transport.socket.max_write_bytes = 3
    selector.send(NetworkSend("c", [b"the response to an earlier request"]))
    selector.poll(0)
    connection.system.advance(2)  # the handshake arrives in the middle of the frame
    poll_until(selector, lambda: len(client.frames) == 4)
    assert client.frames[2] == b"the response to an earlier request"
    assert SaslHandshakeResponse.decode(client.frames[3][4:], 1).error_code == 0
