"""The client side of SASL, with the package's own listener and with scripted brokers."""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import AuthenticationError, DecodeError, DisconnectedError
from spark_kafka_sink.network.channel import ChannelStateKind
from spark_kafka_sink.network.channel_builders import build_plaintext_channel
from spark_kafka_sink.network.security.sasl_server import SaslServerAuthenticator
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import decode_request_header
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeResponse
from spark_kafka_sink.sasl.mechanism import ClientMechanism
from tests.fake_system import FakeConnection
from tests.network.peers import FramePeer, frame, poll_until, received
from tests.network.security.sasl_peers import (
    MODERN,
    Mutual,
    MutualCheck,
    MutualWithoutProof,
    Password,
    SaslListener,
    ScriptedBroker,
    authentication_counts,
    await_rejection,
    connect_and_authenticate,
    connect_to,
    handle_api_versions,
    listener,
    sasl_channels,
    send_number,
    versions,
)


@pytest.mark.parametrize("conversation", [Password, Mutual])
def test_client_authenticates_to_listener_and_sends_requests(conversation: Callable[[], ClientMechanism]) -> None:
    peer = listener()
    _, selector = connect_to(peer, sasl_channels(conversation))
    poll_until(selector, lambda: bool(selector.connected))
    assert not selector.is_channel_ready("a")
    poll_until(selector, lambda: selector.is_channel_ready("a"))
    payload = send_number(selector, 7)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", payload)]
    (authenticator,) = peer.authenticators.values()
    assert authenticator.principal == "alice"


def test_wrong_password_error_has_broker_message_but_no_password() -> None:
    state = await_rejection(listener(), sasl_channels(lambda: Password("wrong-secret")))
    assert state.kind is ChannelStateKind.AUTHENTICATION_FAILED
    assert isinstance(state.error, AuthenticationError)
    assert str(state.error) == (
        "broker:9092: SASL PASSWORD: the broker rejected the login: Authentication failed: invalid credentials"
    )
    assert "secret" not in repr(state)


def test_unsupported_mechanism_error_lists_supported_mechanisms() -> None:
    class Other(Password):
        name = "OTHER"

    state = await_rejection(listener(), sasl_channels(Other))
    assert isinstance(state.error, AuthenticationError)
    assert "It supports PASSWORD, MUTUAL" in str(state.error)


def test_rejects_listener_that_fails_mutual_authentication() -> None:
    peer = SaslListener(
        lambda: SaslServerAuthenticator({"MUTUAL": lambda: MutualCheck(b"forged")}, handle_api_versions)
    )
    state = await_rejection(peer, sasl_channels(Mutual))
    assert state.kind is ChannelStateKind.AUTHENTICATION_FAILED
    assert "did not prove" in str(state.error)


def test_failed_callback_error_does_not_contain_its_message() -> None:
    class Broken(Password):
        def start(self) -> bytes:
            raise KeyError("token-secret")

    state = await_rejection(listener(), sasl_channels(Broken))
    assert state.kind is ChannelStateKind.AUTHENTICATION_FAILED
    assert "could not obtain the credentials: KeyError" in str(state.error)
    assert state.error is not None
    assert "secret" not in "".join(traceback.format_exception(state.error)), "Spark shows tracebacks to all"


def test_sends_tokens_without_headers_to_old_broker() -> None:
    broker = ScriptedBroker(
        versions(SASL_HANDSHAKE=0), SaslHandshakeResponse(mechanisms=["MUTUAL"]), b"who?", b"proof", b"\0\0\0\7answer"
    )
    _, selector = connect_and_authenticate(broker, sasl_channels(Mutual))
    assert broker.frames[2:] == [b"hello", b"alice"]
    send_number(selector, 7)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", b"\0\0\0\7answer")]


def test_last_token_without_header_is_written_first_and_needs_no_response() -> None:
    broker = ScriptedBroker(versions(SASL_HANDSHAKE=0), SaslHandshakeResponse(mechanisms=["MUTUAL"]), b"who?", b"")
    system, selector = connect_to(broker, sasl_channels(MutualWithoutProof))
    poll_until(selector, lambda: len(broker.frames) == 3)
    system.connections[0].stall()
    system.connections[0].socket.window_bytes = 0
    for _ in range(10):
        selector.poll(10)
        assert not selector.is_channel_ready("a")
    system.connections[0].socket.window_bytes = 1000
    system.connections[0].resume()
    poll_until(selector, lambda: selector.is_channel_ready("a"))
    system.advance(10)
    assert broker.frames[2:] == [b"hello", b"alice"]


