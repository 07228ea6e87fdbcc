"""SecurityConfig: a client's TLS and SASL settings, parsed from options with the Java client's names.

A SecurityConfig contains only values, so it can be pickled and sent to Spark's executors. The process that connects
reads the certificates and requests tokens. A pickle contains the secrets; repr, errors and logs do not.

Our TLS and SASL modules, and Python's ssl and http, are imported only when they are needed, so that a client with
security.protocol=PLAINTEXT does not load them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.errors import ConfigurationError, OptionProblems
from spark_kafka_sink.network.security_options import (
    SECURITY_OPTIONS,
    get_default,
    get_option,
)
from spark_kafka_sink.options import HiddenValueError

if TYPE_CHECKING:
    import ssl

    from spark_kafka_sink.network.security.login import Login
    from spark_kafka_sink.network.security.tls_context import StoreConfig, TlsConfig
    from spark_kafka_sink.sasl.mechanism import ClientMechanism


SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SecurityConfig:
    """TLS and SASL settings. `tls` or `login` is None if the security protocol does not use it."""

    protocol: str = get_default("security.protocol")
    tls: TlsConfig | None = None
    login: Login | None = None

    def build_ssl_context(self) -> ssl.SSLContext:
        """Read the keystore and truststore and build an SSLContext.

        Raise ConfigurationError if an option is invalid; the error names the option.
        """
        from spark_kafka_sink.network.security.tls_context import build_client_ssl_context

        assert self.tls is not None
        return build_client_ssl_context(self.tls)

    def create_mechanism(self, host: str) -> ClientMechanism:
        """Create the client side of a SASL exchange with the broker at `host`.

        The call blocks while a token is requested, if one is needed. Raise AuthenticationError if no token can be
        obtained.
        """
        from spark_kafka_sink.network.security.client_mechanisms import create_client_mechanism

        assert self.login is not None
        return create_client_mechanism(self.login, host)


def parse_security_config(options: Mapping[str, object]) -> SecurityConfig:
    """Parse the security options in `options` and ignore all other options.

    Raise a single ConfigurationError that lists the problems of all options. If the value of an option is not valid
    text, the other values are not checked.
    """
    problems = OptionProblems()
    option_texts = _collect_option_texts(options, problems)
    protocol = get_option(option_texts, "security.protocol").upper()
    if protocol not in SECURITY_PROTOCOLS:
        problems.add("security.protocol", f"must be one of {', '.join(SECURITY_PROTOCOLS)}.")
    # Like the Java client, accept any text in options that the protocol does not use.
    tls = _parse_tls(option_texts, problems) if "SSL" in protocol else None
    token_callback = options.get("sasl.oauthbearer.token.callback")
    login = _parse_login(option_texts, token_callback, problems) if "SASL" in protocol else None
    if login is not None and login.oidc is not None and login.oidc.uses_tls:
        # The protocol SASL_PLAINTEXT does not use the truststore, but a token endpoint with https does.
        truststore = tls.truststore if tls is not None else _parse_truststore(option_texts, problems)
        login = replace(login, oidc=replace(login.oidc, truststore=truststore))
    if problems:
        raise ConfigurationError(problems)
    config = SecurityConfig(protocol, tls, login)
    _warn_about_insecure_settings(config)
    return config


def _parse_tls(option_texts: Mapping[str, str], problems: OptionProblems) -> TlsConfig:
    from spark_kafka_sink.network.security.tls_options import parse_tls

    return parse_tls(option_texts, problems)


def _parse_truststore(option_texts: Mapping[str, str], problems: OptionProblems) -> StoreConfig | None:
    from spark_kafka_sink.network.security.tls_options import parse_truststore

    return parse_truststore(option_texts, problems)


def _parse_login(option_texts: Mapping[str, str], token_callback: object, problems: OptionProblems) -> Login:
    from spark_kafka_sink.network.security.login import parse_login

    return parse_login(option_texts, token_callback, problems)


def _collect_option_texts(options: Mapping[str, object], problems: OptionProblems) -> dict[str, str]:
    """Return the text of each supported security option that is set. Add unsupported options to `problems`.

    Raise ConfigurationError if a value is not valid text. Without this value, other options could not be checked.
    """
    option_texts = {}
    text_problems = OptionProblems()
    for name, value in options.items():
        option = SECURITY_OPTIONS.get(name)
        # A callable is the token callback. It has no text, and parse_security_config passes it on as it is.
        if option is None or value is None or option.ignored or callable(value):
            continue
        try:
            text = option.parse(value)
        except HiddenValueError as error:
            text_problems.add(name, "{problem}.", problem=error)
            continue
        if not option.unsupported_reason:
            assert isinstance(text, str)
            option_texts[name] = text
        elif text != option.default:  # as in parse_option_values, the default is accepted
            problems.add(name, f"cannot be set: {option.unsupported_reason}.")
    if text_problems:
        raise ConfigurationError([*problems, *text_problems])
    return option_texts


def _warn_about_insecure_settings(config: SecurityConfig) -> None:
    """Warn, once per process, about credentials sent in clear text and about unverified host names."""
    tls, login = config.tls, config.login
    if tls is None and login is None:
        return
    # The other mechanisms prove that the client knows its secret without sending it.
    if login is not None and tls is None and login.mechanism in ("PLAIN", "OAUTHBEARER"):
        warn_once(
            _log,
            f"sasl.mechanism {login.mechanism} with security.protocol SASL_PLAINTEXT sends the credentials "
            "unencrypted: anyone who can read the network traffic learns them. Use SASL_SSL.",
        )
    if tls is not None and not tls.check_hostname:
        warn_once(
            _log,
            "ssl.endpoint.identification.algorithm is empty: anyone with a certificate of a trusted authority can "
            "impersonate the brokers. Set it to https.",
        )
