"""Parser that turns the `ssl.*` options into a TlsConfig.

A problem says what is wrong with one option. Its text is a predicate, such as "must be true or false.", because
OptionProblem puts the option's name before it. A placeholder such as {ssl.key.password} is replaced with the option's
name as the user writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_kafka_sink.errors import OptionProblems, option_placeholder
from spark_kafka_sink.network.security.tls_context import (
    TLS13_SUITES,
    TLS_VERSIONS,
    StoreConfig,
    TlsConfig,
    find_openssl_suite,
)
from spark_kafka_sink.network.security_options import get_default, get_option

_STORE_TYPES = ("PEM", "PKCS12", "JKS")
_STORE_CONTENT_OPTIONS = {
    "truststore": ("ssl.truststore.location", "ssl.truststore.certificates"),
    "keystore": ("ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain"),
}
"""The options that name or contain the keys and certificates of a store."""
_SSL_PROTOCOLS = (*TLS_VERSIONS, "TLS")  # "TLS" stands for the newest version

# defer_log holds back only the records of loggers that exist when it begins. This module may be imported later than
# that, because only a client with TLS options needs it. So it uses the logger of security_config.py, which exists
# by then.
_log = logging.getLogger("spark_kafka_sink.network.security_config")


def parse_tls(options: Mapping[str, str], problems: OptionProblems) -> TlsConfig:
    """Parse the `ssl.*` options, and add an entry to `problems` for each invalid one.

    If any problem was added, the returned TlsConfig must not be used.
    """
    return TlsConfig(
        truststore=parse_truststore(options, problems),
        keystore=_parse_keystore(options, problems),
        check_hostname=_parse_check_hostname(options, problems),
        cipher_suites=_parse_cipher_suites(options, problems),
        versions=_parse_versions(options, problems),
    )


def parse_truststore(options: Mapping[str, str], problems: OptionProblems) -> StoreConfig | None:
    """Return the truststore's configuration, or None if there is no truststore. The store is not read here."""
    if not _check_store_options(options, "truststore", problems):
        return None
    store_path, pem = options.get("ssl.truststore.location"), options.get("ssl.truststore.certificates")
    if store_path and pem:
        problems.add("ssl.truststore.location", "cannot be set together with {ssl.truststore.certificates}.")
    return StoreConfig(
        store_path,
        type_name=_find_store_type(options, "truststore"),
        password=options.get("ssl.truststore.password"),
        pem=pem,
    )


def _parse_keystore(options: Mapping[str, str], problems: OptionProblems) -> StoreConfig | None:
    """Return the keystore's configuration, or None if there is no keystore. The store is not read here."""
    if not _check_store_options(options, "keystore", problems):
        return None
    store_path, key = options.get("ssl.keystore.location"), options.get("ssl.keystore.key")
    chain = options.get("ssl.keystore.certificate.chain")
    if store_path and (key or chain):
        problems.add(
            "ssl.keystore.location",
            "cannot be set together with {ssl.keystore.key} and {ssl.keystore.certificate.chain}.",
        )
    if not store_path and not (key and chain):
        problems.add("ssl.keystore.key", "must be set together with {ssl.keystore.certificate.chain}.")
    return StoreConfig(
        store_path,
        type_name=_find_store_type(options, "keystore"),
        password=options.get("ssl.keystore.password"),
        key_password=options.get("ssl.key.password"),
        pem=None if store_path else f"{key}\n{chain}",
    )


def _find_store_type(options: Mapping[str, str], store: str) -> str | None:
    return options[f"ssl.{store}.type"].upper() if f"ssl.{store}.type" in options else None


def _check_store_options(options: Mapping[str, str], store: str, problems: OptionProblems) -> bool:
    """Check the type and the password of a store, and that its options are not empty.

    If an empty option counted as missing, a client whose truststore is missing by mistake would trust every authority
    of the system.

    Return whether there is a store whose options can be compared with each other. Those of a store with an empty option
    cannot, because its intended value is unknown.

    `store`: "keystore" or "truststore".
    """
    content_options = [name for name in _STORE_CONTENT_OPTIONS[store] if name in options]
    empty_options = [name for name in content_options if not options[name]]
    for name in empty_options:
        problems.add(name, "must not be empty. Set it, or remove the option.")
    store_type, password_option = _find_store_type(options, store), f"ssl.{store}.password"
    if store_type is not None and store_type not in _STORE_TYPES:
        problems.add(f"ssl.{store}.type", f"must be one of {', '.join(_STORE_TYPES)}.")
    if password_option in options and not content_options:
        problems.add(password_option, f"is set, but {option_placeholder(f'ssl.{store}.location')} is not.")
    elif password_option in options and store_type == "PEM":
        remedy = "; use {ssl.key.password}." if store == "keystore" else "."
        problems.add(password_option, f"has no meaning for PEM{remedy}")
    return bool(content_options) and not empty_options


def _parse_check_hostname(options: Mapping[str, str], problems: OptionProblems) -> bool:
    option = "ssl.endpoint.identification.algorithm"
    algorithm = get_option(options, option).lower()
    if algorithm not in ("", "https"):
        problems.add(option, "must be https, or empty to disable the check.")
    return algorithm != ""


def _parse_cipher_suites(options: Mapping[str, str], problems: OptionProblems) -> tuple[str, ...]:
    """Return the allowed cipher suites; empty if the option is not set. Add a problem for each unusable one."""
    suites = tuple(_split_list(options.get("ssl.cipher.suites", "")))
    tls13_suites = TLS13_SUITES & set(suites)
    if tls13_suites and tls13_suites != TLS13_SUITES:
        _log.warning(
            "ssl.cipher.suites: Python cannot select single cipher suites of TLS 1.3; all three remain allowed."
        )
    for name in suites:
        if name not in tls13_suites and find_openssl_suite(name) is None:
            problem = (
                "has {name!r}, which is not a usable cipher suite. Use suites that this machine's OpenSSL supports, "
                "that encrypt, and that authenticate the server with a certificate."
            )
            problems.add("ssl.cipher.suites", problem, name=name)
    return suites


def _parse_versions(options: Mapping[str, str], problems: OptionProblems) -> tuple[str, ...]:
    """Return the allowed TLS versions. As in Java, ssl.protocol matters only if ssl.enabled.protocols is not set."""
    ssl_protocol = get_option(options, "ssl.protocol")
    if ssl_protocol not in _SSL_PROTOCOLS:
        problems.add("ssl.protocol", f"must be one of {', '.join(_SSL_PROTOCOLS)}; older versions are insecure.")
    # ssl.protocol is the newest allowed version. Only TLSv1.2 excludes one of the default versions.
    default = ssl_protocol if ssl_protocol == "TLSv1.2" else get_default("ssl.enabled.protocols")
    versions = tuple(_split_list(options.get("ssl.enabled.protocols", "")) or _split_list(default))
    if not set(versions) <= set(TLS_VERSIONS):
        problems.add(
            "ssl.enabled.protocols", f"must be a list of {', '.join(TLS_VERSIONS)}; older versions are insecure."
        )
    return versions


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
