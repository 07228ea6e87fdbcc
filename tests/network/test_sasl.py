"""SASL between our client and our listener, and between each and a stranger; mechanisms here are the tests' own."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest

from spark_kafka_sink.errors import AuthenticationError, DecodeError
from spark_kafka_sink.network.channel import ChannelBuilder, ChannelState, ChannelStateKind, KafkaChannel
from spark_kafka_sink.network.channels import server_channels
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.sasl_client import SaslClientAuthenticator
from spark_kafka_sink.network.sasl_server import SaslServerAuthenticator
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import Buffer, ByteSocket, SocketAddress
from spark_kafka_sink.network.transport import PlaintextTransport
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.headers import decode_request, decode_request_header, encode_request, encode_response
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from spark_kafka_sink.sasl.mechanism import ClientConversation, ServerConversation
from tests.fake_system import FakeConnection, FakeSystem
from tests.network.peers import FramePeer, frame, poll_until, received


class Password:
    """A mechanism of one token."""

    name = "PASSWORD"

    def __init__(self, password: str = "right-secret") -> None:
        self._password = password
        self.complete = False

    def start(self) -> bytes:
        self.complete = True
        return self._password.encode()

    def step(self, challenge: bytes) -> bytes | None:
        raise AssertionError("complete already")


class PasswordCheck:
    principal = "alice"
    credential_lifetime_ms: float | None = None

    def __init__(self) -> None:
        self.complete = False

    def step(self, token: bytes) -> bytes:
        if token != b"right-secret":
            raise AuthenticationError("Authentication failed: invalid credentials")
        self.complete = True
        return b""


class Mutual:
    """A mechanism of two tokens, in which the listener proves itself at the end."""

    name = "MUTUAL"

    def __init__(self) -> None:
        self.complete = False

    def start(self) -> bytes:
        return b"hello"

    def step(self, challenge: bytes) -> bytes | None:
        if challenge == b"who?":
            return b"alice"
        if challenge != b"proof":
            raise AuthenticationError("the broker did not prove that it knows the password")
        self.complete = True
        return None


class LastWord(Mutual):
    """As Mutual, but complete with the client's last token: of what comes after it, only success or failure counts."""

    def step(self, challenge: bytes) -> bytes | None:
        self.complete = True
        return b"alice"


class MutualCheck:
    principal = "alice"
    credential_lifetime_ms: float | None = None

    def __init__(self, proof: bytes = b"proof") -> None:
        self.complete = False
        self._proof = proof

    def step(self, token: bytes) -> bytes:
        if token == b"hello":
            return b"who?"
        self.complete = True
        return self._proof


def answer_api_versions(request: memoryview) -> Sequence[Buffer]:
    header, _ = decode_request(request)
    ranges = [
        ApiVersion(api_key=key, min_version=0, max_version=newest)
        for key, newest in ((ApiKey.API_VERSIONS, 4), (ApiKey.SASL_HANDSHAKE, 1), (ApiKey.SASL_AUTHENTICATE, 2))
    ]
    return encode_response(ApiVersionsResponse(api_keys=ranges), header.api_version, header.correlation_id)


class SaslListener(FramePeer):
    """Our server authenticator behind each connection; after it, every frame is answered by itself."""

    def __init__(self, make: Callable[[], SaslServerAuthenticator]) -> None:
        super().__init__(self._take)
        self.authenticators: dict[FakeConnection, SaslServerAuthenticator] = {}
        self.requests: list[bytes] = []
        self.log: list[str] = []
        self.answer_after_ms = 0.0
        self._make = make

    def on_connect(self, connection: FakeConnection) -> None:
        self.authenticators[connection] = self._make()

    def _take(self, connection: FakeConnection, payload: bytes) -> None:
        authenticator, now = self.authenticators[connection], connection.system.now()
        try:
            if not authenticator.claims(memoryview(payload), now):
                self.log.append("data")
                self.requests.append(payload)
                connection.send(frame(payload), after_ms=self.answer_after_ms)
                return
            self.log.append(str(decode_request_header(payload)[0].api_key))
            answer = authenticator.step(memoryview(payload), now)
        except AuthenticationError:
            connection.close()
            return
        if answer is not None:
            connection.send(frame(b"".join(answer)))
        if authenticator.failure is not None:
            connection.close()


