"""The `sasl.*` options as a Login: which mechanism, with which credentials."""

from __future__ import annotations

import math
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.security.assertions import ALGORITHMS, NEEDS, AssertionConfig, can_sign
from spark_kafka_sink.network.security.oidc import OidcConfig, check_endpoint_url
from spark_kafka_sink.sasl.gssapi import load_gssapi
from spark_kafka_sink.sasl.jaas import LoginModule, parse_jaas
from spark_kafka_sink.sasl.oauthbearer import extension_fault

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

_IAM = (
    "sasl.mechanism AWS_MSK_IAM is that of a Java class of Amazon's. MSK takes the same credentials as tokens: set "
    "sasl.mechanism to OAUTHBEARER and sasl.oauthbearer.token.callback to a function that signs them; leave "
    "sasl.jaas.config and sasl.client.callback.handler.class out. The page on security has this function."
)
_RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
_RETRIEVER_PACKAGE = "org.apache.kafka.common.security.oauthbearer."
_RETRIEVERS = (
    "DefaultJwtRetriever",
    "ClientCredentialsJwtRetriever",
    "JwtBearerJwtRetriever",
    "FileJwtRetriever",
)
_UNSECURED_CLAIM = "unsecuredLoginStringClaim_"
_UNSECURED_LIFETIME_S = 3600.0
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_OAUTH_CALLBACK_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)


@dataclass(frozen=True)
class Login:
    """Empty where the mechanism has no use for it."""

    mechanism: str = "GSSAPI"
    username: str = ""
    password: str = field(default="", repr=False)
    token_auth: bool = False
    kerberos_service: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    """A file with a token, which is read for each connection."""
    token_callback: Callable[[], object] | str | None = field(default=None, repr=False)
    """A callable, or "package.module:function" that is imported where the connection is."""
    oidc: OidcConfig | None = None
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    unsecured_claims: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    unsecured_lifetime_s: float = _UNSECURED_LIFETIME_S


def parse_login(given: Mapping[str, str], token_callback: object, faults: list[str]) -> Login:
    mechanism = given.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism not in SASL_MECHANISMS:
        faults.append(
            _IAM if mechanism == "AWS_MSK_IAM" else f"sasl.mechanism must be one of {', '.join(SASL_MECHANISMS)}."
        )
        return Login()
    module = _module(given, mechanism, faults)
    if mechanism == "GSSAPI":
        return _kerberos(given, module, faults)
    if mechanism == "OAUTHBEARER":
        return _oauth(given, module, token_callback, faults)
    return _password_login(mechanism, module, faults)


def _module(given: Mapping[str, str], mechanism: str, faults: list[str]) -> LoginModule | None:
    text = given.get("sasl.jaas.config")
    if not text:
        return None
    try:
        module = parse_jaas(text)
    except ConfigurationError as error:
        faults.extend(error.faults)
        return None
    if mechanism not in module.mechanisms:
        faults.append(f"sasl.jaas.config names {module.name}, which is not for sasl.mechanism {mechanism}.")
    return module


def _password_login(mechanism: str, module: LoginModule | None, faults: list[str]) -> Login:
    options = module.options if module is not None else {}
    username, password = options.get("username", ""), options.get("password", "")
    if not username or not password:
        if not any(fault.startswith("sasl.jaas.config") for fault in faults):
            faults.append(f"sasl.jaas.config must give a username and a password for sasl.mechanism {mechanism}.")
    elif "\0" in username + password:
        faults.append("sasl.jaas.config: a username or password has a NUL character.")
    token_auth = mechanism != "PLAIN" and options.get("tokenauth", "false").lower() == "true"
    return Login(mechanism, username, password, token_auth)


def _kerberos(given: Mapping[str, str], module: LoginModule | None, faults: list[str]) -> Login:
    options = module.options if module is not None else {}
    service = given.get("sasl.kerberos.service.name") or options.get("serviceName", "")
    if not service:
        faults.append("sasl.kerberos.service.name must be set for sasl.mechanism GSSAPI (which is the default).")
    try:
        load_gssapi()
    except ConfigurationError as error:
        faults.extend(error.faults)
    return Login("GSSAPI", kerberos_service=service)


