"""TLS and SASL for an embedded broker: certificates made on the spot, users, and the options of clients that fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from spark_kafka_sink.broker.listener_security import PASSWORD_MECHANISMS, ListenerSecurity
from spark_kafka_sink.errors import ConfigurationError, MissingDependencyError

MUTUAL = "mutual"
SCRAM = "SCRAM-SHA-512"
_PROTOCOLS = {
    (False, False): "PLAINTEXT",
    (True, False): "SSL",
    (False, True): "SASL_PLAINTEXT",
    (True, True): "SASL_SSL",
}
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True)
class Secured:
    listener: ListenerSecurity
    client_options: Mapping[str, object] = field(repr=False)


@contextmanager
def secured(
    *, tls: bool | Literal["mutual"], users: Mapping[str, str], mechanism: str, names: Iterable[str]
) -> Iterator[Secured]:
    """The listener's files are there until the `with` ends: long enough for the listener to be made.

    `names` are those by which clients connect, besides localhost. Clients get certificates as text, not as files: so
    the options serve Spark's workers, too.
    """
    if mechanism not in PASSWORD_MECHANISMS:
        raise ConfigurationError(f"mechanism is {', '.join(PASSWORD_MECHANISMS)}, not {mechanism}")
    options: dict[str, object] = {}
    with TemporaryDirectory() as folder:
        certificate = client_ca = None
        if tls:
            certificate, client_ca = _write_certificates(Path(folder), names, options, mutual=tls == MUTUAL)
        if users:
            name, password = next(iter(users.items()))
            options |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(mechanism, name, password)}
        protocol = _PROTOCOLS[bool(tls), bool(users)]
        if protocol != "PLAINTEXT":
            options["security.protocol"] = protocol
        yield Secured(ListenerSecurity(protocol, certificate, client_ca, users), options)


def jaas(mechanism: str, name: str, password: str) -> str:
    """The option sasl.jaas.config for a user."""
    return f"{_LOGIN_MODULES[mechanism]} required username={_quoted(name)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_certificates(
    folder: Path, names: Iterable[str], options: dict[str, object], *, mutual: bool
) -> tuple[Path, Path | None]:
    """The listener's certificate and the authority of its clients, as files; what clients need goes into `options`."""
    try:
        import trustme
    except ImportError as error:
        raise MissingDependencyError('TLS needs trustme: pip install "spark-kafka-sink[testing]"') from error
    authority = trustme.CA()
    certificate, client_ca = folder / "listener.pem", folder / "authority.pem"
    issued = authority.issue_cert(*dict.fromkeys(("localhost", "127.0.0.1", *names)))
    issued.private_key_and_cert_chain_pem.write_to_path(str(certificate))
    options["ssl.truststore.certificates"] = authority.cert_pem.bytes().decode()
    if not mutual:
        return certificate, None
    authority.cert_pem.write_to_path(str(client_ca))
    client = authority.issue_cert("client.embedded", common_name="client")
    options["ssl.keystore.key"] = client.private_key_pem.bytes().decode()
    options["ssl.keystore.certificate.chain"] = "".join(pem.bytes().decode() for pem in client.cert_chain_pems)
    return certificate, client_ca
