"""Keys and certificates from PEM, PKCS#12 and JKS, as PEM: the form that OpenSSL takes.

A JKS file (big endian; strings as Java's writeUTF):

    magic FEEDFEED, version 1 or 2, number of entries, entries,
    SHA-1 over (password in UTF-16, "Mighty Aphrodite", all before)

    entry 1   alias, time, protected private key, number of certificates, certificates (type if version 2, length, DER)
    entry 2   alias, time, certificate

The private key is PKCS#8 in an envelope: salt of 20 bytes, data, SHA-1 over (password, data in clear). Its key stream
is SHA-1(password, salt), SHA-1(password, the 20 bytes before), ... PKCS#12 needs ciphers that Python lacks: the
optional package `cryptography` reads it.
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
_PRIVATE_KEY_ENTRY, _CERTIFICATE_ENTRY = 1, 2
_SHA1_BYTES = 20
# The object identifier 1.3.6.1.4.1.42.2.17.1.1 of the envelope around a private key.
_JKS_PROTECTOR = bytes.fromhex("060a2b060104012a02110101")
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


@dataclass(frozen=True)
class Store:
    """All as PEM. `chain` belongs to `private_key`; `authorities` are trusted."""

    private_key: str = field(default="", repr=False)
    chain: str = ""
    authorities: str = ""
    key_password: str | None = field(default=None, repr=False)


def read_store(data: bytes, *, type_name: str | None, password: str | None, key_password: str | None) -> Store:
    """ConfigurationError: the words name no secret."""
    kind = _kind(data, type_name)
    if kind == "PEM":
        return read_pem(data.decode("latin-1"), key_password)
    if kind == "JKS":
        return _read_jks(data, password, key_password)
    return _read_pkcs12(data, password)


def read_pem(text: str, key_password: str | None = None) -> Store:
    """Line breaks may have become blanks, or "\\n", on the way through a configuration."""
    keys, certificates = [], []
    for label, body in _PEM_BLOCK.findall(text.replace("\\n", "\n")):
        if label == "CERTIFICATE":
            certificates.append(_rewrapped(label, body))
        elif label.endswith("PRIVATE KEY"):
            keys.append(_rewrapped(label, body))
    if len(keys) > 1:
        raise ConfigurationError("has more than one private key")
    joined = "".join(certificates)
    return Store("".join(keys), joined, joined, key_password)


def _rewrapped(label: str, body: str) -> str:
    if ":" in body:  # headers of an old encrypted key: their lines matter
        return f"-----BEGIN {label}-----{body}-----END {label}-----\n"
    text = "".join(body.split())
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def _pem(label: str, der: bytes) -> str:
    return _rewrapped(label, base64.b64encode(der).decode())


def _kind(data: bytes, type_name: str | None) -> str:
    """Like Java, a keystore said to be JKS may be PKCS#12, and the other way round."""
    if type_name == "PEM":
        return "PEM"
    if data[:4] == _JKS_MAGIC.to_bytes(4, "big"):
        return "JKS"
    if data[:1] == b"\x30":
        return "PKCS12"
    if b"-----BEGIN " in data and type_name is None:
        return "PEM"
    raise ConfigurationError(f"is no {type_name or 'PEM, PKCS12 or JKS'} file")


class _JksReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.position + size > len(self._data):
            raise ConfigurationError("is a JKS file that is cut off or damaged")
        self.position += size
        return self._data[self.position - size : self.position]

    def number(self, layout: str = ">I") -> int:
        number: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return number

    def text(self) -> bytes:
        return self.take(self.number(">H"))

    def certificate(self, version: int) -> str:
        if version == 2 and self.text() != b"X.509":
            raise ConfigurationError("has a certificate that is not X.509")
        return _pem("CERTIFICATE", self.take(self.number()))


