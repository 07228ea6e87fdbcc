"""ListenerSecurity: TLS and SASL settings of the embedded broker's listeners."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.handlers.api_18_api_versions import (
    build_api_versions_response,
    build_unsupported_version_response,
)
from spark_kafka_sink.broker.supported_versions import select_supported_versions
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.channel import ChannelBuilder
from spark_kafka_sink.network.channel_builders import build_plaintext_channel
from spark_kafka_sink.network.security.secured_channel_builders import create_server_channel_builder
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.options.files import read_bounded_file
from spark_kafka_sink.protocol.headers import decode_request_header, encode_response
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.sasl.mechanism import ServerMechanism
from spark_kafka_sink.sasl.oauthbearer import OauthBearerServer, validate_unsecured_token
from spark_kafka_sink.sasl.plain import PlainServer
from spark_kafka_sink.sasl.scram import ScramCredential, build_scram_credential
from spark_kafka_sink.sasl.scram_server import ScramServer

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER = "OAUTHBEARER"
SASL_MECHANISMS = (*PASSWORD_MECHANISMS, OAUTHBEARER)
SALT_BYTES = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListenerSecurity:
    """Security protocol of the listeners, with the certificates and users that it requires.

    `mechanisms` excludes OAUTHBEARER by default, because the broker accepts unsigned tokens: a client can log in under
    any name, even one that is not in `users`.
    """

    protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    certificate: Path | None = None
    """PEM file with the listeners' private key and certificate chain. Required for TLS."""
    client_ca: Path | None = None
    """PEM file with the authorities that sign client certificates. If set, clients must present one (mTLS)."""
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passwords by user name, for PLAIN and SCRAM."""
    mechanisms: Sequence[str] = PASSWORD_MECHANISMS
    """SASL mechanisms offered by the listeners."""
    connections_max_reauth_ms: float = 0
    """Maximum lifetime of a login (`connections.max.reauth.ms`). If 0, clients need not log in again."""

    def __post_init__(self) -> None:
        errors = []
        if self.protocol not in SECURITY_PROTOCOLS:
            errors.append(f"The security protocol must be one of {', '.join(SECURITY_PROTOCOLS)}, not {self.protocol}.")
        if self.uses_tls and self.certificate is None:
            errors.append(f"{self.protocol} requires a certificate: a PEM file with the private key and the chain.")
        unsupported_mechanisms = sorted(set(self.mechanisms) - set(SASL_MECHANISMS))
        if unsupported_mechanisms:
            names = ", ".join(unsupported_mechanisms)
            errors.append(f"A SASL mechanism must be one of {', '.join(SASL_MECHANISMS)}, not {names}.")
        accepts_only_tokens = set(self.mechanisms) == {OAUTHBEARER}
        if self.uses_sasl and not self.users and not accepts_only_tokens:
            errors.append(f"{self.protocol} requires users, or OAUTHBEARER (unsigned tokens) as its only mechanism.")
        errors += [f"User {name} has an empty password." for name, password in self.users.items() if not password]
        if errors:
            raise ConfigurationError(errors)

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def create_channel_builder(self, cluster: EmbeddedCluster) -> ChannelBuilder:
        """Create a server channel builder with these settings. Raise ConfigurationError if a file cannot be loaded.

        Clients may send ApiVersions before they log in, so the builder needs to know which versions `cluster` supports.
        """
        if self.protocol == "PLAINTEXT":
            return build_plaintext_channel
        if self.uses_sasl and OAUTHBEARER in self.mechanisms:
            _log.warning("Enabled OAUTHBEARER with unsigned tokens: every client can log in under any name")
        return create_server_channel_builder(
            ssl_context=self._build_ssl_context() if self.uses_tls else None,
            mechanisms=self._build_mechanism_factories() if self.uses_sasl else None,
            handle_api_versions=lambda frame: _encode_api_versions_response(cluster, frame),
            connections_max_reauth_ms=self.connections_max_reauth_ms,
        )

    def _build_ssl_context(self) -> ssl.SSLContext:
        assert self.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_certificates(context.load_cert_chain, self.certificate)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            _load_certificates(context.load_verify_locations, self.client_ca)
        return context

    def _build_mechanism_factories(self) -> dict[str, Callable[[], ServerMechanism]]:
        return {name: self._get_mechanism_factory(name) for name in self.mechanisms}

    def _get_mechanism_factory(self, mechanism: str) -> Callable[[], ServerMechanism]:
        """Return a factory for the server side of a mechanism. SCRAM credentials are derived once, in this call."""
        if mechanism == "PLAIN":
            return lambda: PlainServer(self.users)
        if mechanism == OAUTHBEARER:
            return lambda: OauthBearerServer(lambda token: validate_unsecured_token(token, now_s=time.time()))
        credentials = {name: _derive_credential(mechanism, password) for name, password in self.users.items()}
        return lambda: ScramServer(mechanism, credentials.get)


def _load_certificates(load: Callable[[Path], None], path: Path) -> None:
    """Load a PEM file with a method of an SSLContext. Raise ConfigurationError if the file is unreadable or invalid."""
    try:
        read_bounded_file(path)  # rejects devices, because OpenSSL would read them forever
        load(path)
    except OSError as error:  # includes ssl.SSLError, whose `reason` is OpenSSL's description of the problem
        reason = getattr(error, "reason", None) or error.strerror
        raise ConfigurationError(f"The listener's certificate file {path} cannot be read: {reason}") from error


def _derive_credential(mechanism: str, password: str) -> ScramCredential:
    return build_scram_credential(mechanism, password, salt=os.urandom(SALT_BYTES))


def _encode_api_versions_response(cluster: EmbeddedCluster, frame: memoryview) -> Sequence[Buffer]:
    """Encode the response to an ApiVersions request that a client sent before it logged in."""
    header, _ = decode_request_header(frame)
    if header.api_version in select_supported_versions(cluster.config.version_limits)[ApiKey.API_VERSIONS]:
        response = build_api_versions_response(cluster, header.api_version)
        return encode_response(response, header.api_version, header.correlation_id)
    return encode_response(build_unsupported_version_response(cluster), version=0, correlation_id=header.correlation_id)
