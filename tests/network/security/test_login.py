"""Parsing of the `sasl.*` options into a Login, and the problem of each invalid option."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security_config import parse_security_config
from tests.network.security.security_cases import (
    OAUTH,
    OAUTH_MODULE,
    OAUTH_OPTION_PREFIX,
    OIDC,
    PACKAGE,
    SCRAM,
    build_jaas_config,
    collect_problems,
)


@pytest.mark.parametrize(
    "options",
    [
        OIDC | {"sasl.login.callback.handler.class": f"{PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"},
        OAUTH
        | {
            "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
            "sasl.jaas.config": f"{OAUTH_MODULE} required clientId='me' clientSecret='hush-5' scope='kafka';",
        },
    ],
    ids=["since Kafka 4.1", "before"],
)
def test_accepts_client_credentials_from_options_or_jaas_config(options: dict[str, object]) -> None:
    config = parse_security_config(options)
    assert config.login is not None
    assert config.login.oidc is not None
    assert (config.login.oidc.client_id, config.login.oidc.client_secret) == ("me", "hush-5")
    assert "hush" not in repr(config)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"sasl.mechanism": "CRAM-MD5"}, "sasl.mechanism must be one of"),
        ({"sasl.mechanism": "PLAIN"}, "names ScramLoginModule, which is not for sasl.mechanism PLAIN"),
        ({"sasl.jaas.config": None}, "must contain a username and a password"),
        ({"sasl.jaas.config": build_jaas_config(username="alice")}, "must contain a username and a password"),
        ({"sasl.jaas.config": build_jaas_config(username="", password="x")}, "must contain a username and a password"),
        ({"sasl.jaas.config": build_jaas_config(username="a", password="x\0y")}, "NUL"),
        ({"sasl.jaas.config": "hush"}, "begin with a login module"),
        ({"sasl.mechanism": "GSSAPI", "sasl.jaas.config": None}, "sasl.kerberos.service.name must be set"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": None}, "requires exactly one source of tokens"),
        (OIDC | {"sasl.oauthbearer.token": "x", "sasl.jaas.config": None}, "requires exactly one source of tokens"),
        (OIDC | {"sasl.oauthbearer.token.endpoint.url": "http://login.example.com/"}, "must be https"),
        (
            OIDC | {"sasl.oauthbearer.token.endpoint.url": "file://etc/token"},
            "must contain the absolute path of a file",
        ),
        (
            OIDC | {"sasl.oauthbearer.token.endpoint.url": "file://[hush/token"},
            "must contain the absolute path of a file",
        ),
        (OIDC | {"sasl.oauthbearer.token.endpoint.url": "ftp://etc/token"}, "must begin with https"),
        (OIDC | {"sasl.oauthbearer.token.endpoint.url": "https://b/\nx"}, "must not contain spaces, line breaks"),
        (
            OIDC | {"sasl.oauthbearer.token.endpoint.url": "https://a:hush@b/"},
            "must not contain a user name and password",
        ),
        (OIDC | {"sasl.oauthbearer.token.endpoint.url": "https://[hush"}, "is not a valid URL"),
        (OIDC | {"sasl.oauthbearer.token.endpoint.url": "https://h:99999/"}, "is not a valid URL"),
        (OIDC | {"sasl.oauthbearer.client.credentials.client.secret": None}, "requires either sasl.oauthbearer"),
        (OIDC | {"sasl.login.read.timeout.ms": "soon"}, "sasl.login.read.timeout.ms must be a positive number"),
        (OIDC | {"sasl.oauthbearer.header.urlencode": "yes"}, "header.urlencode must be true or false"),
        (OIDC | {"sasl.login.callback.handler.class": "com.example.Mine"}, "callback.handler.class cannot be set"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.callback": "name"}, "must be a callable"),
    ],
)
def test_reports_each_invalid_login_option(changed: dict[str, object], problem: str) -> None:
    messages = collect_problems(SCRAM | changed)
    assert any(problem in message for message in messages), messages
    assert "hush" not in "\n".join(messages)


@pytest.mark.parametrize(
    "options",
    [{}, {"security.protocol": "SSL"}, SCRAM, OIDC | {"sasl.jaas.config": None}],
    ids=["PLAINTEXT", "SSL", "SCRAM", "OAUTHBEARER"],
)
def test_rejects_java_callback_handler_with_every_mechanism(options: dict[str, object]) -> None:
    for option in ("sasl.login.callback.handler.class", "sasl.login.class"):
        assert (
            f"{option} cannot be set: it would load a Java class. Remove the option. For other sources of tokens, set "
            "sasl.oauthbearer.token.callback to a function."
        ) in collect_problems(options | {option: "com.example.Mine"})


@pytest.mark.parametrize("prefix", ["", "kafkashaded."])
def test_accepts_kafkas_own_callback_handler_with_every_mechanism(prefix: str) -> None:
    class_name = f"{prefix}{PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"
    handler = {"sasl.login.callback.handler.class": class_name}
    for options in ({}, SCRAM):
        assert parse_security_config(options | handler) == parse_security_config(options)


def test_accepts_kafkas_own_retriever_with_the_package_prefix_of_databricks() -> None:
    """Databricks names Kafka's classes with this prefix, in `sasl.jaas.config`, too."""
    option = OAUTH_OPTION_PREFIX + "jwt.retriever.class"
    for class_name in ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever"):
        options = OIDC | {option: f"kafkashaded.{PACKAGE}.oauthbearer.{class_name}"}
        assert parse_security_config(options) == parse_security_config(OIDC)


