"""Builders of channels with TLS or SASL, for clients and listeners."""

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

TransportFactory = Callable[[ByteSocket, SocketAddress], Transport]
AuthenticatorFactory = Callable[[SocketAddress], Authenticator]


def create_secured_client_channel_builder(security: SecurityConfig, client_id: str) -> ChannelBuilder:
    """Return a function that builds the channels to brokers.

    The certificates and keys are read here, once for all channels. Raise ConfigurationError if they cannot be read.
    """
    context = security.build_ssl_context() if security.tls is not None else None
    create_transport = _create_client_transport_factory(context)
    if security.login is None:
        return _create_channel_builder(create_transport, _create_noop_authenticator)
    mechanism = security.login.mechanism

    def create_authenticator(address: SocketAddress) -> Authenticator:
        return SaslClientAuthenticator(mechanism, lambda: security.create_mechanism(address.host), client_id)

    return _create_channel_builder(create_transport, create_authenticator)


def create_server_channel_builder(
    *,
    ssl_context: ssl.SSLContext | None = None,
    mechanisms: Mapping[str, Callable[[], ServerMechanism]] | None = None,
    handle_api_versions: Callable[[memoryview], Sequence[Buffer]] | None = None,
    connections_max_reauth_ms: float = 0,
) -> ChannelBuilder:
    """Return a function that builds the channels of a listener.

    `ssl_context`: the TLS context; None for plaintext.
    `mechanisms`: a factory for each SASL mechanism, by its name; None or empty for a listener without SASL.
    `handle_api_versions`: required with SASL. Returns the response to an ApiVersions request from a client that has not
    authenticated yet.
    `connections_max_reauth_ms`: the maximum lifetime of a session; 0 means no limit.
    """
    create_transport = _create_server_transport_factory(ssl_context)
    if not mechanisms:
        return _create_channel_builder(create_transport, _create_noop_authenticator)
    assert handle_api_versions is not None, (
        "handle_api_versions is required with SASL: clients send ApiVersions before they authenticate"
    )

    def create_authenticator(address: SocketAddress) -> Authenticator:
        return SaslServerAuthenticator(
            mechanisms, handle_api_versions, connections_max_reauth_ms=connections_max_reauth_ms
        )

    return _create_channel_builder(create_transport, create_authenticator)


def _create_channel_builder(
    create_transport: TransportFactory, create_authenticator: AuthenticatorFactory
) -> ChannelBuilder:
    """Return a ChannelBuilder that calls both factories for each channel."""

    def build(
        channel_id: str, sock: ByteSocket, address: SocketAddress, *, is_connecting: bool, max_frame_bytes: int
    ) -> KafkaChannel:
        transport, authenticator = create_transport(sock, address), create_authenticator(address)
        return KafkaChannel(
            channel_id, address, transport, authenticator, is_connecting=is_connecting, max_frame_bytes=max_frame_bytes
        )

    return build


def _create_client_transport_factory(context: ssl.SSLContext | None) -> TransportFactory:
    if context is None:
        return _create_plaintext_transport
    return lambda sock, address: TlsTransport(sock, context, server_hostname=address.host)


def _create_server_transport_factory(context: ssl.SSLContext | None) -> TransportFactory:
    if context is None:
        return _create_plaintext_transport
    return lambda sock, address: TlsTransport(sock, context, server_hostname=None)


def _create_plaintext_transport(sock: ByteSocket, address: SocketAddress) -> Transport:
    return PlaintextTransport(sock)


def _create_noop_authenticator(address: SocketAddress) -> Authenticator:
    return NoAuthentication()
