"""Readers of keystores and truststores in PEM, PKCS#12 and JKS. They return PEM, the form in which OpenSSL loads keys.

The layout of a JKS file (big-endian; strings as written by Java's writeUTF):

    magic FEEDFEED, version 1 or 2, number of entries, entries,
    SHA-1 of (password in UTF-16, "Mighty Aphrodite", all preceding bytes)

    entry 1   alias, time, protected private key, number of certificates, certificates (type if version 2, length, DER)
    entry 2   alias, time, certificate

The private key is PKCS#8 in an envelope: a salt of 20 bytes, the encrypted key, SHA-1 of (password, decrypted key). The
key stream is SHA-1(password, salt), SHA-1(password, previous 20 bytes), ... PKCS#12 needs ciphers that the standard
library lacks, so the optional `cryptography` package reads it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import re
import struct
from dataclasses import dataclass, field
from typing import Any

from spark_kafka_sink.errors import ConfigurationError, MissingDependencyError

_JKS_MAGIC = 0xFEEDFEED
_JKS_WHITENER = b"Mighty Aphrodite"
"""The fixed text that Java hashes along with the password and the content of a JKS file."""
_PRIVATE_KEY_ENTRY, _CERTIFICATE_ENTRY = 1, 2
_SHA1_BYTES = 20
# The object identifier 1.3.6.1.4.1.42.2.17.1.1 in the envelope of a private key.
_JKS_PROTECTION_OID = bytes.fromhex("060a2b060104012a02110101")
_DAMAGED_JKS_MESSAGE = "the JKS file is truncated or damaged"
_PEM_BLOCK_PATTERN = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


@dataclass(frozen=True)
class Store:
    """The content of a keystore or truststore as PEM: a private key, its certificate chain, and trusted authorities."""

    private_key: str = field(default="", repr=False)
    chain: str = ""
    authorities: str = ""
    key_password: str | None = field(default=None, repr=False)


def read_store(data: bytes, *, type_name: str | None, password: str | None, key_password: str | None) -> Store:
    """Read a keystore or truststore. Raise ConfigurationError if that fails; the error contains no secret."""
    store_type = _detect_store_type(data, type_name)
    if store_type == "PEM":
        return read_pem(data.decode("latin-1"), key_password)
    if store_type == "JKS":
        return _read_jks(data, password, key_password)
    return _read_pkcs12(data, password)


def read_pem(text: str, key_password: str | None = None) -> Store:
    r"""Read PEM blocks. A configuration file may have replaced their line breaks with spaces or `\n`.

    All certificates are returned both as the chain and as authorities, because PEM does not distinguish them. Raise
    ConfigurationError if there is more than one private key.
    """
    keys, certificates = [], []
    for label, body in _PEM_BLOCK_PATTERN.findall(text.replace("\\n", "\n")):
        if label == "CERTIFICATE":
            certificates.append(_format_pem(label, body))
        elif label.endswith("PRIVATE KEY"):
            keys.append(_format_pem(label, body))
    if len(keys) > 1:
        raise ConfigurationError("it contains more than one private key")
    all_certificates = "".join(certificates)
    return Store("".join(keys), all_certificates, all_certificates, key_password)


def _format_pem(label: str, body: str) -> str:
    """Format a PEM block with lines of 64 characters."""
    if ":" in body:  # an encrypted key in the traditional format, whose headers need their line breaks
        return f"-----BEGIN {label}-----{body}-----END {label}-----\n"
    text = "".join(body.split())
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def _der_to_pem(label: str, der: bytes) -> str:
    return _format_pem(label, base64.b64encode(der).decode())


def _detect_store_type(data: bytes, type_name: str | None) -> str:
    """Return the type of a store. As in Java, a store that is configured as JKS may be PKCS#12, and vice versa."""
    if type_name == "PEM":
        return "PEM"
    if data[:4] == _JKS_MAGIC.to_bytes(4, "big"):
        return "JKS"
    if data[:1] == b"\x30":
        return "PKCS12"
    if b"-----BEGIN " in data and type_name is None:
        return "PEM"
    raise ConfigurationError(f"it is not a {type_name or 'PEM, PKCS12 or JKS'} file")


class _JksReader:
    """Reads the values of a JKS file in order. Raises ConfigurationError if the file is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def read_exactly(self, size: int) -> bytes:
        if size < 0 or self.position + size > len(self._data):
            raise ConfigurationError(_DAMAGED_JKS_MESSAGE)
        self.position += size
        return self._data[self.position - size : self.position]

    def read_integer(self, layout: str = ">I") -> int:
        integer: int = struct.unpack(layout, self.read_exactly(struct.calcsize(layout)))[0]
        return integer

    def read_string(self) -> bytes:
        return self.read_exactly(self.read_integer(">H"))

    def read_certificate(self, version: int) -> str:
        """Read one of an entry's certificates and return it as PEM."""
        if version == 2 and self.read_string() != b"X.509":
            raise ConfigurationError("it contains a certificate that is not X.509")
        return _der_to_pem("CERTIFICATE", self.read_exactly(self.read_integer()))


