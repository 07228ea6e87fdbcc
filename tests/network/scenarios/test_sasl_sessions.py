"""Sessions that end, and are renewed before they do (KIP-368)."""

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
    authenticated,
    authentication_counts,
    listener,
    sasl_channels,
    send_number,
    serve,
)


def test_a_session_is_renewed_before_the_next_request_once_most_of_it_is_over() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = authenticated(peer, sasl_channels(Password, share=0.9))
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


def test_sessions_are_renewed_again_and_again() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = authenticated(peer, sasl_channels(Mutual))
    for number in range(40):
        system.advance(300)
        payload = send_number(selector, number)
        poll_until(selector, lambda: bool(selector.completed_receives))
        assert received(selector) == [("a", payload)]
    assert peer.log.count("17") > 10
    assert authentication_counts(selector) == (1, 0, peer.log.count("17") - 1, 0)


def test_answers_to_earlier_requests_arrive_while_the_session_is_renewed() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = authenticated(peer, sasl_channels(Password, share=0.9))
    system.advance(890)
    peer.answer_after_ms = 50
    first = send_number(selector, 1)
    selector.poll(0)
    system.advance(20)  # the session is nearly over, and the first answer on its way
    second = send_number(selector, 2)
    selector.poll(0)
    assert not selector.is_channel_ready("a")
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", first)]
    assert not selector.is_channel_ready("a")
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", second)]
    assert peer.log[-4:] == ["data", "17", "36", "data"]


def test_a_session_is_not_renewed_in_the_middle_of_a_send() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = authenticated(peer, sasl_channels(Password, share=0.9))
    system.connections[0].socket.max_write_bytes = 3
    payload = send_number(selector, 1)
    selector.poll(0)
    system.advance(950)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", payload)]
    assert peer.log[-1] == "data"


def test_a_refused_renewal_is_an_authentication_failure() -> None:
    passwords = iter(["right-secret", "right-secret", "expired-secret"])
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = authenticated(peer, sasl_channels(lambda: Password(next(passwords))))
    system.advance(950)
    send_number(selector, 1)
    poll_until(selector, lambda: "a" in selector.disconnected)
    assert selector.disconnected["a"].has_failed_authentication
    assert peer.requests == []
    assert authentication_counts(selector) == (1, 0, 0, 1)


def test_without_an_end_of_session_nothing_is_renewed() -> None:
    peer = listener()
    system, selector = authenticated(peer, sasl_channels(Password))
    del peer.log[:]
    system.advance(100_000)
    send_number(selector, 1)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert peer.log == ["data"]


def test_a_session_that_is_renewed_without_an_end_is_not_renewed_again() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = authenticated(peer, sasl_channels(Password))
    (authenticator,) = peer.authenticators.values()
    authenticator._max_reauth_ms = 0
    for number in range(3):
        system.advance(950)
        send_number(selector, number)
        poll_until(selector, lambda: bool(selector.completed_receives))
    assert peer.log.count("17") == 2


def test_answers_that_came_before_the_connection_broke_in_a_renewal_are_delivered() -> None:
    peer = listener(connections_max_reauth_ms=1000)
    system, selector = authenticated(peer, sasl_channels(Password, share=0.9))
    system.advance(950)
    connection = system.connections[0]
    connection.socket.max_write_bytes = 1
    send_number(selector, 1)
    selector.poll(0)  # the renewal's first frame is being written, byte by byte
    answers = [b"\0\0\0\5one", b"\0\0\0\6two", b"\0\0\0\7three"]
    connection.send(map(frame, answers))
    connection.reset()
    system.advance(5)
    seen: list[bytes] = []
    while "a" not in selector.disconnected:
        selector.poll(10)
        seen += [payload for _, payload in received(selector)]
    assert seen == answers
    assert peer.requests == []


def test_a_listener_finishes_the_frame_that_it_has_begun_before_it_answers_a_renewal() -> None:
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
    selector.send(NetworkSend("c", [b"the answer to an earlier request"]))
    selector.poll(0)
    connection.system.advance(2)  # in the middle of the frame, the handshake comes
    poll_until(selector, lambda: len(client.frames) == 4)
    assert client.frames[2] == b"the answer to an earlier request"
    assert SaslHandshakeResponse.decode(client.frames[3][4:], 1).error_code == 0
