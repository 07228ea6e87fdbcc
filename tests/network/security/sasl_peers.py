"""SASL mechanisms for tests, and scripted peers of a SASL conversation."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.channel import ChannelBuilder, ChannelState, KafkaChannel
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.security.sasl_client import SaslClientAuthenticator
from spark_kafka_sink.network.security.sasl_server import SaslServerAuthenticator
from spark_kafka_sink.network.security.secured_channel_builders import create_server_channel_builder
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import Buffer, ByteSocket, SocketAddress
from spark_kafka_sink.network.transport import PlaintextTransport
from spark_kafka_sink.protocol.headers import decode_request, decode_request_header, encode_request, encode_response
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.sasl.mechanism import ClientMechanism, ServerMechanism
from tests.fake_system import FakeConnection, FakeSystem
from tests.network.peers import FramePeer, frame, poll_until


class Password:
    """A mechanism in which the client sends one token."""

    name = "PASSWORD"

    def __init__(self, password: str = "right-secret") -> None:
        self._password = password
        self.is_complete = False

    def start(self) -> bytes:
        self.is_complete = True
        return self._password.encode()

    def step(self, challenge: bytes) -> bytes | None:
        raise AssertionError("complete already")


class PasswordCheck:
    principal = "alice"
    credential_lifetime_ms: float | None = None

    def __init__(self) -> None:
        self.is_complete = False

    def step(self, token: bytes) -> bytes:
        if token != b"right-secret":
            raise AuthenticationError("Authentication failed: invalid credentials")
        self.is_complete = True
        return b""


class Mutual:
    """A mechanism in which the client sends two tokens, and the listener finally proves its identity."""

    name = "MUTUAL"

    def __init__(self) -> None:
        self.is_complete = False

    def start(self) -> bytes:
        return b"hello"

    def step(self, challenge: bytes) -> bytes | None:
        if challenge == b"who?":
            return b"alice"
        if challenge != b"proof":
            raise AuthenticationError("the broker did not prove that it knows the password")
        self.is_complete = True
        return None


class MutualWithoutProof(Mutual):
    """Like Mutual, but without the listener's proof: the client is complete when it has sent its last token."""

    def step(self, challenge: bytes) -> bytes | None:
        self.is_complete = True
        return b"alice"


class MutualCheck:
    principal = "alice"
    credential_lifetime_ms: float | None = None

    def __init__(self, proof: bytes = b"proof") -> None:
        self.is_complete = False
        self._proof = proof

    def step(self, token: bytes) -> bytes:
        if token == b"hello":
            return b"who?"
        self.is_complete = True
        return self._proof


def handle_api_versions(request: memoryview) -> Sequence[Buffer]:
    header, _ = decode_request(request)
    ranges = [
        ApiVersion(api_key=key, min_version=0, max_version=newest)
        for key, newest in ((ApiKey.API_VERSIONS, 4), (ApiKey.SASL_HANDSHAKE, 1), (ApiKey.SASL_AUTHENTICATE, 2))
    ]
    return encode_response(ApiVersionsResponse(api_keys=ranges), header.api_version, header.correlation_id)


class SaslListener(FramePeer):
    """A peer that authenticates each connection with SaslServerAuthenticator, and then sends each frame back."""

    def __init__(self, create_authenticator: Callable[[], SaslServerAuthenticator]) -> None:
        super().__init__(self._handle_frame)
        self.authenticators: dict[FakeConnection, SaslServerAuthenticator] = {}
        self.requests: list[bytes] = []
        self.log: list[str] = []
        self.response_delay_ms = 0.0
        self._create_authenticator = create_authenticator

    def on_connect(self, connection: FakeConnection) -> None:
        self.authenticators[connection] = self._create_authenticator()

    def _handle_frame(self, connection: FakeConnection, payload: bytes) -> None:
        authenticator, now_ms = self.authenticators[connection], connection.system.now()
        try:
            if not authenticator.is_authentication_frame(memoryview(payload), now_ms):
                self.log.append("data")
                self.requests.append(payload)
                connection.send(frame(payload), after_ms=self.response_delay_ms)
                return
            self.log.append(str(decode_request_header(payload)[0].api_key))
            response = authenticator.handle_frame(memoryview(payload), now_ms)
        except AuthenticationError:
            connection.close()
            return
        if response is not None:
            connection.send(frame(b"".join(response)))
        if authenticator.failure is not None:
            connection.close()


def sasl_channels(conversation: Callable[[], ClientMechanism], share: float = 0.9) -> ChannelBuilder:
    def build(
        channel_id: str, sock: ByteSocket, address: SocketAddress, *, is_connecting: bool, max_frame_bytes: int
    ) -> KafkaChannel:
        authenticator = SaslClientAuthenticator(
            conversation().name, conversation, "client", choose_reauthentication_fraction=lambda low, high: share
        )
        return KafkaChannel(
            channel_id,
            address,
            PlaintextTransport(sock),
            authenticator,
            is_connecting=is_connecting,
            max_frame_bytes=max_frame_bytes,
        )

    return build


