"""The `ssl.*` options as a TlsConfig."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_kafka_sink.network.security.tls_context import TLS13_SUITES, VERSIONS, StoreConfig, TlsConfig, openssl_suite

_STORE_TYPES = ("PEM", "PKCS12", "JKS")
_PROTOCOLS = (*VERSIONS, "TLS")  # what ssl.protocol may be; TLS is the newest

_log = logging.getLogger("spark_kafka_sink.network.security_config")  # there before this module is: see held_log


def parse_tls(given: Mapping[str, str], faults: list[str]) -> TlsConfig:
    return TlsConfig(
        trust=_trust(given, faults),
        identity=_identity(given, faults),
        check_hostname=_check_hostname(given, faults),
        cipher_suites=_cipher_suites(given, faults),
        versions=_versions(given, faults),
    )


def _trust(given: Mapping[str, str], faults: list[str]) -> StoreConfig | None:
    location, pem = given.get("ssl.truststore.location"), given.get("ssl.truststore.certificates")
    kind = _store_type(given, "truststore", faults)
    if not location and not pem:
        _check_no_password(given, "truststore", faults)
        return None
    if location and pem:
        faults.append("ssl.truststore.location and ssl.truststore.certificates exclude each other.")
    return StoreConfig(location, kind, _password(given, "truststore", kind, faults), None, pem or None)


def _identity(given: Mapping[str, str], faults: list[str]) -> StoreConfig | None:
    location, key = given.get("ssl.keystore.location"), given.get("ssl.keystore.key")
    chain = given.get("ssl.keystore.certificate.chain")
    kind = _store_type(given, "keystore", faults)
    if not location and not key and not chain:
        _check_no_password(given, "keystore", faults)
        return None
    if location and (key or chain):
        faults.append("ssl.keystore.location excludes ssl.keystore.key and ssl.keystore.certificate.chain.")
    if not location and not (key and chain):
        faults.append("ssl.keystore.key and ssl.keystore.certificate.chain must be set together.")
    pem = None if location else f"{key}\n{chain}"
    key_password = given.get("ssl.key.password")
    return StoreConfig(location, kind, _password(given, "keystore", kind, faults), key_password, pem)


def _store_type(given: Mapping[str, str], store: str, faults: list[str]) -> str | None:
    name = f"ssl.{store}.type"
    if name not in given:
        return None
    kind = given[name].upper()
    if kind not in _STORE_TYPES:
        faults.append(f"{name} must be one of {', '.join(_STORE_TYPES)}.")
    return kind


def _password(given: Mapping[str, str], store: str, kind: str | None, faults: list[str]) -> str | None:
    name = f"ssl.{store}.password"
    if kind == "PEM" and name in given:
        faults.append(f"{name} has no meaning for PEM" + ("; use ssl.key.password." if store == "keystore" else "."))
    return given.get(name)


def _check_no_password(given: Mapping[str, str], store: str, faults: list[str]) -> None:
    if f"ssl.{store}.password" in given:
        faults.append(f"ssl.{store}.password is set, but there is no ssl.{store}.location.")


def _check_hostname(given: Mapping[str, str], faults: list[str]) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = given.get(name, "https").lower()
    if algorithm not in ("", "https"):
        faults.append(f"{name} must be https, or empty to switch the check off.")
    return algorithm != ""


def _cipher_suites(given: Mapping[str, str], faults: list[str]) -> tuple[str, ...]:
    suites = tuple(_list(given.get("ssl.cipher.suites", "")))
    newest = TLS13_SUITES & set(suites)
    unknown = [name for name in suites if name not in newest and openssl_suite(name) is None]
    faults.extend(f"ssl.cipher.suites: this machine's OpenSSL knows no {name!r}." for name in unknown)
    if newest and newest != TLS13_SUITES:
        _log.warning("ssl.cipher.suites: Python cannot choose among the suites of TLS 1.3; all three stay allowed")
    return suites


def _versions(given: Mapping[str, str], faults: list[str]) -> tuple[str, ...]:
    newest = given.get("ssl.protocol", "TLSv1.3")
    if newest not in _PROTOCOLS:
        faults.append(f"ssl.protocol must be one of {', '.join(_PROTOCOLS)}; older versions are broken.")
    default = ("TLSv1.2",) if newest == "TLSv1.2" else tuple(VERSIONS)
    versions = tuple(_list(given.get("ssl.enabled.protocols", ""))) or default
    if not set(versions) <= set(VERSIONS):
        faults.append(f"ssl.enabled.protocols must be of {', '.join(VERSIONS)}; older versions are broken.")
    return versions


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