def _oauth(given: Mapping[str, str], module: LoginModule | None, token_callback: object, faults: list[str]) -> Login:
    options = module.options if module is not None else {}
    handler = given.get("sasl.login.callback.handler.class", _OAUTH_CALLBACK_HANDLERS[0])
    if handler not in _OAUTH_CALLBACK_HANDLERS:
        faults.append("sasl.login.callback.handler.class cannot be set: use sasl.oauthbearer.token.callback.")
    named = isinstance(token_callback, str) and _FUNCTION.fullmatch(token_callback) is not None
    if token_callback is not None and not named and not callable(token_callback):
        faults.append("sasl.oauthbearer.token.callback must be callable, or its name: package.module:function.")
    claims = {
        name.removeprefix(_UNSECURED_CLAIM): value
        for name, value in options.items()
        if name.startswith(_UNSECURED_CLAIM)
    }
    token = given.get("sasl.oauthbearer.token", "")
    url = given.get("sasl.oauthbearer.token.endpoint.url", "")
    retriever = _retriever(given, url, faults)
    token_file = _path_of(url, faults) if url.startswith("file:") else ""
    oidc = _oidc(url, retriever, given, options, faults) if url and not url.startswith("file:") else None
    sources = [bool(token), token_callback is not None, bool(url), bool(claims)]
    if sum(sources) != 1:
        faults.append(
            "sasl.mechanism OAUTHBEARER needs one source of tokens: sasl.oauthbearer.token.endpoint.url, "
            "sasl.oauthbearer.token, sasl.oauthbearer.token.callback, or unsecuredLoginStringClaim_sub in "
            "sasl.jaas.config (for tests)."
        )
    return Login(
        "OAUTHBEARER",
        token=token,
        token_file=token_file,
        token_callback=token_callback if callable(token_callback) or isinstance(token_callback, str) else None,
        oidc=oidc,
        extensions=_extensions(options, faults),
        unsecured_claims=tuple(claims.items()),
        unsecured_lifetime_s=_number(options, "unsecuredLoginLifetimeSeconds", _UNSECURED_LIFETIME_S, faults),
    )


def _extensions(options: Mapping[str, str], faults: list[str]) -> tuple[tuple[str, str], ...]:
    extensions = tuple(
        (name.removeprefix("extension_"), value) for name, value in options.items() if name.startswith("extension_")
    )
    found = [extension_fault(name, value) for name, value in extensions]
    faults.extend(f"sasl.jaas.config: {fault}." for fault in found if fault)
    return extensions


def _retriever(given: Mapping[str, str], url: str, faults: list[str]) -> str:
    """Which of Kafka's own classes is meant; by default the address and the other options say what to do."""
    name = given.get(_RETRIEVER, _RETRIEVERS[0])
    retriever = name.rpartition(".")[2]
    if name.removeprefix(_RETRIEVER_PACKAGE) not in _RETRIEVERS:
        faults.append(
            f"{_RETRIEVER} takes Kafka's own classes alone, {', '.join(_RETRIEVERS)} of {_RETRIEVER_PACKAGE}*. For "
            "tokens that another class would bring, use a function: sasl.oauthbearer.token.callback."
        )
    elif retriever != _RETRIEVERS[0] and not url:
        faults.append(f"{_RETRIEVER} {retriever} needs sasl.oauthbearer.token.endpoint.url.")
    elif url and (retriever == "FileJwtRetriever") != url.startswith("file:") and retriever != _RETRIEVERS[0]:
        faults.append(f"{_RETRIEVER} {retriever} and the address of sasl.oauthbearer.token.endpoint.url do not fit.")
    return retriever


def _path_of(url: str, faults: list[str]) -> str:
    """The path of a file: address. The file itself is looked at where the connection is."""
    parts = urllib.parse.urlsplit(url)
    path = urllib.parse.unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or parts.query or parts.fragment:
        faults.append("sasl.oauthbearer.token.endpoint.url must name a file by its whole path: file:///path/to/token.")
    return path


