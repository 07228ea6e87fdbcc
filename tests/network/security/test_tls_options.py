"""Parsing of the `ssl.*` options into a TlsConfig: the problem of each invalid option, and a warning."""

from __future__ import annotations

import pytest

from spark_kafka_sink.network.security_config import parse_security_config
from tests.network.security.security_cases import SCRAM, collect_problems


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
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
        ({"ssl.cipher.suites": "TLS_RSA_WITH_NOTHING"}, "has 'TLS_RSA_WITH_NOTHING', which is not a usable"),
        (
            {"ssl.cipher.suites": "ALL:@SECLEVEL=0"},
            "has 'ALL:@SECLEVEL=0', which is not a usable cipher suite. Use suites",
        ),
        ({"ssl.cipher.suites": "AECDH-AES256-SHA@SECLEVEL=0"}, "is not a usable cipher suite"),
        ({"ssl.cipher.suites": "ECDHE-PSK-AES128-CBC-SHA256"}, "authenticate the server with a certificate"),
        ({"ssl.truststore.certificates": ""}, "ssl.truststore.certificates must not be empty"),
        ({"ssl.truststore.location": " "}, "ssl.truststore.location must not be empty"),
        ({"ssl.keystore.certificate.chain": ""}, "ssl.keystore.certificate.chain must not be empty"),
    ],
)
def test_reports_each_invalid_tls_option(changed: dict[str, object], problem: str) -> None:
    messages = collect_problems(SCRAM | changed)
    assert any(problem in message for message in messages), messages
    assert "hush" not in "\n".join(messages)


@pytest.mark.parametrize(
    ("name", "other_options"),
    [
        ("ssl.truststore.location", {"ssl.truststore.password": "hush"}),
        ("ssl.truststore.certificates", {"ssl.truststore.location": "a", "ssl.truststore.password": "hush"}),
        ("ssl.keystore.location", {"ssl.keystore.password": "hush"}),
        ("ssl.keystore.key", {"ssl.keystore.certificate.chain": "a"}),
        ("ssl.keystore.certificate.chain", {"ssl.keystore.key": "a"}),
        ("ssl.keystore.key", {"ssl.keystore.location": "a", "ssl.keystore.certificate.chain": "b"}),
    ],
)
def test_does_not_compare_empty_option_with_other_options_of_store(name: str, other_options: dict[str, str]) -> None:
    messages = collect_problems(SCRAM | other_options | {name: ""})
    assert messages == (f"{name} must not be empty. Set it, or remove the option.",)


@pytest.mark.parametrize(
    ("suites", "is_warned"),
    [
        ("TLS_AES_256_GCM_SHA384", True),
        ("TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256,TLS_CHACHA20_POLY1305_SHA256", False),
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", False),
    ],
)
def test_warns_that_single_suites_of_tls_1_3_cannot_be_selected(
    suites: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    parse_security_config({"security.protocol": "SSL", "ssl.cipher.suites": suites})
    assert ("all three remain allowed" in caplog.text) == is_warned
