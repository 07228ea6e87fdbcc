"""SaslAuthenticate: exchange one token of a SASL mechanism.

v1: adds the session lifetime (KIP-368)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange, byte_string, int16, int64, nullable_string


@dataclass(kw_only=True, slots=True)
class SaslAuthenticateRequest(Message):
    API_KEY = ApiKey.SASL_AUTHENTICATE
    VERSIONS = VersionRange(0, 2)
    FIRST_FLEXIBLE_VERSION = 2

    auth_bytes: bytes = byte_string("0+")


@dataclass(kw_only=True, slots=True)
class SaslAuthenticateResponse(Message):
    API_KEY = ApiKey.SASL_AUTHENTICATE
    VERSIONS = VersionRange(0, 2)
    FIRST_FLEXIBLE_VERSION = 2

    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+")
    auth_bytes: bytes = byte_string("0+")
    session_lifetime_ms: int = int64("1+", ignorable=True)
