"""Keys and certificates from every kind of store, and errors for invalid stores.

The stores next to this file were created by Java's keytool 17; their certificates are valid for a hundred years.
"""

from __future__ import annotations

import datetime
import importlib
import os
import ssl
import struct
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from spark_kafka_sink.errors import ConfigurationError, MissingDependencyError
from spark_kafka_sink.network.security.keystores import read_pem, read_store
from spark_kafka_sink.network.security.tls_context import StoreConfig, TlsConfig, build_client_ssl_context
from spark_kafka_sink.network.security_config import parse_security_config
from spark_kafka_sink.options.files import MAX_FILE_BYTES

STORES = Path(__file__).parent / "stores"
STORE_PASSWORD, KEY_PASSWORD = "store-secret", "key-secret"

JKS_IDENTITY = read_store(
    (STORES / "identity.jks").read_bytes(), type_name=None, password=STORE_PASSWORD, key_password=KEY_PASSWORD
)
KEY, CHAIN = JKS_IDENTITY.private_key, JKS_IDENTITY.chain


def options(**settings: str) -> dict[str, object]:
    protocol: dict[str, object] = {"security.protocol": "SSL"}
    return protocol | {f"ssl.{name.replace('_', '.')}": value for name, value in settings.items()}


def authorities(context: ssl.SSLContext) -> int:
    return int(context.cert_store_stats()["x509"])


def failure(settings: dict[str, object]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_security_config(settings).build_ssl_context()
    assert "secret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", [None, "JKS", "PKCS12"])
@pytest.mark.parametrize("name", ["trust.jks", "trust.p12"])
def test_reads_java_truststores_regardless_of_configured_type(name: str, kind: str | None) -> None:
    settings = options(truststore_location=str(STORES / name), truststore_password=STORE_PASSWORD)
    if kind:
        settings["ssl.truststore.type"] = kind
    assert authorities(parse_security_config(settings).build_ssl_context()) == 1


