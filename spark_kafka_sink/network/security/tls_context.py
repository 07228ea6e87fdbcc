"""TlsConfig, and the SSLContext that OpenSSL needs for it.

Nothing below TLS 1.2, certificates are always verified, and the name unless the user has switched that off. OpenSSL
takes a private key from a path only: it gets that of an open descriptor, whose file has no name in any directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from spark_kafka_sink.errors import ConfigurationError, OptionFault
from spark_kafka_sink.network.security.keystores import Store, read_pem, read_store
from spark_kafka_sink.options.files import read_regular_file

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
TLS13_SUITES = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})

_IANA_SUITE = re.compile(
    r"TLS_(?:(?P<exchange>ECDHE|DHE)_)?(?P<signature>RSA|ECDSA)_WITH_"
    r"(?:AES_(?P<bits>128|256)_(?P<mode>GCM|CBC|CCM)|(?P<chacha>CHACHA20_POLY1305))(?:_(?P<hash>SHA\d*))?"
)


@dataclass(frozen=True)
class StoreConfig:
    """Where keys or certificates are: in a file, or in the configuration itself."""

    location: str | None = None
    type_name: str | None = None
    password: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    pem: str | None = field(default=None, repr=False)

    def read(self, option: str) -> Store:
        """`option` is named in errors."""
        try:
            if self.pem is not None:
                return read_pem(self.pem, self.key_password)
            assert self.location is not None
            return read_store(
                read_regular_file(self.location),
                type_name=self.type_name,
                password=self.password,
                key_password=self.key_password,
            )
        except OSError as error:
            values = {"file": self.location, "reason": error.strerror}
            raise ConfigurationError(
                OptionFault(option, "is {file}, which cannot be read: {reason}.", values)
            ) from error
        except ConfigurationError as error:
            values = {"file": self.location or "a PEM text", "problem": str(error)}
            raise type(error)(OptionFault(option, "is {file}, which {problem}.", values)) from error


@dataclass(frozen=True)
class TlsConfig:
    trust: StoreConfig | None = None
    identity: StoreConfig | None = None
    check_hostname: bool = True
    cipher_suites: tuple[str, ...] = ()
    versions: tuple[str, ...] = tuple(VERSIONS)


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """Reads the files. ConfigurationError says which option is at fault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED
    # As in Java, whatever is in the truststore is trusted: also an intermediate authority, or the broker's certificate.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _set_versions(context, config)
    if config.trust is None:
        context.load_default_certs()
    else:
        _trust(context, config.trust)
    if config.identity is not None:
        _identify(context, config.identity)
    return context


def openssl_suite(name: str) -> str | None:
    """OpenSSL's name of a suite before TLS 1.3, given by that name or by IANA's; None if there is none."""
    parts = _IANA_SUITE.fullmatch(name)
    candidate = name if parts is None else _openssl_name(parts)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(candidate)
    except ssl.SSLError:
        return None
    return candidate


def _openssl_name(parts: re.Match[str]) -> str:
    words = [parts["exchange"], parts["signature"]] if parts["exchange"] else []
    if parts["chacha"]:
        return "-".join([*words, "CHACHA20-POLY1305"])
    words.append(f"AES{parts['bits']}")
    if parts["mode"] != "CBC":
        words.append(parts["mode"])
    return "-".join([*words, parts["hash"]] if parts["hash"] else words)


def _set_versions(context: ssl.SSLContext, config: TlsConfig) -> None:
    """A list of suites decides about versions too, as in Java: without a suite of TLS 1.3 there is no TLS 1.3."""
    versions = set(config.versions)
    if config.cipher_suites:
        older = [openssl_suite(name) for name in config.cipher_suites if name not in TLS13_SUITES]
        if older:
            context.set_ciphers(":".join(name for name in older if name))
        else:
            versions.discard("TLSv1.2")
        if not TLS13_SUITES & set(config.cipher_suites):
            versions.discard("TLSv1.3")
    if not versions:
        raise ConfigurationError(OptionFault("ssl.cipher.suites", "has no suite for any of {ssl.enabled.protocols}."))
    chosen = sorted(VERSIONS[name] for name in versions)
    context.minimum_version, context.maximum_version = chosen[0], chosen[-1]


def _trust(context: ssl.SSLContext, store: StoreConfig) -> None:
    option = "ssl.truststore.certificates" if store.pem is not None else "ssl.truststore.location"
    authorities = store.read(option).authorities
    if not authorities:
        raise ConfigurationError(OptionFault(option, "has no certificate of an authority."))
    try:
        context.load_verify_locations(cadata=authorities)
    except ssl.SSLError as error:
        raise ConfigurationError(OptionFault(option, "has a certificate that is damaged.")) from error


def _identify(context: ssl.SSLContext, store: StoreConfig) -> None:
    option = "ssl.keystore.key" if store.pem is not None else "ssl.keystore.location"
    content = store.read(option)
    if not content.private_key or not content.chain:
        raise ConfigurationError(OptionFault(option, "needs a private key and its certificate chain."))
    with _nameless_file(content.chain) as chain, _nameless_file(content.private_key) as key:
        _load_identity(context, (chain, key), content.key_password, option)


def _load_identity(context: ssl.SSLContext, paths: tuple[str, str], password: str | None, option: str) -> None:
    """`paths` of the chain and of the key."""

    def answer() -> str:
        # OpenSSL asks only for an encrypted key. Without this it would ask on the terminal.
        return password or ""

    try:
        context.load_cert_chain(*paths, password=answer)
    except (ssl.SSLError, ValueError) as error:
        fault = (
            "is for another certificate than the chain's first"
            if "KEY_VALUES_MISMATCH" in str(error)
            else "or its certificate chain is damaged, or {ssl.key.password} is wrong or missing"
        )
        raise ConfigurationError(OptionFault(option, f"cannot be used: the private key {fault}.")) from error


@contextlib.contextmanager
def _nameless_file(text: str) -> Iterator[str]:
    """A path that OpenSSL can open once, to a file in memory; where there are none, to one whose name is gone before
    anything is written."""
    with _in_memory() as file:
        file.write(text.encode())
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"


def _in_memory() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("identity", os.MFD_CLOEXEC), "wb+")
    return tempfile.TemporaryFile()
