"""Parsing of the `ssl.*` options into a TlsConfig: the fault of each invalid option."""

from __future__ import annotations

import pytest

from tests.network.security.security_cases import SCRAM, collect_faults


@pytest.mark.parametrize(
    ("changed", "fault"),
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
        ({"ssl.cipher.suites": "TLS_RSA_WITH_NOTHING"}, "has 'TLS_RSA_WITH_NOTHING', which this machine's"),
    ],
)
def test_reports_each_invalid_tls_option(changed: dict[str, object], fault: str) -> None:
    found = collect_faults(SCRAM | changed)
    assert any(fault in message for message in found), found
    assert "hush" not in "\n".join(found)
