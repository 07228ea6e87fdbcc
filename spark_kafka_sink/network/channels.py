"""The channels of a client, by its security.protocol.

security.protocol   transport   authenticator
PLAINTEXT           plain       none
SSL                 TLS         none: certificates are part of the handshake
SASL_PLAINTEXT      plain       SASL
SASL_SSL            TLS         SASL
"""

from __future__ import annotations

from spark_kafka_sink.network.authenticator import NoAuthentication
from spark_kafka_sink.network.channel import ChannelBuilder, KafkaChannel
from spark_kafka_sink.network.security_config import SecurityConfig
from spark_kafka_sink.network.system import ByteSocket, SocketAddress
from spark_kafka_sink.network.transport import PlaintextTransport


def plaintext_channels(
    channel_id: str, sock: ByteSocket, address: SocketAddress, *, connecting: bool, frame_bytes_max: int
) -> KafkaChannel:
    """The ChannelBuilder of security.protocol=PLAINTEXT, for either side."""
    transport, authenticator = PlaintextTransport(sock), NoAuthentication()
    return KafkaChannel(
        channel_id, address, transport, authenticator, connecting=connecting, frame_bytes_max=frame_bytes_max
    )


def client_channels(security: SecurityConfig, client_id: str) -> ChannelBuilder:
    """Channels to brokers. Certificates and keys are read here, once: ConfigurationError if they cannot be."""
    if security.tls is None and security.login is None:
        return plaintext_channels
    from spark_kafka_sink.network.security.secured_channels import (
        secured_client_channels,  # not for those who need neither
    )

    return secured_client_channels(security, client_id)
