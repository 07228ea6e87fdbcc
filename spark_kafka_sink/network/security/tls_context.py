"""TlsConfig, and the SSLContext that is built from it.

TLS versions before 1.2 are not supported. The broker's certificate is always verified, and so is its host name unless
the user has disabled this check.

OpenSSL loads private keys only from a path. So that keys never appear in a directory, it receives the path of an open
file descriptor (/dev/fd/N), whose file has no name.

The text of an OptionProblem is a predicate, such as "must be true or false.", because it follows the option's name.
A placeholder with an option's name, such as {ssl.key.password}, is replaced with the name as the user writes it. Any
other placeholder is replaced with the value of that name that is passed with the text.
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

from spark_kafka_sink.errors import ConfigurationError, OptionProblem
from spark_kafka_sink.network.security.keystores import Store, read_pem, read_store
from spark_kafka_sink.options.files import build_unreadable_file_problem, read_bounded_file

TLS_VERSIONS: dict[str, ssl.TLSVersion] = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""The supported TLS versions, by the name that the option ssl.enabled.protocols uses."""
TLS13_SUITES = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
"""The cipher suites of TLS 1.3. Python's ssl module cannot enable them individually."""
_PEM_REMEDIES = {
    "ssl.truststore.location": "set {ssl.truststore.certificates} to the certificates in PEM",
    "ssl.keystore.location": (
        "set {ssl.keystore.key} and {ssl.keystore.certificate.chain} to the private key and its certificates in PEM"
    ),
}
"""For each option that must name a file, the remedy if it contains PEM text instead."""

_IANA_SUITE_PATTERN = re.compile(
    r"TLS_(?:(?P<exchange>ECDHE|DHE)_)?(?P<signature>RSA|ECDSA)_WITH_"
    r"(?:AES_(?P<bits>128|256)_(?P<mode>GCM|CBC|CCM)|(?P<chacha>CHACHA20_POLY1305))(?:_(?P<hash>SHA\d*))?"
)


@dataclass(frozen=True)
class StoreConfig:
    """The source of a keystore or truststore: a file, or PEM text in the configuration itself."""

    store_path: str | None = field(default=None, repr=False)
    """The path of a file, which is not read if `pem` is set. It may be a private key that was set by mistake."""
    type_name: str | None = None
    password: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    pem: str | None = field(default=None, repr=False)
    """PEM text, which replaces the file. One of the two must be set."""

    def read(self, option: str) -> Store:
        """Read the keys and certificates. Raise a ConfigurationError about `option` if that fails."""
        try:
            if self.pem is not None:
                return read_pem(self.pem, self.key_password)
            assert self.store_path is not None, "a store requires a path or PEM text"
            return read_store(
                read_bounded_file(self.store_path),
                type_name=self.type_name,
                password=self.password,
                key_password=self.key_password,
            )
        except OSError as error:
            remedy = _PEM_REMEDIES[option]
            raise ConfigurationError(
                build_unreadable_file_problem(
                    option, self.store_path or "", error, "this machine", content_remedy=remedy
                )
            ) from None
        except ConfigurationError as error:
            raise error.with_option(
                option, "is {file}, which cannot be used: {problem}.", file=self.store_path or "PEM text"
            ) from error


@dataclass(frozen=True)
class TlsConfig:
    """A client's TLS settings.

    Without a truststore, the system's default authorities are trusted. Without a keystore, the client presents no
    certificate. An empty `cipher_suites` allows OpenSSL's default suites.
    """

    truststore: StoreConfig | None = None
    keystore: StoreConfig | None = None
    check_hostname: bool = True
    cipher_suites: tuple[str, ...] = ()
    versions: tuple[str, ...] = tuple(TLS_VERSIONS)


