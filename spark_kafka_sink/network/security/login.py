"""Login: a SASL mechanism and its credentials, parsed from the `sasl.*` options.

A problem says what is wrong with one option. Its text is a predicate, such as "must not be empty.", because
OptionProblem puts the option's name before it. A placeholder with an option's name, such as {sasl.mechanism}, is
replaced with the name as the user writes it, for example kafka.sasl.mechanism in a Spark job. Any other placeholder,
such as {module}, is replaced with the argument of that name. In f-strings, use option_placeholder() instead of braces.
"""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_kafka_sink.errors import ConfigurationError, OptionProblems, option_placeholder
from spark_kafka_sink.network.security.assertions import (
    ALGORITHMS,
    MISSING_CRYPTOGRAPHY_MESSAGE,
    AssertionConfig,
    can_sign,
)
from spark_kafka_sink.network.security.oidc import ENDPOINT_URL_OPTION, OidcConfig, check_endpoint_url
from spark_kafka_sink.network.security_options import SHADED_PACKAGE_PREFIX, get_default, get_option
from spark_kafka_sink.sasl.gssapi import import_gssapi
from spark_kafka_sink.sasl.jaas import LoginModule, parse_jaas_config
from spark_kafka_sink.sasl.oauthbearer import find_extension_error

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

_IAM_UNSUPPORTED_MESSAGE = (
    "AWS_MSK_IAM is implemented by an Amazon Java class, which cannot be loaded here. MSK also accepts a signed token "
    "made from the same credentials: set {sasl.mechanism} to OAUTHBEARER and {sasl.oauthbearer.token.callback} to a "
    "function that returns the token, and remove {sasl.jaas.config} and {sasl.client.callback.handler.class}. For such "
    "a function, see 'Settings by provider' in the documentation."
)
_JAAS_CONFIG_PLACEHOLDER = option_placeholder("sasl.jaas.config")
_RETRIEVER_OPTION = "sasl.oauthbearer.jwt.retriever.class"
_RETRIEVER_PACKAGE = "org.apache.kafka.common.security.oauthbearer."
_RETRIEVER_CLASSES = (
    "DefaultJwtRetriever",
    "ClientCredentialsJwtRetriever",
    "JwtBearerJwtRetriever",
    "FileJwtRetriever",
)
_DEFAULT_RETRIEVER = _RETRIEVER_CLASSES[0]
_ASSERTION_PREFIX = "sasl.oauthbearer.assertion."
_ASSERTION_SOURCES_TEXT = "{sasl.oauthbearer.assertion.private.key.file} or {sasl.oauthbearer.assertion.file}"
_TOKEN_SOURCE_OPTIONS = ("sasl.oauthbearer.token", ENDPOINT_URL_OPTION)
_TOKEN_CALLBACK_OPTION = "sasl.oauthbearer.token.callback"
_UNSECURED_CLAIM_PREFIX = "unsecuredLoginStringClaim_"
_UNSECURED_LIFETIME_OPTION = "unsecuredLoginLifetimeSeconds"
_SINGLE_TOKEN_SOURCE_MESSAGE = (
    "OAUTHBEARER requires exactly one source of tokens: {sasl.oauthbearer.token.endpoint.url}, "
    "{sasl.oauthbearer.token}, {sasl.oauthbearer.token.callback}, or unsecuredLoginStringClaim_sub in "
    "{sasl.jaas.config} (for tests)."
)
_MAX_NUMBER = 1e9
"""Limit that all numbers (seconds, milliseconds or a factor) must be below. This also rejects infinity and NaN."""
# package.module:function, or package.module:Class.method
_FUNCTION_NAME_PATTERN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Login:
    """A SASL mechanism and its credentials. Fields that the mechanism does not use are empty."""

    mechanism: str = get_default("sasl.mechanism")
    username: str = ""
    password: str = field(default="", repr=False)
    token_auth: bool = False
    kerberos_service: str = ""
    token: str = field(default="", repr=False)
    token_file: str = field(default="", repr=False)
    """The path of a file with a token, which is read for each connection. It may be a token that was set by mistake."""
    token_callback: Callable[[], object] | str | None = field(default=None, repr=False)
    """A callable, or the name `package.module:function`, which is imported in the process that connects."""
    oidc: OidcConfig | None = None
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    unsecured_claims: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    unsecured_lifetime_s: float = 3600.0


