"""Parsing of options into a SecurityConfig: errors list all problems and no secrets, and the result can be pickled."""

from __future__ import annotations

import logging
import os
import pickle
import ssl

import pytest

from spark_kafka_sink.diagnostics.deferred_log import clear_logged_warnings
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security_config import SecurityConfig, parse_security_config
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from tests.network.security.security_cases import OAUTH, OIDC, SCRAM, build_jaas_config, collect_problems

SECRETS = SCRAM | {
    "ssl.truststore.location": "trust.jks",
    "ssl.truststore.password": "hush-2",
    "ssl.keystore.key": "hush-3",
    "ssl.keystore.certificate.chain": "chain",
    "ssl.key.password": "hush-4",
}


def test_default_config_has_no_security() -> None:
    config = parse_security_config({})
    assert config == SecurityConfig()
    assert config.tls is None
    assert config.login is None


@pytest.mark.parametrize(
    ("protocol", "uses_tls", "uses_sasl"),
    [("PLAINTEXT", False, False), ("ssl", True, False), ("SASL_PLAINTEXT", False, True), ("sasl_ssl", True, True)],
)
def test_security_protocol_selects_tls_and_login(protocol: str, uses_tls: bool, uses_sasl: bool) -> None:
    config = parse_security_config(SCRAM | {"security.protocol": protocol})
    assert (config.tls is not None, config.login is not None) == (uses_tls, uses_sasl)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"security.protocol": "TLS"}, "security.protocol must be one of"),
        ({"ssl.engine.factory.class": "com.example.Mine"}, "cannot be set: it would load a Java class"),
    ],
)
def test_reports_each_invalid_security_option(changed: dict[str, object], problem: str) -> None:
    messages = collect_problems(SCRAM | changed)
    assert any(problem in message for message in messages), messages
    assert "hush" not in "\n".join(messages)


@pytest.mark.parametrize("character", ["\0", "\udcff"], ids=["NUL", "unpaired surrogate"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.cipher.suites", "ECDHE-RSA-AES128-GCM-SHA256,hush{}"),
        ("ssl.keystore.key", "hush{}"),
        ("ssl.keystore.password", "hush{}"),
        ("sasl.jaas.config", build_jaas_config(username="alice", password="hush{}")),
    ],
)
def test_rejects_value_that_is_not_text_with_one_fault(name: str, value: str, character: str) -> None:
    options = SCRAM | {"ssl.keystore.certificate.chain": "chain", "ssl.keystore.key": "key"}
    messages = collect_problems(options | {name: value.replace("{}", character)})
    assert messages == (f"{name} must be text in UTF-8 without NUL characters.",)


def test_reports_unsupported_option_together_with_value_that_is_not_text() -> None:
    messages = collect_problems({"security.providers": "x", "ssl.key.password": "\0"})
    assert [message.split()[0] for message in messages] == ["security.providers", "ssl.key.password"]


@pytest.mark.parametrize("name", ["ssl.truststore.location", "ssl.keystore.location"])
def test_file_name_need_not_be_utf_8(name: str) -> None:
    options = {"security.protocol": "SSL", name: os.fsdecode(b"/nowhere/caf\xe9.pem")}
    with pytest.raises(ConfigurationError, match=r"is /nowhere/caf\?.pem, which cannot be read .*: No such file"):
        parse_security_config(options).build_ssl_context()


def test_ignores_options_that_protocol_does_not_use() -> None:
    leftovers = {"ssl.truststore.password": "hush", "ssl.truststore.type": "BKS", "sasl.jaas.config": "hush"}
    assert parse_security_config(leftovers) == SecurityConfig()


def test_reports_all_invalid_security_options_in_one_error() -> None:
    messages = collect_problems(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.protocol": "x", "ssl.keystore.key": "k"}
    )
    assert len(messages) == 3


def test_ignores_jvm_options_and_marks_secrets() -> None:
    assert parse_security_config({"ssl.provider": "SunJSSE", "ssl.trustmanager.algorithm": "PKIX"}) == SecurityConfig()
    secret = {name for name, option in SECURITY_OPTIONS.items() if option.secret}
    assert secret >= {"sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "sasl.oauthbearer.token"}
    assert all(name == option.name and option.description for name, option in SECURITY_OPTIONS.items())


@pytest.mark.parametrize("options", [SECRETS, OIDC, OAUTH | {"sasl.oauthbearer.token": "hush.6"}])
def test_pickle_contains_secrets_but_repr_does_not(options: dict[str, object]) -> None:
    config = parse_security_config(options)
    assert pickle.loads(pickle.dumps(config)) == config
    assert "hush" not in repr(config) + str(config)
    if config.login is None or config.login.oidc is None:
        assert "hush" not in repr(config.create_mechanism("b"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_warns_once_about_unencrypted_credentials(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    clear_logged_warnings()
    options: dict[str, object] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if mechanism == "PLAIN":
        options["sasl.jaas.config"] = build_jaas_config("plain.PlainLoginModule", username="a", password="hush-1")
    else:
        options["sasl.oauthbearer.token"] = "hush.1"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            parse_security_config(options)
        parse_security_config(options | {"security.protocol": "SASL_SSL"})
        parse_security_config(SCRAM | {"security.protocol": "SASL_PLAINTEXT"})
    (record,) = caplog.records
    assert "sends the credentials unencrypted" in record.getMessage()
    assert "hush" not in caplog.text


def test_warns_about_disabled_hostname_check(caplog: pytest.LogCaptureFixture) -> None:
    clear_logged_warnings()
    config = parse_security_config({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""})
    assert "can impersonate the brokers" in caplog.text
    context = config.build_ssl_context()
    assert not context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