def _read_jks(data: bytes, password: str | None, key_password: str | None) -> Store:
    if password is not None:
        _check_jks(data, password)
    reader = _JksReader(data[:-_SHA1_BYTES])
    if reader.number() != _JKS_MAGIC or (version := reader.number()) not in (1, 2):
        raise ConfigurationError("is a JKS file of an unknown version")
    keys: list[tuple[bytes, str]] = []
    authorities = ""
    for _ in range(reader.number()):
        kind = reader.number()
        reader.text()
        reader.number(">Q")
        if kind == _CERTIFICATE_ENTRY:
            authorities += reader.certificate(version)
        elif kind == _PRIVATE_KEY_ENTRY:
            protected = reader.take(reader.number())
            keys.append((protected, "".join(reader.certificate(version) for _ in range(reader.number()))))
        else:
            raise ConfigurationError("is a JKS file that is cut off or damaged")
    if not keys:
        return Store(authorities=authorities)
    protected, chain = keys[0]
    return Store(_open_jks_key(protected, key_password or password), chain, authorities)


def _check_jks(data: bytes, password: str) -> None:
    digest = hashlib.sha1(_utf16(password) + _JKS_WHITENER + data[:-_SHA1_BYTES], usedforsecurity=False).digest()
    if not hmac.compare_digest(digest, data[-_SHA1_BYTES:]):
        raise ConfigurationError("has another password, or is damaged")


def _open_jks_key(envelope: bytes, password: str | None) -> str:
    if password is None:
        raise ConfigurationError("needs a password for its private key")
    found = envelope.find(_JKS_PROTECTOR)
    # After the object identifier: NULL (05 00), then the octet string with the protected key.
    start = envelope.find(b"\x04", found + len(_JKS_PROTECTOR)) if found >= 0 else -1
    protected = _octet_string(envelope, start) if start >= 0 else b""
    if len(protected) < 2 * _SHA1_BYTES:
        raise ConfigurationError("has a private key under a protection that is not JKS's own")
    stream, data = protected[:_SHA1_BYTES], protected[_SHA1_BYTES:-_SHA1_BYTES]
    secret, clear = _utf16(password), bytearray()
    for position in range(0, len(data), _SHA1_BYTES):
        stream = hashlib.sha1(secret + stream, usedforsecurity=False).digest()
        clear += bytes(a ^ b for a, b in zip(data[position : position + _SHA1_BYTES], stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + clear, usedforsecurity=False).digest(), protected[-_SHA1_BYTES:]):
        raise ConfigurationError("has another password for its private key")
    return _pem("PRIVATE KEY", bytes(clear))


def _octet_string(der: bytes, start: int) -> bytes:
    """The content of the DER element at `start`."""
    length, header = (der[start + 1], 2) if start + 1 < len(der) else (0, 2)
    if length & 0x80:
        header = 2 + (length & 0x7F)
        length = int.from_bytes(der[start + 2 : start + header], "big")
    return der[start + header : start + header + length]


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")


def _read_pkcs12(data: bytes, password: str | None) -> Store:
    serialization = _cryptography("serialization")
    try:
        pkcs12 = _cryptography("serialization.pkcs12").load_pkcs12(data, (password or "").encode())
    except ValueError as error:
        raise ConfigurationError("has another password, or is no PKCS#12 file that we can read") from error
    pem = serialization.Encoding.PEM
    chain = pkcs12.cert.certificate.public_bytes(pem).decode() if pkcs12.cert else ""
    others = "".join(other.certificate.public_bytes(pem).decode() for other in pkcs12.additional_certs)
    if pkcs12.key is None:
        return Store(authorities=chain + others)
    form, clear = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = pkcs12.key.private_bytes(pem, form, clear).decode()
    return Store(key, chain + others, others)


def _cryptography(module: str) -> Any:
    try:
        return importlib.import_module(f"cryptography.hazmat.primitives.{module}")
    except ImportError as error:
        raise MissingDependencyError(
            "is a PKCS#12 file: install spark-kafka-sink[pkcs12], or convert it: "
            "openssl pkcs12 -in store.p12 -out store.pem"
        ) from error
