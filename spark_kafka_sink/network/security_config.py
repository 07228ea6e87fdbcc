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

from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.errors import ConfigurationError, OptionFaults
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS, default_of, security_text, text_of

if TYPE_CHECKING:
    import ssl

    from spark_kafka_sink.network.security.login import Login
    from spark_kafka_sink.network.security.tls_context import TlsConfig
    from spark_kafka_sink.sasl.mechanism import ClientMechanism


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SecurityConfig:
    """`tls` and `login` are there if the protocol uses them."""

    protocol: str = default_of("security.protocol")
    tls: TlsConfig | None = None
    login: Login | None = None

    def ssl_context(self) -> ssl.SSLContext:
        """Reads the files with certificates and keys. ConfigurationError says which option is at fault."""
        from spark_kafka_sink.network.security.tls_context import client_context

        assert self.tls is not None
        return client_context(self.tls)

    def conversation(self, host: str) -> ClientMechanism:
        """A new SASL conversation with a broker. A token may have to be obtained first, which takes its time."""
        from spark_kafka_sink.network.security.conversations import conversation_of

        assert self.login is not None
        return conversation_of(self.login, host)


def security_config(options: Mapping[str, object]) -> SecurityConfig:
    """ConfigurationError with all faults; names that are no security options are passed over."""
    faults = OptionFaults()
    given = _texts(options, faults)
    protocol = text_of(given, "security.protocol").upper()
    if protocol not in PROTOCOLS:
        faults.add("security.protocol", f"must be one of {', '.join(PROTOCOLS)}.")
    # As in Java, what the protocol has no use for may be there, and is not looked at.
    tls = _tls(given, faults) if "SSL" in protocol else None
    callback = options.get("sasl.oauthbearer.token.callback")
    login = _login(given, callback, faults) if "SASL" in protocol else None
    if faults:
        raise ConfigurationError(faults)
    config = SecurityConfig(protocol, tls, login)
    _warn(config)
    return config


def _tls(given: Mapping[str, str], faults: OptionFaults) -> TlsConfig:
    from spark_kafka_sink.network.security.tls_options import parse_tls

    return parse_tls(given, faults)


def _login(given: Mapping[str, str], token_callback: object, faults: OptionFaults) -> Login:
    from spark_kafka_sink.network.security.login import parse_login

    return parse_login(given, token_callback, faults)


def _texts(options: Mapping[str, object], faults: OptionFaults) -> dict[str, str]:
    """The options that are set and have a meaning here, as text. `faults` get each that cannot be set."""
    texts = {}
    for name, value in options.items():
        option = SECURITY_OPTIONS.get(name)
        if option is None or value is None or option.ignored or callable(value):
            continue
        if option.unsupported_reason:
            faults.add(name, f"cannot be set: {option.unsupported_reason}.")
        else:
            texts[name] = security_text(value)
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
