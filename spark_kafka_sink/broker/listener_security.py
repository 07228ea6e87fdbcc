"""How clients of an embedded broker must connect: TLS, SASL, both or neither."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.handlers.api_18_api_versions import describe, unsupported_version
from spark_kafka_sink.broker.supported_versions import supported_versions
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.channel import ChannelBuilder
from spark_kafka_sink.network.channels import plaintext_channels
from spark_kafka_sink.network.security.secured_channels import server_channels
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.options.files import read_named_file
from spark_kafka_sink.protocol.headers import decode_request_header, encode_response
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.sasl.mechanism import ServerMechanism
from spark_kafka_sink.sasl.oauthbearer import OauthBearerServer, validate_unsecured_token
from spark_kafka_sink.sasl.plain import PlainServer
from spark_kafka_sink.sasl.scram import ScramCredential, build_scram_credential
from spark_kafka_sink.sasl.scram_server import ScramServer

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (*PASSWORD_MECHANISMS, OAUTHBEARER)
SALT_BYTES = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListenerSecurity:
    """`certificate` is a PEM file with key and chain; `client_ca` asks for certificates of clients (mTLS).

    OAUTHBEARER is offered only if `mechanisms` names it, for it takes unsigned tokens: every client is who it says it
    is, whatever `users` there are.
    """

    protocol: str = "PLAINTEXT"
    certificate: Path | None = None
    client_ca: Path | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    mechanisms: Sequence[str] = PASSWORD_MECHANISMS
    connections_max_reauth_ms: float = 0

    def __post_init__(self) -> None:
        faults = []
        if self.protocol not in PROTOCOLS:
            faults.append(f"the security protocol is one of {', '.join(PROTOCOLS)}, not {self.protocol}")
        if self.uses_tls and self.certificate is None:
            faults.append(f"{self.protocol} needs a certificate: a PEM file with the key and the chain")
        unknown = sorted(set(self.mechanisms) - set(MECHANISMS))
        if unknown:
            faults.append(f"SASL mechanisms are {', '.join(MECHANISMS)}, not {', '.join(unknown)}")
        if self.uses_sasl and not self.users and set(self.mechanisms) != {OAUTHBEARER}:
            faults.append(f"{self.protocol} needs users, or OAUTHBEARER (unsigned tokens) as its only mechanism")
        faults += [f"user {name} has an empty password" for name, password in self.users.items() if not password]
        if faults:
            raise ConfigurationError(faults)

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def channels(self, cluster: EmbeddedCluster) -> ChannelBuilder:
        if self.protocol == "PLAINTEXT":
            return plaintext_channels
        if self.uses_sasl and OAUTHBEARER in self.mechanisms:
            _log.warning("OAUTHBEARER takes unsigned tokens here: this listener lets in every client, under any name")
        return server_channels(
            ssl_context=self._ssl_context() if self.uses_tls else None,
            mechanisms=self._conversations() if self.uses_sasl else None,
            answer_api_versions=lambda frame: _answer_api_versions(cluster, frame),
            connections_max_reauth_ms=self.connections_max_reauth_ms,
        )

    def _ssl_context(self) -> ssl.SSLContext:
        assert self.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load(context.load_cert_chain, self.certificate)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            _load(context.load_verify_locations, self.client_ca)
        return context

    def _conversations(self) -> dict[str, Callable[[], ServerMechanism]]:
        return {name: self._conversation(name) for name in self.mechanisms}

    def _conversation(self, mechanism: str) -> Callable[[], ServerMechanism]:
        if mechanism == "PLAIN":
            return lambda: PlainServer(self.users)
        if mechanism == OAUTHBEARER:
            return lambda: OauthBearerServer(lambda token: validate_unsecured_token(token, now_s=time.time()))
        credentials = {name: _credential(mechanism, password) for name, password in self.users.items()}
        return lambda: ScramServer(mechanism, credentials.get)


def _load(load: Callable[[Path], None], path: Path) -> None:
    try:
        read_named_file(path)  # OpenSSL would read a device for ever
        load(path)
    except OSError as error:  # ssl.SSLError is one, with OpenSSL's word for what is in the file
        reason = getattr(error, "reason", None) or error.strerror
        raise ConfigurationError(f"the certificates of the listener: {path} cannot be read: {reason}") from error


def _credential(mechanism: str, password: str) -> ScramCredential:
    return build_scram_credential(mechanism, password, salt=os.urandom(SALT_BYTES))


def _answer_api_versions(cluster: EmbeddedCluster, frame: memoryview) -> Sequence[Buffer]:
    header, _ = decode_request_header(frame)
    if header.api_version in supported_versions(cluster.config.version_limits)[ApiKey.API_VERSIONS]:
        return encode_response(describe(cluster), header.api_version, header.correlation_id)
    return encode_response(unsupported_version(cluster), 0, header.correlation_id)
