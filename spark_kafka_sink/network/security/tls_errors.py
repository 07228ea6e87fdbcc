"""What a TLS failure means, and what to do: OpenSSL's reasons in sentences."""

from __future__ import annotations

import ssl

# X509_V_ERR_* of OpenSSL's x509_vfy.h
_NOT_YET_VALID = 9
_EXPIRED = 10
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
_WRONG_NAME = frozenset({62, 64})

_REASONS: dict[str, str] = {
    "WRONG_VERSION_NUMBER": (
        "the other end does not speak TLS: it may be a plaintext listener; compare security.protocol and the port"
    ),
    "RECORD_LAYER_FAILURE": (
        "the other end does not speak TLS: it may be a plaintext listener; compare security.protocol and the port"
    ),
    "HTTP_REQUEST": "the other end speaks HTTP without TLS",
    "UNSUPPORTED_PROTOCOL": "no TLS version in common: compare ssl.enabled.protocols on both sides",
    "TLSV1_ALERT_PROTOCOL_VERSION": "no TLS version in common: compare ssl.enabled.protocols on both sides",
    "NO_PROTOCOLS_AVAILABLE": "ssl.enabled.protocols leaves no TLS version to offer",
    "NO_SHARED_CIPHER": "no cipher suite in common: compare ssl.cipher.suites on both sides",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        "the other end refused the handshake: no cipher suite in common, or it demands a client certificate "
        "(ssl.keystore.*)"
    ),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client gave no certificate although one is required",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker demands a client certificate: set ssl.keystore.*",
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the other end does not know the authority that has signed our certificate: "
        "the broker's truststore must hold the issuer of ssl.keystore.*"
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        "the other end refused our certificate: set ssl.keystore.* to one that the broker's truststore vouches for"
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (
        "the other end refused our certificate: set ssl.keystore.* to one that the broker's truststore vouches for"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired: renew the one of ssl.keystore.*",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "our certificate was revoked: replace the one of ssl.keystore.*",
    "TLSV1_ALERT_ACCESS_DENIED": "our certificate is valid, but its owner has no access",
}


def explain(error: ssl.SSLError, hostname: str) -> str:
    """One sentence: what is wrong and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the TLS handshake failed: {_certificate_fault(error, hostname)}"
    reason = error.reason or str(error)
    meaning = _REASONS.get(reason)
    return f"the TLS handshake failed: {meaning} ({reason})" if meaning else f"the TLS handshake failed: {reason}"


def _certificate_fault(error: ssl.SSLCertVerificationError, hostname: str) -> str:
    code, message = error.verify_code, error.verify_message
    if code == _EXPIRED:
        return "the broker's certificate has expired: it must be renewed there (or this machine's clock is wrong)"
    if code == _NOT_YET_VALID:
        return "the broker's certificate is not valid yet (or this machine's clock is wrong)"
    if code in _UNKNOWN_AUTHORITY:
        return (
            f"the broker's certificate is signed by an authority that is not trusted ({message}): "
            "ssl.truststore.* must hold the issuer's certificate"
        )
    if code in _WRONG_NAME:
        return (
            f"the broker's certificate is not for {hostname!r} ({message}): connect by a name that it holds, correct "
            "advertised.listeners, or set ssl.endpoint.identification.algorithm to an empty value and give up the check"
        )
    return f"the broker's certificate was refused: {message}"
