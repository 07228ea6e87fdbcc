"""The `ssl.*` options as a TlsConfig."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_kafka_sink.errors import OptionFaults
from spark_kafka_sink.network.security.tls_context import TLS13_SUITES, VERSIONS, StoreConfig, TlsConfig, openssl_suite
from spark_kafka_sink.network.security_options import default_of, text_of

_STORE_TYPES = ("PEM", "PKCS12", "JKS")
_PROTOCOLS = (*VERSIONS, "TLS")  # what ssl.protocol may be; TLS is the newest

_log = logging.getLogger("spark_kafka_sink.network.security_config")  # there before this module is: see defer_log


def parse_tls(given: Mapping[str, str], faults: OptionFaults) -> TlsConfig:
    """How TLS is used. `faults` get what is wrong with its options."""
    return TlsConfig(
        _trust(given, faults),
        _identity(given, faults),
        _check_hostname(given, faults),
        _cipher_suites(given, faults),
        _versions(given, faults),
    )


def _trust(given: Mapping[str, str], faults: OptionFaults) -> StoreConfig | None:
    location, pem = given.get("ssl.truststore.location"), given.get("ssl.truststore.certificates")
    is_there = bool(location or pem)
    _check_store(given, "truststore", is_there, faults)
    if not is_there:
        return None
    if location and pem:
        faults.add("ssl.truststore.location", "cannot be set together with {ssl.truststore.certificates}.")
    password = given.get("ssl.truststore.password")
    return StoreConfig(location, _type(given, "truststore"), password, None, pem or None)


def _identity(given: Mapping[str, str], faults: OptionFaults) -> StoreConfig | None:
    location, key = given.get("ssl.keystore.location"), given.get("ssl.keystore.key")
    chain = given.get("ssl.keystore.certificate.chain")
    is_there = bool(location or key or chain)
    _check_store(given, "keystore", is_there, faults)
    if not is_there:
        return None
    if location and (key or chain):
        faults.add(
            "ssl.keystore.location",
            "cannot be set together with {ssl.keystore.key} and {ssl.keystore.certificate.chain}.",
        )
    if not location and not (key and chain):
        faults.add("ssl.keystore.key", "and {ssl.keystore.certificate.chain} must be set together.")
    pem = None if location else f"{key}\n{chain}"
    passwords = given.get("ssl.keystore.password"), given.get("ssl.key.password")
    return StoreConfig(location, _type(given, "keystore"), *passwords, pem)


def _type(given: Mapping[str, str], store: str) -> str | None:
    return given[f"ssl.{store}.type"].upper() if f"ssl.{store}.type" in given else None


def _check_store(given: Mapping[str, str], store: str, is_there: bool, faults: OptionFaults) -> None:
    """Check the type and the password of a keystore or truststore."""
    kind, password = _type(given, store), f"ssl.{store}.password"
    if kind is not None and kind not in _STORE_TYPES:
        faults.add(f"ssl.{store}.type", f"must be one of {', '.join(_STORE_TYPES)}.")
    if password in given and not is_there:
        faults.add(password, f"is set, but there is no {{ssl.{store}.location}}.")
    elif password in given and kind == "PEM":
        instead = "; use {ssl.key.password}." if store == "keystore" else "."
        faults.add(password, f"has no meaning for PEM{instead}")


def _check_hostname(given: Mapping[str, str], faults: OptionFaults) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = text_of(given, name).lower()
    if algorithm not in ("", "https"):
        faults.add(name, "must be https, or empty to switch the check off.")
    return algorithm != ""


def _cipher_suites(given: Mapping[str, str], faults: OptionFaults) -> tuple[str, ...]:
    suites = tuple(_list(given.get("ssl.cipher.suites", "")))
    newest = TLS13_SUITES & set(suites)
    if newest and newest != TLS13_SUITES:
        _log.warning("ssl.cipher.suites: Python cannot choose among the suites of TLS 1.3; all three stay allowed")
    for name in suites:
        if name not in newest and openssl_suite(name) is None:
            faults.add("ssl.cipher.suites", "has {name!r}, which this machine's OpenSSL does not support.", name=name)
    return suites


def _versions(given: Mapping[str, str], faults: OptionFaults) -> tuple[str, ...]:
    newest = text_of(given, "ssl.protocol")
    if newest not in _PROTOCOLS:
        faults.add("ssl.protocol", f"must be one of {', '.join(_PROTOCOLS)}; older versions are broken.")
    default = newest if newest == "TLSv1.2" else default_of("ssl.enabled.protocols")
    versions = tuple(_list(given.get("ssl.enabled.protocols", "")) or _list(default))
    if not set(versions) <= set(VERSIONS):
        faults.add("ssl.enabled.protocols", f"must be of {', '.join(VERSIONS)}; older versions are broken.")
    return versions


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