def sasl_channels(conversation: Callable[[], ClientConversation], share: float = 0.9) -> ChannelBuilder:
    def build(
        channel_id: str, sock: ByteSocket, address: SocketAddress, *, connecting: bool, frame_bytes_max: int
    ) -> KafkaChannel:
        authenticator = SaslClientAuthenticator(
            conversation().name, conversation, "client", share=lambda low, high: share
        )
        return KafkaChannel(
            channel_id,
            address,
            PlaintextTransport(sock),
            authenticator,
            connecting=connecting,
            frame_bytes_max=frame_bytes_max,
        )

    return build


def listener(*, connections_max_reauth_ms: float = 0) -> SaslListener:
    return SaslListener(lambda: stranger(connections_max_reauth_ms=connections_max_reauth_ms).authenticator)


def meet(peer: FramePeer, channels: ChannelBuilder) -> tuple[FakeSystem, Selector]:
    system = FakeSystem(latency_ms=1.0)
    system.listen("broker", 9092, peer)
    selector = Selector(system, channels=channels)
    selector.connect("a", system.resolve("broker", 9092)[0])
    return system, selector


def authenticated(peer: FramePeer, channels: ChannelBuilder) -> tuple[FakeSystem, Selector]:
    system, selector = meet(peer, channels)
    poll_until(selector, lambda: selector.is_channel_ready("a"), 50)
    return system, selector


def refused(peer: FramePeer, channels: ChannelBuilder) -> ChannelState:
    """How a connection ends that must not succeed, and that it does so without waiting for a timeout."""
    system, selector = meet(peer, channels)
    started = system.now()
    poll_until(selector, lambda: "a" in selector.disconnected, 50)
    assert system.now() - started < 100
    assert not system.open_sockets
    return selector.disconnected["a"]


def send_number(selector: Selector, number: int) -> bytes:
    """A request as far as these peers care: a correlation id after four bytes that are no SASL API key."""
    payload = struct.pack(">i", number)
    selector.send(NetworkSend("a", [payload]))
    return payload


@pytest.mark.parametrize("conversation", [Password, Mutual])
def test_client_and_listener_agree_and_requests_follow(conversation: Callable[[], ClientConversation]) -> None:
    peer = listener()
    _, selector = meet(peer, sasl_channels(conversation))
    poll_until(selector, lambda: bool(selector.connected))
    assert not selector.is_channel_ready("a")
    poll_until(selector, lambda: selector.is_channel_ready("a"))
    payload = send_number(selector, 7)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", payload)]
    (authenticator,) = peer.authenticators.values()
    assert authenticator.principal == "alice"


def test_a_wrong_password_is_an_authentication_error_in_the_brokers_words_without_the_password() -> None:
    state = refused(listener(), sasl_channels(lambda: Password("wrong-secret")))
    assert state.kind is ChannelStateKind.AUTHENTICATION_FAILED
    assert isinstance(state.error, AuthenticationError)
    assert str(state.error) == (
        "broker:9092: SASL PASSWORD: the broker refused: Authentication failed: invalid credentials"
    )
    assert "secret" not in repr(state)


def test_a_mechanism_that_is_not_offered_is_answered_by_those_that_are() -> None:
    class Other(Password):
        name = "OTHER"

    state = refused(listener(), sasl_channels(Other))
    assert isinstance(state.error, AuthenticationError)
    assert "it offers PASSWORD, MUTUAL" in str(state.error)