def _assertion(given: Mapping[str, str], url: str, client_id: str, faults: list[str]) -> AssertionConfig | None:
    """What takes the place of the secret, if anything does; a file with an assertion before a key, as in Kafka."""
    prefix = "sasl.oauthbearer.assertion."
    own = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    if own.get("file"):
        return AssertionConfig(file=own["file"])
    if not own.get("private.key.file"):
        if own:
            faults.append(f"{prefix}{next(iter(own))} has no effect without {prefix}private.key.file or {prefix}file.")
        return None
    algorithm = own.get("algorithm", ALGORITHMS[0]).upper()
    if algorithm not in ALGORITHMS:
        faults.append(f"{prefix}algorithm must be one of {', '.join(ALGORITHMS)}.")
    jti = own.get("claim.jti.include", "false").lower()
    if jti not in ("true", "false"):
        faults.append(f"{prefix}claim.jti.include must be true or false.")
    if not can_sign():
        faults.append(f"{prefix}private.key.file {NEEDS}.")
    config = AssertionConfig(
        key_file=own["private.key.file"],
        passphrase=own.get("private.key.passphrase"),
        algorithm=algorithm,
        template_file=own.get("template.file"),
        issuer=own.get("claim.iss") or client_id or None,
        subject=own.get("claim.sub") or own.get("claim.iss") or client_id or None,
        audience=own.get("claim.aud") or url,
        exp_seconds=int(_number(given, f"{prefix}claim.exp.seconds", 300, faults)),
        nbf_seconds=int(_number(given, f"{prefix}claim.nbf.seconds", 60, faults)),
        jti_include=jti == "true",
    )
    if not config.issuer and not config.template_file:
        faults.append(
            f"{prefix}private.key.file needs to know who signs: sasl.oauthbearer.client.credentials.client.id, or "
            f"{prefix}claim.iss and {prefix}claim.sub."
        )
    return config


def _oidc(
    url: str, retriever: str, given: Mapping[str, str], options: Mapping[str, str], faults: list[str]
) -> OidcConfig:
    """Kafka 4.1 moved id, secret and scope from the login module to options of their own; both are taken."""
    try:
        check_endpoint_url(url)
    except ConfigurationError as error:
        faults.extend(error.faults)
    prefix = "sasl.oauthbearer.client.credentials.client"
    client_id = given.get(f"{prefix}.id") or options.get("clientId", "")
    client_secret = given.get(f"{prefix}.secret") or options.get("clientSecret", "")
    assertion = _assertion(given, url, client_id, faults)
    is_jwt_bearer = retriever == "JwtBearerJwtRetriever"
    own = "sasl.oauthbearer.assertion."
    if assertion is None and is_jwt_bearer:
        faults.append(f"{_RETRIEVER} {retriever} needs {own}private.key.file or {own}file.")
    elif assertion is None and not (client_id and client_secret):
        faults.append(
            f"sasl.oauthbearer.token.endpoint.url needs {prefix}.id and {prefix}.secret; or, without a secret, "
            f"{own}private.key.file or {own}file."
        )
    return OidcConfig(
        url,
        client_id,
        "" if assertion is not None else client_secret,
        given.get("sasl.oauthbearer.scope") or options.get("scope"),
        given.get("sasl.oauthbearer.header.urlencode", "false").lower() == "true",
        int(_number(given, "sasl.login.connect.timeout.ms", 10_000, faults)),
        int(_number(given, "sasl.login.read.timeout.ms", 10_000, faults)),
        int(_number(given, "sasl.login.retry.backoff.ms", 100, faults)),
        int(_number(given, "sasl.login.retry.backoff.max.ms", 10_000, faults)),
        min(1.0, _number(given, "sasl.login.refresh.window.factor", 0.8, faults)),
        assertion,
        is_jwt_bearer,
    )


def _number(given: Mapping[str, str], name: str, default: float, faults: list[str]) -> float:
    try:
        number = float(given[name]) if name in given else float(default)
    except ValueError:
        number = math.nan
    if not 0 < number < 1e9:
        faults.append(f"{name} must be a positive number.")
        return float(default)
    return number
