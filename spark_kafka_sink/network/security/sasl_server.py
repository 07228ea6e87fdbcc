"""SaslServerAuthenticator: the listener's side of SASL authentication, for the embedded broker.

    HANDSHAKE --SaslHandshake--> TOKEN_EXCHANGE --last token--> COMPLETE
    COMPLETE --SaslHandshake, if sessions expire--> TOKEN_EXCHANGE

Before the handshake, a client may only send ApiVersions.

A session expires if `connections_max_reauth_ms` is set or if its credential expires. The response to the last token
contains the lifetime of the session. Before it ends, the client must re-authenticate with the same mechanism and
principal. After it has ended, any frame other than a SaslHandshake closes the channel.

When a client is rejected, the error response is written before the channel is closed, so that the client sees an error
and not a timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from spark_kafka_sink.errors import AuthenticationError, DecodeError, UnsupportedVersionError
from spark_kafka_sink.network.authenticator import ANONYMOUS
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import RequestHeader, decode_request, decode_request_header, encode_response
from spark_kafka_sink.protocol.message import ApiKey, Message, MessageT
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.sasl.mechanism import ServerMechanism


class _State(Enum):
    HANDSHAKE = "waiting for SaslHandshake"
    TOKEN_EXCHANGE = "exchanging tokens"
    COMPLETE = "complete"


class SaslServerAuthenticator:
    """Authenticates the client of one channel; implements Authenticator.

    `mechanisms`: a factory for each supported mechanism, by the mechanism's name.
    `handle_api_versions`: returns the response to an ApiVersions request.
    `connections_max_reauth_ms`: the maximum lifetime of a session; 0 means no limit.
    """

    def __init__(
        self,
        mechanisms: Mapping[str, Callable[[], ServerMechanism]],
        handle_api_versions: Callable[[memoryview], Sequence[Buffer]],
        *,
        connections_max_reauth_ms: float = 0,
    ) -> None:
        self.failure: AuthenticationError | None = None
        """The reason why the client was rejected; None if it was not. The channel raises it after the response."""
        self.principal = ANONYMOUS
        """The client's name, set when a token exchange is complete."""
        self._mechanism_factories = mechanisms
        self._handle_api_versions = handle_api_versions
        self._max_session_lifetime_ms = connections_max_reauth_ms
        self._state = _State.HANDSHAKE
        self._mechanism_name: str | None = None  # chosen in the first handshake
        self._server_mechanism: ServerMechanism | None = None  # the mechanism of the current or last token exchange
        self._uses_authenticate_requests = True  # False if tokens are sent without a request header
        self._session_expires_ms: float | None = None  # None if the session does not expire

    def __repr__(self) -> str:
        return f"<SaslServerAuthenticator {self._mechanism_name}: {self._state.value}>"

    @property
    def is_complete(self) -> bool:
        return self._state is _State.COMPLETE

    def is_reauthentication_due(self, now_ms: float) -> bool:
        return False

    def start(self, now_ms: float) -> Sequence[Buffer] | None:
        return None

    def is_authentication_frame(self, frame: memoryview, now_ms: float) -> bool:
        if not self.is_complete:
            return True
        if self._session_expires_ms is None:
            return False
        if int.from_bytes(frame[:2], "big") == ApiKey.SASL_HANDSHAKE:
            return True
        if now_ms > self._session_expires_ms:
            raise AuthenticationError(f"the session of {self.principal} has expired and was not renewed")
        return False

    def handle_frame(self, frame: memoryview, now_ms: float) -> Sequence[Buffer] | None:
        if self.is_complete:
            # The client must be re-authenticating: once authentication is complete, is_authentication_frame accepts
            # only a SaslHandshake.
            self._state = _State.HANDSHAKE
        try:
            # Raw tokens have no request header, so handle them before decoding one.
            if self._state is _State.TOKEN_EXCHANGE and not self._uses_authenticate_requests:
                return [self._process_token(bytes(frame))]
            header, _ = decode_request_header(frame)
            if self._state is _State.TOKEN_EXCHANGE:
                return self._handle_authenticate(header, frame, now_ms)
            is_first_authentication = self.principal == ANONYMOUS
            if header.api_key == ApiKey.API_VERSIONS and is_first_authentication:
                return self._handle_api_versions(frame)
            return self._handle_sasl_handshake(header, frame)
        except (DecodeError, UnsupportedVersionError) as error:
            raise AuthenticationError(f"the client sent an invalid frame during authentication: {error}") from error

    def _handle_sasl_handshake(self, header: RequestHeader, frame: memoryview) -> Sequence[Buffer]:
        """Start the exchange. A client that re-authenticates must keep its mechanism."""
        request = _decode(header, frame, SaslHandshakeRequest)
        mechanism = request.mechanism
        allowed_mechanisms = (
            [self._mechanism_name] if self._mechanism_name is not None else list(self._mechanism_factories)
        )
        if mechanism not in allowed_mechanisms:
            self.failure = AuthenticationError(f"the SASL mechanism {mechanism!r} is not supported")
            response = SaslHandshakeResponse(
                error_code=error_codes.UNSUPPORTED_SASL_MECHANISM, mechanisms=allowed_mechanisms
            )
            return _encode(header, response)
        self._mechanism_name = mechanism
        self._server_mechanism = self._mechanism_factories[mechanism]()
        self._uses_authenticate_requests = header.api_version >= 1
        self._state = _State.TOKEN_EXCHANGE
        return _encode(header, SaslHandshakeResponse(mechanisms=list(self._mechanism_factories)))

    def _handle_authenticate(self, header: RequestHeader, frame: memoryview, now_ms: float) -> Sequence[Buffer]:
        """Process a token. If the client is rejected, set `failure` and return the error response."""
        request = _decode(header, frame, SaslAuthenticateRequest)
        try:
            token = self._process_token(request.auth_bytes)
        except AuthenticationError as error:
            self.failure = error
            code = error_codes.SASL_AUTHENTICATION_FAILED
            return _encode(header, SaslAuthenticateResponse(error_code=code, error_message=str(error)))
        lifetime_ms = self._start_session(now_ms) if self.is_complete else 0
        return _encode(header, SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms))

    def _process_token(self, token: bytes) -> bytes:
        """Process a token from the client and return the token to send.

        Raise AuthenticationError if the client is rejected.
        """
        server_mechanism = self._server_mechanism
        assert server_mechanism is not None
        response = server_mechanism.step(token)
        if server_mechanism.is_complete:
            if self.principal not in (ANONYMOUS, server_mechanism.principal):
                raise AuthenticationError("the principal cannot change when a session is renewed")
            self.principal = server_mechanism.principal
            self._state = _State.COMPLETE
        return response

    def _start_session(self, now_ms: float) -> int:
        """Set the session's expiry time. Return its lifetime in milliseconds, or 0 if it never expires.

        If the credential has just expired, the lifetime is also 0, but the session does expire: at once.
        """
        assert self._server_mechanism is not None
        limits_ms = []
        if self._max_session_lifetime_ms > 0:
            limits_ms.append(self._max_session_lifetime_ms)
        if self._server_mechanism.credential_lifetime_ms is not None:
            limits_ms.append(self._server_mechanism.credential_lifetime_ms)
        if not limits_ms:
            self._session_expires_ms = None
            return 0
        lifetime_ms = max(0, int(min(limits_ms)))
        self._session_expires_ms = now_ms + lifetime_ms
        return lifetime_ms


def _decode(header: RequestHeader, frame: memoryview, request_type: type[MessageT]) -> MessageT:
    """Decode a request of `request_type`. Reject any other request without parsing it."""
    if header.api_key != request_type.API_KEY:
        raise AuthenticationError(f"the client sent a request of type {header.api_key} during authentication")
    _, request = decode_request(frame)
    assert isinstance(request, request_type)
    return request


def _encode(header: RequestHeader, response: Message) -> Sequence[Buffer]:
    return encode_response(response, header.api_version, header.correlation_id)