def parse_login(options: Mapping[str, str], token_callback: object, problems: OptionProblems) -> Login:
    """Parse the `sasl.*` options, and add an entry to `problems` for each invalid one.

    If any problem was added, the returned Login must not be used.

    `token_callback`: the value of sasl.oauthbearer.token.callback, or None if it is not set.
    """
    mechanism = get_option(options, "sasl.mechanism").upper()
    if mechanism == "AWS_MSK_IAM":
        problems.add("sasl.mechanism", _IAM_UNSUPPORTED_MESSAGE)
        return Login()
    if mechanism not in SASL_MECHANISMS:
        problems.add("sasl.mechanism", f"must be one of {', '.join(SASL_MECHANISMS)}.")
        return Login()
    if mechanism == "OAUTHBEARER":
        return _parse_oauth_login(options, token_callback, problems)
    if mechanism != "GSSAPI":
        return _parse_password_login(options, mechanism, problems)
    # GSSAPI is the default, so it may not be what the user intends.
    if "sasl.mechanism" not in options and not _check_gssapi_intended(options, token_callback, problems):
        return Login()
    return _parse_kerberos_login(options, problems)


def _check_gssapi_intended(options: Mapping[str, str], token_callback: object, problems: OptionProblems) -> bool:
    """Return whether the other options show that the user intends the default mechanism, GSSAPI.

    If they do not, add a problem that suggests a mechanism, and the problems of sasl.jaas.config.
    """
    jaas_problems = OptionProblems()
    login_module = _parse_login_module(options, jaas_problems)
    token_options = [name for name in _TOKEN_SOURCE_OPTIONS if options.get(name)]
    if token_callback is not None:
        token_options.append(_TOKEN_CALLBACK_OPTION)
    if login_module is not None:
        is_gssapi_intended = "GSSAPI" in login_module.mechanisms
    else:
        # Only GSSAPI has a service name. If sasl.jaas.config is invalid, do not assume GSSAPI: the login module may
        # have been meant for another mechanism.
        has_service_name = bool(options.get("sasl.kerberos.service.name"))
        is_gssapi_intended = has_service_name and not token_options and not jaas_problems
    if is_gssapi_intended:
        assert not jaas_problems, "sasl.jaas.config either names GSSAPI's login module or is not set"
        return True
    suggestion = _suggest_mechanism(login_module, token_options)
    problems.add("sasl.mechanism", f"is not set, and its default is GSSAPI. Set it to {suggestion}.")
    problems.extend(jaas_problems)
    return False


def _suggest_mechanism(login_module: LoginModule | None, token_options: Sequence[str]) -> str:
    """Return the mechanism that the credentials are for, with the reason for it, as part of a problem's text."""
    if login_module is not None:
        mechanisms = " or ".join(login_module.mechanisms)
        return f"{mechanisms}, because {_JAAS_CONFIG_PLACEHOLDER} names {login_module.name}"
    if token_options:
        return f"OAUTHBEARER, because {option_placeholder(token_options[0])} is set"
    return f"the mechanism that the listener expects, one of {', '.join(SASL_MECHANISMS)}"


def _parse_login_module(options: Mapping[str, str], problems: OptionProblems) -> LoginModule | None:
    """Parse `sasl.jaas.config`. Return None if it is not set or invalid."""
    text = options.get("sasl.jaas.config")
    if not text:
        return None
    try:
        return parse_jaas_config(text)
    except ConfigurationError as error:
        problems.extend(error.unrendered_problems)
    return None


def _parse_jaas_options(options: Mapping[str, str], mechanism: str, problems: OptionProblems) -> dict[str, str]:
    """Return the options of the login module in `sasl.jaas.config`, which must support the mechanism."""
    module = _parse_login_module(options, problems)
    if module is None:
        return {}
    if mechanism not in module.mechanisms:
        text = "names {module}, which is not for {sasl.mechanism} {mechanism}."
        problems.add("sasl.jaas.config", text, module=module.name, mechanism=mechanism)
    return module.options


