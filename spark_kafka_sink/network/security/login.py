"""The `sasl.*` options as a Login: which mechanism, with which credentials."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_kafka_sink.errors import ConfigurationError, OptionFault, OptionFaults
from spark_kafka_sink.network.security.assertions import ALGORITHMS, NEEDS, AssertionConfig, can_sign
from spark_kafka_sink.network.security.oidc import ENDPOINT_URL_OPTION, OidcConfig, check_endpoint_url
from spark_kafka_sink.network.security_options import default_of, text_of
from spark_kafka_sink.sasl.gssapi import import_gssapi
from spark_kafka_sink.sasl.jaas import LoginModule, parse_jaas_config
from spark_kafka_sink.sasl.oauthbearer import find_extension_error

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

_IAM = (
    "AWS_MSK_IAM is that of a Java class of Amazon's. MSK takes the same credentials as tokens: set {sasl.mechanism} "
    "to OAUTHBEARER and {sasl.oauthbearer.token.callback} to a function that signs them; leave {sasl.jaas.config} and "
    "{sasl.client.callback.handler.class} out. The page on security has this function."
)
_RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
_RETRIEVER_PACKAGE = "org.apache.kafka.common.security.oauthbearer."
_RETRIEVERS = (
    "DefaultJwtRetriever",
    "ClientCredentialsJwtRetriever",
    "JwtBearerJwtRetriever",
    "FileJwtRetriever",
)
_TOKEN_SOURCE_OPTIONS = ("sasl.oauthbearer.token", ENDPOINT_URL_OPTION)
_TOKEN_CALLBACK_OPTION = "sasl.oauthbearer.token.callback"
_UNSECURED_CLAIM = "unsecuredLoginStringClaim_"
_UNSECURED_LIFETIME = "unsecuredLoginLifetimeSeconds"
_ONE_SOURCE = (
    "OAUTHBEARER needs one source of tokens: {sasl.oauthbearer.token.endpoint.url}, {sasl.oauthbearer.token}, "
    "{sasl.oauthbearer.token.callback}, or unsecuredLoginStringClaim_sub in {sasl.jaas.config} (for tests)."
)
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_OAUTH_CALLBACK_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)


@dataclass(frozen=True)
class Login:
    """Empty where the mechanism has no use for it."""

    mechanism: str = default_of("sasl.mechanism")
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
    unsecured_lifetime_s: float = 3600.0


def parse_login(given: Mapping[str, str], token_callback: object, faults: OptionFaults) -> Login:
    """The login. `faults` get what is wrong with its options."""
    mechanism = text_of(given, "sasl.mechanism").upper()
    if mechanism == "AWS_MSK_IAM":
        faults.add("sasl.mechanism", _IAM)
    elif mechanism not in SASL_MECHANISMS:
        faults.add("sasl.mechanism", f"must be one of {', '.join(SASL_MECHANISMS)}.")
    elif mechanism == "OAUTHBEARER":
        return _oauth(given, token_callback, faults)
    elif mechanism != "GSSAPI":
        return _password_login(given, mechanism, faults)
    elif missing := _check_mechanism_set(given, token_callback):
        faults += missing
    else:
        return _kerberos(given, faults)
    return Login()


def _check_mechanism_set(given: Mapping[str, str], token_callback: object) -> OptionFaults:
    """Return an error if `sasl.mechanism` is not set and no other option shows that its default, GSSAPI, is intended.

    The error suggests the mechanism that the credentials are for.
    """
    faults = OptionFaults()
    if "sasl.mechanism" in given:
        return faults
    module = _module(given, faults)
    tokens = [name for name in _TOKEN_SOURCE_OPTIONS if given.get(name)]
    if token_callback is not None:
        tokens.append(_TOKEN_CALLBACK_OPTION)
    if module is not None and "GSSAPI" in module.mechanisms:
        return faults
    if module is not None:
        remedy = f"{' or '.join(module.mechanisms)}, as {{sasl.jaas.config}} names {module.name}"
    elif tokens:
        remedy = f"OAUTHBEARER, as {{{tokens[0]}}} is set"
    elif given.get("sasl.kerberos.service.name") and not faults:
        return faults
    else:
        remedy = f"the one that the listener expects, of {', '.join(SASL_MECHANISMS)}"
    missing = OptionFault("sasl.mechanism", f"is not set, and its default is GSSAPI. Set it to {remedy}.")
    return OptionFaults([missing, *faults])


def _module(given: Mapping[str, str], faults: OptionFaults) -> LoginModule | None:
    """What `sasl.jaas.config` says, if it is there and can be read."""
    text = given.get("sasl.jaas.config")
    if not text:
        return None
    try:
        return parse_jaas_config(text)
    except ConfigurationError as error:
        faults += error.unrendered_faults
    return None


def _module_options(given: Mapping[str, str], mechanism: str, faults: OptionFaults) -> dict[str, str]:
    """The options of the login module, which must be one for the mechanism."""
    module = _module(given, faults)
    if module is None:
        return {}
    if mechanism not in module.mechanisms:
        text = f"names {module.name}, which is not for {{sasl.mechanism}} {mechanism}."
        faults.add("sasl.jaas.config", text)
    return module.options


def _password_login(given: Mapping[str, str], mechanism: str, faults: OptionFaults) -> Login:
    of_module = OptionFaults()
    options = _module_options(given, mechanism, of_module)
    username, password = options.get("username", ""), options.get("password", "")
    # A module that cannot be read, or is of another mechanism, is the reason, and is reported already.
    if not (username and password) and not of_module:
        faults.add("sasl.jaas.config", f"must give a username and a password for {{sasl.mechanism}} {mechanism}.")
    elif "\0" in username + password:
        faults.add("sasl.jaas.config", "has a NUL character in a username or password.")
    faults += of_module
    token_auth = mechanism != "PLAIN" and options.get("tokenauth", "false").lower() == "true"
    return Login(mechanism, username, password, token_auth)


def _kerberos(given: Mapping[str, str], faults: OptionFaults) -> Login:
    options = _module_options(given, "GSSAPI", faults)
    service = given.get("sasl.kerberos.service.name") or options.get("serviceName", "")
    if not service:
        faults.add("sasl.kerberos.service.name", "must be set for {sasl.mechanism} GSSAPI (which is the default).")
    try:
        import_gssapi()
    except ConfigurationError as error:
        faults += error.unrendered_faults
    return Login("GSSAPI", kerberos_service=service)


def _oauth(given: Mapping[str, str], token_callback: object, faults: OptionFaults) -> Login:
    options = _module_options(given, "OAUTHBEARER", faults)
    claims = {
        name.removeprefix(_UNSECURED_CLAIM): value
        for name, value in options.items()
        if name.startswith(_UNSECURED_CLAIM)
    }
    token = given.get("sasl.oauthbearer.token", "")
    url = given.get(ENDPOINT_URL_OPTION, "")
    is_file = url.startswith("file:")
    _check_callback(given, token_callback, faults)
    retriever = _retriever(given, url, faults)
    token_file = _path_of(url, faults) if is_file else ""
    oidc = _oidc(url, retriever, given, options, faults) if url and not is_file else None
    if sum((bool(token), token_callback is not None, bool(url), bool(claims))) != 1:
        faults.add("sasl.mechanism", _ONE_SOURCE)
    extensions = _extensions(options, faults)
    lifetime_s = _positive(options.get(_UNSECURED_LIFETIME, Login.unsecured_lifetime_s))
    if lifetime_s is None:
        faults.add("sasl.jaas.config", f"has {_UNSECURED_LIFETIME}, which must be a positive number.")
    return Login(
        "OAUTHBEARER",
        token=token,
        token_file=token_file,
        token_callback=token_callback if callable(token_callback) or isinstance(token_callback, str) else None,
        oidc=oidc,
        extensions=extensions,
        unsecured_claims=tuple(claims.items()),
        unsecured_lifetime_s=Login.unsecured_lifetime_s if lifetime_s is None else lifetime_s,
    )


def _check_callback(given: Mapping[str, str], token_callback: object, faults: OptionFaults) -> None:
    handler = given.get("sasl.login.callback.handler.class")
    if handler is not None and handler not in _OAUTH_CALLBACK_HANDLERS:
        faults.add("sasl.login.callback.handler.class", "cannot be set: use {sasl.oauthbearer.token.callback}.")
    named = isinstance(token_callback, str) and _FUNCTION.fullmatch(token_callback) is not None
    if token_callback is not None and not named and not callable(token_callback):
        faults.add(_TOKEN_CALLBACK_OPTION, "must be callable, or its name: package.module:function.")


def _extensions(options: Mapping[str, str], faults: OptionFaults) -> tuple[tuple[str, str], ...]:
    extensions = tuple(
        (name.removeprefix("extension_"), value) for name, value in options.items() if name.startswith("extension_")
    )
    for name, value in extensions:
        fault = find_extension_error(name, value)
        if fault is not None:
            faults.add("sasl.jaas.config", "cannot be used: {fault}.", fault=fault)
    return extensions


def _retriever(given: Mapping[str, str], url: str, faults: OptionFaults) -> str:
    """Which of Kafka's own classes is meant; by default the address and the other options say what to do."""
    name = text_of(given, _RETRIEVER)
    retriever = name.rpartition(".")[2]
    if name.removeprefix(_RETRIEVER_PACKAGE) not in _RETRIEVERS:
        faults.add(
            _RETRIEVER,
            f"takes Kafka's own classes alone, {', '.join(_RETRIEVERS)} of {_RETRIEVER_PACKAGE}*. For tokens that "
            "another class would bring, use a function: {sasl.oauthbearer.token.callback}.",
        )
    elif retriever != _RETRIEVERS[0] and not url:
        faults.add(_RETRIEVER, f"{retriever} needs {{sasl.oauthbearer.token.endpoint.url}}.")
    elif retriever != _RETRIEVERS[0] and (retriever == "FileJwtRetriever") != url.startswith("file:"):
        text = f"{retriever} and the address of {{sasl.oauthbearer.token.endpoint.url}} do not fit."
        faults.add(_RETRIEVER, text)
    return retriever


