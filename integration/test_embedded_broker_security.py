"""TLS and SASL of the embedded broker with librdkafka, kafka-python and the sink's own client."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from integration.support.certificates import write_certificates
from spark_kafka_sink import testing
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.oauthbearer import build_unsecured_token
from spark_kafka_sink.testing import EmbeddedBroker, ListenerSecurity, embedded_broker
from tests.waiting import WAIT_TIMEOUT_SECONDS

SECRET = "a secret that must not show"
USERS = {"alice": SECRET}
JAAS = 'org.apache.kafka.common.security.{} required username="alice" password="{}";'


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    return folder


def start_broker(protocol: str, certificates: Path, **options: object) -> EmbeddedBroker:
    security = ListenerSecurity(protocol, certificate=certificates / "node.pem", **options)  # type: ignore[arg-type]
    return embedded_broker({"t": 1}, security=security, advertised_host="localhost")


def write_with_librdkafka(broker: EmbeddedBroker, settings: dict[str, object]) -> object:
    """Produce a record. Return the error of its delivery, or None."""
    errors: list[object] = []
    options = {"bootstrap.servers": broker.bootstrap_servers, "broker.address.family": "v4", "log_level": 0, **settings}
    producer = Producer({**options, "message.timeout.ms": 20_000})
    producer.produce("t", b"by librdkafka", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_TIMEOUT_SECONDS) == 0
    del producer
    gc.collect()
    return errors[0]


def test_tls_works_with_librdkafka_and_own_client(certificates: Path) -> None:
    with start_broker("SSL", certificates) as broker:
        ca = str(certificates / "ca.pem")
        assert write_with_librdkafka(broker, {"security.protocol": "SSL", "ssl.ca.location": ca}) is None
        options = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": ca}
        table = testing.read_topic(broker.bootstrap_servers, "t", options=options)
    assert table.column("value").to_pylist() == [b"by librdkafka"]


def test_mtls_requires_client_certificate(certificates: Path) -> None:
    ca, client = str(certificates / "ca.pem"), str(certificates / "client.pem")
    with start_broker("SSL", certificates, client_ca=certificates / "ca.pem") as broker:
        settings: dict[str, object] = {"security.protocol": "SSL", "ssl.ca.location": ca}
        settings |= {"ssl.certificate.location": client, "ssl.key.location": client}
        assert write_with_librdkafka(broker, settings) is None
        options = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": ca}
        with pytest.raises(AuthenticationError):
            testing.read_topic(broker.bootstrap_servers, "t", options=options)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_accepts_correct_password_and_rejects_wrong_one(certificates: Path, mechanism: str) -> None:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    with start_broker("SASL_SSL", certificates, users=USERS) as broker:
        ca = str(certificates / "ca.pem")
        settings: dict[str, object] = {"security.protocol": "SASL_SSL", "ssl.ca.location": ca}
        settings |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": SECRET}
        assert write_with_librdkafka(broker, settings) is None
        options = {"security.protocol": "SASL_SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": ca}
        options |= {"sasl.mechanism": mechanism, "sasl.jaas.config": JAAS.format(module, "wrong")}
        with pytest.raises(AuthenticationError) as caught:
            testing.read_topic(broker.bootstrap_servers, "t", options=options)
        assert SECRET not in str(caught.value)
        options["sasl.jaas.config"] = JAAS.format(module, SECRET)
        assert testing.read_topic(broker.bootstrap_servers, "t", options=options).num_rows == 1


def test_accepts_unsecured_token(certificates: Path) -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", mechanisms=["OAUTHBEARER"])
    now = time.time()
    token = build_unsecured_token({"sub": "alice", "iat": now, "exp": now + 3600})
    with embedded_broker({"t": 1}, security=security) as broker:
        settings: dict[str, object] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
        settings["oauth_cb"] = lambda _: (token, now + 3600)
        assert write_with_librdkafka(broker, settings) is None


def test_kafka_python_logs_in_with_scram() -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", users=USERS)
    with embedded_broker({"t": 1}, security=security) as broker:
        producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="alice",
            sasl_plain_password=SECRET,
        )
        assert producer.send("t", b"by kafka-python").get(WAIT_TIMEOUT_SECONDS).offset == 0
        producer.close()