def _parse_password_login(options: Mapping[str, str], mechanism: str, problems: OptionProblems) -> Login:
    """Parse the user name and password of PLAIN or SCRAM, which are options of the login module."""
    module_problems = OptionProblems()
    jaas_options = _parse_jaas_options(options, mechanism, module_problems)
    username, password = jaas_options.get("username", ""), jaas_options.get("password", "")
    # If the login module is invalid or for another mechanism, the missing credentials are only a consequence.
    if not (username and password) and not module_problems:
        text = "must contain a username and a password for {sasl.mechanism} {mechanism}."
        problems.add("sasl.jaas.config", text, mechanism=mechanism)
    elif "\0" in username + password:
        problems.add("sasl.jaas.config", "has a NUL character in a username or password.")
    problems += module_problems
    token_auth = mechanism != "PLAIN" and jaas_options.get("tokenauth", "false").lower() == "true"
    return Login(mechanism, username=username, password=password, token_auth=token_auth)


def _parse_kerberos_login(options: Mapping[str, str], problems: OptionProblems) -> Login:
    """Parse the options for GSSAPI, and check that the `gssapi` package can be imported."""
    jaas_options = _parse_jaas_options(options, "GSSAPI", problems)
    service = options.get("sasl.kerberos.service.name") or jaas_options.get("serviceName", "")
    if not service:
        problems.add("sasl.kerberos.service.name", "must be set for {sasl.mechanism} GSSAPI (the default).")
    try:
        import_gssapi()
    except ConfigurationError as error:
        problems += error.unrendered_problems
    return Login("GSSAPI", kerberos_service=service)


def _parse_oauth_login(options: Mapping[str, str], token_callback: object, problems: OptionProblems) -> Login:
    """Parse the options for OAUTHBEARER, which must set exactly one source of tokens."""
    jaas_options = _parse_jaas_options(options, "OAUTHBEARER", problems)
    unsecured_claims = {
        name.removeprefix(_UNSECURED_CLAIM_PREFIX): value
        for name, value in jaas_options.items()
        if name.startswith(_UNSECURED_CLAIM_PREFIX)
    }
    token = options.get("sasl.oauthbearer.token", "")
    url = options.get(ENDPOINT_URL_OPTION, "")
    is_file_url = url.startswith("file:")
    _check_token_callback(token_callback, problems)
    retriever_class = _parse_retriever_class(options, url, problems)
    token_file = _parse_file_url(url, problems) if is_file_url else ""
    oidc = (
        _parse_oidc_config(url, retriever_class, options, jaas_options, problems) if url and not is_file_url else None
    )
    token_source_count = sum((bool(token), token_callback is not None, bool(url), bool(unsecured_claims)))
    if token_source_count != 1:
        problems.add("sasl.mechanism", _SINGLE_TOKEN_SOURCE_MESSAGE)
    extensions = _parse_extensions(jaas_options, problems)
    lifetime_s = _parse_positive(jaas_options.get(_UNSECURED_LIFETIME_OPTION, Login.unsecured_lifetime_s))
    if lifetime_s is None:
        problems.add("sasl.jaas.config", f"has an invalid {_UNSECURED_LIFETIME_OPTION}: it must be a positive number.")
    return Login(
        "OAUTHBEARER",
        token=token,
        token_file=token_file,
        # _check_token_callback has added a problem for any other object.
        token_callback=token_callback if callable(token_callback) or isinstance(token_callback, str) else None,
        oidc=oidc,
        extensions=extensions,
        unsecured_claims=tuple(unsecured_claims.items()),
        unsecured_lifetime_s=Login.unsecured_lifetime_s if lifetime_s is None else lifetime_s,
    )


def _check_token_callback(token_callback: object, problems: OptionProblems) -> None:
    """Check that the token callback, if it is set, is callable or a name. The name is not imported here."""
    is_name = isinstance(token_callback, str) and _FUNCTION_NAME_PATTERN.fullmatch(token_callback) is not None
    is_valid_callback = token_callback is None or is_name or callable(token_callback)
    if not is_valid_callback:
        problems.add(_TOKEN_CALLBACK_OPTION, "must be a callable, or its name: package.module:function.")