def test_a_listener_that_does_not_prove_itself_is_refused() -> None:
    peer = SaslListener(
        lambda: SaslServerAuthenticator({"MUTUAL": lambda: MutualCheck(b"forged")}, answer_api_versions)
    )
    state = refused(peer, sasl_channels(Mutual))
    assert state.kind is ChannelStateKind.AUTHENTICATION_FAILED
    assert "did not prove" in str(state.error)


def test_a_callback_of_the_users_that_raises_fails_the_authentication_without_its_words() -> None:
    class Broken(Password):
        def start(self) -> bytes:
            raise KeyError("token-secret")

    state = refused(listener(), sasl_channels(Broken))
    assert state.kind is ChannelStateKind.AUTHENTICATION_FAILED
    assert "could not be had: KeyError" in str(state.error)
    assert "secret" not in str(state.error)


class ScriptedBroker(FramePeer):
    """Answers the n-th frame by the n-th message, or bytes, whatever was asked."""

    def __init__(self, *script: Message | bytes) -> None:
        super().__init__(self._take)
        self._script = list(script)

    def _take(self, connection: FakeConnection, payload: bytes) -> None:
        answer = self._script.pop(0)
        if isinstance(answer, bytes):
            connection.send(frame(answer))
        else:
            header, _ = decode_request_header(payload)
            segments = encode_response(answer, header.api_version, header.correlation_id)
            connection.send(frame(b"".join(segments)))


def versions(**newest: int) -> ApiVersionsResponse:
    keys = [ApiVersion(api_key=ApiKey[name], min_version=0, max_version=version) for name, version in newest.items()]
    return ApiVersionsResponse(api_keys=keys)


MODERN = versions(SASL_HANDSHAKE=1, SASL_AUTHENTICATE=2)


def test_a_broker_without_sasl_authenticate_gets_the_tokens_bare() -> None:
    broker = ScriptedBroker(
        versions(SASL_HANDSHAKE=0), SaslHandshakeResponse(mechanisms=["MUTUAL"]), b"who?", b"proof", b"\0\0\0\7answer"
    )
    _, selector = authenticated(broker, sasl_channels(Mutual))
    assert broker.frames[2:] == [b"hello", b"alice"]
    send_number(selector, 7)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", b"\0\0\0\7answer")]


def test_a_bare_last_token_needs_no_answer_but_is_written_before_anything_else() -> None:
    broker = ScriptedBroker(versions(SASL_HANDSHAKE=0), SaslHandshakeResponse(mechanisms=["MUTUAL"]), b"who?", b"")
    system, selector = meet(broker, sasl_channels(LastWord))
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


def test_a_last_token_that_is_not_bare_is_judged_by_its_answer() -> None:
    refusal = SaslAuthenticateResponse(error_code=error_codes.SASL_AUTHENTICATION_FAILED, error_message="no")
    broker = ScriptedBroker(MODERN, SaslHandshakeResponse(), SaslAuthenticateResponse(auth_bytes=b"who?"), refusal)
    assert "the broker refused: no" in str(refused(broker, sasl_channels(LastWord)).error)


def test_an_empty_bare_token_is_an_answer() -> None:
    broker = ScriptedBroker(versions(SASL_HANDSHAKE=0), SaslHandshakeResponse(mechanisms=["PASSWORD"]), b"")
    authenticated(broker, sasl_channels(Password))
    assert broker.frames[2:] == [b"right-secret"]


def test_newer_brokers_are_spoken_to_in_versions_that_we_know() -> None:
    broker = ScriptedBroker(
        versions(SASL_HANDSHAKE=9, SASL_AUTHENTICATE=9),
        SaslHandshakeResponse(mechanisms=["PASSWORD"]),
        SaslAuthenticateResponse(),
    )
    authenticated(broker, sasl_channels(Password))
    asked = [decode_request_header(request)[0] for request in broker.frames]
    assert [(header.api_key, header.api_version) for header in asked] == [(18, 0), (17, 1), (36, 2)]
    assert [header.client_id for header in asked] == ["client"] * 3


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([MODERN, SaslHandshakeResponse(error_code=error_codes.ILLEGAL_SASL_STATE)], "expects no SASL"),
        ([MODERN, SaslHandshakeResponse(error_code=error_codes.UNKNOWN_SERVER_ERROR)], "UNKNOWN_SERVER_ERROR"),
        ([versions()], "does not know SaslHandshake"),
        ([b"\0"], "is this a SASL listener"),
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
def test_whatever_goes_wrong_is_said(script: list[Message | bytes], words: str) -> None:
    state = refused(ScriptedBroker(*script), sasl_channels(Password))
    assert state.kind is ChannelStateKind.AUTHENTICATION_FAILED
    assert words in str(state.error)


