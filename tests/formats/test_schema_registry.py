"""The client of a schema registry, and that the fake one answers as real ones do."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import ConfigurationError, SchemaRegistryError
from spark_kafka_sink.formats.schema_registry import RETRIES_MAX, RegistryConfig, SchemaRegistry, check_urls
from spark_kafka_sink.network.security.tls_context import StoreConfig, TlsConfig
from tests.formats.fake_registry import FakeRegistry, fake_registry
from tests.formats.registry_contract import RegistryContract, avro_schema


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


class TestTheFake(RegistryContract):
    @pytest.fixture
    def registry_url(self, fake: FakeRegistry) -> str:
        return fake.url


def test_a_schema_that_is_not_compatible_is_refused_with_what_to_do(fake: FakeRegistry) -> None:
    registry = SchemaRegistry(RegistryConfig((fake.url,)))
    registry.register("t-value", avro_schema("a"))
    with pytest.raises(SchemaRegistryError, match="not compatible with earlier versions of the subject 't-value'"):
        registry.register("t-value", avro_schema("a", "b"))


def test_the_same_question_is_asked_once(fake: FakeRegistry) -> None:
    registry = SchemaRegistry(RegistryConfig((fake.url,)))
    for _ in range(3):
        registry.register("t-value", avro_schema("a"))
        registry.latest("t-value", start="of a stream")
    assert len(fake.requests) == 2
    registry.latest("t-value")
    registry.latest("t-value")
    assert len(fake.requests) == 4, "a job wants what is newest now"


def test_a_subject_of_any_characters_is_asked_for_by_its_name(fake: FakeRegistry) -> None:
    SchemaRegistry(RegistryConfig((fake.url,))).register("a/b?c value", avro_schema("a"))
    assert fake.requests == [("POST", "/subjects/a%2Fb%3Fc%20value/versions")]
    assert list(fake.subjects) == ["a/b?c value"]


def test_normal_forms_are_asked_for(fake: FakeRegistry) -> None:
    SchemaRegistry(RegistryConfig((fake.url,), normalize=True)).register("s", avro_schema("a"))
    assert fake.requests == [("POST", "/subjects/s/versions?normalize=true")]


def test_a_busy_registry_is_asked_again(fake: FakeRegistry) -> None:
    fake.failing = [503, 429]
    assert SchemaRegistry(RegistryConfig((fake.url,))).register("s", avro_schema("a")) == 1
    assert len(fake.requests) == 3


def test_a_registry_that_stays_busy_is_given_up_with_its_address(fake: FakeRegistry) -> None:
    fake.failing = [503] * 20
    with pytest.raises(SchemaRegistryError, match=f"gave no answer .*{fake.url}.* 503.*Check schema.registry.url"):
        SchemaRegistry(RegistryConfig((fake.url,))).register("s", avro_schema("a"))
    assert len(fake.requests) == 1 + RETRIES_MAX


def test_the_next_address_is_asked_where_one_is_down(fake: FakeRegistry) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        registry = SchemaRegistry(RegistryConfig((down, fake.url)))
        assert registry.register("s", avro_schema("a")) == 1
        with pytest.raises(SchemaRegistryError, match="gave no answer"):
            SchemaRegistry(RegistryConfig((down,))).register("s", avro_schema("a"))


def test_users_are_asked_for_their_password(fake: FakeRegistry) -> None:
    fake.user_info = "alice:s3cret"
    registry = SchemaRegistry(RegistryConfig((fake.url,), user_info="alice:s3cret"))
    assert registry.register("s", avro_schema("a")) == 1
    with pytest.raises(SchemaRegistryError, match="check the credentials in"):
        SchemaRegistry(RegistryConfig((fake.url,), user_info="alice:wrong")).register("s", avro_schema("a"))


def test_a_token_is_sent(fake: FakeRegistry) -> None:
    SchemaRegistry(RegistryConfig((fake.url,), token="t0ken")).register("s", avro_schema("a"))
    assert fake.headers[0]["authorization"] == "Bearer t0ken"


def test_no_secret_is_in_the_repr() -> None:
    shown = repr(RegistryConfig(("https://r",), user_info="alice:s3cret", token="t0ken"))
    assert "s3cret" not in shown
    assert "t0ken" not in shown


def test_credentials_over_http_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    RegistryConfig(("http://localhost:8081",), user_info="a:b")
    assert not caplog.records
    RegistryConfig(("http://registry:8081",), user_info="a:b")
    assert "the credentials travel in clear" in caplog.text


def test_schemas_that_refer_to_others_are_refused(fake: FakeRegistry) -> None:
    fake.subjects["s"] = [(1, {"schema": "{}", "references": [{"name": "x", "subject": "y", "version": 1}]})]
    with pytest.raises(SchemaRegistryError, match="refers to other subjects"):
        SchemaRegistry(RegistryConfig((fake.url,))).latest("s")


def test_an_answer_without_an_id_is_refused(fake: FakeRegistry) -> None:
    fake.subjects["s"] = [(1 << 31, {"schema": "{}"})]
    with pytest.raises(SchemaRegistryError, match="has no id"):
        SchemaRegistry(RegistryConfig((fake.url,))).latest("s")


def test_tls_is_checked_and_the_client_identifies_itself(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with fake_registry(context) as fake:
        trust, identity = StoreConfig(str(tmp_path / "ca.pem")), StoreConfig(str(tmp_path / "client.pem"))
        tls = TlsConfig(trust=trust, identity=identity)
        assert SchemaRegistry(RegistryConfig((fake.url,), tls=tls)).register("s", avro_schema("a")) == 1
        for wrong in (TlsConfig(), TlsConfig(trust=StoreConfig(str(tmp_path / "stranger-ca.pem")))):
            with pytest.raises(SchemaRegistryError, match="CERTIFICATE_VERIFY_FAILED"):
                SchemaRegistry(RegistryConfig((fake.url,), tls=wrong)).register("s", avro_schema("a"))


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        ("", "schema.registry.url is not set"),
        ("registry:8081", "must be addresses that begin with https:// or http://"),
        ("https://alice:s3cret@registry", "must have no user and password in it"),
        ("https://registry:port", "has an address that is none"),
    ],
)
def test_addresses_are_checked_and_not_repeated(urls: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_urls(urls)
    assert words in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_without_urllib3_the_error_names_the_extra() -> None:
    code = (
        "import sys\n"
        "sys.modules['urllib3'] = None\n"
        "from spark_kafka_sink.errors import MissingDependencyError\n"
        "from spark_kafka_sink.formats.schema_registry import RegistryConfig, SchemaRegistry\n"
        "try:\n"
        "    SchemaRegistry(RegistryConfig(('http://localhost',)))\n"
        "except MissingDependencyError as error:\n"
        "    assert 'spark-kafka-sink[registry]' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
