"""The channels of a client, by its security.protocol.

security.protocol   transport   authenticator
PLAINTEXT           plain       none
SSL                 TLS         none: certificates are part of the handshake
SASL_PLAINTEXT      plain       SASL
SASL_SSL            TLS         SASL
"""

from __future__ import annotations

from spark_kafka_sink.network.channel import ChannelBuilder, plaintext_channels
from spark_kafka_sink.network.security.config import SecurityConfig


def client_channels(security: SecurityConfig, client_id: str) -> ChannelBuilder:
    """Channels to brokers. Certificates and keys are read here, once: ConfigurationError if they cannot be."""
    if security.tls is None and security.login is None:
        return plaintext_channels
    from spark_kafka_sink.network.security.channels import secured_client_channels  # not for those who need neither

    return secured_client_channels(security, client_id)