def _parse_extensions(jaas_options: Mapping[str, str], problems: OptionProblems) -> tuple[tuple[str, str], ...]:
    """Return the SASL extensions: the login module's options named `extension_...`, without this prefix."""
    extensions = tuple(
        (name.removeprefix("extension_"), value)
        for name, value in jaas_options.items()
        if name.startswith("extension_")
    )
    for name, value in extensions:
        error = find_extension_error(name, value)
        if error is not None:
            problems.add("sasl.jaas.config", "cannot be used: {error}.", error=error)
    return extensions


def _parse_retriever_class(options: Mapping[str, str], url: str, problems: OptionProblems) -> str:
    """Return the simple name of the retriever class.

    With the default class, the token URL and the other options determine how tokens are retrieved.
    """
    class_name = get_option(options, _RETRIEVER_OPTION)
    retriever_class = class_name.rpartition(".")[2]
    # FileJwtRetriever reads only file URLs, and the other classes except the default read none.
    supports_url = (retriever_class == "FileJwtRetriever") == url.startswith("file:")
    if class_name.removeprefix(SHADED_PACKAGE_PREFIX).removeprefix(_RETRIEVER_PACKAGE) not in _RETRIEVER_CLASSES:
        problems.add(
            _RETRIEVER_OPTION,
            f"must be one of Kafka's own classes, {', '.join(_RETRIEVER_CLASSES)} of {_RETRIEVER_PACKAGE}*. To get "
            "tokens from another source, set {sasl.oauthbearer.token.callback} to a function.",
        )
    elif retriever_class != _DEFAULT_RETRIEVER and not url:
        text = "{retriever_class} requires {sasl.oauthbearer.token.endpoint.url}."
        problems.add(_RETRIEVER_OPTION, text, retriever_class=retriever_class)
    elif retriever_class != _DEFAULT_RETRIEVER and not supports_url:
        text = "{retriever_class} does not support the URL in {sasl.oauthbearer.token.endpoint.url}."
        problems.add(_RETRIEVER_OPTION, text, retriever_class=retriever_class)
    return retriever_class


def _parse_file_url(url: str, problems: OptionProblems) -> str:
    """Return the path of a file URL, or an empty string if the URL is invalid.

    The file is read later, in the process that connects.
    """
    path, is_valid = "", False
    with contextlib.suppress(ValueError):  # urlsplit rejects an unclosed bracket
        parts = urllib.parse.urlsplit(url)
        path = urllib.parse.unquote(parts.path)
        is_local = parts.netloc in ("", "localhost")
        is_valid = is_local and path.startswith("/") and not parts.query and not parts.fragment
    if not is_valid:
        problems.add(ENDPOINT_URL_OPTION, "must contain the absolute path of a file: file:///path/to/token.")
        return ""
    return path


def _parse_assertion_config(
    options: Mapping[str, str], url: str, client_id: str, problems: OptionProblems
) -> AssertionConfig | None:
    """Parse the assertion options. Return None if they set neither a file with an assertion nor a private key.

    As in Kafka, the file takes precedence over the private key.
    """
    prefix = _ASSERTION_PREFIX
    assertion_options = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    if assertion_options.get("file"):
        return AssertionConfig(file=assertion_options["file"])
    if not assertion_options.get("private.key.file"):
        if assertion_options:
            first_name = next(iter(assertion_options))
            problems.add(prefix + first_name, f"has no effect without {_ASSERTION_SOURCES_TEXT}.")
        return None
    algorithm = get_option(options, f"{prefix}algorithm").upper()
    if algorithm not in ALGORITHMS:
        problems.add(f"{prefix}algorithm", f"must be one of {', '.join(ALGORITHMS)}.")
    if not can_sign():
        problems.add(f"{prefix}private.key.file", f"{MISSING_CRYPTOGRAPHY_MESSAGE}.")
    issuer = assertion_options.get("claim.iss") or client_id or None
    config = AssertionConfig(
        key_file=assertion_options["private.key.file"],
        passphrase=assertion_options.get("private.key.passphrase"),
        algorithm=algorithm,
        template_file=assertion_options.get("template.file"),
        issuer=issuer,
        subject=assertion_options.get("claim.sub") or issuer,
        audience=assertion_options.get("claim.aud") or url,
        exp_seconds=int(_parse_number(options, f"{prefix}claim.exp.seconds", problems)),
        nbf_seconds=int(_parse_number(options, f"{prefix}claim.nbf.seconds", problems)),
        includes_jti=_parse_boolean(options, f"{prefix}claim.jti.include", problems),
    )
    if not config.issuer and not config.template_file:  # the template may contain the issuer
        problems.add(
            f"{prefix}private.key.file",
            "requires the issuer of the assertion: set {sasl.oauthbearer.client.credentials.client.id}, or "
            "{sasl.oauthbearer.assertion.claim.iss} and {sasl.oauthbearer.assertion.claim.sub}.",
        )
    return config