def listener(*, connections_max_reauth_ms: float = 0) -> SaslListener:
    return SaslListener(lambda: create_direct_client(connections_max_reauth_ms=connections_max_reauth_ms).authenticator)


def connect_to(peer: FramePeer, channels: ChannelBuilder) -> tuple[FakeSystem, Selector]:
    system = FakeSystem(latency_ms=1.0)
    system.listen("broker", 9092, peer)
    selector = Selector(system, channel_builder=channels)
    selector.connect("a", system.resolve("broker", 9092)[0])
    return system, selector


def connect_and_authenticate(peer: FramePeer, channels: ChannelBuilder) -> tuple[FakeSystem, Selector]:
    system, selector = connect_to(peer, channels)
    poll_until(selector, lambda: selector.is_channel_ready("a"), 50)
    return system, selector


def await_rejection(peer: FramePeer, channels: ChannelBuilder) -> ChannelState:
    """Return the end of a connection that must be rejected. Check that it ends without waiting for a timeout."""
    system, selector = connect_to(peer, channels)
    started = system.now()
    poll_until(selector, lambda: "a" in selector.disconnected, 50)
    assert system.now() - started < 100
    assert not system.open_sockets
    return selector.disconnected["a"]


def authentication_counts(selector: Selector) -> tuple[int, int, int, int]:
    """Count the successful and failed logins, and the successful and failed renewals."""
    counts = selector.counts
    return (
        counts.successful_authentications,
        counts.failed_authentications,
        counts.successful_reauthentications,
        counts.failed_reauthentications,
    )


def send_number(selector: Selector, number: int) -> bytes:
    """Send a frame with the number as its payload, which peers do not take for a SASL request. Return the payload."""
    payload = struct.pack(">i", number)
    selector.send(NetworkSend("a", [payload]))
    return payload


class ScriptedBroker(FramePeer):
    """Responds to the n-th frame with the n-th message or bytes of a script, whatever was requested."""

    def __init__(self, *script: Message | bytes) -> None:
        super().__init__(self._handle_frame)
        self._script = list(script)

    def _handle_frame(self, connection: FakeConnection, payload: bytes) -> None:
        response = self._script.pop(0)
        if isinstance(response, bytes):
            connection.send(frame(response))
        else:
            header, _ = decode_request_header(payload)
            segments = encode_response(response, header.api_version, header.correlation_id)
            connection.send(frame(b"".join(segments)))


def versions(**newest: int) -> ApiVersionsResponse:
    keys = [ApiVersion(api_key=ApiKey[name], min_version=0, max_version=version) for name, version in newest.items()]
    return ApiVersionsResponse(api_keys=keys)


MODERN = versions(SASL_HANDSHAKE=1, SASL_AUTHENTICATE=2)


class DirectClient:
    """A client that passes single requests to the listener's authenticator."""

    def __init__(self, authenticator: SaslServerAuthenticator) -> None:
        self.authenticator = authenticator
        self.now = 0.0

    def request(self, message: Message, version: int) -> bytes:
        request = memoryview(b"".join(encode_request(message, version, 1, "x")))
        assert self.authenticator.is_authentication_frame(request, self.now)
        return b"".join(self.authenticator.handle_frame(request, self.now) or [])

    def log_in(self, password: bytes = b"right-secret") -> SaslAuthenticateResponse:
        self.request(SaslHandshakeRequest(mechanism="PASSWORD"), 1)
        response = self.request(SaslAuthenticateRequest(auth_bytes=password), 1)
        return SaslAuthenticateResponse.decode(response[4:], 1)


def create_direct_client(*, connections_max_reauth_ms: float = 0) -> DirectClient:
    mechanisms: dict[str, Callable[[], ServerMechanism]] = {"PASSWORD": PasswordCheck, "MUTUAL": MutualCheck}
    return DirectClient(
        SaslServerAuthenticator(mechanisms, handle_api_versions, connections_max_reauth_ms=connections_max_reauth_ms)
    )


class ScriptedClient(FramePeer):
    """A client of a listening Selector, which sends its next request after each response."""

    def __init__(self, *requests: tuple[Message, int]) -> None:
        super().__init__(lambda connection, payload: self._send_next_request(connection))
        self._requests = [b"".join(encode_request(message, version, 1, "x")) for message, version in requests]

    def on_connect(self, connection: FakeConnection) -> None:
        self._send_next_request(connection)

    def _send_next_request(self, connection: FakeConnection) -> None:
        if self._requests:
            connection.send(frame(self._requests.pop(0)), after_ms=1)


def serve(client: ScriptedClient, *, connections_max_reauth_ms: float = 0) -> Selector:
    """Create a listening Selector with one accepted connection, that of the client."""
    system = FakeSystem()
    system.listen("client", 1, client)
    address = system.resolve("client", 1)[0]
    mechanisms: dict[str, Callable[[], ServerMechanism]] = {"PASSWORD": PasswordCheck}
    channels = create_server_channel_builder(
        mechanisms=mechanisms,
        handle_api_versions=handle_api_versions,
        connections_max_reauth_ms=connections_max_reauth_ms,
    )
    selector = Selector(system, channel_builder=channels)
    selector.register("c", system.connect(address, -1, -1), address)
    return selector
