"""SecurityConfig: how a client secures its connections, read from the Java client's options.

It holds values only, so that it can be pickled to Spark's executors; certificates are read, and conversations begun,
where the connection is. Secrets travel in the pickle and never show in repr, in an error or in a log.

What TLS and SASL need, some fifteen files and Python's own ssl and http, is imported when it is used: never for a
client with security.protocol PLAINTEXT.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.held_log import warn_once

if TYPE_CHECKING:
    import ssl

    from spark_kafka_sink.network.security.login import Login
    from spark_kafka_sink.network.security.tls_context import TlsConfig
    from spark_kafka_sink.sasl.mechanism import ClientConversation


__all__ = ["SECURITY_OPTIONS", "SecurityConfig", "SecurityOption", "security_config"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SecurityConfig:
    """`tls` and `login` are there if the protocol uses them."""

    protocol: str = PROTOCOLS[0]
    tls: TlsConfig | None = None
    login: Login | None = None

    def ssl_context(self) -> ssl.SSLContext:
        """Reads the files with certificates and keys. ConfigurationError says which option is at fault."""
        from spark_kafka_sink.network.security.tls_context import client_context

        assert self.tls is not None
        return client_context(self.tls)

    def conversation(self, host: str) -> ClientConversation:
        """A new SASL conversation with a broker. A token may have to be obtained first, which takes its time."""
        from spark_kafka_sink.network.security.conversations import conversation_of

        assert self.login is not None
        return conversation_of(self.login, host)


def security_config(options: Mapping[str, object]) -> SecurityConfig:
    """ConfigurationError with all faults; names that are no security options are passed over."""
    faults: list[str] = []
    given = _texts(options, faults)
    protocol = given.get("security.protocol", PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        faults.append(f"security.protocol must be one of {', '.join(PROTOCOLS)}.")
    # As in Java, what the protocol has no use for may be there, and is not looked at.
    tls = _tls(given, faults) if "SSL" in protocol else None
    login = _login(given, options.get("sasl.oauthbearer.token.callback"), faults) if "SASL" in protocol else None
    if faults:
        raise ConfigurationError(faults)
    config = SecurityConfig(protocol, tls, login)
    _warn(config)
    return config


def _tls(given: Mapping[str, str], faults: list[str]) -> TlsConfig:
    from spark_kafka_sink.network.security.tls_options import parse_tls

    return parse_tls(given, faults)


def _login(given: Mapping[str, str], token_callback: object, faults: list[str]) -> Login:
    from spark_kafka_sink.network.security.login import parse_login

    return parse_login(given, token_callback, faults)


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
    tls, login = config.tls, config.login
    if tls is None and login is None:
        return
    if login is not None and tls is None and login.mechanism in ("PLAIN", "OAUTHBEARER"):
        warn_once(
            _log,
            f"sasl.mechanism {login.mechanism} over security.protocol SASL_PLAINTEXT: the credentials travel in clear "
            "and anyone who can read the network traffic learns them. Use SASL_SSL.",
        )
    if tls is not None and not tls.check_hostname:
        warn_once(
            _log,
            "ssl.endpoint.identification.algorithm is empty: anyone with any certificate of the trusted authorities "
            "can pass for the brokers.",
        )


# The security options, under the Java client's names: what each is for, its default, and whether it is a secret.
#
# An option that only means something inside a JVM is accepted and has no effect (a configuration should move over as it
# is), unless it would load a class: such an option promises behaviour that we could not keep.


@dataclass(frozen=True)
class SecurityOption:
    name: str
    default: str | None
    doc: str
    secret: bool = False
    refused: str = ""
    """Why it cannot be set, if it cannot."""
    ignored: bool = False


_LOADS_A_CLASS = "it would load a Java class. "
_FOR_JVM = "Of a JVM only: accepted, without effect."

_USED = (
    SecurityOption("security.protocol", "PLAINTEXT", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
    SecurityOption("ssl.truststore.location", None, "File with the certificates of the authorities that are trusted."),
    SecurityOption("ssl.truststore.password", None, "Password of that file.", secret=True),
    SecurityOption("ssl.truststore.type", "JKS", "PEM, PKCS12 or JKS; without it the file's content decides."),
    SecurityOption("ssl.truststore.certificates", None, "The trusted certificates themselves, as PEM."),
    SecurityOption("ssl.keystore.location", None, "File with the client's private key and certificate chain."),
    SecurityOption("ssl.keystore.password", None, "Password of that file.", secret=True),
    SecurityOption("ssl.keystore.type", "JKS", "PEM, PKCS12 or JKS; without it the file's content decides."),
    SecurityOption("ssl.keystore.certificate.chain", None, "The client's certificate chain itself, as PEM."),
    SecurityOption("ssl.keystore.key", None, "The client's private key itself, as PEM.", secret=True),
    SecurityOption("ssl.key.password", None, "Password of the private key.", secret=True),
    SecurityOption(
        "ssl.endpoint.identification.algorithm",
        "https",
        "https: the broker's certificate must be for the host that was connected to. Empty: it may be for any host.",
    ),
    SecurityOption("ssl.cipher.suites", None, "The cipher suites allowed, by their IANA or OpenSSL names."),
    SecurityOption("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "The TLS versions allowed."),
    SecurityOption("ssl.protocol", "TLSv1.3", "The newest TLS version, where ssl.enabled.protocols is not set."),
    SecurityOption("sasl.mechanism", "GSSAPI", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI."),
    SecurityOption("sasl.jaas.config", None, "Login module with the credentials, as for the Java client.", secret=True),
    SecurityOption("sasl.kerberos.service.name", None, "GSSAPI: the name of the brokers' service, usually kafka."),
    SecurityOption("sasl.oauthbearer.token", None, "OAUTHBEARER: a token as it is. Ours.", secret=True),
    SecurityOption(
        "sasl.oauthbearer.token.callback",
        None,
        "OAUTHBEARER: a Python callable without arguments that returns a token, or its name, `package.module:function`,"
        " which is imported where the connection is, and "
        "[runs there](security.md#who-may-set-a-jobs-options): on Spark's workers. Ours.",
        secret=True,
    ),
    SecurityOption(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        "OAUTHBEARER: where tokens are obtained (OIDC): https, or loopback; or `file:///path` of a token that another "
        "program keeps fresh: it is read for each connection, on Spark's workers.",
    ),
    SecurityOption(
        "sasl.oauthbearer.client.credentials.client.id", None, "OAUTHBEARER: the client's id at the endpoint."
    ),
    SecurityOption(
        "sasl.oauthbearer.client.credentials.client.secret", None, "OAUTHBEARER: the client's secret.", secret=True
    ),
    SecurityOption(
        "sasl.oauthbearer.jwt.retriever.class",
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        "OAUTHBEARER: one of Kafka's own names. JwtBearerJwtRetriever: an assertion is exchanged for a token (the "
        "grant jwt-bearer), as Google's service accounts do it.",
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.file",
        None,
        "OAUTHBEARER: a file with an assertion that another program signs and keeps fresh, in place of the client's "
        "secret; read for each request, on Spark's workers.",
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.private.key.file",
        None,
        "OAUTHBEARER: a private key in PEM that signs assertions, in place of the client's secret; read for each "
        "request, on Spark's workers. Needs the extra `oauth`.",
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.private.key.passphrase", None, "OAUTHBEARER: the password of that key.", secret=True
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.algorithm", "RS256", "OAUTHBEARER: how assertions are signed; or ES256."
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.template.file",
        None,
        'OAUTHBEARER: JSON with more of an assertion, `{"header": {"kid": ...}, "payload": {...}}`; it wins over the '
        "options of claims.",
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.claim.aud",
        None,
        "OAUTHBEARER: who is to take an assertion; without it the address of the endpoint.",
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.claim.iss", None, "OAUTHBEARER: who signs an assertion; without it the client's id."
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.claim.sub",
        None,
        "OAUTHBEARER: who an assertion is about; without it the one that signs it.",
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.claim.exp.seconds", "300", "OAUTHBEARER: how long an assertion is valid."
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.claim.nbf.seconds", "60", "OAUTHBEARER: how long before now it is valid already."
    ),
    SecurityOption(
        "sasl.oauthbearer.assertion.claim.jti.include",
        "false",
        "OAUTHBEARER: true: each assertion has an id of its own (`jti`), for providers that take each one once.",
    ),
    SecurityOption("sasl.oauthbearer.scope", None, "OAUTHBEARER: the scope to ask for."),
    SecurityOption("sasl.oauthbearer.header.urlencode", "false", "OAUTHBEARER: id and secret are URL-encoded first."),
    SecurityOption(
        "sasl.login.connect.timeout.ms", "10000", "OAUTHBEARER: the longest wait for the endpoint to connect."
    ),
    SecurityOption("sasl.login.read.timeout.ms", "10000", "OAUTHBEARER: the longest wait for the endpoint's answer."),
    SecurityOption(
        "sasl.login.refresh.window.factor", "0.8", "OAUTHBEARER: share of its life after which a token is renewed."
    ),
    SecurityOption("sasl.login.retry.backoff.ms", "100", "OAUTHBEARER: first wait before a token is requested again."),
    SecurityOption(
        "sasl.login.retry.backoff.max.ms", "10000", "OAUTHBEARER: longest wait before a token is requested again."
    ),
    SecurityOption(
        "sasl.login.callback.handler.class",
        None,
        "Accepted for Kafka's own OAuthBearerLoginCallbackHandler, which is what we do anyway; else refused.",
    ),
)

_OTHER_TOKENS = "Tokens that are signed or fetched come from a function, sasl.oauthbearer.token.callback"
_REFUSED = {
    "sasl.client.callback.handler.class": _OTHER_TOKENS,
    "sasl.login.class": _OTHER_TOKENS,
    "sasl.oauthbearer.jwt.validator.class": "Leave it out: brokers validate tokens",
    "security.providers": "Leave it out: TLS is that of Python's own ssl",
    "ssl.engine.factory.class": (
        "Leave it out; keys and certificates go into ssl.keystore.* and ssl.truststore.*, as files or as PEM"
    ),
}

_IGNORED = (
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.jitter",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "ssl.keymanager.algorithm",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
)

SECURITY_OPTIONS: dict[str, SecurityOption] = {
    option.name: option
    for option in (
        *_USED,
        *(
            SecurityOption(name, None, "Cannot be set.", refused=_LOADS_A_CLASS + instead)
            for name, instead in _REFUSED.items()
        ),
        *(SecurityOption(name, None, _FOR_JVM, ignored=True) for name in _IGNORED),
    )
}
