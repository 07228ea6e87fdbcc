"""Which transport and which authenticator a channel gets that uses TLS or SASL, for either side."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence

from spark_kafka_sink.network.authenticator import Authenticator, NoAuthentication
from spark_kafka_sink.network.channel import ChannelBuilder, KafkaChannel
from spark_kafka_sink.network.security.sasl_client import SaslClientAuthenticator
from spark_kafka_sink.network.security.sasl_server import SaslServerAuthenticator
from spark_kafka_sink.network.security_config import SecurityConfig
from spark_kafka_sink.network.system import Buffer, ByteSocket, SocketAddress
from spark_kafka_sink.network.tls import TlsTransport
from spark_kafka_sink.network.transport import PlaintextTransport, Transport
from spark_kafka_sink.sasl.mechanism import ServerMechanism

MakeTransport = Callable[[ByteSocket, SocketAddress], Transport]
MakeAuthenticator = Callable[[SocketAddress], Authenticator]


def secured_client_channels(security: SecurityConfig, client_id: str) -> ChannelBuilder:
    """Channels to brokers. Certificates and keys are read here, once: ConfigurationError if they cannot be."""
    login = security.login

    def sasl(address: SocketAddress) -> Authenticator:
        assert login is not None
        host = address.host
        return SaslClientAuthenticator(login.mechanism, lambda: security.conversation(host), client_id)

    context = security.ssl_context() if security.tls is not None else None
    return _channels(_client_transport(context), sasl if login is not None else _no_authentication)


def server_channels(
    *,
    ssl_context: ssl.SSLContext | None = None,
    mechanisms: Mapping[str, Callable[[], ServerMechanism]] | None = None,
    answer_api_versions: Callable[[memoryview], Sequence[Buffer]] | None = None,
    connections_max_reauth_ms: float = 0,
) -> ChannelBuilder:
    """Channels of a listener: TLS if there is a context, SASL if there are mechanisms.

    `answer_api_versions` makes the answer to a frame that asks for ApiVersions before the client has authenticated.
    """

    def sasl(address: SocketAddress) -> Authenticator:
        assert mechanisms is not None
        assert answer_api_versions is not None, "clients send ApiVersions first to a listener with SASL"
        return SaslServerAuthenticator(
            mechanisms, answer_api_versions, connections_max_reauth_ms=connections_max_reauth_ms
        )

    return _channels(_server_transport(ssl_context), sasl if mechanisms else _no_authentication)


def _channels(make_transport: MakeTransport, make_authenticator: MakeAuthenticator) -> ChannelBuilder:
    def build(
        channel_id: str, sock: ByteSocket, address: SocketAddress, *, connecting: bool, frame_bytes_max: int
    ) -> KafkaChannel:
        transport, authenticator = make_transport(sock, address), make_authenticator(address)
        return KafkaChannel(
            channel_id, address, transport, authenticator, connecting=connecting, frame_bytes_max=frame_bytes_max
        )

    return build


def _client_transport(context: ssl.SSLContext | None) -> MakeTransport:
    if context is None:
        return _plaintext
    return lambda sock, address: TlsTransport(sock, context, server_hostname=address.host)


def _server_transport(context: ssl.SSLContext | None) -> MakeTransport:
    if context is None:
        return _plaintext
    return lambda sock, address: TlsTransport(sock, context, server_hostname=None)


def _plaintext(sock: ByteSocket, address: SocketAddress) -> Transport:
    return PlaintextTransport(sock)


def _no_authentication(address: SocketAddress) -> Authenticator:
    return NoAuthentication()
