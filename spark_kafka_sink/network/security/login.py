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
from spark_kafka_sink.network.security_options import default_of, text_of
from spark_kafka_sink.sasl.gssapi import import_gssapi
from spark_kafka_sink.sasl.jaas import parse_jaas_config
from spark_kafka_sink.sasl.oauthbearer import find_extension_error

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
_TOKEN_SOURCE_OPTIONS = ("sasl.oauthbearer.token", "sasl.oauthbearer.token.endpoint.url")
_TOKEN_CALLBACK_OPTION = "sasl.oauthbearer.token.callback"
_UNSECURED_CLAIM = "unsecuredLoginStringClaim_"
_ONE_SOURCE = (
    "sasl.mechanism OAUTHBEARER needs one source of tokens: sasl.oauthbearer.token.endpoint.url, "
    "sasl.oauthbearer.token, sasl.oauthbearer.token.callback, or unsecuredLoginStringClaim_sub in "
    "sasl.jaas.config (for tests)."
)
_NUMBERS_OF_OIDC = (
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.refresh.window.factor",
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


def parse_login(given: Mapping[str, str], token_callback: object) -> tuple[Login, list[str]]:
    """The login, and what is wrong with its options."""
    mechanism = text_of(given, "sasl.mechanism").upper()
    if mechanism == "AWS_MSK_IAM":
        return Login(), [_IAM]
    if mechanism not in SASL_MECHANISMS:
        return Login(), [f"sasl.mechanism must be one of {', '.join(SASL_MECHANISMS)}."]
    if mechanism == "GSSAPI":
        missing = _check_mechanism_set(given, token_callback)
        return (Login(), missing) if missing else _kerberos(given)
    if mechanism == "OAUTHBEARER":
        return _oauth(given, token_callback)
    return _password_login(given, mechanism)


def _check_mechanism_set(given: Mapping[str, str], token_callback: object) -> list[str]:
    """Return an error if `sasl.mechanism` is not set and no other option shows that its default, GSSAPI, is intended.

    The error suggests the mechanism that the credentials are for.
    """
    if "sasl.mechanism" in given:
        return []
    text, errors = given.get("sasl.jaas.config"), []
    try:
        module = parse_jaas_config(text) if text else None
    except ConfigurationError as error:
        module, errors = None, [*error.faults]
    tokens = [name for name in _TOKEN_SOURCE_OPTIONS if given.get(name)]
    if token_callback is not None:
        tokens.append(_TOKEN_CALLBACK_OPTION)
    if module is not None and "GSSAPI" in module.mechanisms:
        return []
    if module is not None:
        remedy = f"{' or '.join(module.mechanisms)}, as sasl.jaas.config names {module.name}"
    elif tokens:
        remedy = f"OAUTHBEARER, as {tokens[0]} is set"
    elif given.get("sasl.kerberos.service.name") and not errors:
        return []
    else:
        remedy = f"the one that the listener expects, of {', '.join(SASL_MECHANISMS)}"
    return [f"sasl.mechanism is not set, and its default is GSSAPI. Set it to {remedy}.", *errors]


def _module_options(given: Mapping[str, str], mechanism: str) -> tuple[dict[str, str], list[str]]:
    """What `sasl.jaas.config` says, if it is there."""
    text = given.get("sasl.jaas.config")
    if not text:
        return {}, []
    try:
        module = parse_jaas_config(text)
    except ConfigurationError as error:
        return {}, [*error.faults]
    if mechanism not in module.mechanisms:
        return module.options, [f"sasl.jaas.config names {module.name}, which is not for sasl.mechanism {mechanism}."]
    return module.options, []


def _password_login(given: Mapping[str, str], mechanism: str) -> tuple[Login, list[str]]:
    options, faults = _module_options(given, mechanism)
    username, password = options.get("username", ""), options.get("password", "")
    if not username or not password:
        # A module that cannot be read, or is of another mechanism, is the reason, and is reported already.
        faults = faults or [f"sasl.jaas.config must give a username and a password for sasl.mechanism {mechanism}."]
    elif "\0" in username + password:
        faults.append("sasl.jaas.config: a username or password has a NUL character.")
    token_auth = mechanism != "PLAIN" and options.get("tokenauth", "false").lower() == "true"
    return Login(mechanism, username, password, token_auth), faults


def _kerberos(given: Mapping[str, str]) -> tuple[Login, list[str]]:
    options, faults = _module_options(given, "GSSAPI")
    service = given.get("sasl.kerberos.service.name") or options.get("serviceName", "")
    if not service:
        faults.append("sasl.kerberos.service.name must be set for sasl.mechanism GSSAPI (which is the default).")
    try:
        import_gssapi()
    except ConfigurationError as error:
        faults.extend(error.faults)
    return Login("GSSAPI", kerberos_service=service), faults


def _oauth(given: Mapping[str, str], token_callback: object) -> tuple[Login, list[str]]:
    options, of_module = _module_options(given, "OAUTHBEARER")
    claims = {
        name.removeprefix(_UNSECURED_CLAIM): value
        for name, value in options.items()
        if name.startswith(_UNSECURED_CLAIM)
    }
    token = given.get("sasl.oauthbearer.token", "")
    url = given.get("sasl.oauthbearer.token.endpoint.url", "")
    is_file = url.startswith("file:")
    retriever, of_retriever = _retriever(given, url)
    token_file, of_file = _path_of(url) if is_file else ("", [])
    oidc, of_oidc = _oidc(url, retriever, given, options) if url and not is_file else (None, [])
    sources = [bool(token), token_callback is not None, bool(url), bool(claims)]
    of_sources = [] if sum(sources) == 1 else [_ONE_SOURCE]
    extensions, of_extensions = _extensions(options)
    numbers, of_numbers = _numbers(options, {"unsecuredLoginLifetimeSeconds": Login.unsecured_lifetime_s})
    login = Login(
        "OAUTHBEARER",
        token=token,
        token_file=token_file,
        token_callback=token_callback if callable(token_callback) or isinstance(token_callback, str) else None,
        oidc=oidc,
        extensions=extensions,
        unsecured_claims=tuple(claims.items()),
        unsecured_lifetime_s=numbers["unsecuredLoginLifetimeSeconds"],
    )
    return login, [
        *of_module,
        *_faults_of_callbacks(given, token_callback),
        *of_retriever,
        *of_file,
        *of_oidc,
        *of_sources,
        *of_extensions,
        *of_numbers,
    ]


def _faults_of_callbacks(given: Mapping[str, str], token_callback: object) -> list[str]:
    faults = []
    handler = given.get("sasl.login.callback.handler.class")
    if handler is not None and handler not in _OAUTH_CALLBACK_HANDLERS:
        faults.append("sasl.login.callback.handler.class cannot be set: use sasl.oauthbearer.token.callback.")
    named = isinstance(token_callback, str) and _FUNCTION.fullmatch(token_callback) is not None
    if token_callback is not None and not named and not callable(token_callback):
        faults.append("sasl.oauthbearer.token.callback must be callable, or its name: package.module:function.")
    return faults


def _extensions(options: Mapping[str, str]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    extensions = tuple(
        (name.removeprefix("extension_"), value) for name, value in options.items() if name.startswith("extension_")
    )
    found = [find_extension_error(name, value) for name, value in extensions]
    return extensions, [f"sasl.jaas.config: {fault}." for fault in found if fault]


def _retriever(given: Mapping[str, str], url: str) -> tuple[str, list[str]]:
    """Which of Kafka's own classes is meant; by default the address and the other options say what to do."""
    name = text_of(given, _RETRIEVER)
    retriever = name.rpartition(".")[2]
    if name.removeprefix(_RETRIEVER_PACKAGE) not in _RETRIEVERS:
        return retriever, [
            f"{_RETRIEVER} takes Kafka's own classes alone, {', '.join(_RETRIEVERS)} of {_RETRIEVER_PACKAGE}*. For "
            "tokens that another class would bring, use a function: sasl.oauthbearer.token.callback."
        ]
    if retriever == _RETRIEVERS[0]:
        return retriever, []
    if not url:
        return retriever, [f"{_RETRIEVER} {retriever} needs sasl.oauthbearer.token.endpoint.url."]
    if (retriever == "FileJwtRetriever") != url.startswith("file:"):
        return retriever, [
            f"{_RETRIEVER} {retriever} and the address of sasl.oauthbearer.token.endpoint.url do not fit."
        ]
    return retriever, []


def _path_of(url: str) -> tuple[str, list[str]]:
    """The path of a file: address. The file itself is looked at where the connection is."""
    faults = ["sasl.oauthbearer.token.endpoint.url must name a file by its whole path: file:///path/to/token."]
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:  # a bracket that is not closed
        return "", faults
    path = urllib.parse.unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or parts.query or parts.fragment:
        return "", faults
    return path, []


def _assertion(given: Mapping[str, str], url: str, client_id: str) -> tuple[AssertionConfig | None, list[str]]:
    """What takes the place of the secret, if anything does; a file with an assertion before a key, as in Kafka."""
    prefix = "sasl.oauthbearer.assertion."
    own = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    if own.get("file"):
        return AssertionConfig(file=own["file"]), []
    if not own.get("private.key.file"):
        return None, [
            f"{prefix}{name} has no effect without {prefix}private.key.file or {prefix}file." for name in own
        ][:1]
    faults = []
    algorithm = text_of(given, f"{prefix}algorithm").upper()
    if algorithm not in ALGORITHMS:
        faults.append(f"{prefix}algorithm must be one of {', '.join(ALGORITHMS)}.")
    jti_include, of_jti = _switch(given, f"{prefix}claim.jti.include")
    faults += of_jti
    if not can_sign():
        faults.append(f"{prefix}private.key.file {NEEDS}.")
    exp, nbf = f"{prefix}claim.exp.seconds", f"{prefix}claim.nbf.seconds"
    numbers, of_numbers = _numbers(given, _defaults(exp, nbf))
    faults += of_numbers
    config = AssertionConfig(
        key_file=own["private.key.file"],
        passphrase=own.get("private.key.passphrase"),
        algorithm=algorithm,
        template_file=own.get("template.file"),
        issuer=own.get("claim.iss") or client_id or None,
        subject=own.get("claim.sub") or own.get("claim.iss") or client_id or None,
        audience=own.get("claim.aud") or url,
        exp_seconds=int(numbers[exp]),
        nbf_seconds=int(numbers[nbf]),
        jti_include=jti_include,
    )
    if not config.issuer and not config.template_file:
        faults.append(
            f"{prefix}private.key.file needs to know who signs: sasl.oauthbearer.client.credentials.client.id, or "
            f"{prefix}claim.iss and {prefix}claim.sub."
        )
    return config, faults


def _oidc(
    url: str, retriever: str, given: Mapping[str, str], options: Mapping[str, str]
) -> tuple[OidcConfig, list[str]]:
    """Kafka 4.1 moved id, secret and scope from the login module to options of their own; both are taken."""
    faults: list[str] = []
    try:
        check_endpoint_url(url)
    except ConfigurationError as error:
        faults.extend(error.faults)
    prefix = "sasl.oauthbearer.client.credentials.client"
    client_id = given.get(f"{prefix}.id") or options.get("clientId", "")
    client_secret = given.get(f"{prefix}.secret") or options.get("clientSecret", "")
    assertion, of_assertion = _assertion(given, url, client_id)
    faults += of_assertion
    is_jwt_bearer = retriever == "JwtBearerJwtRetriever"
    own = "sasl.oauthbearer.assertion."
    if assertion is None and is_jwt_bearer:
        faults.append(f"{_RETRIEVER} {retriever} needs {own}private.key.file or {own}file.")
    elif assertion is None and not (client_id and client_secret):
        faults.append(
            f"sasl.oauthbearer.token.endpoint.url needs {prefix}.id and {prefix}.secret; or, without a secret, "
            f"{own}private.key.file or {own}file."
        )
    header_urlencode, of_switch = _switch(given, "sasl.oauthbearer.header.urlencode")
    numbers, of_numbers = _numbers(given, _defaults(*_NUMBERS_OF_OIDC))
    config = OidcConfig(
        url,
        client_id,
        "" if assertion is not None else client_secret,
        scope=given.get("sasl.oauthbearer.scope") or options.get("scope"),
        header_urlencode=header_urlencode,
        connect_timeout_ms=int(numbers["sasl.login.connect.timeout.ms"]),
        read_timeout_ms=int(numbers["sasl.login.read.timeout.ms"]),
        retry_backoff_ms=int(numbers["sasl.login.retry.backoff.ms"]),
        retry_backoff_max_ms=int(numbers["sasl.login.retry.backoff.max.ms"]),
        refresh_window_factor=min(1.0, numbers["sasl.login.refresh.window.factor"]),
        assertion=assertion,
        is_jwt_bearer=is_jwt_bearer,
    )
    return config, faults + of_switch + of_numbers


def _switch(given: Mapping[str, str], name: str) -> tuple[bool, list[str]]:
    text = text_of(given, name).lower()
    return text == "true", [] if text in ("true", "false") else [f"{name} must be true or false."]


def _defaults(*names: str) -> dict[str, float]:
    return {name: float(default_of(name)) for name in names}


def _numbers(given: Mapping[str, str], defaults: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """The options of these names, each a positive number."""
    numbers, faults = dict(defaults), []
    for name, default in defaults.items():
        try:
            number = float(given.get(name, default))
        except ValueError:
            number = math.nan
        if 0 < number < 1e9:
            numbers[name] = number
        else:
            faults.append(f"{name} must be a positive number.")
    return numbers, faults