@pytest.mark.parametrize(("name", "key_password"), [("identity.jks", KEY_PASSWORD), ("identity.p12", None)])
def test_reads_java_keystores_of_client(name: str, key_password: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL accepts the key and the chain, after checking that they match."""
    loaded: list[str] = []
    real = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, chain: str, key: str, **settings: Any) -> None:
        real(self, chain, key, **settings)
        loaded.extend(Path(path).read_text() for path in (chain, key))

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    store = StoreConfig(str(STORES / name), None, STORE_PASSWORD, key_password)
    build_client_ssl_context(TlsConfig(keystore=store))
    pem = "".join(loaded)
    assert pem.count("BEGIN PRIVATE KEY") == 1
    assert pem.count("BEGIN CERTIFICATE") == 1


def test_jks_key_equals_original_key() -> None:
    key = serialization.load_pem_private_key(KEY.encode(), None)
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(CHAIN.encode())
    assert key.public_key() == certificate.public_key()


@pytest.mark.parametrize("mangled", [str, lambda pem: pem.replace("\n", " "), lambda pem: pem.replace("\n", "\\n")])
def test_reads_pem_with_changed_line_breaks(mangled: Any) -> None:
    settings = options(
        keystore_key=mangled(KEY), keystore_certificate_chain=mangled(CHAIN), truststore_certificates=mangled(CHAIN)
    )
    assert authorities(parse_security_config(settings).build_ssl_context()) == 1


def test_reads_key_and_chain_from_pem_file(tmp_path: Path) -> None:
    (tmp_path / "node.pem").write_text("comment\n" + KEY + CHAIN)
    (tmp_path / "ca.pem").write_text(CHAIN * 2)
    location, trust = str(tmp_path / "node.pem"), str(tmp_path / "ca.pem")
    for kind in ({}, {"keystore_type": "PEM", "truststore_type": "pem"}):
        settings = options(keystore_location=location, truststore_location=trust, **kind)
        assert authorities(parse_security_config(settings).build_ssl_context()) == 1


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_decrypts_key_only_with_its_password(form: serialization.PrivateFormat) -> None:
    key = serialization.load_pem_private_key(KEY.encode(), None)
    encryption = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
    pem = key.private_bytes(serialization.Encoding.PEM, form, encryption).decode()
    settings = options(keystore_key=pem, keystore_certificate_chain=CHAIN, key_password=KEY_PASSWORD)
    parse_security_config(settings).build_ssl_context()
    assert "ssl.key.password is wrong or missing" in failure(settings | {"ssl.key.password": "wrong"})
    # OpenSSL must not ask for the password on the terminal.
    assert "ssl.key.password is wrong or missing" in failure(settings | {"ssl.key.password": None})


@pytest.mark.parametrize("in_memory", [True, False])
def test_private_key_is_never_written_to_a_named_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_memory: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    loaded_files: list[tuple[str, list[Path]]] = []
    real = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, chain: str, key: str, **settings: Any) -> None:
        loaded_files.extend((os.readlink(path), list(tmp_path.iterdir())) for path in (chain, key))
        real(self, chain, key, **settings)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    good = options(keystore_key=KEY, keystore_certificate_chain=CHAIN)
    parse_security_config(good).build_ssl_context()
    assert "damaged" in failure(good | {"ssl.keystore.certificate.chain": CHAIN.replace("M", "N")})
    assert len(loaded_files) == 4
    assert all(name.endswith("(deleted)") and not files for name, files in loaded_files)
    assert not in_memory or all(name.startswith("/memfd:identity") for name, _ in loaded_files)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("identity.jks", {"password": "x"}), ("identity.jks", {"key_password": "x"}), ("identity.p12", {"password": "x"})],
)
def test_reports_wrong_keystore_password(name: str, wrong: dict[str, str]) -> None:
    settings = {"password": STORE_PASSWORD, "key_password": KEY_PASSWORD} | wrong
    with pytest.raises(ConfigurationError, match=r"password .*is wrong"):
        read_store((STORES / name).read_bytes(), type_name=None, **settings)


def test_reads_jks_truststore_without_password() -> None:
    data = (STORES / "trust.jks").read_bytes()
    assert "BEGIN CERTIFICATE" in read_store(data, type_name="JKS", password=None, key_password=None).authorities


@pytest.mark.parametrize("name", ["identity.jks", "trust.jks"])
def test_rejects_jks_file_truncated_at_any_position(name: str) -> None:
    data = (STORES / name).read_bytes()
    for size in range(4, len(data) - 20):
        with pytest.raises(ConfigurationError):
            read_store(data[:size] + bytes(20), type_name=None, password=None, key_password=KEY_PASSWORD)


def test_rejects_jks_file_with_billions_of_entries_quickly() -> None:
    data = struct.pack(">III", 0xFEEDFEED, 2, 0xFFFFFFFF) + bytes(200)
    with pytest.raises(ConfigurationError):
        read_store(data, type_name="JKS", password=None, key_password=None)


def test_pkcs12_error_names_remedies_without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    store = StoreConfig(str(STORES / "trust.p12"), None, STORE_PASSWORD)
    with pytest.raises(MissingDependencyError, match="openssl pkcs12 -in") as caught:
        build_client_ssl_context(TlsConfig(truststore=store))
    assert "ssl.truststore.location" in str(caught.value)
    assert "spark-kafka-sink[pkcs12]" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"truststore_location": "/nowhere/ca.pem"},
            "is /nowhere/ca.pem, which cannot be read on this machine: No such file",
        ),
        ({"truststore_certificates": "nothing"}, "ssl.truststore.certificates has no certificate"),
        ({"truststore_certificates": CHAIN.replace("M", "N")}, "damaged"),
        ({"truststore_certificates": CHAIN.replace("M", "\xe9")}, "damaged"),
        ({"keystore_key": CHAIN, "keystore_certificate_chain": CHAIN}, "needs a private key"),
        ({"keystore_key": KEY + KEY, "keystore_certificate_chain": CHAIN}, "more than one private key"),
        ({"keystore_location": str(STORES / "trust.jks")}, "needs a private key"),
        ({"keystore_location": __file__}, "which cannot be used: it is not a PEM, PKCS12 or JKS file"),
        ({"keystore_location": str(STORES / "identity.jks"), "keystore_type": "PEM"}, "needs a private key"),
        ({"keystore_location": str(STORES / "identity.jks")}, "its private key needs a password"),
    ],
)
def test_invalid_store_error_names_its_option(settings: dict[str, str], message: str) -> None:
    assert message in failure(options(**settings))


@pytest.mark.parametrize(
    ("store", "remedy"),
    [
        ("truststore", "set ssl.truststore.certificates to"),
        ("keystore", "set ssl.keystore.key and ssl.keystore.certificate.chain to"),
    ],
)
def test_does_not_show_pem_in_place_of_store_path_and_names_options_for_pem(store: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_security_config(options(**{f"{store}_location": KEY})).build_ssl_context()
    assert str(caught.value).startswith(f"ssl.{store}.location must be the path of a file, but seems to")
    assert remedy in str(caught.value)
    assert "BEGIN" not in "".join(traceback.format_exception(caught.value))


def test_reports_key_that_does_not_match_certificate() -> None:
    other = read_store(
        (STORES / "identity.p12").read_bytes(), type_name=None, password=STORE_PASSWORD, key_password=None
    )
    settings = options(keystore_key=other.private_key, keystore_certificate_chain=CHAIN)
    assert "does not belong to the first certificate" in failure(settings)


def test_reports_certificate_that_openssl_rejects_as_weak() -> None:
    weak_key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "weak")])
    certificate = (
        x509.CertificateBuilder(name, name, weak_key.public_key(), serial_number=1)
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(2120, 1, 1))
        .sign(weak_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = weak_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    settings = options(keystore_key=key.decode(), keystore_certificate_chain=certificate.public_bytes(pem).decode())
    assert "rejects a certificate of the chain as too weak" in failure(settings)


@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_does_not_read_store_from_device_pipe_or_large_file(store: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", MAX_FILE_BYTES + 1)
    for path, message in (
        ("/dev/zero", "a device"),
        (str(tmp_path / "pipe"), "a pipe"),
        (str(tmp_path), "a directory"),
    ):
        assert f"ssl.{store}.location is {path}, which cannot be read on this machine: it is {message}" in failure(
            options(**{f"{store}_location": path})
        )
    assert "the file is longer than" in failure(options(**{f"{store}_location": str(tmp_path / "large")}))


def test_store_repr_contains_no_secret() -> None:
    store = StoreConfig("hush-0", "JKS", "hush-1", "hush-2", "hush-3")
    assert "hush" not in repr(TlsConfig(truststore=store, keystore=store)) + repr(
        read_pem(KEY.replace("\n", "hush"), "hush")
    )
    assert KEY.split("\n")[1] not in repr(JKS_IDENTITY)
