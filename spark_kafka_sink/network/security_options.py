"""The security options, with the Java client's names and defaults.

Options that are meaningful only in a JVM are accepted but have no effect, so that existing configurations work
unchanged. Options that would load a Java class are rejected, because that class cannot be run here.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.options import Option, Parser, build_option_table, check_text


def to_option_text(value: object) -> str:
    """Convert an option value to text, because the parsers of the TLS and SASL options expect text."""
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return (str(value).lower() if isinstance(value, bool) else str(value)).strip()


def _parse_text(value: object) -> str:
    text = to_option_text(value)
    check_text(text)
    return text


def _text_option(name: str, description: str, *, default: str | None = None, secret: bool = False) -> Option:
    """Build an option whose value is only converted to text here. The parsers of TLS and SASL validate the text."""
    return Option(name, default, _parse_text, description, secret=secret)


def _path_option(name: str, description: str) -> Option:
    """Build an option that names a file. Unlike other values, a file name need not be valid UTF-8."""
    return Option(name, None, to_option_text, description)


_USE_CALLBACK_REMEDY = (
    "Remove the option. For other sources of tokens, set {sasl.oauthbearer.token.callback} to a function"
)
SHADED_PACKAGE_PREFIX = "kafkashaded."
"""The prefix of Kafka's packages in Databricks, where options name Kafka's own classes with it."""
_KAFKA_CALLBACK_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
"""Kafka's own callback handlers, which do the same as the client does by default."""


def _java_class_option(name: str, remedy: str, parse: Parser = to_option_text) -> Option:
    """Build an option that would load a Java class. It is rejected, unless `parse` returns None for its value."""
    reason = f"it would load a Java class. {remedy}"
    return Option(name, default=None, parse=parse, description="cannot be set", unsupported_reason=reason)


def _parse_callback_handler(value: object) -> str | None:
    """Return the name of the class, or None if the class is one of Kafka's own callback handlers."""
    class_name = to_option_text(value)
    return None if class_name.removeprefix(SHADED_PACKAGE_PREFIX) in _KAFKA_CALLBACK_HANDLERS else class_name


_JVM_ONLY_DESCRIPTION = "JVM only; accepted but ignored"