def _parse_oidc_config(
    url: str,
    retriever_class: str,
    options: Mapping[str, str],
    jaas_options: Mapping[str, str],
    problems: OptionProblems,
) -> OidcConfig:
    """Parse the options for requesting tokens from an OIDC endpoint.

    Kafka 4.1 moved the client id, the secret and the scope from the login module to separate options. Both are
    supported.
    """
    try:
        check_endpoint_url(url)
    except ConfigurationError as error:
        problems += error.unrendered_problems
    client_id = options.get("sasl.oauthbearer.client.credentials.client.id") or jaas_options.get("clientId", "")
    client_secret = options.get("sasl.oauthbearer.client.credentials.client.secret") or jaas_options.get(
        "clientSecret", ""
    )
    assertion = _parse_assertion_config(options, url, client_id, problems)
    use_jwt_bearer_grant = retriever_class == "JwtBearerJwtRetriever"
    if assertion is None and use_jwt_bearer_grant:
        problems.add(_RETRIEVER_OPTION, f"{retriever_class} requires {_ASSERTION_SOURCES_TEXT}.")
    elif assertion is None and not (client_id and client_secret):
        problems.add(
            ENDPOINT_URL_OPTION,
            "requires either {sasl.oauthbearer.client.credentials.client.id} and "
            "{sasl.oauthbearer.client.credentials.client.secret}, or an assertion from "
            f"{_ASSERTION_SOURCES_TEXT}.",
        )
    return OidcConfig(
        endpoint_url=url,
        client_id=client_id,
        client_secret="" if assertion is not None else client_secret,  # an assertion replaces the secret
        scope=options.get("sasl.oauthbearer.scope") or jaas_options.get("scope"),
        urlencode_credentials=_parse_boolean(options, "sasl.oauthbearer.header.urlencode", problems),
        connect_timeout_ms=int(_parse_number(options, "sasl.login.connect.timeout.ms", problems)),
        read_timeout_ms=int(_parse_number(options, "sasl.login.read.timeout.ms", problems)),
        refresh_window_factor=min(1.0, _parse_number(options, "sasl.login.refresh.window.factor", problems)),
        assertion=assertion,
        use_jwt_bearer_grant=use_jwt_bearer_grant,
    )


def _parse_boolean(options: Mapping[str, str], name: str, problems: OptionProblems) -> bool:
    """Return the value of an option. If it is neither true nor false, add a problem and return False."""
    text = get_option(options, name).lower()
    if text not in ("true", "false"):
        problems.add(name, "must be true or false.")
    return text == "true"


def _parse_number(options: Mapping[str, str], name: str, problems: OptionProblems) -> float:
    """Return the value of an option. If it is not a positive number, add a problem and return the default."""
    number = _parse_positive(get_option(options, name))
    if number is None:
        problems.add(name, "must be a positive number.")
        return float(get_default(name))
    return number


def _parse_positive(value: str | float) -> float | None:
    """Return a number that is positive and less than _MAX_NUMBER. Return None for anything else."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < _MAX_NUMBER else None
