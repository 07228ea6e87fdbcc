"""Security options that several tests parse."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security_config import parse_security_config

PACKAGE = "org.apache.kafka.common.security"
OAUTH_MODULE = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule"
OAUTH_OPTION_PREFIX = "sasl.oauthbearer."


def build_jaas_config(module: str = "scram.ScramLoginModule", **options: str) -> str:
    jaas_options = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"{PACKAGE}.{module} required {jaas_options};"


SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": build_jaas_config(username="alice", password="hush-1"),
}
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
OIDC = OAUTH | {
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
    "sasl.oauthbearer.client.credentials.client.id": "me",
    "sasl.oauthbearer.client.credentials.client.secret": "hush-5",
}


def collect_problems(options: Mapping[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        parse_security_config(options)
    return caught.value.problems
