"""The security options, under the Java client's names: what each is for, its default, and whether it is a secret.

An option that only means something inside a JVM is accepted and has no effect (a configuration should move over as it
is), unless it would load a class: such an option promises behaviour that we could not keep.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.options import Option, build_option_table


def security_text(value: object) -> str:
    """Text, as the parsers of TLS and SASL take all values."""
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return (str(value).lower() if isinstance(value, bool) else str(value)).strip()


_LOADS_A_CLASS = "it would load a Java class. "
_FOR_JVM = "Of a JVM only: accepted, without effect."

_USED = (
    Option("security.protocol", "PLAINTEXT", security_text, "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
    Option(
        "ssl.truststore.location",
        None,
        security_text,
        "File with the certificates of the authorities that are trusted.",
    ),
    Option("ssl.truststore.password", None, security_text, "Password of that file.", secret=True),
    Option("ssl.truststore.type", None, security_text, "PEM, PKCS12 or JKS; without it the file's content decides."),
    Option("ssl.truststore.certificates", None, security_text, "The trusted certificates themselves, as PEM."),
    Option("ssl.keystore.location", None, security_text, "File with the client's private key and certificate chain."),
    Option("ssl.keystore.password", None, security_text, "Password of that file.", secret=True),
    Option("ssl.keystore.type", None, security_text, "PEM, PKCS12 or JKS; without it the file's content decides."),
    Option("ssl.keystore.certificate.chain", None, security_text, "The client's certificate chain itself, as PEM."),
    Option("ssl.keystore.key", None, security_text, "The client's private key itself, as PEM.", secret=True),
    Option("ssl.key.password", None, security_text, "Password of the private key.", secret=True),
    Option(
        "ssl.endpoint.identification.algorithm",
        "https",
        security_text,
        "https: the broker's certificate must be for the host that was connected to. Empty: it may be for any host.",
    ),
    Option("ssl.cipher.suites", None, security_text, "The cipher suites allowed, by their IANA or OpenSSL names."),
    Option("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", security_text, "The TLS versions allowed."),
    Option("ssl.protocol", "TLSv1.3", security_text, "The newest TLS version, where ssl.enabled.protocols is not set."),
    Option("sasl.mechanism", "GSSAPI", security_text, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI."),
    Option(
        "sasl.jaas.config",
        None,
        security_text,
        "Login module with the credentials, as for the Java client.",
        secret=True,
    ),
    Option(
        "sasl.kerberos.service.name", None, security_text, "GSSAPI: the name of the brokers' service, usually kafka."
    ),
    Option(
        "sasl.oauthbearer.token",
        None,
        security_text,
        "OAUTHBEARER: a token as it is. Not an option of the Java client.",
        secret=True,
    ),
    Option(
        "sasl.oauthbearer.token.callback",
        None,
        security_text,
        "OAUTHBEARER: a Python callable without arguments that returns a token, or its name, `package.module:function`,"
        " which is imported where the connection is, and "
        "[runs there](security.md#decide-who-may-set-options): on Spark's workers. Not an option of the Java client.",
        secret=True,
    ),
    Option(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        security_text,
        "OAUTHBEARER: where tokens are obtained (OIDC): https, or loopback; or `file:///path` of a token that another "
        "program keeps fresh: it is read for each connection, on Spark's workers.",
    ),
    Option(
        "sasl.oauthbearer.client.credentials.client.id",
        None,
        security_text,
        "OAUTHBEARER: the client's id at the endpoint.",
    ),
    Option(
        "sasl.oauthbearer.client.credentials.client.secret",
        None,
        security_text,
        "OAUTHBEARER: the client's secret.",
        secret=True,
    ),
    Option(
        "sasl.oauthbearer.jwt.retriever.class",
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        security_text,
        "OAUTHBEARER: one of Kafka's own names. JwtBearerJwtRetriever: an assertion is exchanged for a token (the "
        "grant jwt-bearer), as Google's service accounts do it.",
    ),
    Option(
        "sasl.oauthbearer.assertion.file",
        None,
        security_text,
        "OAUTHBEARER: a file with an assertion that another program signs and keeps fresh, in place of the client's "
        "secret; read for each request, on Spark's workers.",
    ),
    Option(
        "sasl.oauthbearer.assertion.private.key.file",
        None,
        security_text,
        "OAUTHBEARER: a private key in PEM that signs assertions, in place of the client's secret; read for each "
        "request, on Spark's workers. Needs the extra `oauth`.",
    ),
    Option(
        "sasl.oauthbearer.assertion.private.key.passphrase",
        None,
        security_text,
        "OAUTHBEARER: the password of that key.",
        secret=True,
    ),
    Option(
        "sasl.oauthbearer.assertion.algorithm",
        "RS256",
        security_text,
        "OAUTHBEARER: how assertions are signed; or ES256.",
    ),
    Option(
        "sasl.oauthbearer.assertion.template.file",
        None,
        security_text,
        'OAUTHBEARER: JSON with more of an assertion, `{"header": {"kid": ...}, "payload": {...}}`; it wins over the '
        "options of claims.",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.aud",
        None,
        security_text,
        "OAUTHBEARER: who is to take an assertion; without it the address of the endpoint.",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.iss",
        None,
        security_text,
        "OAUTHBEARER: who signs an assertion; without it the client's id.",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.sub",
        None,
        security_text,
        "OAUTHBEARER: who an assertion is about; without it the one that signs it.",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "300",
        security_text,
        "OAUTHBEARER: how long an assertion is valid.",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "60",
        security_text,
        "OAUTHBEARER: how long before now it is valid already.",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.jti.include",
        "false",
        security_text,
        "OAUTHBEARER: true: each assertion has an id of its own (`jti`), for providers that take each one once.",
    ),
    Option("sasl.oauthbearer.scope", None, security_text, "OAUTHBEARER: the scope to ask for."),
    Option(
        "sasl.oauthbearer.header.urlencode", "false", security_text, "OAUTHBEARER: id and secret are URL-encoded first."
    ),
    Option(
        "sasl.login.connect.timeout.ms",
        "10000",
        security_text,
        "OAUTHBEARER: the longest wait for the endpoint to connect.",
    ),
    Option(
        "sasl.login.read.timeout.ms", "10000", security_text, "OAUTHBEARER: the longest wait for the endpoint's answer."
    ),
    Option(
        "sasl.login.refresh.window.factor",
        "0.8",
        security_text,
        "OAUTHBEARER: share of its life after which a token is renewed.",
    ),
    Option(
        "sasl.login.retry.backoff.ms",
        "100",
        security_text,
        "OAUTHBEARER: first wait before a token is requested again.",
    ),
    Option(
        "sasl.login.retry.backoff.max.ms",
        "10000",
        security_text,
        "OAUTHBEARER: longest wait before a token is requested again.",
    ),
    Option(
        "sasl.login.callback.handler.class",
        None,
        security_text,
        "Accepted for Kafka's own OAuthBearerLoginCallbackHandler, which is what we do anyway; else refused.",
    ),
)

_OTHER_TOKENS = "Tokens that are signed or fetched come from a function, {sasl.oauthbearer.token.callback}"
_REFUSED = {
    "sasl.client.callback.handler.class": _OTHER_TOKENS,
    "sasl.login.class": _OTHER_TOKENS,
    "sasl.oauthbearer.jwt.validator.class": "Leave it out: brokers validate tokens",
    "security.providers": "Leave it out: TLS is that of Python's own ssl",
    "ssl.engine.factory.class": (
        "Leave it out; keys and certificates go into {ssl.keystore.*} and {ssl.truststore.*}, as files or as PEM"
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
    "sasl.oauthbearer.allow.unverified.audience",
    "sasl.oauthbearer.allow.unverified.issuer",
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

SECURITY_OPTIONS = build_option_table(
    (
        *_USED,
        *(
            Option(name, None, security_text, "Cannot be set.", unsupported_reason=_LOADS_A_CLASS + instead)
            for name, instead in _REFUSED.items()
        ),
        *(Option(name, None, security_text, _FOR_JVM, ignored=True) for name in _IGNORED),
    )
)


def default_of(name: str) -> str:
    """The text that stands for an option that is not given, and has a default."""
    default = SECURITY_OPTIONS[name].default
    assert isinstance(default, str)
    return default


def text_of(given: Mapping[str, str], name: str) -> str:
    """What the user gave, else the default."""
    return given[name] if name in given else default_of(name)
