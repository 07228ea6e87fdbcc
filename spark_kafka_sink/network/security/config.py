"""SecurityConfig: how a client secures its connections, read from the Java client's options.

It holds values only, so that it can be pickled to Spark's executors; certificates are read, and conversations begun,
where the connection is. Secrets travel in the pickle and never show in repr, in an error or in a log.
"""

from __future__ import annotations

import functools
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_kafka_sink.errors import AuthenticationError, ConfigurationError
from spark_kafka_sink.network.security.login import SASL_MECHANISMS, Login, parse_login
from spark_kafka_sink.network.security.oidc import TokenSource
from spark_kafka_sink.network.security.security_options import SECURITY_OPTIONS, SecurityOption
from spark_kafka_sink.network.security.tls_context import TlsConfig, client_context
from spark_kafka_sink.network.security.tls_options import parse_tls
from spark_kafka_sink.sasl.gssapi import GssapiClient
from spark_kafka_sink.sasl.mechanism import ClientConversation
from spark_kafka_sink.sasl.oauthbearer import OauthBearerClient, unsecured_token
from spark_kafka_sink.sasl.plain import PlainClient
from spark_kafka_sink.sasl.scram import ScramClient

__all__ = ["SASL_MECHANISMS", "SECURITY_OPTIONS", "SecurityConfig", "SecurityOption", "security_config"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SecurityConfig:
    protocol: str = "PLAINTEXT"
    tls: TlsConfig = field(default_factory=TlsConfig)
    login: Login = field(default_factory=Login)

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def mechanism(self) -> str:
        return self.login.mechanism

    def ssl_context(self) -> ssl.SSLContext:
        """Reads the files with certificates and keys. ConfigurationError says which option is at fault."""
        return client_context(self.tls)

    def conversation(self, host: str) -> ClientConversation:
        """A new SASL conversation with a broker. A token may have to be obtained first, which takes its time."""
        login = self.login
        if login.mechanism == "PLAIN":
            return PlainClient(login.username, login.password)
        if login.mechanism == "OAUTHBEARER":
            return OauthBearerClient(_bearer_token(login), dict(login.extensions))
        if login.mechanism == "GSSAPI":
            return GssapiClient(login.kerberos_service, host)
        return ScramClient(login.mechanism, login.username, login.password, token_auth=login.token_auth)


def security_config(options: Mapping[str, object]) -> SecurityConfig:
    """ConfigurationError with all faults; names that are no security options are passed over."""
    faults: list[str] = []
    given = _texts(options, faults)
    protocol = given.get("security.protocol", PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        faults.append(f"security.protocol must be one of {', '.join(PROTOCOLS)}.")
    # As in Java, what the protocol has no use for may be there, and is not looked at.
    tls = parse_tls(given, faults) if "SSL" in protocol else TlsConfig()
    callback = options.get("sasl.oauthbearer.token.callback")
    login = parse_login(given, callback, faults) if "SASL" in protocol else Login()
    if faults:
        raise ConfigurationError(faults)
    config = SecurityConfig(protocol, tls, login)
    _warn(config)
    return config


def _texts(options: Mapping[str, object], faults: list[str]) -> dict[str, str]:
    """The options that are set and have a meaning here, as text."""
    texts = {}
    for name, value in options.items():
        option = SECURITY_OPTIONS.get(name)
        if option is None or value is None or option.ignored or callable(value):
            continue
        if option.refused:
            faults.append(f"{name} cannot be set: {option.refused}.")
        elif isinstance(value, list | tuple):
            texts[name] = ",".join(str(part) for part in value)
        else:
            texts[name] = (str(value).lower() if isinstance(value, bool) else str(value)).strip()
    return texts


def _warn(config: SecurityConfig) -> None:
    if config.protocol == "SASL_PLAINTEXT" and config.mechanism in ("PLAIN", "OAUTHBEARER"):
        _warn_once(
            f"sasl.mechanism {config.mechanism} over security.protocol SASL_PLAINTEXT: the credentials travel in clear "
            "and whoever reads the line has them. Use SASL_SSL."
        )
    if config.uses_tls and not config.tls.check_hostname:
        _warn_once(
            "ssl.endpoint.identification.algorithm is empty: whoever has any certificate of the trusted authorities "
            "can pass for the brokers."
        )


@functools.lru_cache(maxsize=64)
def _warn_once(message: str) -> None:
    _log.warning("%s", message)


def _bearer_token(login: Login) -> str:
    if login.token:
        return login.token
    if login.token_callback is not None:
        return _called(login.token_callback)
    if login.oidc is not None:
        return _token_source(login).token()
    issued_s = time.time()
    claims = dict(login.unsecured_claims) | {"iat": issued_s, "exp": issued_s + login.unsecured_lifetime_s}
    return unsecured_token(claims)


def _called(callback: Callable[[], object]) -> str:
    token = callback()
    if not isinstance(token, str):
        raise AuthenticationError("OAUTHBEARER: sasl.oauthbearer.token.callback must return the token as str")
    return token


_token_sources: dict[object, TokenSource] = {}
_TOKEN_SOURCES_MAX = 64


def _token_source(login: Login) -> TokenSource:
    """One for each endpoint and client of this process: connections share their token."""
    assert login.oidc is not None
    source = _token_sources.get(login.oidc)
    if source is None:
        if len(_token_sources) >= _TOKEN_SOURCES_MAX:
            _token_sources.clear()
        source = _token_sources.setdefault(login.oidc, TokenSource(login.oidc))
    return source
