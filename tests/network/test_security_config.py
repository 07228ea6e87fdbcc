"""The defaults of the TLS and SASL options in the option table are the ones that are used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.network.security_config import parse_security_config
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from tests.network.security.oidc_provider import CLIENT

OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
PREFIX = "sasl.oauthbearer."
KAFKAS = "org.apache.kafka.common.security.oauthbearer."
OTHERS = {
    "security.protocol": "SASL_PLAINTEXT",
    "ssl.endpoint.identification.algorithm": "",
    "ssl.enabled.protocols": "TLSv1.3",
    "ssl.protocol": "TLSv1.2",
    "sasl.mechanism": "OAUTHBEARER",
    PREFIX + "jwt.retriever.class": KAFKAS + "JwtBearerJwtRetriever",
    PREFIX + "assertion.algorithm": "ES256",
    PREFIX + "assertion.claim.jti.include": "true",
    PREFIX + "header.urlencode": "true",
    "sasl.login.refresh.window.factor": "0.5",
}
"""A value other than the default, for each option whose default is not a number."""


@pytest.mark.parametrize("name", [name for name, option in SECURITY_OPTIONS.items() if option.default is not None])
def test_config_uses_default_of_option_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = OAUTH | {
        PREFIX + "token.endpoint.url": "https://idp/token",
        PREFIX + "assertion.private.key.file": "k.pem",
    }
    options[PREFIX + "client.credentials.client.id"] = CLIENT
    options.pop(name, None)
    other = OTHERS.get(name, "7")
    monkeypatch.setitem(SECURITY_OPTIONS, name, replace(SECURITY_OPTIONS[name], default=other))
    with_default, with_other = parse_security_config(options), parse_security_config(options | {name: other})
    assert with_default == with_other
    monkeypatch.undo()
    if name != "sasl.mechanism":  # the default mechanism, GSSAPI, requires a service name
        assert parse_security_config(options) != with_other


def test_documented_defaults_equal_defaults_of_config() -> None:
    written = {name: option.default for name, option in SECURITY_OPTIONS.items() if option.default is not None}
    options = OAUTH | {
        PREFIX + "token.endpoint.url": "https://idp/token",
        PREFIX + "assertion.private.key.file": "k.pem",
    }
    options[PREFIX + "client.credentials.client.id"] = CLIENT
    assert parse_security_config(written | options) == parse_security_config(options)
