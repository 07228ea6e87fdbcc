"""The listener's side of SASL authentication: what the embedded broker does before it takes requests.

    HANDSHAKE --SaslHandshake--> TOKENS --last token--> COMPLETE --SaslHandshake, if sessions end--> TOKENS ...

Before the handshake a client may send ApiVersions, and nothing else. With `connections_max_reauth_ms` a session has an
end: the answer says when, and the client must authenticate again before it, by the same mechanism and as the same
principal. A frame that comes later, and is no handshake, ends the channel.

A refusal is an answer first and the end of the channel after it, so that a client sees an error and not a timeout.
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
    TOKENS = "exchanging tokens"
    COMPLETE = "complete"


class SaslServerAuthenticator:
    def __init__(
        self,
        mechanisms: Mapping[str, Callable[[], ServerMechanism]],
        answer_api_versions: Callable[[memoryview], Sequence[Buffer]],
        *,
        connections_max_reauth_ms: float = 0,
    ) -> None:
        self.failure: AuthenticationError | None = None
        self.principal = ANONYMOUS
        self._mechanisms = mechanisms
        self._answer_api_versions = answer_api_versions
        self._max_reauth_ms = connections_max_reauth_ms
        self._state = _State.HANDSHAKE
        self._mechanism: str | None = None
        self._conversation: ServerMechanism | None = None
        self._has_headers = True
        self._session_end_ms: float | None = None

    def __repr__(self) -> str:
        return f"<SaslServerAuthenticator {self._mechanism}: {self._state.value}>"

    @property
    def complete(self) -> bool:
        return self._state is _State.COMPLETE

    def due(self, now: float) -> bool:
        return False

    def start(self, now: float) -> Sequence[Buffer] | None:
        return None

    def claims(self, frame: memoryview, now: float) -> bool:
        if not self.complete:
            return True
        if self._session_end_ms is None:
            return False
        if int.from_bytes(frame[:2], "big") == ApiKey.SASL_HANDSHAKE:
            self._state = _State.HANDSHAKE
            return True
        if now > self._session_end_ms:
            raise AuthenticationError(f"the session of {self.principal} has ended and was not renewed")
        return False

    def step(self, frame: memoryview, now: float) -> Sequence[Buffer] | None:
        try:
            if self._state is _State.TOKENS and not self._has_headers:
                return [self._take_token(bytes(frame))]
            header, _ = decode_request_header(frame)
            if self._state is _State.TOKENS:
                return self._take_authenticate(header, frame, now)
            if header.api_key == ApiKey.API_VERSIONS and self.principal == ANONYMOUS:
                return self._answer_api_versions(frame)
            return self._take_handshake(header, frame)
        except (DecodeError, UnsupportedVersionError) as error:
            raise AuthenticationError(f"not a frame of a SASL authentication: {error}") from error

    def _take_handshake(self, header: RequestHeader, frame: memoryview) -> Sequence[Buffer]:
        request = _decode(header, frame, SaslHandshakeRequest)
        name = request.mechanism
        allowed = [self._mechanism] if self._mechanism is not None else list(self._mechanisms)
        if name not in allowed:
            self.failure = AuthenticationError(f"SASL mechanism {name!r} is not offered")
            refusal = SaslHandshakeResponse(error_code=error_codes.UNSUPPORTED_SASL_MECHANISM, mechanisms=allowed)
            return _answer(header, refusal)
        self._mechanism = name
        self._conversation = self._mechanisms[name]()
        self._has_headers = header.api_version >= 1
        self._state = _State.TOKENS
        return _answer(header, SaslHandshakeResponse(mechanisms=list(self._mechanisms)))

    def _take_authenticate(self, header: RequestHeader, frame: memoryview, now: float) -> Sequence[Buffer]:
        request = _decode(header, frame, SaslAuthenticateRequest)
        try:
            token = self._take_token(request.auth_bytes)
        except AuthenticationError as error:
            self.failure = error
            code = error_codes.SASL_AUTHENTICATION_FAILED
            return _answer(header, SaslAuthenticateResponse(error_code=code, error_message=str(error)))
        lifetime_ms = self._session_lifetime_ms(now) if self.complete else 0
        return _answer(header, SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms))

    def _take_token(self, token: bytes) -> bytes:
        conversation = self._conversation
        assert conversation is not None
        answer = conversation.step(token)
        if conversation.complete:
            if self.principal not in (ANONYMOUS, conversation.principal):
                raise AuthenticationError("the principal cannot change when a session is renewed")
            self.principal = conversation.principal
            self._state = _State.COMPLETE
        return answer

    def _session_lifetime_ms(self, now: float) -> int:
        assert self._conversation is not None
        limits = [
            limit
            for limit in (self._max_reauth_ms or None, self._conversation.credential_lifetime_ms)
            if limit is not None
        ]
        if not limits:
            self._session_end_ms = None
            return 0
        lifetime_ms = max(0, int(min(limits)))
        self._session_end_ms = now + lifetime_ms
        return lifetime_ms


def _decode(header: RequestHeader, frame: memoryview, expected: type[MessageT]) -> MessageT:
    """Nothing but what is expected is even parsed: the client is a stranger still."""
    if header.api_key != expected.API_KEY:
        raise AuthenticationError(f"a request of type {header.api_key} came before authentication")
    _, request = decode_request(frame)
    assert isinstance(request, expected)
    return request


def _answer(header: RequestHeader, response: Message) -> Sequence[Buffer]:
    return encode_response(response, header.api_version, header.correlation_id)
