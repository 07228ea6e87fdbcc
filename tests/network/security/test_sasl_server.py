"""The listener side of SASL: behind a Selector, and its authenticator frame by frame."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import decode_request_header, encode_request
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.network.peers import poll_until
from tests.network.security.sasl_peers import (
    PasswordCheck,
    ScriptedClient,
    create_direct_client,
    serve,
)


def test_listener_accepts_client_and_returns_its_requests() -> None:
    client = ScriptedClient(
        (ApiVersionsRequest(), 0),
        (SaslHandshakeRequest(mechanism="PASSWORD"), 1),
        (SaslAuthenticateRequest(auth_bytes=b"right-secret"), 2),
        (MetadataRequest(), 1),
    )
    selector = serve(client)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert decode_request_header(selector.completed_receives[0].payload)[0].api_key == ApiKey.METADATA
    channel = selector.channel("c")
    assert channel is not None
    assert channel.principal == "alice"


def test_listener_sends_error_before_it_closes_connection() -> None:
    client = ScriptedClient(
        (SaslHandshakeRequest(mechanism="PASSWORD"), 1), (SaslAuthenticateRequest(auth_bytes=b"wrong"), 1)
    )
    selector = serve(client)
    poll_until(selector, lambda: bool(selector.disconnected))
    assert selector.disconnected["c"].has_failed_authentication
    selector.poll(10)
    response = SaslAuthenticateResponse.decode(client.frames[-1][4:], 1)
    assert response.error_code == error_codes.SASL_AUTHENTICATION_FAILED
    assert client.closed == 1


def test_unauthenticated_client_may_only_request_api_versions() -> None:
    assert create_direct_client().request(ApiVersionsRequest(), 0)
    with pytest.raises(AuthenticationError, match="type 3 during authentication"):
        create_direct_client().request(MetadataRequest(), 1)


def test_rejects_token_before_handshake() -> None:
    with pytest.raises(AuthenticationError):
        create_direct_client().request(SaslAuthenticateRequest(auth_bytes=b"right-secret"), 1)


@pytest.mark.parametrize("garbage", [b"", b"\0", b"\xff" * 40, b"\0\x11\0\x09\0\0\0\0\xff\xff"])
def test_rejects_invalid_authentication_frame(garbage: bytes) -> None:
    with pytest.raises(AuthenticationError):
        create_direct_client().authenticator.handle_frame(memoryview(garbage), 0.0)


def test_sends_error_response_before_authentication_failure() -> None:
    client = create_direct_client()
    response = client.log_in(b"wrong")
    assert response.error_code == error_codes.SASL_AUTHENTICATION_FAILED
    assert not client.authenticator.is_complete
    assert isinstance(client.authenticator.failure, AuthenticationError)


def test_tells_client_session_lifetime_and_disconnects_after_it() -> None:
    client = create_direct_client(connections_max_reauth_ms=500)
    assert client.log_in().session_lifetime_ms == 500
    request = memoryview(b"".join(encode_request(MetadataRequest(), 1, 1, "x")))
    assert not client.authenticator.is_authentication_frame(request, 499.0)
    with pytest.raises(AuthenticationError, match="has expired"):
        client.authenticator.is_authentication_frame(request, 501.0)


def test_credential_lifetime_shortens_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PasswordCheck, "credential_lifetime_ms", 200.0)
    assert create_direct_client(connections_max_reauth_ms=500).log_in().session_lifetime_ms == 200
    assert create_direct_client().log_in().session_lifetime_ms == 200


def test_rejects_other_mechanism_or_principal_in_reauthentication(monkeypatch: pytest.MonkeyPatch) -> None:
    client = create_direct_client(connections_max_reauth_ms=500)
    client.log_in()
    client.request(SaslHandshakeRequest(mechanism="MUTUAL"), 1)
    assert client.authenticator.failure is not None
    client = create_direct_client(connections_max_reauth_ms=500)
    client.log_in()
    monkeypatch.setattr(PasswordCheck, "principal", "mallory")
    assert client.log_in().error_code == error_codes.SASL_AUTHENTICATION_FAILED


def test_handshake_is_ordinary_request_without_session_lifetime() -> None:
    client = create_direct_client()
    client.log_in()
    request = memoryview(b"".join(encode_request(SaslHandshakeRequest(mechanism="PASSWORD"), 1, 1, "x")))
    assert not client.authenticator.is_authentication_frame(request, 1e9)
