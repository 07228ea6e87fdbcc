"""Builders of client channels for each security.protocol.

security.protocol   transport   authenticator
PLAINTEXT           plain       none
SSL                 TLS         none (the TLS handshake verifies certificates)
SASL_PLAINTEXT      plain       SASL
SASL_SSL            TLS         SASL
"""

from __future__ import annotations

from spark_kafka_sink.network.authenticator import NoAuthentication
from spark_kafka_sink.network.channel import ChannelBuilder, KafkaChannel
from spark_kafka_sink.network.security_config import SecurityConfig
from spark_kafka_sink.network.system import ByteSocket, SocketAddress
from spark_kafka_sink.network.transport import PlaintextTransport


def build_plaintext_channel(
    channel_id: str, sock: ByteSocket, address: SocketAddress, *, is_connecting: bool, max_frame_bytes: int
) -> KafkaChannel:
    """Build a channel for security.protocol=PLAINTEXT. Clients and listeners use this as their ChannelBuilder."""
    transport, authenticator = PlaintextTransport(sock), NoAuthentication()
    return KafkaChannel(
        channel_id, address, transport, authenticator, is_connecting=is_connecting, max_frame_bytes=max_frame_bytes
    )


def create_client_channel_builder(security: SecurityConfig, client_id: str) -> ChannelBuilder:
    """Return a function that builds the channels to brokers.

    The certificates and keys are read here, once for all channels. Raise ConfigurationError if they cannot be read.
    """
    if security.tls is None and security.login is None:
        return build_plaintext_channel
    # Import this only if TLS or SASL is used, so that a PLAINTEXT client does not load the ssl module.
    from spark_kafka_sink.network.security.secured_channel_builders import create_secured_client_channel_builder

    return create_secured_client_channel_builder(security, client_id)
