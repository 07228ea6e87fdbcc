"""SaslAuthenticate: reject the request. Valid requests are part of a login, which the network layer handles itself."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(context: RequestContext, request: SaslAuthenticateRequest) -> HandlerResult:
    return SaslAuthenticateResponse(
        error_code=context.find_injected_error_code() or error_codes.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate was sent without SaslHandshake, or to a listener without SASL.",
    )
