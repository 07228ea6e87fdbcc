"""TLS between the client and the schema registry: trust, client certificates and their errors."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import ConfigurationError, SchemaRegistryError
from spark_kafka_sink.formats.registry_transport import RegistryConfig
from spark_kafka_sink.formats.schema_registry import SchemaRegistryClient
from spark_kafka_sink.network.security.tls_context import StoreConfig, TlsConfig
from tests.formats.fake_registry import fake_registry
from tests.formats.registry_contract import avro_schema


def test_verifies_certificate_and_sends_client_certificate(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with fake_registry(context) as fake:
        trust, identity = StoreConfig(str(tmp_path / "ca.pem")), StoreConfig(str(tmp_path / "client.pem"))
        tls = TlsConfig(truststore=trust, keystore=identity)
        registry = SchemaRegistryClient(RegistryConfig((fake.url,), tls=tls))
        assert registry.register("s", avro_schema("a")).id == 1
        fake.user_info = "alice:s3cret"
        with pytest.raises(SchemaRegistryError, match="had only the client certificate as credentials"):
            registry.register("s", avro_schema("b"))
        for wrong in (TlsConfig(), TlsConfig(truststore=StoreConfig(str(tmp_path / "stranger-ca.pem")))):
            with pytest.raises(SchemaRegistryError, match="authority that is not trusted"):
                SchemaRegistryClient(RegistryConfig((fake.url,), tls=wrong)).register("s", avro_schema("a"))


@pytest.mark.parametrize(
    ("certificate", "host", "truststore", "message"),
    [
        ("node", "localhost", "stranger-ca", "not trusted .* to schema.registry.ssl.truststore.location or schema"),
        ("expired", "localhost", "ca", "the schema registry's certificate has expired: renew it on the schema registr"),
        ("node", "127.0.0.1", "ca", "'127.0.0.1' .*: correct the host in schema.registry.url, or set schema.registry"),
    ],
)
def test_certificate_error_names_cause_and_option_without_timeout(
    tmp_path: Path, certificate: str, host: str, truststore: str, message: str
) -> None:
    write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / f"{certificate}.pem")
    tls = TlsConfig(truststore=StoreConfig(str(tmp_path / f"{truststore}.pem")))
    with fake_registry(context) as fake:
        url = fake.url.replace("localhost", host)
        registry = SchemaRegistryClient(RegistryConfig((url,), tls=tls))
        with pytest.raises(SchemaRegistryError, match=message) as caught:
            registry.register("s", avro_schema("a"))
    assert url in str(caught.value)
    assert "timeout" not in str(caught.value)
    assert "_ssl.c" not in str(caught.value)


def test_tls_errors_have_registry_option_prefix() -> None:
    tls = TlsConfig(keystore=StoreConfig("/etc/ssl.keystore.location/gone.pem"))
    with pytest.raises(ConfigurationError) as caught:
        SchemaRegistryClient(RegistryConfig(("https://registry",), tls=tls))
    assert "schema.registry.ssl.keystore.location is /etc/ssl.keystore.location/gone.pem, which cannot" in str(
        caught.value
    )
