"""The security options, with the Java client's names and defaults.

Options that are meaningful only in a JVM are accepted but have no effect, so that existing configurations work
unchanged. Options that would load a Java class are rejected, because that class cannot be run here.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.options import Option, build_option_table


def to_option_text(value: object) -> str:
    """Convert an option value to text, because the parsers of the TLS and SASL options expect text."""
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return (str(value).lower() if isinstance(value, bool) else str(value)).strip()


_JAVA_CLASS_REASON = "it would load a Java class"
_JVM_ONLY_DESCRIPTION = "JVM only; accepted but ignored"

_SUPPORTED_OPTIONS = (
    Option("security.protocol", "PLAINTEXT", to_option_text, "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    Option(
        "ssl.truststore.location",
        None,
        to_option_text,
        "file with the certificates of the trusted authorities",
    ),
    Option("ssl.truststore.password", None, to_option_text, "password of the truststore", secret=True),
    Option("ssl.truststore.type", None, to_option_text, "PEM, PKCS12 or JKS; by default detected from the file"),
    Option(
        "ssl.truststore.certificates", None, to_option_text, "PEM text of the trusted certificates, instead of a file"
    ),
    Option("ssl.keystore.location", None, to_option_text, "file with the client's private key and certificate chain"),
    Option("ssl.keystore.password", None, to_option_text, "password of the keystore", secret=True),
    Option("ssl.keystore.type", None, to_option_text, "PEM, PKCS12 or JKS; by default detected from the file"),
    Option(
        "ssl.keystore.certificate.chain",
        None,
        to_option_text,
        "PEM text of the client's certificate chain, instead of a file",
    ),
    Option(
        "ssl.keystore.key", None, to_option_text, "PEM text of the client's private key, instead of a file", secret=True
    ),
    Option("ssl.key.password", None, to_option_text, "password of the client's private key", secret=True),
    Option(
        "ssl.endpoint.identification.algorithm",
        "https",
        to_option_text,
        "https: the broker's certificate must be valid for the broker's host name; empty: any host name is accepted",
    ),
    Option("ssl.cipher.suites", None, to_option_text, "allowed cipher suites, by their IANA or OpenSSL names"),
    Option("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", to_option_text, "allowed TLS versions"),
    Option("ssl.protocol", "TLSv1.3", to_option_text, "newest TLS version, if ssl.enabled.protocols is not set"),
    Option("sasl.mechanism", "GSSAPI", to_option_text, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI"),
    Option(
        "sasl.jaas.config",
        None,
        to_option_text,
        "login module with its credentials, as for the Java client",
        secret=True,
    ),
    Option("sasl.kerberos.service.name", None, to_option_text, "GSSAPI: the brokers' service name, usually kafka"),
    Option(
        "sasl.oauthbearer.token",
        None,
        to_option_text,
        "OAUTHBEARER: the token itself (not an option of the Java client)",
        secret=True,
    ),
    Option(
        "sasl.oauthbearer.token.callback",
        None,
        to_option_text,
        "OAUTHBEARER: a Python callable without arguments that returns a token, or its name, "
        "`package.module:function`, which is imported and [called](security.md#decide-who-may-set-options) for each "
        "connection, in Spark on the driver and on the workers (not an option of the Java client)",
        secret=True,
    ),
    Option(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        to_option_text,
        "OAUTHBEARER: the URL from which tokens are requested (OIDC), with https or on the loopback interface; or "
        "`file:///path` of a token that another program renews, which is read for each connection, in Spark on the "
        "driver and on the workers",
    ),
    Option(
        "sasl.oauthbearer.client.credentials.client.id",
        None,
        to_option_text,
        "OAUTHBEARER: the client id",
    ),
    Option(
        "sasl.oauthbearer.client.credentials.client.secret",
        None,
        to_option_text,
        "OAUTHBEARER: the client secret",
        secret=True,
    ),
    Option(
        "sasl.oauthbearer.jwt.retriever.class",
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        to_option_text,
        "OAUTHBEARER: one of Kafka's own classes, for example JwtBearerJwtRetriever, which exchanges an assertion for "
        "a token (the grant jwt-bearer), as Google's service accounts do",
    ),
    Option(
        "sasl.oauthbearer.assertion.file",
        None,
        to_option_text,
        "OAUTHBEARER: a file with an assertion that another program signs and renews, instead of the client secret; "
        "read for each token request, in Spark on the driver and on the workers",
    ),
    Option(
        "sasl.oauthbearer.assertion.private.key.file",
        None,
        to_option_text,
        "OAUTHBEARER: a file with a private key (PEM) that signs assertions, instead of the client secret; read for "
        "each token request, in Spark on the driver and on the workers; requires the extra `oauth`",
    ),
    Option(
        "sasl.oauthbearer.assertion.private.key.passphrase",
        None,
        to_option_text,
        "OAUTHBEARER: the password of the private key that signs assertions",
        secret=True,
    ),
    Option(
        "sasl.oauthbearer.assertion.algorithm",
        "RS256",
        to_option_text,
        "OAUTHBEARER: the signature algorithm of assertions, RS256 or ES256",
    ),
    Option(
        "sasl.oauthbearer.assertion.template.file",
        None,
        to_option_text,
        'OAUTHBEARER: a JSON file with further headers and claims, `{"header": {"kid": ...}, "payload": {...}}`; its '
        "claims take precedence over the options for `iss`, `sub` and `aud`",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.aud",
        None,
        to_option_text,
        "OAUTHBEARER: the audience of an assertion; by default the URL of the token endpoint",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.iss",
        None,
        to_option_text,
        "OAUTHBEARER: the issuer of an assertion; by default the client id",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.sub",
        None,
        to_option_text,
        "OAUTHBEARER: the subject of an assertion; by default its issuer",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "300",
        to_option_text,
        "OAUTHBEARER: how many seconds an assertion remains valid",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "60",
        to_option_text,
        "OAUTHBEARER: how many seconds before the current time an assertion becomes valid",
    ),
    Option(
        "sasl.oauthbearer.assertion.claim.jti.include",
        "false",
        to_option_text,
        "OAUTHBEARER: true adds a unique id (`jti`) to each assertion, for providers that accept each assertion only "
        "once",
    ),
    Option("sasl.oauthbearer.scope", None, to_option_text, "OAUTHBEARER: the scope to request"),
    Option(
        "sasl.oauthbearer.header.urlencode",
        "false",
        to_option_text,
        "OAUTHBEARER: true URL-encodes the client id and secret in the request",
    ),
    Option(
        "sasl.login.connect.timeout.ms",
        "10000",
        to_option_text,
        "OAUTHBEARER: timeout for a connection to the token endpoint",
    ),
    Option(
        "sasl.login.read.timeout.ms",
        "10000",
        to_option_text,
        "OAUTHBEARER: timeout for the token endpoint's response",
    ),
    Option(
        "sasl.login.refresh.window.factor",
        "0.8",
        to_option_text,
        "OAUTHBEARER: fraction of a token's lifetime after which it is renewed",
    ),
    Option(
        "sasl.login.retry.backoff.ms",
        "100",
        to_option_text,
        "OAUTHBEARER: initial wait before a token request is retried",
    ),
    Option(
        "sasl.login.retry.backoff.max.ms",
        "10000",
        to_option_text,
        "OAUTHBEARER: maximum wait before a token request is retried",
    ),
    Option(
        "sasl.login.callback.handler.class",
        None,
        to_option_text,
        "only Kafka's own OAuthBearerLoginCallbackHandler is accepted, whose behaviour is the default here",
    ),
)

_USE_CALLBACK_REMEDY = "For other sources of tokens, set {sasl.oauthbearer.token.callback} to a function"
_REJECTED_OPTIONS = {
    "sasl.client.callback.handler.class": _USE_CALLBACK_REMEDY,
    "sasl.login.class": _USE_CALLBACK_REMEDY,
    "sasl.oauthbearer.jwt.validator.class": "Remove the option: brokers validate tokens",
    "security.providers": "Remove the option: TLS is provided by Python's ssl module",
    "ssl.engine.factory.class": (
        "Remove the option, and set {ssl.keystore.*} and {ssl.truststore.*} to the keys and certificates, as files or "
        "as PEM"
    ),
}
"""Options that would load a Java class, each with the remedy to suggest."""

_IGNORED_OPTIONS = (
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
        *_SUPPORTED_OPTIONS,
        *(
            Option(
                name,
                default=None,
                parse=to_option_text,
                description="cannot be set",
                unsupported_reason=f"{_JAVA_CLASS_REASON}. {remedy}",
            )
            for name, remedy in _REJECTED_OPTIONS.items()
        ),
        *(
            Option(name, default=None, parse=to_option_text, description=_JVM_ONLY_DESCRIPTION, ignored=True)
            for name in _IGNORED_OPTIONS
        ),
    )
)


def get_default(name: str) -> str:
    """Return an option's default. The option must have a default that is text."""
    default = SECURITY_OPTIONS[name].default
    assert isinstance(default, str)
    return default


def get_option(options: Mapping[str, str], name: str) -> str:
    """Return an option's value, or its default if the option is not set."""
    return options[name] if name in options else get_default(name)
