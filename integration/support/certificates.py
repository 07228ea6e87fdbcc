"""Certificates for tests: an authority, a valid and an expired node, a client, and an untrusted authority."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def write_certificates(folder: Path) -> None:
    """Write ca.pem, node.pem, expired.pem, client.pem (key and chain in one file) and stranger-ca.pem."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, untrusted_authority = _create_authority("test authority"), _create_authority("an untrusted authority")
    (folder / "ca.pem").write_bytes(_encode_pem(authority.certificate))
    (folder / "stranger-ca.pem").write_bytes(_encode_pem(untrusted_authority.certificate))
    # Only for `localhost`: for a client that connects to 127.0.0.1 the name does not match.
    (folder / "node.pem").write_bytes(_create_signed_pem(authority, "node", names=["localhost"]))
    (folder / "expired.pem").write_bytes(_create_signed_pem(authority, "expired", names=["localhost"], expired=True))
    (folder / "client.pem").write_bytes(_create_signed_pem(authority, "client", names=[]))


def _create_authority(common_name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = _create_certificate_builder(name, name, key.public_key(), expired=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    builder = builder.add_extension(_build_key_usage(signs_certificates=True), critical=True)
    return Authority(name, key, builder.sign(key, hashes.SHA256()))


def _create_signed_pem(authority: Authority, common_name: str, *, names: list[str], expired: bool = False) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = _create_certificate_builder(subject, authority.name, key.public_key(), expired=expired)
    if names:
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(alternatives, critical=False)
    # Strict verifiers, such as Python 3.13 and later, require the identifier of the signing key.
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    builder = builder.add_extension(_build_key_usage(signs_certificates=False), critical=True)
    certificate = builder.sign(authority.key, hashes.SHA256())
    # Kafka reads PKCS#8 keys only.
    private_key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private_key_pem + _encode_pem(certificate) + _encode_pem(authority.certificate)


def _create_certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, expired: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * DAY)
        .not_valid_after(now - DAY if expired else now + 30 * DAY)
    )


def _build_key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _encode_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
