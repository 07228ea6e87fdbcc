"""The ssl.SSLContext that a configuration builds: verification, TLS versions and cipher suites."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security.tls_context import TlsConfig, build_client_ssl_context, find_openssl_suite
from spark_kafka_sink.network.security.tls_errors import describe_tls_error
from spark_kafka_sink.network.security_config import parse_security_config


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


@pytest.mark.parametrize("name", ["AECDH-AES256-SHA", "NULL-SHA256", "HIGH"])
def test_rejects_suites_without_authentication_or_encryption(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL's configuration on this machine may allow them."""
    original = ssl.SSLContext.set_ciphers
    monkeypatch.setattr(ssl.SSLContext, "set_ciphers", lambda context, text: original(context, f"{text}:@SECLEVEL=0"))
    assert find_openssl_suite("ECDHE-RSA-AES128-GCM-SHA256") is not None
    assert find_openssl_suite(name) is None


def test_rejects_suites_that_need_a_shared_secret() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    names = {suite["name"] for suite in context.get_ciphers() if {"PSK", "SRP"} & {*suite["name"].split("-")}}
    assert names
    assert [name for name in names if find_openssl_suite(name) is not None] == []


def test_accepts_default_suites() -> None:
    names = {suite["name"] for suite in ssl.create_default_context().get_ciphers() if suite["protocol"] != "TLSv1.3"}
    assert names
    assert [name for name in names if find_openssl_suite(name) is None] == []


def test_names_option_if_openssl_disables_all_of_its_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL's configuration on this machine may set a high security level."""
    original = ssl.SSLContext.set_ciphers
    monkeypatch.setattr(ssl.SSLContext, "set_ciphers", lambda context, text: original(context, f"{text}:@SECLEVEL=4"))
    context = build_client_ssl_context(TlsConfig(cipher_suites=("ECDHE-RSA-AES128-GCM-SHA256",)))
    tls = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="broker")
    with pytest.raises(ssl.SSLError) as caught:
        tls.do_handshake()
    assert "allows no suite of ssl.cipher.suites" in describe_tls_error(caught.value, "broker")


def test_trusts_authorities_of_system_without_truststore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "empty"))
    (authority,) = build_client_ssl_context(TlsConfig()).get_ca_certs()
    assert "test authority" in str(authority["subject"])


def test_trusts_every_certificate_of_truststore() -> None:
    """Java does so, too. OpenSSL by itself would trust a broker's certificate only if it is self-signed."""
    assert build_client_ssl_context(TlsConfig()).verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
