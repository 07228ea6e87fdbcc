"""SaslAuthenticate, where it has no place: the network takes those that belong to a handshake, before any handler."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(context: RequestContext, request: SaslAuthenticateRequest) -> HandlerResult:
    return SaslAuthenticateResponse(
        error_code=context.injected() or error_codes.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate came without a handshake, or the listener does not authenticate",
    )