def _read_jks(data: bytes, password: str | None, key_password: str | None) -> Store:
    """Read a JKS file. Its first private key is used. Without a password, the file's digest is not verified."""
    if password is not None:
        _verify_jks_digest(data, password)
    reader = _JksReader(data[:-_SHA1_BYTES])
    magic = reader.read_integer()
    version = reader.read_integer()
    if magic != _JKS_MAGIC or version not in (1, 2):
        raise ConfigurationError("the JKS file has an unknown version")
    key_entries: list[tuple[bytes, str]] = []  # envelope, certificate chain
    authorities = ""
    for _ in range(reader.read_integer()):
        entry_type = reader.read_integer()
        reader.read_string()  # alias
        reader.read_integer(">Q")  # time
        if entry_type == _CERTIFICATE_ENTRY:
            authorities += reader.read_certificate(version)
        elif entry_type == _PRIVATE_KEY_ENTRY:
            envelope = reader.read_exactly(reader.read_integer())
            chain = "".join(reader.read_certificate(version) for _ in range(reader.read_integer()))
            key_entries.append((envelope, chain))
        else:
            raise ConfigurationError(_DAMAGED_JKS_MESSAGE)
    if not key_entries:
        return Store(authorities=authorities)
    envelope, chain = key_entries[0]
    private_key = _decrypt_jks_key(envelope, key_password or password)
    return Store(private_key, chain=chain, authorities=authorities)


def _verify_jks_digest(data: bytes, password: str) -> None:
    digest = hashlib.sha1(_to_utf16(password) + _JKS_WHITENER + data[:-_SHA1_BYTES], usedforsecurity=False).digest()
    if not hmac.compare_digest(digest, data[-_SHA1_BYTES:]):
        raise ConfigurationError("the password is wrong, or the JKS file is damaged")


def _decrypt_jks_key(envelope: bytes, password: str | None) -> str:
    """Decrypt a private key and return it as PEM. Raise ConfigurationError if the password is missing or wrong."""
    if password is None:
        raise ConfigurationError("its private key needs a password, and none is set")
    protected_key = _find_protected_key(envelope)
    if len(protected_key) < 2 * _SHA1_BYTES:
        raise ConfigurationError("its private key is not encrypted as in the JKS format")
    salt, encrypted_key = protected_key[:_SHA1_BYTES], protected_key[_SHA1_BYTES:-_SHA1_BYTES]
    stored_digest = protected_key[-_SHA1_BYTES:]
    secret = _to_utf16(password)
    key = _apply_jks_key_stream(encrypted_key, secret, salt)
    # Any password decrypts the key to some bytes. Only the digest shows whether the password is correct.
    digest = hashlib.sha1(secret + key, usedforsecurity=False).digest()
    if not hmac.compare_digest(digest, stored_digest):
        raise ConfigurationError("the password of its private key is wrong")
    return _der_to_pem("PRIVATE KEY", key)


def _find_protected_key(envelope: bytes) -> bytes:
    """Return the salt, the encrypted key and the digest in an envelope; empty if the envelope has another layout."""
    oid_start = envelope.find(_JKS_PROTECTION_OID)
    if oid_start < 0:
        return b""
    # The object identifier is followed by NULL (05 00) and by the octet string with the encrypted key.
    octets_start = envelope.find(b"\x04", oid_start + len(_JKS_PROTECTION_OID))
    return _read_der_content(envelope, octets_start) if octets_start >= 0 else b""


def _apply_jks_key_stream(encrypted_key: bytes, secret: bytes, salt: bytes) -> bytes:
    """Decrypt a key that was encrypted by XOR with a key stream.

    The stream is computed again from the password: SHA-1(password, salt), SHA-1(password, previous block), ...
    """
    key = bytearray()
    stream_block = salt
    for block_start in range(0, len(encrypted_key), _SHA1_BYTES):
        stream_block = hashlib.sha1(secret + stream_block, usedforsecurity=False).digest()
        encrypted_block = encrypted_key[block_start : block_start + _SHA1_BYTES]  # the last block may be shorter
        key += bytes(a ^ b for a, b in zip(encrypted_block, stream_block, strict=False))
    return bytes(key)


def _read_der_content(der: bytes, start: int) -> bytes:
    """Return the content of the DER element at `start`."""
    header_bytes = 2  # the tag, and a length of less than 128
    length = der[start + 1] if start + 1 < len(der) else 0
    if length & 0x80:  # the other bits are the number of length bytes that follow
        header_bytes = 2 + (length & 0x7F)
        length = int.from_bytes(der[start + 2 : start + header_bytes], "big")
    content_start = start + header_bytes
    return der[content_start : content_start + length]


def _to_utf16(password: str) -> bytes:
    return password.encode("utf-16-be")


def _read_pkcs12(data: bytes, password: str | None) -> Store:
    """Read a PKCS#12 file. If it has no private key, all of its certificates are authorities."""
    serialization = _import_cryptography("serialization")
    try:
        pkcs12 = _import_cryptography("serialization.pkcs12").load_pkcs12(data, (password or "").encode())
    except ValueError as error:
        raise ConfigurationError("the password is wrong or missing, or the PKCS#12 file is damaged") from error
    pem = serialization.Encoding.PEM
    certificate = pkcs12.cert.certificate.public_bytes(pem).decode() if pkcs12.cert else ""
    additional_certificates = "".join(cert.certificate.public_bytes(pem).decode() for cert in pkcs12.additional_certs)
    if pkcs12.key is None:
        return Store(authorities=certificate + additional_certificates)
    key_format, no_encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = pkcs12.key.private_bytes(pem, key_format, no_encryption).decode()
    return Store(key, chain=certificate + additional_certificates, authorities=additional_certificates)


def _import_cryptography(module: str) -> Any:
    """Import a module of the optional package. Raise MissingDependencyError if the package is not installed."""
    try:
        return importlib.import_module(f"cryptography.hazmat.primitives.{module}")
    except ImportError as error:
        raise MissingDependencyError(
            'a PKCS#12 file requires the cryptography package: pip install "spark-kafka-sink[pkcs12]". Or convert the '
            "file: openssl pkcs12 -in store.p12 -out store.pem"
        ) from error
