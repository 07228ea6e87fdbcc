"""Driver logins with a private key or a token file instead of a secret."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.sasl.oauthbearer import build_unsecured_token
from spark_kafka_sink.spark.checks import check_and_plan_write
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.network.security.oidc_provider import CLIENT, Provider, oidc_provider

VALUE = StructType([StructField("value", StringType())])
PREFIX = "kafka.sasl.oauthbearer."
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def provider() -> Iterator[Provider]:
    now_s = time.time()
    with oidc_provider(KEY.public_key(), now_s=now_s) as provider:
        provider.token = build_unsecured_token({"sub": CLIENT, "exp": now_s + 600})
        yield provider


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    security = ListenerSecurity("SASL_PLAINTEXT", mechanisms=("OAUTHBEARER",))
    with embedded_broker({"orders": 1}, security=security) as broker:
        yield broker


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.pem"
    how = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(KEY.private_bytes(serialization.Encoding.PEM, *how))
    return path


def check(broker: EmbeddedBroker, **options: str) -> None:
    own = {PREFIX + name.replace("_", "."): value for name, value in options.items()}
    login = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "OAUTHBEARER"}
    check_and_plan_write({"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "orders"} | login | own, VALUE)


def test_driver_authenticates_with_private_key_and_token_file(
    broker: EmbeddedBroker, provider: Provider, key_file: Path, tmp_path: Path
) -> None:
    by_key = {"client_credentials_client_id": CLIENT, "assertion_private_key_file": str(key_file)}
    check(broker, token_endpoint_url=provider.url, **by_key)
    assert len(provider.requests) == 1
    (tmp_path / "token").write_text(provider.token)
    check(broker, token_endpoint_url=(tmp_path / "token").as_uri())


def test_driver_reports_rejected_login_with_option_names(
    broker: EmbeddedBroker, provider: Provider, key_file: Path
) -> None:
    def words(**options: str) -> str:
        with pytest.raises(KafkaSinkError) as caught:
            check(broker, **options)
        return str(caught.value)

    by_key = {"client_credentials_client_id": CLIENT, "assertion_private_key_file": "/nowhere.pem"}
    message = words(token_endpoint_url=provider.url, **by_key)
    assert (
        f"{PREFIX}assertion.private.key.file is /nowhere.pem, which cannot be read on this machine: No such file"
        in message
    )
    message = words(token_endpoint_url="file:///nowhere/token")
    assert f"{PREFIX}token.endpoint.url is /nowhere/token, which cannot be read on this machine" in message
    message = words(token_endpoint_url=provider.url, client_credentials_client_id=CLIENT)
    assert f"or an assertion from {PREFIX}assertion.private.key.file or {PREFIX}assertion.file" in message
    provider.now_s += 400
    message = words(token_endpoint_url=provider.url, **by_key | {"assertion_private_key_file": str(key_file)})
    assert "s behind the endpoint's clock. Correct the clock" in message
    assert provider.requests[0]["client_assertion"] not in message