_SUPPORTED_OPTIONS = (
    _text_option("security.protocol", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL", default="PLAINTEXT"),
    _path_option("ssl.truststore.location", "file with the certificates of the trusted authorities"),
    _text_option("ssl.truststore.password", "password of the truststore", secret=True),
    _text_option("ssl.truststore.type", "PEM, PKCS12 or JKS; by default detected from the file"),
    _text_option("ssl.truststore.certificates", "PEM text of the trusted certificates, instead of a file"),
    _path_option("ssl.keystore.location", "file with the client's private key and certificate chain"),
    _text_option("ssl.keystore.password", "password of the keystore", secret=True),
    _text_option("ssl.keystore.type", "PEM, PKCS12 or JKS; by default detected from the file"),
    _text_option("ssl.keystore.certificate.chain", "PEM text of the client's certificate chain, instead of a file"),
    _text_option("ssl.keystore.key", "PEM text of the client's private key, instead of a file", secret=True),
    _text_option("ssl.key.password", "password of the client's private key", secret=True),
    _text_option(
        "ssl.endpoint.identification.algorithm",
        "https: the broker's certificate must be valid for the broker's host name; empty: any host name is accepted",
        default="https",
    ),
    _text_option("ssl.cipher.suites", "allowed cipher suites, by their IANA or OpenSSL names"),
    _text_option("ssl.enabled.protocols", "allowed TLS versions", default="TLSv1.2,TLSv1.3"),
    _text_option("ssl.protocol", "newest TLS version, if ssl.enabled.protocols is not set", default="TLSv1.3"),
    _text_option("sasl.mechanism", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI", default="GSSAPI"),
    _text_option("sasl.jaas.config", "login module with its credentials, as for the Java client", secret=True),
    _text_option("sasl.kerberos.service.name", "GSSAPI: the brokers' service name, usually kafka"),
    _text_option(
        "sasl.oauthbearer.token", "OAUTHBEARER: the token itself (not an option of the Java client)", secret=True
    ),
    _text_option(
        "sasl.oauthbearer.token.callback",
        "OAUTHBEARER: a Python callable without arguments that returns a token, or its name, "
        "`package.module:function`, which is imported and [called](security.md#decide-who-may-set-options) for each "
        "connection, in Spark on the driver and on the workers (not an option of the Java client)",
        secret=True,
    ),
    _text_option(
        "sasl.oauthbearer.token.endpoint.url",
        "OAUTHBEARER: the URL from which tokens are requested (OIDC), with https or on the loopback interface; or "
        "`file:///path` of a token that another program renews, which is read for each connection, in Spark on the "
        "driver and on the workers",
    ),
    _text_option("sasl.oauthbearer.client.credentials.client.id", "OAUTHBEARER: the client id"),
    _text_option("sasl.oauthbearer.client.credentials.client.secret", "OAUTHBEARER: the client secret", secret=True),
    _text_option(
        "sasl.oauthbearer.jwt.retriever.class",
        "OAUTHBEARER: one of Kafka's own classes, for example JwtBearerJwtRetriever, which exchanges an assertion for "
        "a token (the grant jwt-bearer), as Google's service accounts do",
        default="org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
    ),
    _path_option(
        "sasl.oauthbearer.assertion.file",
        "OAUTHBEARER: a file with an assertion that another program signs and renews, instead of the client secret; "
        "read for each token request, in Spark on the driver and on the workers",
    ),
    _path_option(
        "sasl.oauthbearer.assertion.private.key.file",
        "OAUTHBEARER: a file with a private key (PEM) that signs assertions, instead of the client secret; read for "
        "each token request, in Spark on the driver and on the workers; requires the extra `oauth`",
    ),
    _text_option(
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "OAUTHBEARER: the password of the private key that signs assertions",
        secret=True,
    ),
    _text_option(
        "sasl.oauthbearer.assertion.algorithm",
        "OAUTHBEARER: the signature algorithm of assertions, RS256 or ES256",
        default="RS256",
    ),
    _path_option(
        "sasl.oauthbearer.assertion.template.file",
        'OAUTHBEARER: a JSON file with further headers and claims, `{"header": {"kid": ...}, "payload": {...}}`; its '
        "claims take precedence over the options for `iss`, `sub` and `aud`",
    ),
    _text_option(
        "sasl.oauthbearer.assertion.claim.aud",
        "OAUTHBEARER: the audience of an assertion; by default the URL of the token endpoint",
    ),
    _text_option(
        "sasl.oauthbearer.assertion.claim.iss", "OAUTHBEARER: the issuer of an assertion; by default the client id"
    ),
    _text_option(
        "sasl.oauthbearer.assertion.claim.sub", "OAUTHBEARER: the subject of an assertion; by default its issuer"
    ),
    _text_option(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "OAUTHBEARER: how many seconds an assertion remains valid",
        default="300",
    ),
    _text_option(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "OAUTHBEARER: how many seconds before the current time an assertion becomes valid",
        default="60",
    ),
    _text_option(
        "sasl.oauthbearer.assertion.claim.jti.include",
        "OAUTHBEARER: true adds a unique id (`jti`) to each assertion, for providers that accept each assertion only "
        "once",
        default="false",
    ),
    _text_option("sasl.oauthbearer.scope", "OAUTHBEARER: the scope to request"),
    _text_option(
        "sasl.oauthbearer.header.urlencode",
        "OAUTHBEARER: true URL-encodes the client id and secret in the request",
        default="false",
    ),
    _text_option(
        "sasl.login.connect.timeout.ms", "OAUTHBEARER: timeout for a connection to the token endpoint", default="10000"
    ),
    _text_option(
        "sasl.login.read.timeout.ms", "OAUTHBEARER: timeout for the token endpoint's response", default="10000"
    ),
    _text_option(
        "sasl.login.refresh.window.factor",
        "OAUTHBEARER: fraction of a token's lifetime after which it is renewed",
        default="0.8",
    ),
)

_REJECTED_OPTIONS = (
    _java_class_option("sasl.client.callback.handler.class", _USE_CALLBACK_REMEDY),
    _java_class_option("sasl.login.callback.handler.class", _USE_CALLBACK_REMEDY, _parse_callback_handler),
    _java_class_option("sasl.login.class", _USE_CALLBACK_REMEDY),
    _java_class_option("sasl.oauthbearer.jwt.validator.class", "Remove the option: brokers validate tokens"),
    _java_class_option("security.providers", "Remove the option: TLS is provided by Python's ssl module"),
    _java_class_option(
        "ssl.engine.factory.class",
        "Remove the option, and set {ssl.keystore.*} and {ssl.truststore.*} to the keys and certificates, as files or "
        "as PEM",
    ),
)

_IGNORED_OPTIONS = (
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
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
        *_REJECTED_OPTIONS,
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
