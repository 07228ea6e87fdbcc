"""The security options, under the Java client's names: what each is for, its default, and whether it is a secret.

An option that only means something inside a JVM is accepted and has no effect (a configuration should move over as it
is), unless it would load a class: such an option promises behaviour that we could not keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


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
