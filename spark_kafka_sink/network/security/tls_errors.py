"""Descriptions of TLS errors: the cause and the remedy for OpenSSL's error reasons."""

from __future__ import annotations

import ssl

# The values of X509_V_ERR_* in OpenSSL's x509_vfy.h.
_NOT_YET_VALID_ERROR = 9
_EXPIRED_ERROR = 10
_UNTRUSTED_ISSUER_ERRORS = frozenset({2, 18, 19, 20, 21})
_HOST_MISMATCH_ERRORS = frozenset({62, 64})

_BROKER_HOSTNAME_REMEDY = (
    "connect with a name that is in the certificate, correct advertised.listeners, or set "
    "ssl.endpoint.identification.algorithm to an empty value to disable the check"
)
_REASON_DESCRIPTIONS: dict[str, str] = {
    "WRONG_VERSION_NUMBER": (
        "the peer does not speak TLS: check that security.protocol matches the port, which may be a plaintext listener"
    ),
    "RECORD_LAYER_FAILURE": (
        "the peer does not speak TLS: check that security.protocol matches the port, which may be a plaintext listener"
    ),
    "HTTP_REQUEST": "the peer speaks HTTP without TLS",
    "UNSUPPORTED_PROTOCOL": "no TLS version in common: compare ssl.enabled.protocols on both sides",
    "TLSV1_ALERT_PROTOCOL_VERSION": "no TLS version in common: compare ssl.enabled.protocols on both sides",
    "NO_PROTOCOLS_AVAILABLE": "ssl.enabled.protocols allows no TLS version that this machine's OpenSSL supports",
    "NO_CIPHERS_AVAILABLE": (
        "this machine's OpenSSL allows no suite of ssl.cipher.suites, for example because of its security level: add "
        "other suites, or remove the option"
    ),
    "NO_SHARED_CIPHER": "no cipher suite in common: compare ssl.cipher.suites on both sides",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        "the peer rejected the handshake: there is no cipher suite in common, or the peer requires a client "
        "certificate (ssl.keystore.*)"
    ),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate, which the listener requires",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker requires a client certificate: set ssl.keystore.*",
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the peer does not trust the authority that signed the certificate of ssl.keystore.*: "
        "add the authority to the broker's truststore"
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        "the peer rejected the certificate of ssl.keystore.*: use a certificate that the broker's truststore trusts"
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (
        "the peer rejected the certificate of ssl.keystore.*: use a certificate that the broker's truststore trusts"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of ssl.keystore.* has expired: renew it",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the certificate of ssl.keystore.* was revoked: replace it",
    "TLSV1_ALERT_ACCESS_DENIED": "the certificate of ssl.keystore.* is valid, but its owner is not allowed to connect",
}


def describe_tls_error(error: ssl.SSLError, hostname: str) -> str:
    """Describe why a TLS handshake failed and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = describe_certificate_error(
            error,
            hostname,
            server="broker",
            truststore="ssl.truststore.*",
            hostname_remedy=_BROKER_HOSTNAME_REMEDY,
        )
        return f"the TLS handshake failed: {problem}"
    reason = error.reason or str(error)
    description = _REASON_DESCRIPTIONS.get(reason)
    if description is None:
        return f"the TLS handshake failed: {reason}"
    return f"the TLS handshake failed: {description} ({reason})"


def describe_certificate_error(
    error: ssl.SSLCertVerificationError, hostname: str, *, server: str, truststore: str, hostname_remedy: str
) -> str:
    """Describe why a server's certificate was not accepted for `hostname`, and what to do about it.

    `server`: the owner of the certificate, such as "broker".
    `truststore`: the names of the options with the trusted certificates.
    `hostname_remedy`: what to do if the certificate is for another host name.
    """
    code, message = error.verify_code, error.verify_message
    if code == _EXPIRED_ERROR:
        return f"the {server}'s certificate has expired: renew it on the {server}, or correct the clock of this machine"
    if code == _NOT_YET_VALID_ERROR:
        return f"the {server}'s certificate is not valid yet: check the {server}'s clock and this machine's"
    if code in _UNTRUSTED_ISSUER_ERRORS:
        return (
            f"the {server}'s certificate is signed by an authority that is not trusted ({message}): "
            f"add the issuer's certificate to {truststore}"
        )
    if code in _HOST_MISMATCH_ERRORS:
        return f"the {server}'s certificate is not valid for {hostname!r} ({message}): {hostname_remedy}"
    return f"the {server}'s certificate was rejected: {message}"
