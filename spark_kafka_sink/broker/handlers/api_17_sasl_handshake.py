"""SaslHandshake: reject the request. Valid handshakes are completed by the network layer and never get here."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(context: RequestContext, request: SaslHandshakeRequest) -> HandlerResult:
    return SaslHandshakeResponse(error_code=context.find_injected_error_code() or error_codes.ILLEGAL_SASL_STATE)
