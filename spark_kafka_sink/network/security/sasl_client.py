"""The client's side of SASL authentication (KIP-43, KIP-152), and its repetition on a channel in use (KIP-368).

    START --start--> API_VERSIONS --versions--> HANDSHAKE --mechanism accepted--> TOKENS --last answer--> COMPLETE
                                                    ^                                                        |
                                                    +------- start again: the session nears its end ---------+

ApiVersions is sent in version 0, which every broker understands. A broker that has no SaslAuthenticate (before 1.0)
takes the tokens bare, one per frame. When the session is repeated, requests may be unanswered: their answers come in
between; the correlation id distinguishes them from the conversation's.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import AuthenticationError, DecodeError, ListenerMismatchError, NetworkError
from spark_kafka_sink.network.authenticator import ANONYMOUS, MIN_RESERVED_CORRELATION_ID
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import decode_response, encode_request, peek_correlation_id
from spark_kafka_sink.protocol.message import ApiKey, Message, MessageT
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.sasl.mechanism import ClientMechanism

REPEAT_AFTER_SHARE = (0.85, 0.95)
"""Authenticate again after this share of the session: early enough for slow networks, at random so that the channels
of many clients do not do it all at once."""

_LAST_CORRELATION_ID = 2**31 - 1


class _State(Enum):
    START = "start"
    API_VERSIONS = "waiting for ApiVersions"
    HANDSHAKE = "waiting for SaslHandshake"
    TOKENS = "exchanging tokens"
    COMPLETE = "complete"


class SaslClientAuthenticator:
    principal = ANONYMOUS
    failure: AuthenticationError | None = None

    def __init__(
        self,
        mechanism: str,
        begin_conversation: Callable[[], ClientMechanism],
        client_id: str,
        *,
        share: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._mechanism = mechanism
        self._begin_conversation = begin_conversation
        self._conversation: ClientMechanism | None = None
        self._client_id = client_id
        self._share = share
        self._state = _State.START
        self._is_first = True
        self._correlation_id = MIN_RESERVED_CORRELATION_ID - 1
        self._handshake_version = 0
        self._authenticate_version: int | None = None
        self._repeat_ms: float | None = None

    def __repr__(self) -> str:
        return f"<SaslClientAuthenticator {self._mechanism}: {self._state.value}>"

    @property
    def complete(self) -> bool:
        return self._state is _State.COMPLETE

    def due(self, now: float) -> bool:
        return self.complete and self._repeat_ms is not None and now >= self._repeat_ms

    def start(self, now: float) -> Sequence[Buffer] | None:
        if self._state is _State.START:
            self._state = _State.API_VERSIONS
            return self._request(ApiVersionsRequest(), 0)
        self._repeat_ms = None  # the broker says anew how long this login lasts, if not for ever
        with self._words_for_failures():
            return self._shake_hands()

    def claims(self, frame: memoryview, now: float) -> bool:
        if self.complete:
            return False
        return self._is_first or peek_correlation_id(frame) == self._correlation_id

    def step(self, frame: memoryview, now: float) -> Sequence[Buffer] | None:
        with self._words_for_failures():
            if self._state is _State.API_VERSIONS:
                return self._take_versions(frame)
            if self._state is _State.HANDSHAKE:
                return self._take_handshake(frame)
            return self._take_token(frame, now)

    @contextlib.contextmanager
    def _words_for_failures(self) -> Iterator[None]:
        try:
            yield
        except (AuthenticationError, NetworkError):
            raise
        except DecodeError as error:
            raise AuthenticationError(
                f"SASL {self._mechanism}: the answer is none of Kafka's ({error}): is this a SASL listener?"
            ) from error
        except Exception as error:
            # A user's callback may stand behind the conversation, and raise anything; its words may hold a secret,
            # and a traceback, which Spark shows to all, would repeat them.
            raise AuthenticationError(
                f"SASL {self._mechanism}: the credentials could not be had: {type(error).__name__}"
            ) from None

    def _take_versions(self, frame: memoryview) -> Sequence[Buffer]:
        highest = {api.api_key: api.max_version for api in self._response(frame, ApiVersionsResponse, 0).api_keys}
        if ApiKey.SASL_HANDSHAKE not in highest:
            raise AuthenticationError(f"SASL {self._mechanism}: the broker does not know SaslHandshake")
        self._handshake_version = min(highest[ApiKey.SASL_HANDSHAKE], SaslHandshakeRequest.VERSIONS.max)
        if ApiKey.SASL_AUTHENTICATE in highest and self._handshake_version > 0:
            version = highest[ApiKey.SASL_AUTHENTICATE]
            self._authenticate_version = min(version, SaslAuthenticateRequest.VERSIONS.max)
        else:
            # Version 1 of the handshake promises tokens in SaslAuthenticate requests.
            self._handshake_version = 0
        return self._shake_hands()

    def _shake_hands(self) -> Sequence[Buffer]:
        self._state = _State.HANDSHAKE
        self._conversation = self._begin_conversation()
        return self._request(SaslHandshakeRequest(mechanism=self._mechanism), self._handshake_version)

    def _take_handshake(self, frame: memoryview) -> Sequence[Buffer]:
        response = self._response(frame, SaslHandshakeResponse, self._handshake_version)
        if response.error_code == error_codes.UNSUPPORTED_SASL_MECHANISM:
            offered = sanitize(", ".join(response.mechanisms)) or "none"
            raise ListenerMismatchError(
                f"SASL {self._mechanism}: the listener does not offer this mechanism, it offers {offered}: "
                "compare sasl.mechanism"
            )
        if response.error_code == error_codes.ILLEGAL_SASL_STATE:
            raise ListenerMismatchError(
                f"SASL {self._mechanism}: the listener expects no SASL: compare security.protocol and the port"
            )
        if response.error_code != error_codes.NONE:
            raise AuthenticationError(
                f"SASL {self._mechanism}: {_name(response.error_code)} in answer to the handshake"
            )
        assert self._conversation is not None
        self._state = _State.TOKENS
        return self._token(self._conversation.start())

    def _take_token(self, frame: memoryview, now: float) -> Sequence[Buffer] | None:
        assert self._conversation is not None
        challenge = self._challenge(frame, now)
        token = None if self._conversation.complete else self._conversation.step(challenge)
        if token is not None:
            if self._authenticate_version is None and self._conversation.complete:
                # A bare last token may have no answer.
                self._finish()
            return self._token(token)
        if not self._conversation.complete:
            raise AuthenticationError(f"SASL {self._mechanism}: the broker ended the conversation before its end")
        self._finish()
        return None

    def _challenge(self, frame: memoryview, now: float) -> bytes:
        if self._authenticate_version is None:
            return bytes(frame)
        response = self._response(frame, SaslAuthenticateResponse, self._authenticate_version)
        if response.error_code != error_codes.NONE:
            reason = sanitize(response.error_message) or _name(response.error_code)
            raise AuthenticationError(f"SASL {self._mechanism}: the broker refused: {reason}")
        if response.session_lifetime_ms > 0:
            self._repeat_ms = now + response.session_lifetime_ms * self._share(*REPEAT_AFTER_SHARE)
        return bytes(response.auth_bytes)

    def _finish(self) -> None:
        self._state = _State.COMPLETE
        self._is_first = False
        self._conversation = None

    def _token(self, token: bytes) -> Sequence[Buffer]:
        if self._authenticate_version is None:
            return [token]
        return self._request(SaslAuthenticateRequest(auth_bytes=token), self._authenticate_version)

    def _request(self, message: Message, version: int) -> Sequence[Buffer]:
        self._correlation_id += 1
        if self._correlation_id > _LAST_CORRELATION_ID:
            self._correlation_id = MIN_RESERVED_CORRELATION_ID
        return encode_request(message, version, self._correlation_id, self._client_id)

    def _response(self, frame: memoryview, response_type: type[MessageT], version: int) -> MessageT:
        correlation_id, response = decode_response(frame, response_type, version)
        if correlation_id != self._correlation_id:
            raise DecodeError(f"correlation id {correlation_id} in answer to {self._correlation_id}")
        return response


def _name(code: int) -> str:
    return error_codes.lookup_error_code(code).name