def test_response_to_last_authenticate_request_decides_login() -> None:
    rejection = SaslAuthenticateResponse(error_code=error_codes.SASL_AUTHENTICATION_FAILED, error_message="no")
    broker = ScriptedBroker(MODERN, SaslHandshakeResponse(), SaslAuthenticateResponse(auth_bytes=b"who?"), rejection)
    assert "the broker rejected the login: no" in str(await_rejection(broker, sasl_channels(MutualWithoutProof)).error)


def test_empty_token_without_header_is_a_response() -> None:
    broker = ScriptedBroker(versions(SASL_HANDSHAKE=0), SaslHandshakeResponse(mechanisms=["PASSWORD"]), b"")
    connect_and_authenticate(broker, sasl_channels(Password))
    assert broker.frames[2:] == [b"right-secret"]


def test_uses_supported_versions_with_newer_broker() -> None:
    broker = ScriptedBroker(
        versions(SASL_HANDSHAKE=9, SASL_AUTHENTICATE=9),
        SaslHandshakeResponse(mechanisms=["PASSWORD"]),
        SaslAuthenticateResponse(),
    )
    connect_and_authenticate(broker, sasl_channels(Password))
    headers = [decode_request_header(request)[0] for request in broker.frames]
    assert [(header.api_key, header.api_version) for header in headers] == [(18, 0), (17, 1), (36, 2)]
    assert [header.client_id for header in headers] == ["client"] * 3


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([MODERN, SaslHandshakeResponse(error_code=error_codes.ILLEGAL_SASL_STATE)], "does not use SASL"),
        ([MODERN, SaslHandshakeResponse(error_code=error_codes.UNKNOWN_SERVER_ERROR)], "UNKNOWN_SERVER_ERROR"),
        ([versions()], "does not support SaslHandshake"),
        ([b"\0"], "that of a SASL listener"),
        ([b"\0\0\0\1" + bytes(10)], "correlation id"),
        (
            [
                MODERN,
                SaslHandshakeResponse(),
                SaslAuthenticateResponse(error_code=error_codes.SASL_AUTHENTICATION_FAILED),
            ],
            "SASL_AUTHENTICATION_FAILED",
        ),
    ],
)
def test_authentication_error_names_each_cause(script: list[Message | bytes], message: str) -> None:
    state = await_rejection(ScriptedBroker(*script), sasl_channels(Password))
    assert state.kind is ChannelStateKind.AUTHENTICATION_FAILED
    assert message in str(state.error)


@pytest.mark.parametrize("api_keys", [[], MODERN.api_keys])
def test_rejected_api_versions_end_the_connection_but_not_the_login(api_keys: list[ApiVersion]) -> None:
    rejection = ApiVersionsResponse(error_code=error_codes.UNKNOWN_SERVER_ERROR, api_keys=api_keys)
    state = await_rejection(ScriptedBroker(rejection), sasl_channels(Password))
    assert state.kind is ChannelStateKind.AUTHENTICATE
    assert isinstance(state.error, DisconnectedError)
    assert str(state.error) == "broker:9092: SASL PASSWORD: the broker rejected ApiVersions: UNKNOWN_SERVER_ERROR"


def test_rejects_long_frame_before_authentication() -> None:
    class Huge(FramePeer):
        def on_connect(self, connection: FakeConnection) -> None:
            connection.send(struct.pack(">i", 2 * 1024 * 1024))

    state = await_rejection(Huge(), sasl_channels(Password))
    assert isinstance(state.error, DecodeError)
    assert "at most 1048576" in str(state.error)


def test_accepts_long_frame_after_authentication() -> None:
    peer = listener()
    system, selector = connect_and_authenticate(peer, sasl_channels(Password))
    system.connections[0].send(frame(bytes(2_000_000)))
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert len(selector.completed_receives[0].payload) == 2_000_000


@pytest.mark.parametrize(("password", "expected"), [("right-secret", (1, 0, 0, 0)), ("wrong-secret", (0, 1, 0, 0))])
def test_counts_each_authentication_once(password: str, expected: tuple[int, int, int, int]) -> None:
    _, selector = connect_to(listener(), sasl_channels(lambda: Password(password)))
    poll_until(selector, lambda: selector.is_channel_ready("a") or "a" in selector.disconnected)
    if selector.is_channel_ready("a"):
        send_number(selector, 1)
        poll_until(selector, lambda: bool(selector.completed_receives))
    assert authentication_counts(selector) == expected


def test_does_not_count_plaintext_connection_as_authentication() -> None:
    peer = FramePeer(lambda connection, payload: connection.send(frame(payload)))
    _, selector = connect_and_authenticate(peer, build_plaintext_channel)
    send_number(selector, 1)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert selector.counts.connections_opened == 1
    assert authentication_counts(selector) == (0, 0, 0, 0)
