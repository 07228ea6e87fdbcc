"""The `ssl.*` options as a TlsConfig."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_kafka_sink.network.security.tls_context import TLS13_SUITES, VERSIONS, StoreConfig, TlsConfig, openssl_suite
from spark_kafka_sink.network.security_options import default_of, text_of

_STORE_TYPES = ("PEM", "PKCS12", "JKS")
_PROTOCOLS = (*VERSIONS, "TLS")  # what ssl.protocol may be; TLS is the newest

_log = logging.getLogger("spark_kafka_sink.network.security_config")  # there before this module is: see held_log


def parse_tls(given: Mapping[str, str]) -> tuple[TlsConfig, list[str]]:
    """How TLS is used, and what is wrong with its options."""
    trust, of_trust = _trust(given)
    identity, of_identity = _identity(given)
    check_hostname, of_hostname = _check_hostname(given)
    suites, of_suites = _cipher_suites(given)
    versions, of_versions = _versions(given)
    config = TlsConfig(trust, identity, check_hostname, suites, versions)
    return config, [*of_trust, *of_identity, *of_hostname, *of_suites, *of_versions]


def _trust(given: Mapping[str, str]) -> tuple[StoreConfig | None, list[str]]:
    location, pem = given.get("ssl.truststore.location"), given.get("ssl.truststore.certificates")
    is_there = bool(location or pem)
    faults = _faults_of_store(given, "truststore", is_there)
    if not is_there:
        return None, faults
    if location and pem:
        faults.append("ssl.truststore.location and ssl.truststore.certificates exclude each other.")
    password = given.get("ssl.truststore.password")
    return StoreConfig(location, _type(given, "truststore"), password, None, pem or None), faults


def _identity(given: Mapping[str, str]) -> tuple[StoreConfig | None, list[str]]:
    location, key = given.get("ssl.keystore.location"), given.get("ssl.keystore.key")
    chain = given.get("ssl.keystore.certificate.chain")
    is_there = bool(location or key or chain)
    faults = _faults_of_store(given, "keystore", is_there)
    if not is_there:
        return None, faults
    if location and (key or chain):
        faults.append("ssl.keystore.location excludes ssl.keystore.key and ssl.keystore.certificate.chain.")
    if not location and not (key and chain):
        faults.append("ssl.keystore.key and ssl.keystore.certificate.chain must be set together.")
    pem = None if location else f"{key}\n{chain}"
    passwords = given.get("ssl.keystore.password"), given.get("ssl.key.password")
    return StoreConfig(location, _type(given, "keystore"), *passwords, pem), faults


def _type(given: Mapping[str, str], store: str) -> str | None:
    return given[f"ssl.{store}.type"].upper() if f"ssl.{store}.type" in given else None


def _faults_of_store(given: Mapping[str, str], store: str, is_there: bool) -> list[str]:
    """What is wrong with its type and with its password."""
    kind, password = _type(given, store), f"ssl.{store}.password"
    faults = []
    if kind is not None and kind not in _STORE_TYPES:
        faults.append(f"ssl.{store}.type must be one of {', '.join(_STORE_TYPES)}.")
    if password in given and not is_there:
        faults.append(f"{password} is set, but there is no ssl.{store}.location.")
    elif password in given and kind == "PEM":
        instead = "; use ssl.key.password." if store == "keystore" else "."
        faults.append(f"{password} has no meaning for PEM{instead}")
    return faults


def _check_hostname(given: Mapping[str, str]) -> tuple[bool, list[str]]:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = text_of(given, name).lower()
    faults = [] if algorithm in ("", "https") else [f"{name} must be https, or empty to switch the check off."]
    return algorithm != "", faults


def _cipher_suites(given: Mapping[str, str]) -> tuple[tuple[str, ...], list[str]]:
    suites = tuple(_list(given.get("ssl.cipher.suites", "")))
    newest = TLS13_SUITES & set(suites)
    if newest and newest != TLS13_SUITES:
        _log.warning("ssl.cipher.suites: Python cannot choose among the suites of TLS 1.3; all three stay allowed")
    unknown = [name for name in suites if name not in newest and openssl_suite(name) is None]
    return suites, [f"ssl.cipher.suites: this machine's OpenSSL knows no {name!r}." for name in unknown]


def _versions(given: Mapping[str, str]) -> tuple[tuple[str, ...], list[str]]:
    faults = []
    newest = text_of(given, "ssl.protocol")
    if newest not in _PROTOCOLS:
        faults.append(f"ssl.protocol must be one of {', '.join(_PROTOCOLS)}; older versions are broken.")
    default = newest if newest == "TLSv1.2" else default_of("ssl.enabled.protocols")
    versions = tuple(_list(given.get("ssl.enabled.protocols", "")) or _list(default))
    if not set(versions) <= set(VERSIONS):
        faults.append(f"ssl.enabled.protocols must be of {', '.join(VERSIONS)}; older versions are broken.")
    return versions, faults


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
