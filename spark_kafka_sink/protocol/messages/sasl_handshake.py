"""SaslHandshake: select a SASL mechanism.

v1: sends tokens in SaslAuthenticate requests, rather than in frames without a header (KIP-152)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange, array, int16, string


@dataclass(kw_only=True, slots=True)
class SaslHandshakeRequest(Message):
    API_KEY = ApiKey.SASL_HANDSHAKE
    VERSIONS = VersionRange(0, 1)
    FIRST_FLEXIBLE_VERSION = None

    mechanism: str = string("0+")


@dataclass(kw_only=True, slots=True)
class SaslHandshakeResponse(Message):
    API_KEY = ApiKey.SASL_HANDSHAKE
    VERSIONS = VersionRange(0, 1)
    FIRST_FLEXIBLE_VERSION = None

    error_code: int = int16("0+")
    mechanisms: list[str] = array("string", "0+")
