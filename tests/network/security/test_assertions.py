"""Logins without a secret: assertions signed with a key or read from a file, the jwt-bearer grant, and token files."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.errors import AuthenticationError, ConfigurationError
from spark_kafka_sink.network.security import assertions
from spark_kafka_sink.network.security.assertions import create_assertion, read_token_file
from spark_kafka_sink.network.security.oidc import TokenSource
from spark_kafka_sink.network.security_config import SecurityConfig, parse_security_config
from spark_kafka_sink.sasl.oauthbearer import build_unsecured_token
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.network.security.oidc_provider import CLIENT, Provider, oidc_provider
from tests.network.security.security_cases import OAUTH, OAUTH_OPTION_PREFIX, PACKAGE

NOW_S = 1_800_000_000.0
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SMALL_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC = ec.generate_private_key(ec.SECP256R1())


def pem(key: Any, passphrase: str | None = None) -> bytes:
    encryption: Any = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase.encode())
    data: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    return data


@pytest.fixture
def provider() -> Iterator[Provider]:
    with oidc_provider(RSA.public_key(), EC.public_key(), now_s=NOW_S) as provider:
        yield provider


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.pem"
    path.write_bytes(pem(RSA))
    return path


def configured(provider: Provider, **options: object) -> SecurityConfig:
    own = {OAUTH_OPTION_PREFIX + name.replace("_", "."): value for name, value in options.items()}
    named = {
        OAUTH_OPTION_PREFIX + "token.endpoint.url": provider.url,
        OAUTH_OPTION_PREFIX + "client.credentials.client.id": CLIENT,
    }
    return parse_security_config(OAUTH | named | own)


def source(config: SecurityConfig, now_s: float = NOW_S) -> TokenSource:
    assert config.login is not None
    assert config.login.oidc is not None
    return TokenSource(config.login.oidc, now_s=lambda: now_s, unix_time_s=lambda: now_s)


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256")])
def test_client_authenticates_with_key_without_sending_secret(
    provider: Provider, key_file: Path, key: Any, algorithm: str
) -> None:
    key_file.write_bytes(pem(key))
    config = configured(
        provider, assertion_private_key_file=str(key_file), assertion_algorithm=algorithm, scope="kafka"
    )
    assert source(config).get_token() == "token-1"
    (form,) = provider.requests
    assert set(form) == {"grant_type", "client_assertion_type", "client_assertion", "client_id", "scope"}
    assert (form["grant_type"], form["client_id"], form["scope"]) == ("client_credentials", CLIENT, "kafka")
    assert "Authorization" not in provider.headers[0]
    assert provider.claims == {
        "iss": CLIENT,
        "sub": CLIENT,
        "aud": provider.url,
        "iat": int(NOW_S),
        "nbf": int(NOW_S) - 60,
        "exp": int(NOW_S) + 300,
    }


def test_assertion_takes_precedence_over_secret(provider: Provider, key_file: Path) -> None:
    config = configured(provider, assertion_private_key_file=str(key_file), client_credentials_client_secret="hush-1")
    source(config).get_token()
    assert "client_assertion" in provider.requests[0]
    assert b"hush" not in pickle.dumps(config)


def test_exchanges_assertion_for_token_with_jwt_bearer_grant(provider: Provider, key_file: Path) -> None:
    config = parse_security_config(
        OAUTH
        | {
            OAUTH_OPTION_PREFIX + "token.endpoint.url": provider.url,
            OAUTH_OPTION_PREFIX + "jwt.retriever.class": f"{PACKAGE}.oauthbearer.JwtBearerJwtRetriever",
            OAUTH_OPTION_PREFIX + "assertion.private.key.file": str(key_file),
            OAUTH_OPTION_PREFIX + "assertion.claim.iss": CLIENT,
            OAUTH_OPTION_PREFIX + "scope": "kafka",
        }
    )
    assert source(config).get_token() == "token-1"
    (form,) = provider.requests
    assert set(form) == {"grant_type", "assertion", "scope"}
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"


def test_creates_new_assertion_id_for_each_request(provider: Provider, key_file: Path) -> None:
    provider.requires_jti = True
    tokens = [
        source(configured(provider, assertion_private_key_file=str(key_file), assertion_claim_jti_include="true"))
        for _ in range(2)
    ]
    assert [token.get_token() for token in tokens] == ["token-1", "token-2"]
    with pytest.raises(AuthenticationError, match="status 401: invalid_grant"):
        source(configured(provider, assertion_private_key_file=str(key_file))).get_token()
    first_assertion = provider.requests[0]["client_assertion"]
    (key_file.parent / "assertion.jwt").write_text(first_assertion)
    with pytest.raises(AuthenticationError, match="invalid_grant"):  # because the id of the assertion was used before
        source(configured(provider, assertion_file=str(key_file.parent / "assertion.jwt"))).get_token()


def test_uses_replaced_key_for_next_request(provider: Provider, key_file: Path) -> None:
    clock = SimpleNamespace(now_s=NOW_S)
    config = configured(provider, assertion_private_key_file=str(key_file))
    assert config.login is not None
    assert config.login.oidc is not None
    tokens = TokenSource(config.login.oidc, now_s=lambda: clock.now_s, unix_time_s=lambda: clock.now_s)
    tokens.get_token()
    key_file.write_bytes(pem(OTHER_RSA))
    provider.keys = [OTHER_RSA.public_key()]
    clock.now_s = provider.now_s = NOW_S + 101
    assert tokens.get_token() == "token-2"


def test_reads_assertion_file_for_each_request(provider: Provider, key_file: Path, tmp_path: Path) -> None:
    signing_login = configured(provider, assertion_private_key_file=str(key_file)).login
    assert signing_login is not None
    assert signing_login.oidc is not None
    assert signing_login.oidc.assertion is not None
    path = tmp_path / "assertion.jwt"
    config = configured(provider, assertion_file=str(path))
    clock = SimpleNamespace(now_s=NOW_S)
    assert config.login is not None
    assert config.login.oidc is not None
    tokens = TokenSource(config.login.oidc, now_s=lambda: clock.now_s, unix_time_s=lambda: clock.now_s)
    for number in range(2):
        path.write_text(create_assertion(signing_login.oidc.assertion, clock.now_s) + "\n")
        assert tokens.get_token() == f"token-{number + 1}"
        clock.now_s = provider.now_s = clock.now_s + 101
    clock.now_s = provider.now_s = clock.now_s + 1_000
    with pytest.raises(AuthenticationError, match=r"assertion.jwt expired \d+ s ago by the clock of this machine"):
        tokens.get_token()


def test_template_adds_headers_and_claims(provider: Provider, key_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"header": {"kid": "k-1", "alg": "none"}, "payload": {"aud": "me", "tenant": 7}}))
    provider.audience = "me"
    config = configured(
        provider,
        assertion_private_key_file=str(key_file),
        assertion_template_file=str(template),
        assertion_claim_aud="you",
    )
    source(config).get_token()
    assert provider.header == {"kid": "k-1", "alg": "RS256", "typ": "JWT"}
    assert provider.claims["tenant"] == 7
    for wrong in ("[]", "{", '{"payload": 1}'):
        template.write_text(wrong)
        with pytest.raises(AuthenticationError, match=r'must be JSON: \{"header"'):
            source(config).get_token()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"audience": "someone else"}, "status 401: invalid_client. The request contained the assertion with iss"),
        ({"keys": [OTHER_RSA.public_key()]}, "signed with RS256"),
        ({"now_s": NOW_S + 400}, r"The clock of this machine is 400 s behind the endpoint's clock. Correct the clock"),
        (
            {"now_s": NOW_S - 400},
            r"The clock of this machine is 400 s ahead of the endpoint's clock. Correct the clock",
        ),
    ],
)
def test_error_describes_rejected_assertion_and_clock_skew(
    provider: Provider, key_file: Path, changed: dict[str, Any], message: str
) -> None:
    for name, value in changed.items():
        setattr(provider, name, value)
    with pytest.raises(AuthenticationError, match=message) as caught:
        source(configured(provider, assertion_private_key_file=str(key_file))).get_token()
    assert len(provider.requests) == 1, "a rejection is final"
    assert "hush" not in str(caught.value)
    assert provider.requests[0]["client_assertion"] not in str(caught.value)


def test_error_does_not_mention_small_clock_skew(provider: Provider, key_file: Path) -> None:
    provider.audience = "someone else"
    provider.now_s = NOW_S + 20
    with pytest.raises(AuthenticationError) as caught:
        source(configured(provider, assertion_private_key_file=str(key_file))).get_token()
    assert "clock" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        '{"payload": {"limit": NaN}}',
        '{"header": {"limit": [-Infinity]}}',
        '{"payload": {"limit": 1e999}}',
        r'{"payload": {"team": "\ud800"}}',
        r'{"header": {"\udfff": 1}}',
    ],
)
def test_rejects_claims_that_are_not_json(provider: Provider, key_file: Path, tmp_path: Path, template: str) -> None:
    file = tmp_path / "template.json"
    file.write_text(template)
    config = configured(provider, assertion_private_key_file=str(key_file), assertion_template_file=str(file))
    with pytest.raises(AuthenticationError, match="cannot be written as JSON"):
        source(config).get_token()
    assert provider.requests == []


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, {}, "key.pem, which cannot be read on this machine: No such file"),
        (b"hush-2", {}, "is not a private key in PEM"),
        (pem(RSA, "hush-3"), {}, "passphrase is wrong or missing"),
        (pem(RSA, "hush-3"), {"assertion_private_key_passphrase": "hush-4"}, "passphrase is wrong or missing"),
        (pem(SMALL_RSA), {}, "has an RSA key of 1024 bits. RS256 requires at least 2048"),
        (pem(EC), {}, "is not an RSA key, which sasl.oauthbearer.assertion.algorithm RS256 requires"),
        (pem(RSA), {"assertion_algorithm": "ES256"}, "is not a P-256 key"),
        (
            pem(ec.generate_private_key(ec.SECP384R1())),
            {"assertion_algorithm": "ES256"},
            "not a P-256 key",
        ),
    ],
)
def test_rejects_unusable_key_without_showing_its_content(
    provider: Provider, key_file: Path, content: bytes | None, options: dict[str, Any], message: str
) -> None:
    key_file.unlink()
    if content is not None:
        key_file.write_bytes(content)
    with pytest.raises(AuthenticationError, match=message) as caught:
        source(configured(provider, assertion_private_key_file=str(key_file), **options)).get_token()
    assert provider.requests == []
    assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("private_key_file", "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----"),
        ("template_file", '{"payload": {"team": "hush"}}'),
        ("file", "eyJhbGciOiJSUzI1NiJ9.hush.hush"),
    ],
)
def test_does_not_show_content_in_place_of_path(provider: Provider, key_file: Path, name: str, content: str) -> None:
    options = {"assertion_private_key_file": str(key_file), f"assertion_{name}": content}
    config = configured(provider, **options)
    with pytest.raises(AuthenticationError) as caught:
        source(config).get_token()
    option = f"{OAUTH_OPTION_PREFIX}assertion.{name.replace('_', '.')}"
    assert str(caught.value).startswith(f"OAUTHBEARER: {option} must be the path of a file, but seems to")
    assert "hush" not in "".join(traceback.format_exception(caught.value)) + repr(config)


def test_signs_with_encrypted_key(provider: Provider, key_file: Path) -> None:
    key_file.write_bytes(pem(RSA, "hush-5"))
    config = configured(provider, assertion_private_key_file=str(key_file), assertion_private_key_passphrase="hush-5")
    assert source(config).get_token() == "token-1"
    assert "hush" not in repr(config)


def test_names_missing_oauth_extra(monkeypatch: pytest.MonkeyPatch, provider: Provider, key_file: Path) -> None:
    config = configured(provider, assertion_private_key_file=str(key_file))
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    message = r"also on Spark's workers: pip install \"spark-kafka-sink\[oauth\]\""
    with pytest.raises(AuthenticationError, match=message):
        source(config).get_token()
    monkeypatch.setattr(assertions, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"install \"spark-kafka-sink\[oauth\]\""):
        configured(provider, assertion_private_key_file=str(key_file))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hush-6", "contains no JSON Web Token"),
        ("straße.a.b".encode(), "contains no JSON Web Token"),
        (b"hush.7.8", "is not a JSON Web Token"),
        (
            build_unsecured_token({"exp": NOW_S - 30}).encode(),
            "expired 30 s ago by the clock of this machine. Check that",
        ),
        (b"x" * 70_000, "the file is longer than"),
    ],
)
def test_rejects_file_without_valid_token(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(AuthenticationError, match=message) as caught:
        read_token_file(str(path), "the option", NOW_S)
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_repr_pickle_and_log_contain_no_secret_of_assertions(
    provider: Provider, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = configured(provider, assertion_private_key_file=str(key_file))
    tokens = source(config)
    tokens.get_token()
    key = key_file.read_text().splitlines()[1]
    for text in (repr(config), repr(tokens), caplog.text, pickle.dumps(config).decode("latin1")):
        assert key not in text
        assert provider.requests[0]["client_assertion"] not in text
        assert "token-1" not in text


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    security = ListenerSecurity("SASL_PLAINTEXT", mechanisms=("OAUTHBEARER",))
    with embedded_broker({"orders": 1}, security=security) as broker:
        yield broker


def written(broker: EmbeddedBroker, **options: object) -> int:
    own = {OAUTH_OPTION_PREFIX + name.replace("_", "."): value for name, value in options.items()}
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"} | own
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers} | login) as producer:
        return producer.send("orders", b"12.50").result(timeout=30).offset


def test_producer_writes_with_key_and_with_token_file(broker: EmbeddedBroker, key_file: Path, tmp_path: Path) -> None:
    token = build_unsecured_token({"sub": CLIENT, "exp": time.time() + 600})
    with oidc_provider(RSA.public_key(), now_s=time.time()) as provider:
        provider.token = token
        offset = written(
            broker,
            token_endpoint_url=provider.url,
            client_credentials_client_id=CLIENT,
            assertion_private_key_file=str(key_file),
        )
        assert (offset, len(provider.requests)) == (0, 1)
    (tmp_path / "token").write_text(token)
    assert written(broker, token_endpoint_url=(tmp_path / "token").as_uri()) == 1
