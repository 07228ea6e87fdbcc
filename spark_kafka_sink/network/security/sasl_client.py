"""SaslClientAuthenticator: the client's side of SASL authentication (KIP-43, KIP-152) and re-authentication (KIP-368).

    START --start--> API_VERSIONS --versions--> HANDSHAKE --mechanism--> TOKEN_EXCHANGE --last token--> COMPLETE
                                                    ^                                                       |
                                                    +------ start, because the session expires soon --------+

ApiVersions is sent in version 0, which every broker supports. A broker without SaslAuthenticate (before 1.0) receives
the tokens without request headers, one per frame. During re-authentication, responses to earlier requests may still
arrive. Their correlation ids distinguish them from the responses of the authentication.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import (
    AuthenticationError,
    DecodeError,
    DisconnectedError,
    ListenerMismatchError,
    NetworkError,
)
from spark_kafka_sink.network.authenticator import ANONYMOUS, MIN_RESERVED_CORRELATION_ID
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import decode_response, encode_request, peek_correlation_id
from spark_kafka_sink.protocol.message import ApiKey, Message, MessageT
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.sasl.mechanism import ClientMechanism

REAUTHENTICATION_FRACTION = (0.85, 0.95)
"""The range of the random fraction of the session lifetime after which the client re-authenticates.