def _path_of(url: str, faults: OptionFaults) -> str:
    """The path of a file: address. The file itself is looked at where the connection is."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:  # a bracket that is not closed
        parts = None
    path = "" if parts is None else urllib.parse.unquote(parts.path)
    if (
        parts is None
        or parts.netloc not in ("", "localhost")
        or not path.startswith("/")
        or parts.query
        or parts.fragment
    ):
        faults.add(ENDPOINT_URL_OPTION, "must name a file by its whole path: file:///path/to/token.")
        return ""
    return path


def _assertion(given: Mapping[str, str], url: str, client_id: str, faults: OptionFaults) -> AssertionConfig | None:
    """What takes the place of the secret, if anything does; a file with an assertion before a key, as in Kafka."""
    prefix = "sasl.oauthbearer.assertion."
    own = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    if own.get("file"):
        return AssertionConfig(file=own["file"])
    if not own.get("private.key.file"):
        for name in [*own][:1]:
            faults.add(prefix + name, f"has no effect without {{{prefix}private.key.file}} or {{{prefix}file}}.")
        return None
    algorithm = text_of(given, f"{prefix}algorithm").upper()
    if algorithm not in ALGORITHMS:
        faults.add(f"{prefix}algorithm", f"must be one of {', '.join(ALGORITHMS)}.")
    if not can_sign():
        faults.add(f"{prefix}private.key.file", f"{NEEDS}.")
    config = AssertionConfig(
        key_file=own["private.key.file"],
        passphrase=own.get("private.key.passphrase"),
        algorithm=algorithm,
        template_file=own.get("template.file"),
        issuer=own.get("claim.iss") or client_id or None,
        subject=own.get("claim.sub") or own.get("claim.iss") or client_id or None,
        audience=own.get("claim.aud") or url,
        exp_seconds=int(_number(given, f"{prefix}claim.exp.seconds", faults)),
        nbf_seconds=int(_number(given, f"{prefix}claim.nbf.seconds", faults)),
        jti_include=_switch(given, f"{prefix}claim.jti.include", faults),
    )
    if not config.issuer and not config.template_file:
        faults.add(
            f"{prefix}private.key.file",
            "needs to know who signs: {sasl.oauthbearer.client.credentials.client.id}, or "
            f"{{{prefix}claim.iss}} and {{{prefix}claim.sub}}.",
        )
    return config


def _oidc(
    url: str, retriever: str, given: Mapping[str, str], options: Mapping[str, str], faults: OptionFaults
) -> OidcConfig:
    """Kafka 4.1 moved id, secret and scope from the login module to options of their own; both are taken."""
    try:
        check_endpoint_url(url)
    except ConfigurationError as error:
        faults += error.unrendered_faults
    prefix = "sasl.oauthbearer.client.credentials.client"
    client_id = given.get(f"{prefix}.id") or options.get("clientId", "")
    client_secret = given.get(f"{prefix}.secret") or options.get("clientSecret", "")
    assertion = _assertion(given, url, client_id, faults)
    is_jwt_bearer = retriever == "JwtBearerJwtRetriever"
    own = "sasl.oauthbearer.assertion."
    if assertion is None and is_jwt_bearer:
        faults.add(_RETRIEVER, f"{retriever} needs {{{own}private.key.file}} or {{{own}file}}.")
    elif assertion is None and not (client_id and client_secret):
        faults.add(
            ENDPOINT_URL_OPTION,
            f"needs {{{prefix}.id}} and {{{prefix}.secret}}; or, without a secret, {{{own}private.key.file}} or "
            f"{{{own}file}}.",
        )
    return OidcConfig(
        url,
        client_id,
        "" if assertion is not None else client_secret,
        scope=given.get("sasl.oauthbearer.scope") or options.get("scope"),
        header_urlencode=_switch(given, "sasl.oauthbearer.header.urlencode", faults),
        connect_timeout_ms=int(_number(given, "sasl.login.connect.timeout.ms", faults)),
        read_timeout_ms=int(_number(given, "sasl.login.read.timeout.ms", faults)),
        retry_backoff_ms=int(_number(given, "sasl.login.retry.backoff.ms", faults)),
        retry_backoff_max_ms=int(_number(given, "sasl.login.retry.backoff.max.ms", faults)),
        refresh_window_factor=min(1.0, _number(given, "sasl.login.refresh.window.factor", faults)),
        assertion=assertion,
        is_jwt_bearer=is_jwt_bearer,
    )


def _switch(given: Mapping[str, str], name: str, faults: OptionFaults) -> bool:
    text = text_of(given, name).lower()
    if text not in ("true", "false"):
        faults.add(name, "must be true or false.")
    return text == "true"


def _number(given: Mapping[str, str], name: str, faults: OptionFaults) -> float:
    """The option as a positive number; its default where it is none."""
    number = _positive(text_of(given, name))
    if number is None:
        faults.add(name, "must be a positive number.")
        return float(default_of(name))
    return number


def _positive(value: str | float) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < 1e9 else None