def test_a_stranger_cannot_announce_more_than_a_little() -> None:
    class Huge(FramePeer):
        def on_connect(self, connection: FakeConnection) -> None:
            connection.send(struct.pack(">i", 2 * 1024 * 1024))

    state = refused(Huge(), sasl_channels(Password))
    assert isinstance(state.error, DecodeError)
    assert "at most 1048576" in str(state.error)


def test_after_authentication_large_frames_are_taken() -> None:
    peer = listener()
    system, selector = authenticated(peer, sasl_channels(Password))
    system.connections[0].send(frame(bytes(2_000_000)))
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert len(selector.completed_receives[0].payload) == 2_000_000


# --- sessions (KIP-368)


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
    system.connections[0].socket.write_bytes_max = 3
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
    assert selector.disconnected["a"].authentication_failed
    assert peer.requests == []


def test_without_an_end_of_session_nothing_is_renewed() -> None:
    peer = listener()
    system, selector = authenticated(peer, sasl_channels(Password))
    del peer.log[:]
    system.advance(100_000)
    send_number(selector, 1)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert peer.log == ["data"]


# --- the listener's side


class ScriptedClient(FramePeer):
    """A client of a Selector that listens: says the next of its frames after each answer."""

    def __init__(self, *requests: tuple[Message, int]) -> None:
        super().__init__(lambda connection, payload: self._say_next(connection))
        self._requests = [b"".join(encode_request(message, version, 1, "x")) for message, version in requests]

    def on_connect(self, connection: FakeConnection) -> None:
        self._say_next(connection)

    def _say_next(self, connection: FakeConnection) -> None:
        if self._requests:
            connection.send(frame(self._requests.pop(0)))


def serve(client: ScriptedClient) -> Selector:
    """A Selector with one accepted connection, whose other end is this client."""
    system = FakeSystem()
    system.listen("client", 1, client)
    where = system.resolve("client", 1)[0]
    mechanisms: dict[str, Callable[[], ServerConversation]] = {"PASSWORD": PasswordCheck}
    selector = Selector(
        system, channels=server_channels(mechanisms=mechanisms, answer_api_versions=answer_api_versions)
    )
    selector.register("c", system.connect(where, -1, -1), where)
    return selector


def test_a_listener_lets_a_client_in_and_hands_out_its_requests() -> None:
    client = ScriptedClient(
        (ApiVersionsRequest(), 0),
        (SaslHandshakeRequest(mechanism="PASSWORD"), 1),
        (SaslAuthenticateRequest(auth_bytes=b"right-secret"), 2),
        (MetadataRequest(), 1),
    )
    selector = serve(client)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert decode_request_header(selector.completed_receives[0].payload)[0].api_key == ApiKey.METADATA
    channel = selector.channel("c")
    assert channel is not None
    assert channel.principal == "alice"


def test_a_listener_says_that_it_refuses_and_then_closes() -> None:
    client = ScriptedClient(
        (SaslHandshakeRequest(mechanism="PASSWORD"), 1), (SaslAuthenticateRequest(auth_bytes=b"wrong"), 1)
    )
    selector = serve(client)
    poll_until(selector, lambda: bool(selector.disconnected))
    assert selector.disconnected["c"].authentication_failed
    selector.poll(10)
    answer = SaslAuthenticateResponse.decode(client.frames[-1][4:], 1)
    assert answer.error_code == error_codes.SASL_AUTHENTICATION_FAILED
    assert client.closed == 1


