"""Parsing of options into a SecurityConfig: errors list all faults and no secrets, and the result can be pickled."""

from __future__ import annotations

import logging
import pickle
import ssl
import sys
import traceback
from pathlib import Path

import pytest

from spark_kafka_sink.diagnostics.deferred_log import clear_logged_warnings
from spark_kafka_sink.errors import AuthenticationError, ConfigurationError
from spark_kafka_sink.network.security.tls_context import TlsConfig, build_client_ssl_context
from spark_kafka_sink.network.security_config import SecurityConfig, parse_security_config
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.sasl.oauthbearer import validate_unsecured_token

PACKAGE = "org.apache.kafka.common.security"
OAUTH_MODULE = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule"


def jaas(module: str = "scram.ScramLoginModule", **options: str) -> str:
    jaas_options = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"{PACKAGE}.{module} required {jaas_options};"


SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": jaas(username="alice", password="hush-1"),
}
SIGNER = """
import itertools

REGION = "eu-west-1"
_numbers = itertools.count(1)


class MSKAuthTokenProvider:
    @staticmethod
    def generate_auth_token(region):
        return f"signed-for-{region}-{next(_numbers)}", 900_000


def token():
    token, expiry_ms = MSKAuthTokenProvider.generate_auth_token(REGION)
    return token
"""
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
SECRETS = SCRAM | {
    "ssl.truststore.location": "trust.jks",
    "ssl.truststore.password": "hush-2",
    "ssl.keystore.key": "hush-3",
    "ssl.keystore.certificate.chain": "chain",
    "ssl.key.password": "hush-4",
}
OIDC = OAUTH | {
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
    "sasl.oauthbearer.client.credentials.client.id": "me",
    "sasl.oauthbearer.client.credentials.client.secret": "hush-5",
}


def returns_a_token() -> str:
    return "abc.def"


def returns_nothing() -> None:
    return None


