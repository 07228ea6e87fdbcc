"""Remedies for a schema registry's URL that redirects."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.formats.registry_transport import RegistryConfig
from spark_kafka_sink.formats.schema_registry import SchemaRegistryClient
from spark_kafka_sink.network.security.tls_context import StoreConfig, TlsConfig
from tests.formats.fake_registry import FakeRegistry, fake_registry
from tests.formats.registry_contract import avro_schema


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


PATH = "/subjects/a%20b/versions/latest"


def redirect(fake: FakeRegistry, location: str | None) -> str:
    """Look up the latest version of subject `a b` at a URL that redirects. Return the remedy in the error."""
    fake.error_statuses, fake.error_message, fake.location = [301], "", location
    with pytest.raises(SchemaRegistryError, match="responded with status 301") as caught:
        SchemaRegistryClient(RegistryConfig((f"{fake.url}/old",), token="t0ken")).get_latest("a b")
    return str(caught.value).partition("which is not the response of a schema registry. ")[2]


@pytest.mark.parametrize(
    ("location", "url"),
    [
        (f"https://registry:8081{PATH}", "https://registry:8081"),
        (f"https://registry/apis/ccompat/v7{PATH}", "https://registry/apis/ccompat/v7"),
        (f"https://alice:s3cret@registry{PATH}?ticket=s3cret#s3cret", "https://registry"),
        (f"//registry{PATH}", "http://registry"),
        (f"https://registry/t0ken{PATH}", "https://registry/***"),
    ],
)
def test_remedy_for_redirect_names_url_of_registry(fake: FakeRegistry, location: str, url: str) -> None:
    assert redirect(fake, location) == f"Redirects are not followed. Set schema.registry.url to {url}."


def test_remedy_for_redirect_ignores_query_of_request(fake: FakeRegistry) -> None:
    fake.error_statuses, fake.location = [308], "https://registry/subjects/s/versions?normalize=true"
    registry = SchemaRegistryClient(RegistryConfig((fake.url,), normalize=True))
    with pytest.raises(SchemaRegistryError, match=r"Set schema\.registry\.url to https://registry\.$"):
        registry.register("s", avro_schema("a"))
    assert fake.requests[-1] == ("POST", "/subjects/s/versions?normalize=true")


def test_following_remedy_for_redirect_reaches_registry(fake: FakeRegistry) -> None:
    fake.subjects["a b"] = [(7, {"schema": '"string"'})]
    url = redirect(fake, fake.url + PATH).rpartition(" ")[2].removesuffix(".")
    assert SchemaRegistryClient(RegistryConfig((url,))).get_latest("a b").id == 7


@pytest.mark.parametrize(
    ("location", "target"),
    [
        (f"https://login/sso?next={PATH}", "https://login/sso"),
        (f"https://registry{PATH}/", f"https://registry{PATH}/"),
    ],
)
def test_remedy_for_redirect_to_other_path_names_its_target(fake: FakeRegistry, location: str, target: str) -> None:
    assert redirect(fake, location) == (
        f"Redirects are not followed. The registry redirects to {target}. Set schema.registry.url to the URL of the "
        f"schema registry, without {PATH}."
    )


@pytest.mark.parametrize("location", [None, f"/old{PATH}?ticket=1", "https://[registry/", "mailto:a@b", "//h:port/"])
def test_remedy_for_redirect_without_usable_target_names_none(fake: FakeRegistry, location: str | None) -> None:
    assert redirect(fake, location) == (
        f"Redirects are not followed. Set schema.registry.url to the URL of the schema registry, without {PATH}."
    )


@pytest.mark.parametrize("location", [f"http://registry{PATH}", "http://login/sso"])
def test_remedy_for_redirect_from_https_does_not_recommend_http(tmp_path: Path, location: str) -> None:
    write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node.pem")
    with fake_registry(context) as fake:
        fake.error_statuses, fake.error_message, fake.location = [301], "", location
        tls = TlsConfig(truststore=StoreConfig(str(tmp_path / "ca.pem")))
        with pytest.raises(SchemaRegistryError) as caught:
            SchemaRegistryClient(RegistryConfig((fake.url,), tls=tls)).get_latest("a b")
    assert str(caught.value).endswith(
        f"Redirects are not followed. Set schema.registry.url to the URL of the schema registry, without {PATH}."
    )