# --- the listener's authenticator alone


class Stranger:
    """A client of the listener's authenticator, frame by frame."""

    def __init__(self, authenticator: SaslServerAuthenticator) -> None:
        self.authenticator = authenticator
        self.now = 0.0

    def ask(self, message: Message, version: int) -> bytes:
        request = memoryview(b"".join(encode_request(message, version, 1, "x")))
        assert self.authenticator.claims(request, self.now)
        return b"".join(self.authenticator.step(request, self.now) or [])

    def log_in(self, password: bytes = b"right-secret") -> SaslAuthenticateResponse:
        self.ask(SaslHandshakeRequest(mechanism="PASSWORD"), 1)
        answer = self.ask(SaslAuthenticateRequest(auth_bytes=password), 1)
        return SaslAuthenticateResponse.decode(answer[4:], 1)


def stranger(*, connections_max_reauth_ms: float = 0) -> Stranger:
    mechanisms: dict[str, Callable[[], ServerConversation]] = {"PASSWORD": PasswordCheck, "MUTUAL": MutualCheck}
    return Stranger(
        SaslServerAuthenticator(mechanisms, answer_api_versions, connections_max_reauth_ms=connections_max_reauth_ms)
    )


def test_a_stranger_may_ask_for_versions_and_for_nothing_else() -> None:
    assert stranger().ask(ApiVersionsRequest(), 0)
    with pytest.raises(AuthenticationError, match="type 3 came before authentication"):
        stranger().ask(MetadataRequest(), 1)


def test_tokens_before_the_handshake_are_refused() -> None:
    with pytest.raises(AuthenticationError):
        stranger().ask(SaslAuthenticateRequest(auth_bytes=b"right-secret"), 1)


@pytest.mark.parametrize("garbage", [b"", b"\0", b"\xff" * 40, b"\0\x11\0\x09\0\0\0\0\xff\xff"])
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(AuthenticationError):
        stranger().authenticator.step(memoryview(garbage), 0.0)


def test_a_refusal_is_said_before_the_channel_ends() -> None:
    client = stranger()
    response = client.log_in(b"wrong")
    assert response.error_code == error_codes.SASL_AUTHENTICATION_FAILED
    assert not client.authenticator.complete
    assert isinstance(client.authenticator.failure, AuthenticationError)


def test_the_client_is_told_when_its_session_ends_and_cut_off_after_it() -> None:
    client = stranger(connections_max_reauth_ms=500)
    assert client.log_in().session_lifetime_ms == 500
    request = memoryview(b"".join(encode_request(MetadataRequest(), 1, 1, "x")))
    assert not client.authenticator.claims(request, 499.0)
    with pytest.raises(AuthenticationError, match="has ended"):
        client.authenticator.claims(request, 501.0)


def test_a_token_that_ends_earlier_ends_the_session_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PasswordCheck, "credential_lifetime_ms", 200.0)
    assert stranger(connections_max_reauth_ms=500).log_in().session_lifetime_ms == 200
    assert stranger().log_in().session_lifetime_ms == 200


def test_neither_the_mechanism_nor_the_principal_can_change_with_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    client = stranger(connections_max_reauth_ms=500)
    client.log_in()
    client.ask(SaslHandshakeRequest(mechanism="MUTUAL"), 1)
    assert client.authenticator.failure is not None
    client = stranger(connections_max_reauth_ms=500)
    client.log_in()
    monkeypatch.setattr(PasswordCheck, "principal", "mallory")
    assert client.log_in().error_code == error_codes.SASL_AUTHENTICATION_FAILED


def test_without_an_end_of_session_a_handshake_is_a_request_like_any_other() -> None:
    client = stranger()
    client.log_in()
    request = memoryview(b"".join(encode_request(SaslHandshakeRequest(mechanism="PASSWORD"), 1, 1, "x")))
    assert not client.authenticator.claims(request, 1e9)