def test_names_missing_kerberos_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    messages = collect_problems({"security.protocol": "SASL_SSL", "sasl.kerberos.service.name": "kafka"})
    assert len(messages) == 1
    assert 'pip install "spark-kafka-sink[gssapi]"' in messages[0]


@pytest.mark.parametrize(
    ("credentials", "advice"),
    [
        (
            {"sasl.jaas.config": build_jaas_config("plain.PlainLoginModule", username="a", password="hush")},
            "PLAIN, because sasl.jaas.config names PlainLoginModule.",
        ),
        (
            {"sasl.jaas.config": build_jaas_config(username="a", password="hush")},
            "SCRAM-SHA-256 or SCRAM-SHA-512, because sasl.jaas.config names ScramLoginModule.",
        ),
        (
            {
                "sasl.jaas.config": build_jaas_config(username="a", password="hush"),
                "sasl.kerberos.service.name": "kafka",
            },
            "SCRAM-SHA-256 or SCRAM-SHA-512, because sasl.jaas.config names ScramLoginModule.",
        ),
        ({"sasl.oauthbearer.token": "hush"}, "OAUTHBEARER, because sasl.oauthbearer.token is set."),
        ({"sasl.oauthbearer.token.callback": str}, "OAUTHBEARER, because sasl.oauthbearer.token.callback is set."),
        (
            {},
            "the mechanism that the listener expects, one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI.",
        ),
    ],
)
def test_names_missing_mechanism_before_it_advises_gssapi(
    credentials: dict[str, object], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    (message,) = collect_problems({"security.protocol": "SASL_SSL"} | credentials)
    assert message == f"sasl.mechanism is not set, and its default is GSSAPI. Set it to {advice}"


def test_names_missing_mechanism_next_to_unreadable_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    first, second = collect_problems({"security.protocol": "SASL_SSL", "sasl.jaas.config": "hush"})
    assert first.startswith("sasl.mechanism is not set")
    assert second.startswith("sasl.jaas.config must begin with a login module")


def test_uses_gssapi_for_kerberos_credentials_without_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", object())
    module = 'com.sun.security.auth.module.Krb5LoginModule required serviceName="kafka";'
    for credentials in ({"sasl.jaas.config": module}, {"sasl.kerberos.service.name": "kafka"}):
        login = parse_security_config({"security.protocol": "SASL_SSL"} | credentials).login
        assert login is not None
        assert (login.mechanism, login.kerberos_service) == ("GSSAPI", "kafka")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"client.credentials.client.id": "me"},
            "or an assertion from sasl.oauthbearer.assertion.private.key.file or",
        ),
        ({"assertion.private.key.file": "k"}, "requires the issuer of the assertion"),
        ({"assertion.private.key.file": "k", "assertion.algorithm": "HS256"}, "must be one of RS256, ES256"),
        ({"assertion.private.key.file": "k", "assertion.claim.jti.include": "yes"}, "must be true or false"),
        ({"assertion.private.key.file": "k", "assertion.claim.exp.seconds": "-1"}, "must be a positive number"),
        ({"assertion.claim.aud": "x"}, "assertion.claim.aud has no effect without"),
        (
            {"jwt.retriever.class": f"{PACKAGE}.oauthbearer.JwtBearerJwtRetriever"},
            "requires sasl.oauthbearer.assertion.private.key.file",
        ),
        ({"jwt.retriever.class": "com.example.Mine"}, "must be one of Kafka's own classes"),
        ({"jwt.retriever.class": f"{PACKAGE}.oauthbearer.FileJwtRetriever"}, "does not support the URL"),
        (
            {"token.endpoint.url": "file:///t", "jwt.retriever.class": f"{PACKAGE}.oauthbearer.JwtBearerJwtRetriever"},
            "does not support the URL",
        ),
        ({"token.endpoint.url": "file:relative"}, "must contain the absolute path of a file"),
        ({"token.endpoint.url": "file:///t", "token": "x"}, "requires exactly one source of tokens"),
        (
            {"token.endpoint.url": None, "jwt.retriever.class": f"{PACKAGE}.oauthbearer.FileJwtRetriever"},
            "requires sasl.oauthbearer.token",
        ),
    ],
)
def test_reports_each_invalid_assertion_option(options: dict[str, Any], message: str) -> None:
    endpoint_options = {"token.endpoint.url": "https://login.example.com/token"} | options
    with pytest.raises(ConfigurationError) as caught:
        parse_security_config(OAUTH | {OAUTH_OPTION_PREFIX + name: value for name, value in endpoint_options.items()})
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_rejects_aws_msk_iam_and_names_options_that_replace_it() -> None:
    (problem,) = collect_problems({"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"})
    assert problem.startswith("sasl.mechanism AWS_MSK_IAM is implemented by an Amazon Java class")
    assert "set sasl.mechanism to OAUTHBEARER and sasl.oauthbearer.token.callback to a function" in problem


def test_unsecured_token_has_configured_lifetime() -> None:
    module = f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="alice" unsecuredLoginLifetimeSeconds="60";'
    login = parse_security_config(OAUTH | {"sasl.jaas.config": module}).login
    assert login is not None
    assert login.unsecured_lifetime_s == 60


@pytest.mark.parametrize("lifetime", ["0", "-1", "soon", "inf", "nan"])
def test_rejects_invalid_lifetime_of_unsecured_token(lifetime: str) -> None:
    claims = f'unsecuredLoginStringClaim_sub="alice" unsecuredLoginLifetimeSeconds="{lifetime}"'
    (problem,) = collect_problems(OAUTH | {"sasl.jaas.config": f"{OAUTH_MODULE} required {claims};"})
    assert problem == "sasl.jaas.config has an invalid unsecuredLoginLifetimeSeconds: it must be a positive number."


def test_rejects_extension_with_reserved_name() -> None:
    module = f"{OAUTH_MODULE} required extension_auth=x;"
    (problem,) = collect_problems(OAUTH | {"sasl.oauthbearer.token": "abc.def", "sasl.jaas.config": module})
    assert problem.startswith("sasl.jaas.config cannot be used: ")