The rest of the lifetime is a reserve for slow networks. The fraction is random so that many channels do not
re-authenticate at the same time.
"""

_MAX_CORRELATION_ID = 2**31 - 1


class _State(Enum):
    START = "start"
    API_VERSIONS = "waiting for ApiVersions"
    HANDSHAKE = "waiting for SaslHandshake"
    TOKEN_EXCHANGE = "exchanging tokens"
    COMPLETE = "complete"


class SaslClientAuthenticator:
    """Authenticates a client to a broker; implements Authenticator.

    `create_sasl_client`: called for each authentication; may block to request a token.
    `choose_reauthentication_fraction`: returns a number in REAUTHENTICATION_FRACTION, the range that it is called with.
    """

    principal = ANONYMOUS
    failure: AuthenticationError | None = None

    def __init__(
        self,
        mechanism: str,
        create_sasl_client: Callable[[], ClientMechanism],
        client_id: str,
        *,
        choose_reauthentication_fraction: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._mechanism_name = mechanism
        self._create_sasl_client = create_sasl_client
        self._sasl_client: ClientMechanism | None = None
        self._client_id = client_id
        self._choose_reauthentication_fraction = choose_reauthentication_fraction
        self._state = _State.START
        self._has_authenticated = False  # whether the first authentication of the connection has succeeded
        self._correlation_id = MIN_RESERVED_CORRELATION_ID - 1  # of the last request; incremented before each request
        self._handshake_version = 0
        self._authenticate_version: int | None = None
        """The version of SaslAuthenticate; None if tokens are sent without request headers."""
        self._reauthentication_due_ms: float | None = None
        """When to re-authenticate; None if the broker does not limit the lifetime of the session."""

    def __repr__(self) -> str:
        return f"<SaslClientAuthenticator {self._mechanism_name}: {self._state.value}>"

    @property
    def is_complete(self) -> bool:
        return self._state is _State.COMPLETE

    def is_reauthentication_due(self, now_ms: float) -> bool:
        return (
            self.is_complete and self._reauthentication_due_ms is not None and now_ms >= self._reauthentication_due_ms
        )

    def start(self, now_ms: float) -> Sequence[Buffer] | None:
        if self._state is _State.START:
            self._state = _State.API_VERSIONS
            return self._encode_request(ApiVersionsRequest(), version=0)
        self._reauthentication_due_ms = None  # set again if the broker limits the lifetime of the new session
        with self._convert_errors():
            return self._send_handshake()

    def is_authentication_frame(self, frame: memoryview, now_ms: float) -> bool:
        if self.is_complete:
            return False
        return not self._has_authenticated or peek_correlation_id(frame) == self._correlation_id

    def handle_frame(self, frame: memoryview, now_ms: float) -> Sequence[Buffer] | None:
        with self._convert_errors():
            if self._state is _State.API_VERSIONS:
                return self._handle_api_versions(frame)
            if self._state is _State.HANDSHAKE:
                return self._handle_sasl_handshake(frame)
            return self._handle_token(frame, now_ms)

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert all errors but NetworkErrors to AuthenticationErrors without secrets."""
        try:
            yield
        except (AuthenticationError, NetworkError):
            raise
        except DecodeError as error:
            raise AuthenticationError(
                f"SASL {self._mechanism_name}: the peer sent an invalid response ({error}): "
                "check that the port is that of a SASL listener"
            ) from error
        except Exception as error:
            # The user's token callback may raise any error. Its message may contain a secret, and Spark shows
            # tracebacks to all users, so neither the message nor the traceback is kept.
            raise AuthenticationError(
                f"SASL {self._mechanism_name}: could not obtain the credentials: {type(error).__name__}"
            ) from None

    def _handle_api_versions(self, frame: memoryview) -> Sequence[Buffer]:
        """Choose the versions of the SASL requests and start the handshake.

        Raise DisconnectedError if the broker rejects the request, because it has not rejected the credentials.
        """
        response = self._decode_response(frame, ApiVersionsResponse, version=0)
        if response.error_code != error_codes.NONE:
            raise DisconnectedError(
                f"SASL {self._mechanism_name}: the broker rejected ApiVersions: {_find_error_name(response.error_code)}"
            )
        max_versions = {api.api_key: api.max_version for api in response.api_keys}
        if ApiKey.SASL_HANDSHAKE not in max_versions:
            raise AuthenticationError(f"SASL {self._mechanism_name}: the broker does not support SaslHandshake")
        self._handshake_version = min(max_versions[ApiKey.SASL_HANDSHAKE], SaslHandshakeRequest.VERSIONS.max)
        if ApiKey.SASL_AUTHENTICATE in max_versions and self._handshake_version > 0:
            max_version = max_versions[ApiKey.SASL_AUTHENTICATE]
            self._authenticate_version = min(max_version, SaslAuthenticateRequest.VERSIONS.max)
        else:
            # Version 1 of SaslHandshake requires that tokens are sent in SaslAuthenticate requests.
            self._handshake_version = 0
        return self._send_handshake()

    def _send_handshake(self) -> Sequence[Buffer]:
        self._state = _State.HANDSHAKE
        self._sasl_client = self._create_sasl_client()
        return self._encode_request(SaslHandshakeRequest(mechanism=self._mechanism_name), self._handshake_version)

    def _handle_sasl_handshake(self, frame: memoryview) -> Sequence[Buffer]:
        """Send the first token if the broker accepts the mechanism. Raise AuthenticationError if it does not."""
        response = self._decode_response(frame, SaslHandshakeResponse, self._handshake_version)
        if response.error_code == error_codes.UNSUPPORTED_SASL_MECHANISM:
            supported_mechanisms = sanitize(", ".join(response.mechanisms)) or "none"
            raise ListenerMismatchError(
                f"SASL {self._mechanism_name}: the listener does not support this mechanism. It supports "
                f"{supported_mechanisms}: change sasl.mechanism"
            )
        if response.error_code == error_codes.ILLEGAL_SASL_STATE:
            raise ListenerMismatchError(
                f"SASL {self._mechanism_name}: the listener does not use SASL: check that security.protocol matches "
                "the port"
            )
        if response.error_code != error_codes.NONE:
            raise AuthenticationError(
                f"SASL {self._mechanism_name}: the broker rejected the handshake: "
                f"{_find_error_name(response.error_code)}"
            )
        assert self._sasl_client is not None
        self._state = _State.TOKEN_EXCHANGE
        return self._encode_token(self._sasl_client.start())

    def _handle_token(self, frame: memoryview, now_ms: float) -> Sequence[Buffer] | None:
        """Pass the broker's token to the mechanism. Return the next frame, or None if there is nothing more to send."""
        assert self._sasl_client is not None
        challenge = self._decode_challenge(frame, now_ms)
        token = None if self._sasl_client.is_complete else self._sasl_client.step(challenge)
        if token is not None:
            sends_raw_tokens = self._authenticate_version is None
            if sends_raw_tokens and self._sasl_client.is_complete:
                # Without request headers, the broker might not respond to the last token, so do not wait for it.
                self._finish()
            return self._encode_token(token)
        if not self._sasl_client.is_complete:
            raise AuthenticationError(f"SASL {self._mechanism_name}: the broker ended the authentication early")
        self._finish()
        return None

    def _decode_challenge(self, frame: memoryview, now_ms: float) -> bytes:
        """Return the broker's token. Raise AuthenticationError if the broker rejected the login.

        If the broker limits the lifetime of the session, set when to re-authenticate.
        """
        if self._authenticate_version is None:
            return bytes(frame)
        response = self._decode_response(frame, SaslAuthenticateResponse, self._authenticate_version)
        if response.error_code != error_codes.NONE:
            reason = sanitize(response.error_message) or _find_error_name(response.error_code)
            raise AuthenticationError(f"SASL {self._mechanism_name}: the broker rejected the login: {reason}")
        if response.session_lifetime_ms > 0:
            fraction = self._choose_reauthentication_fraction(*REAUTHENTICATION_FRACTION)
            self._reauthentication_due_ms = now_ms + response.session_lifetime_ms * fraction
        return bytes(response.auth_bytes)

    def _finish(self) -> None:
        self._state = _State.COMPLETE
        self._has_authenticated = True
        self._sasl_client = None

    def _encode_token(self, token: bytes) -> Sequence[Buffer]:
        if self._authenticate_version is None:
            return [token]
        return self._encode_request(SaslAuthenticateRequest(auth_bytes=token), self._authenticate_version)

    def _encode_request(self, message: Message, version: int) -> Sequence[Buffer]:
        self._correlation_id += 1
        if self._correlation_id > _MAX_CORRELATION_ID:
            self._correlation_id = MIN_RESERVED_CORRELATION_ID
        return encode_request(message, version, self._correlation_id, self._client_id)

    def _decode_response(self, frame: memoryview, response_type: type[MessageT], version: int) -> MessageT:
        """Decode a response. Raise DecodeError if it belongs to a request other than the last one."""
        correlation_id, response = decode_response(frame, response_type, version)
        if correlation_id != self._correlation_id:
            raise DecodeError(f"the correlation id is {correlation_id}, not {self._correlation_id}")
        return response


def _find_error_name(code: int) -> str:
    return error_codes.lookup_error_code(code).name