def faults(options: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        parse_security_config(options)
    return caught.value.faults


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


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_creates_scram_mechanism(mechanism: str) -> None:
    config = parse_security_config(SCRAM | {"sasl.mechanism": mechanism})
    assert config.login is not None
    assert config.login.mechanism == mechanism
    assert config.create_mechanism("broker").start().startswith(b"n,,n=alice,r=")


def test_creates_scram_mechanism_for_delegation_token() -> None:
    options = SCRAM | {"sasl.jaas.config": jaas(username="id", password="hmac", tokenauth="true")}
    assert parse_security_config(options).create_mechanism("b").start().endswith(b",tokenauth=true")


def test_creates_plain_mechanism() -> None:
    module = jaas("plain.PlainLoginModule", username="alice", password="s3")
    config = parse_security_config(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": module}
    )
    assert config.create_mechanism("b").start() == b"\0alice\0s3"


def test_sends_token_option_unchanged() -> None:
    config = parse_security_config(OAUTH | {"sasl.oauthbearer.token": "abc.def"})
    assert b"Bearer abc.def\x01" in config.create_mechanism("b").start()


def test_sends_token_of_callback_with_extensions() -> None:
    module = f'{OAUTH_MODULE} required extension_pool="p";'
    options = OAUTH | {"sasl.oauthbearer.token.callback": returns_a_token, "sasl.jaas.config": module}
    config = pickle.loads(pickle.dumps(parse_security_config(options)))
    assert config.create_mechanism("b").start() == b"n,,\x01auth=Bearer abc.def\x01pool=p\x01\x01"
    wrong = parse_security_config(OAUTH | {"sasl.oauthbearer.token.callback": returns_nothing})
    with pytest.raises(AuthenticationError, match="must return the token as str"):
        wrong.create_mechanism("b")


def raises() -> str:
    raise KeyError("token-secret")


def test_callback_error_shows_type_but_no_message() -> None:
    config = parse_security_config(OAUTH | {"sasl.oauthbearer.token.callback": raises})
    with pytest.raises(AuthenticationError, match=r"sasl\.oauthbearer\.token\.callback raised KeyError\.") as error:
        config.create_mechanism("b")
    assert "token-secret" not in "".join(traceback.format_exception(error.value)), "Spark shows tracebacks to all"


def test_imports_token_callback_when_connecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on MSK passes the callback's name, because Spark's options are strings and workers call the signer."""
    (tmp_path / "msk_tokens.py").write_text(SIGNER)
    options = OAUTH | {"sasl.oauthbearer.token.callback": "msk_tokens:token"}
    config = pickle.loads(pickle.dumps(parse_security_config(options)))
    with pytest.raises(AuthenticationError, match=r"msk_tokens:token cannot be imported on this machine.*--py-files"):
        config.create_mechanism("b")
    monkeypatch.syspath_prepend(str(tmp_path))
    first, second = (config.create_mechanism("b").start() for _ in range(2))
    assert first == b"n,,\x01auth=Bearer signed-for-eu-west-1-1\x01\x01"
    assert second == b"n,,\x01auth=Bearer signed-for-eu-west-1-2\x01\x01", "a new token for each connection"
    constant = parse_security_config(OAUTH | {"sasl.oauthbearer.token.callback": "msk_tokens:REGION"})
    with pytest.raises(AuthenticationError, match="is not callable"):
        constant.create_mechanism("b")
    assert "msk_tokens" not in repr(config)


def test_creates_unsecured_token_like_java_client() -> None:
    module = f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="alice";'
    first = parse_security_config(OAUTH | {"sasl.jaas.config": module}).create_mechanism("b").start().decode()
    token = first.partition("Bearer ")[2].partition("\x01")[0]
    assert validate_unsecured_token(token, now_s=0).principal == "alice"


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
    ("changed", "fault"),
    [
        ({"security.protocol": "TLS"}, "security.protocol must be one of"),
        ({"sasl.mechanism": "CRAM-MD5"}, "sasl.mechanism must be one of"),
        ({"sasl.mechanism": "PLAIN"}, "names ScramLoginModule, which is not for sasl.mechanism PLAIN"),
        ({"sasl.jaas.config": None}, "must contain a username and a password"),
        ({"sasl.jaas.config": jaas(username="alice")}, "must contain a username and a password"),
        ({"sasl.jaas.config": jaas(username="", password="x")}, "must contain a username and a password"),
        ({"sasl.jaas.config": jaas(username="a", password="x\0y")}, "NUL"),
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
        (OIDC | {"sasl.oauthbearer.client.credentials.client.secret": None}, "requires sasl.oauthbearer"),
        (OIDC | {"sasl.login.read.timeout.ms": "soon"}, "sasl.login.read.timeout.ms must be a positive number"),
        (OIDC | {"sasl.oauthbearer.header.urlencode": "yes"}, "header.urlencode must be true or false"),
        (OIDC | {"sasl.login.callback.handler.class": "com.example.Mine"}, "callback.handler.class cannot be set"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.callback": "name"}, "must be a callable"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{OAUTH_MODULE} required extension_auth=x;"}, "auth"),
        ({"ssl.engine.factory.class": "com.example.Mine"}, "cannot be set: it would load a Java class"),
        ({"ssl.truststore.type": "BKS"}, "ssl.truststore.type must be one of"),
        (
            {"ssl.truststore.location": "a", "ssl.truststore.certificates": "b"},
            "cannot be set together with ssl.truststore",
        ),
        ({"ssl.keystore.key": "a"}, "must be set together"),
        ({"ssl.keystore.key": "a", "ssl.keystore.location": "b"}, "cannot be set together with ssl.keystore.key"),
        ({"ssl.truststore.password": "hush"}, "truststore.password is set, but ssl.truststore.location is not"),
        ({"ssl.keystore.password": "hush"}, "ssl.keystore.password is set, but ssl.keystore.location is not"),
        (
            {"ssl.truststore.location": "a", "ssl.truststore.type": "PEM", "ssl.truststore.password": "hush"},
            "has no meaning for PEM",
        ),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "must be https, or empty"),
        ({"ssl.protocol": "SSLv3"}, "ssl.protocol must be one of"),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "ssl.enabled.protocols must be a list of"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_NOTHING"}, "has 'TLS_RSA_WITH_NOTHING', which this machine's"),
    ],
)
def test_reports_each_invalid_security_option(changed: dict[str, object], fault: str) -> None:
    found = faults(SCRAM | changed)
    assert any(fault in message for message in found), found
    assert "hush" not in "\n".join(found)


def test_ignores_options_that_protocol_does_not_use() -> None:
    leftovers = {"ssl.truststore.password": "hush", "ssl.truststore.type": "BKS", "sasl.jaas.config": "hush"}
    assert parse_security_config(leftovers) == SecurityConfig()


def test_reports_all_invalid_security_options_in_one_error() -> None:
    found = faults(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.protocol": "x", "ssl.keystore.key": "k"}
    )
    assert len(found) == 3


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


def test_names_missing_kerberos_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    found = faults({"security.protocol": "SASL_SSL", "sasl.kerberos.service.name": "kafka"})
    assert len(found) == 1
    assert "pip install 'spark-kafka-sink[gssapi]'" in found[0]


@pytest.mark.parametrize(
    ("credentials", "advice"),
    [
        (
            {"sasl.jaas.config": jaas("plain.PlainLoginModule", username="a", password="hush")},
            "PLAIN, as sasl.jaas.config names PlainLoginModule.",
        ),
        (
            {"sasl.jaas.config": jaas(username="a", password="hush")},
            "SCRAM-SHA-256 or SCRAM-SHA-512, as sasl.jaas.config names ScramLoginModule.",
        ),
        (
            {"sasl.jaas.config": jaas(username="a", password="hush"), "sasl.kerberos.service.name": "kafka"},
            "SCRAM-SHA-256 or SCRAM-SHA-512, as sasl.jaas.config names ScramLoginModule.",
        ),
        ({"sasl.oauthbearer.token": "hush"}, "OAUTHBEARER, as sasl.oauthbearer.token is set."),
        ({"sasl.oauthbearer.token.callback": str}, "OAUTHBEARER, as sasl.oauthbearer.token.callback is set."),
        ({}, "the one that the listener expects, of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI."),
    ],
)
def test_names_missing_mechanism_before_it_advises_gssapi(
    credentials: dict[str, object], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    (found,) = faults({"security.protocol": "SASL_SSL"} | credentials)
    assert found == f"sasl.mechanism is not set, and its default is GSSAPI. Set it to {advice}"


def test_names_missing_mechanism_next_to_unreadable_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    first, second = faults({"security.protocol": "SASL_SSL", "sasl.jaas.config": "hush"})
    assert first.startswith("sasl.mechanism is not set")
    assert second.startswith("sasl.jaas.config must begin with a login module")


def test_uses_gssapi_for_kerberos_credentials_without_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", object())
    module = 'com.sun.security.auth.module.Krb5LoginModule required serviceName="kafka";'
    for credentials in ({"sasl.jaas.config": module}, {"sasl.kerberos.service.name": "kafka"}):
        login = parse_security_config({"security.protocol": "SASL_SSL"} | credentials).login
        assert login is not None
        assert (login.mechanism, login.kerberos_service) == ("GSSAPI", "kafka")


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_warns_once_about_unencrypted_credentials(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    clear_logged_warnings()
    options: dict[str, object] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if mechanism == "PLAIN":
        options["sasl.jaas.config"] = jaas("plain.PlainLoginModule", username="a", password="hush-1")
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


def test_verifies_certificate_and_hostname_by_default() -> None:
    context = parse_security_config({"security.protocol": "SSL"}).build_ssl_context()
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.maximum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("options", "versions"),
    [
        ({"ssl.enabled.protocols": "TLSv1.3"}, ("TLSv1_3", "TLSv1_3")),
        ({"ssl.enabled.protocols": ["TLSv1.2"]}, ("TLSv1_2", "TLSv1_2")),
        ({"ssl.protocol": "TLSv1.2"}, ("TLSv1_2", "TLSv1_2")),
        ({"ssl.protocol": "TLSv1.2", "ssl.enabled.protocols": "TLSv1.2,TLSv1.3"}, ("TLSv1_2", "TLSv1_3")),
        ({"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}, ("TLSv1_2", "TLSv1_2")),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, ("TLSv1_3", "TLSv1_3")),
    ],
)
def test_sets_configured_tls_versions(options: dict[str, object], versions: tuple[str, str]) -> None:
    context = parse_security_config({"security.protocol": "SSL"} | options).build_ssl_context()
    assert (context.minimum_version.name, context.maximum_version.name) == versions


def test_rejects_configuration_without_tls_version() -> None:
    options = {
        "security.protocol": "SSL",
        "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
        "ssl.enabled.protocols": "TLSv1.2",
    }
    with pytest.raises(
        ConfigurationError, match=r"no supported cipher suite for any version in ssl\.enabled\.protocols"
    ):
        parse_security_config(options).build_ssl_context()


def test_rejects_cipher_suites_that_only_another_machine_supports() -> None:
    with pytest.raises(ConfigurationError, match="no supported cipher suite"):
        build_client_ssl_context(TlsConfig(cipher_suites=("TLS_RSA_WITH_RC4_128_MD5",)))


@pytest.mark.parametrize(
    ("iana", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ],
)
def test_accepts_iana_and_openssl_names_of_cipher_suites(iana: str, openssl: str) -> None:
    context = parse_security_config({"security.protocol": "SSL", "ssl.cipher.suites": iana}).build_ssl_context()
    older = [suite["name"] for suite in context.get_ciphers() if suite["protocol"] != "TLSv1.3"]
    assert older == [openssl]