def build_client_ssl_context(config: TlsConfig) -> ssl.SSLContext:
    """Read the keystore and truststore and build the SSLContext of a client.

    Raise a ConfigurationError that names the invalid option.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED
    # As in Java, every certificate of the truststore is trusted, even that of an intermediate authority or of a broker.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _set_versions_and_suites(context, config)
    if config.truststore is None:
        context.load_default_certs()
    else:
        _load_truststore(context, config.truststore)
    if config.keystore is not None:
        _load_keystore(context, config.keystore)
    return context


def find_openssl_suite(name: str) -> str | None:
    """Return OpenSSL's name of a TLS 1.2 cipher suite, or None if a client cannot use it or must not use it.

    A suite must be supported by OpenSSL, authenticate the server and encrypt. PSK and SRP suites need a shared secret,
    for which there is no option.

    `name`: either OpenSSL's or IANA's name.
    """
    parts = _IANA_SUITE_PATTERN.fullmatch(name)
    candidate = name if parts is None else _build_openssl_name(parts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.set_ciphers(candidate)
    except ssl.SSLError:
        return None
    # OpenSSL also accepts rules instead of names, such as ALL:@SECLEVEL=0. No suite has such a name.
    is_usable = any(
        suite["name"] == candidate
        and suite["auth"] != "auth-null"
        and suite["symmetric"] is not None
        and not suite["kea"].endswith(("-psk", "-srp"))
        for suite in context.get_ciphers()
    )
    return candidate if is_usable else None


def _build_openssl_name(parts: re.Match[str]) -> str:
    """Build OpenSSL's name from a match of _IANA_SUITE_PATTERN.

    OpenSSL's names omit the mode CBC, the hash of ChaCha20 suites, and RSA key exchange.
    """
    components = [parts["exchange"], parts["signature"]] if parts["exchange"] else []
    if parts["chacha"]:
        return "-".join([*components, "CHACHA20-POLY1305"])
    components.append(f"AES{parts['bits']}")
    if parts["mode"] != "CBC":
        components.append(parts["mode"])
    if parts["hash"]:
        components.append(parts["hash"])
    return "-".join(components)


def _set_versions_and_suites(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Set the TLS versions and cipher suites. As in Java, a TLS version without an allowed suite is disabled."""
    versions = set(config.versions)
    if config.cipher_suites:
        # A suite may be supported on the machine that parsed the options but not on this one. Such suites are ignored.
        openssl_names = [find_openssl_suite(name) for name in config.cipher_suites if name not in TLS13_SUITES]
        supported_names = [name for name in openssl_names if name is not None]
        if supported_names:
            context.set_ciphers(":".join(supported_names))
        else:
            versions.discard("TLSv1.2")
        if not TLS13_SUITES & set(config.cipher_suites):
            versions.discard("TLSv1.3")
    if not versions:
        text = "has no supported cipher suite for any version in {ssl.enabled.protocols}."
        raise ConfigurationError(OptionProblem("ssl.cipher.suites", text))
    # With only two versions, no disabled version can lie between the lowest and the highest enabled one.
    tls_versions = sorted(TLS_VERSIONS[name] for name in versions)
    context.minimum_version, context.maximum_version = tls_versions[0], tls_versions[-1]


def _load_truststore(context: ssl.SSLContext, truststore: StoreConfig) -> None:
    """Trust the certificates in the truststore. Raise ConfigurationError if it has none or cannot be read."""
    option = "ssl.truststore.certificates" if truststore.pem is not None else "ssl.truststore.location"
    authorities = truststore.read(option).authorities
    if not authorities:
        raise ConfigurationError(OptionProblem(option, "has no certificate of an authority."))
    try:
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, TypeError) as error:  # TypeError: a certificate contains a character that is not ASCII
        raise ConfigurationError(OptionProblem(option, "has a certificate that is damaged.")) from error


def _load_keystore(context: ssl.SSLContext, keystore: StoreConfig) -> None:
    option = "ssl.keystore.key" if keystore.pem is not None else "ssl.keystore.location"
    content = keystore.read(option)
    if not content.private_key or not content.chain:
        raise ConfigurationError(OptionProblem(option, "needs a private key and its certificate chain."))
    with _anonymous_file(content.chain) as chain_path, _anonymous_file(content.private_key) as key_path:
        _load_cert_chain(context, chain_path, key_path, content.key_password, option)


def _load_cert_chain(
    context: ssl.SSLContext, chain_path: str, key_path: str, password: str | None, option: str
) -> None:
    """Load the client's certificate chain and private key. Raise a ConfigurationError about `option` if that fails."""

    def get_password() -> str:
        # OpenSSL calls this function for an encrypted key. Without it, OpenSSL would prompt on the terminal.
        return password or ""

    try:
        context.load_cert_chain(chain_path, key_path, password=get_password)
    except (ssl.SSLError, ValueError) as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            text = "cannot be used: the private key does not belong to the first certificate of the chain."
        elif any(reason in str(error) for reason in ("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK")):
            text = (
                "cannot be used: this machine's OpenSSL rejects a certificate of the chain as too weak. Use a "
                "certificate with an RSA key of at least 2048 bits or an EC key, and signatures with SHA-256."
            )
        else:
            text = (
                "cannot be used: the private key or its certificate chain is damaged, or {ssl.key.password} is wrong "
                "or missing."
            )
        raise ConfigurationError(OptionProblem(option, text)) from error


@contextlib.contextmanager
def _anonymous_file(text: str) -> Iterator[str]:
    """Write the text to a file without a name, and yield a path from which OpenSSL can read it once.

    The file is in memory where the platform supports that. Otherwise, it is a temporary file whose name is removed
    before anything is written to it.
    """
    with _open_anonymous_file() as file:
        file.write(text.encode())
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"


def _open_anonymous_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("identity", os.MFD_CLOEXEC), "wb+")
    return tempfile.TemporaryFile()
