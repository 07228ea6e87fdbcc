"""TLS and SASL setup for an embedded broker: generated certificates, users and the matching client options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from spark_kafka_sink.broker.listener_security import PASSWORD_MECHANISMS, ListenerSecurity
from spark_kafka_sink.errors import ConfigurationError, MissingDependencyError

MUTUAL_TLS = "mutual"
DEFAULT_MECHANISM = "SCRAM-SHA-512"
_SECURITY_PROTOCOLS = {
    (False, False): "PLAINTEXT",
    (True, False): "SSL",
    (False, True): "SASL_PLAINTEXT",
    (True, True): "SASL_SSL",
}
"""Security protocols by (TLS, SASL)."""
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True)
class SecuritySetup:
    """A listener's security settings and the matching client options."""

    listener: ListenerSecurity
    client_options: Mapping[str, object] = field(repr=False)


class _CertificateFiles(NamedTuple):
    """The PEM files of a listener, and the matching client options."""

    certificate: Path
    client_ca: Path | None
    """Authority that signs client certificates; None without mutual TLS."""
    client_options: dict[str, object]


@contextmanager
def set_up_security(
    *, tls: bool | Literal["mutual"], users: Mapping[str, str], mechanism: str, host_names: Iterable[str]
) -> Iterator[SecuritySetup]:
    """Generate the certificates and options for a listener and its clients.

    Create the listener inside the `with` block, because its certificate files are deleted at the end of the block. The
    client options contain certificates as text rather than file paths, so that the options also work on Spark's
    executors.

    `users`: passwords by user name. The client options contain the login of the first user.
    `host_names`: names for which the certificate is valid, in addition to localhost and 127.0.0.1.
    """
    if mechanism not in PASSWORD_MECHANISMS:
        raise ConfigurationError(f"mechanism must be one of {', '.join(PASSWORD_MECHANISMS)}, not {mechanism}.")
    options: dict[str, object] = {}
    with TemporaryDirectory() as directory:
        certificate: Path | None = None
        client_ca: Path | None = None
        if tls:
            files = _write_certificates(Path(directory), host_names, mutual=tls == MUTUAL_TLS)
            certificate, client_ca = files.certificate, files.client_ca
            options |= files.client_options
        if users:
            name, password = next(iter(users.items()))
            options |= {"sasl.mechanism": mechanism, "sasl.jaas.config": build_jaas_config(mechanism, name, password)}
        protocol = _SECURITY_PROTOCOLS[bool(tls), bool(users)]
        if protocol != "PLAINTEXT":
            options["security.protocol"] = protocol
        yield SecuritySetup(ListenerSecurity(protocol, certificate, client_ca, users), client_options=options)


def build_jaas_config(mechanism: str, name: str, password: str) -> str:
    """Build the value of sasl.jaas.config for a user's login."""
    return f"{_LOGIN_MODULES[mechanism]} required username={_quote(name)} password={_quote(password)};"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_certificates(directory: Path, host_names: Iterable[str], *, mutual: bool) -> _CertificateFiles:
    """Write the PEM files of a listener. Raise MissingDependencyError if trustme is not installed.

    `mutual`: whether clients must present a certificate as well.
    """
    try:
        import trustme
    except ImportError as error:
        raise MissingDependencyError('TLS requires trustme: pip install "spark-kafka-sink[testing]"') from error
    authority = trustme.CA()
    certificate_path, client_ca_path = directory / "listener.pem", directory / "authority.pem"
    listener_certificate = authority.issue_cert(*dict.fromkeys(("localhost", "127.0.0.1", *host_names)))
    listener_certificate.private_key_and_cert_chain_pem.write_to_path(str(certificate_path))
    options: dict[str, object] = {"ssl.truststore.certificates": authority.cert_pem.bytes().decode()}
    if not mutual:
        return _CertificateFiles(certificate_path, client_ca=None, client_options=options)
    # The same authority signs the client's certificate.
    authority.cert_pem.write_to_path(str(client_ca_path))
    client_certificate = authority.issue_cert("client.embedded", common_name="client")
    options["ssl.keystore.key"] = client_certificate.private_key_pem.bytes().decode()
    options["ssl.keystore.certificate.chain"] = "".join(
        pem.bytes().decode() for pem in client_certificate.cert_chain_pems
    )
    return _CertificateFiles(certificate_path, client_ca_path, options)
